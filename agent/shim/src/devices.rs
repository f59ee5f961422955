//! Devices of a container: the nodes in /dev and the cgroup's device filter.
//!
//! Containers may keep MKNOD, so the filter is what keeps them off the host's
//! disks. It is a BPF program on the container's cgroup (kernel 4.15).

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Mode};

use crate::sys;

/// Kind, major and minor number of a device; `None` is any minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) block: bool,
    pub(crate) major: u32,
    pub(crate) minor: Option<u32>,
}

/// Nodes every container has: name, major, minor.
pub(crate) const NODES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Makes a device node for everyone's use.
pub(crate) fn make(dev: BorrowedFd<'_>, name: &str, major: u32, minor: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    let number = rustix::fs::makedev(major, minor);
    Ok(rustix::fs::mknodat(
        dev,
        name,
        FileType::CharacterDevice,
        mode,
        number,
    )?)
}

/// Restricts a cgroup to the default devices and `extra`.
pub(crate) fn restrict(cgroup: BorrowedFd<'_>, extra: &[Rule]) -> io::Result<()> {
    let mut rules: Vec<Rule> = NODES
        .iter()
        .map(|(_, major, minor)| Rule {
            block: false,
            major: *major,
            minor: Some(*minor),
        })
        .collect();
    // /dev/console, /dev/ptmx and every pseudo terminal.
    for (major, minor) in [(5, Some(1)), (5, Some(2)), (136, None)] {
        rules.push(Rule {
            block: false,
            major,
            minor,
        });
    }
    rules.extend_from_slice(extra);
    sys::attach_device_program(cgroup, &program(&rules))
}

const TYPE_BLOCK: u32 = 1;
const TYPE_CHAR: u32 = 2;
const ACCESS_MKNOD: u32 = 1;

/// One eBPF instruction: opcode, registers, offset, immediate.
fn instruction(opcode: u8, dst: u8, src: u8, offset: i16, immediate: u32) -> u64 {
    u64::from(opcode)
        | u64::from(dst) << 8
        | u64::from(src) << 12
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(immediate) << 32
}

/// r1 points at `struct bpf_cgroup_dev_ctx { access_type, major, minor }`,
/// access_type being `access << 16 | type`. Returns 1 to allow.
fn program(rules: &[Rule]) -> Vec<u64> {
    const LOAD_WORD: u8 = 0x61;
    const MOVE_IMMEDIATE: u8 = 0xb7;
    const MOVE_REGISTER: u8 = 0xbf;
    const AND_IMMEDIATE: u8 = 0x57;
    const SHIFT_RIGHT: u8 = 0x77;
    const JUMP_NOT_EQUAL: u8 = 0x55;
    const EXIT: u8 = 0x95;
    let mut code = vec![
        instruction(LOAD_WORD, 2, 1, 0, 0),
        instruction(LOAD_WORD, 4, 1, 4, 0),
        instruction(LOAD_WORD, 5, 1, 8, 0),
        instruction(MOVE_REGISTER, 3, 2, 0, 0),
        instruction(AND_IMMEDIATE, 2, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, 3, 0, 0, 16),
        // mknod alone is harmless: opening the node is what is checked.
        instruction(JUMP_NOT_EQUAL, 3, 0, 2, ACCESS_MKNOD),
        instruction(MOVE_IMMEDIATE, 0, 0, 0, 1),
        instruction(EXIT, 0, 0, 0, 0),
    ];
    for rule in rules {
        let kind = if rule.block { TYPE_BLOCK } else { TYPE_CHAR };
        let tests = if rule.minor.is_some() { 3 } else { 2 };
        code.push(instruction(JUMP_NOT_EQUAL, 2, 0, tests + 1, kind));
        code.push(instruction(JUMP_NOT_EQUAL, 4, 0, tests, rule.major));
        if let Some(minor) = rule.minor {
            code.push(instruction(JUMP_NOT_EQUAL, 5, 0, 2, minor));
        }
        code.push(instruction(MOVE_IMMEDIATE, 0, 0, 0, 1));
        code.push(instruction(EXIT, 0, 0, 0, 0));
    }
    code.push(instruction(MOVE_IMMEDIATE, 0, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the few instructions that `program` emits.
    fn run(code: &[u64], context: [u32; 3]) -> u64 {
        let mut registers = [0_u64; 11];
        let mut at = 0;
        loop {
            let op = code[at];
            let (dst, src) = ((op >> 8 & 15) as usize, (op >> 12 & 15) as usize);
            let offset = usize::from((op >> 16 & 0xffff) as u16);
            let immediate = op >> 32;
            at += 1;
            match op & 0xff {
                0x61 => registers[dst] = u64::from(context[offset / 4]),
                0xb7 => registers[dst] = immediate,
                0xbf => registers[dst] = registers[src],
                0x57 => registers[dst] &= immediate,
                0x77 => registers[dst] >>= immediate,
                0x55 if registers[dst] != immediate => at += offset,
                0x55 => {}
                0x95 => return registers[0],
                other => panic!("unexpected opcode {other:#x}"),
            }
        }
    }

    #[test]
    fn only_listed_devices_may_be_opened() {
        let rules = [
            Rule {
                block: false,
                major: 1,
                minor: Some(3),
            },
            Rule {
                block: false,
                major: 136,
                minor: None,
            },
            Rule {
                block: true,
                major: 7,
                minor: Some(0),
            },
        ];
        let code = program(&rules);
        let open = |kind: u32, major, minor| run(&code, [2 << 16 | kind, major, minor]);
        assert_eq!(open(2, 1, 3), 1);
        assert_eq!(open(2, 136, 99), 1);
        assert_eq!(open(1, 7, 0), 1);
        assert_eq!(open(1, 1, 3), 0);
        assert_eq!(open(2, 1, 1), 0);
        assert_eq!(open(1, 8, 0), 0);
        assert_eq!(run(&code, [1 << 16 | 1, 8, 0]), 1);
    }
}
