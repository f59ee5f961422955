//! Capability sets: names, the default set, and applying one. Pure but for [`apply`].

use std::io;

use crate::sys;

/// Names in the order of their numbers (`linux/capability.h`).
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a container has unless it asks otherwise.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// A set of capabilities, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caps(pub(crate) u64);

/// A name that is no capability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown capability {name:?}")]
pub(crate) struct UnknownCapability {
    name: String,
}

impl Caps {
    /// Every capability this program knows.
    pub(crate) const ALL: Self = Self((1 << NAMES.len()) - 1);

    /// The set for a container. As in Kubernetes, `ALL` is applied first, so
    /// `drop ALL, add X` leaves X.
    pub(crate) fn of(
        privileged: bool,
        add: &[String],
        drop: &[String],
    ) -> Result<Self, UnknownCapability> {
        if privileged {
            return Ok(Self::ALL);
        }
        let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
        let mut set = DEFAULT
            .iter()
            .fold(0, |set, name| set | bit(name).unwrap_or_default());
        if add.iter().any(is_all) {
            set = Self::ALL.0;
        }
        if drop.iter().any(is_all) {
            set = 0;
        }
        for name in add.iter().filter(|name| !is_all(name)) {
            set |= bit(name).ok_or_else(|| UnknownCapability { name: name.clone() })?;
        }
        for name in drop.iter().filter(|name| !is_all(name)) {
            set &= !bit(name).ok_or_else(|| UnknownCapability { name: name.clone() })?;
        }
        Ok(Self(set))
    }

    fn has(self, number: usize) -> bool {
        self.0 >> number & 1 == 1
    }

    /// Whether the set has a capability, by name without prefix.
    pub(crate) fn contains(self, name: &str) -> bool {
        bit(name).is_some_and(|bit| self.0 & bit != 0)
    }
}

fn bit(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES
        .iter()
        .position(|known| *known == bare)
        .map(|number| 1 << number)
}

/// Drops everything outside `caps` from the bounding set. Must come while the
/// process still has SETPCAP.
pub(crate) fn limit_bounding(caps: Caps) -> io::Result<()> {
    for number in (0..NAMES.len()).filter(|number| !caps.has(*number)) {
        match sys::prctl(libc::PR_CAPBSET_DROP, number as u64, 0) {
            // The kernel does not know it, so nobody has it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Makes `caps` (as far as this process has them) the permitted and effective
/// set. The inheritable and ambient sets stay empty, as in Kubernetes.
pub(crate) fn apply(caps: Caps) -> io::Result<()> {
    let allowed = caps.0 & sys::permitted_capabilities()?;
    sys::capset(allowed, allowed, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(add: &[&str], drop: &[&str]) -> Caps {
        let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        Caps::of(false, &own(add), &own(drop)).unwrap()
    }

    #[test]
    fn default_is_what_containers_expect() {
        // CapEff of a container under any other runtime.
        assert_eq!(of(&[], &[]).0, 0xa804_25fb);
    }

    #[test]
    fn all_goes_before_single_names() {
        assert_eq!(of(&["NET_ADMIN"], &["ALL"]).0, 1 << 12);
        assert_eq!(of(&["ALL"], &["cap_net_raw"]).0, Caps::ALL.0 & !(1 << 13));
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(Caps::of(false, &["FLY".to_owned()], &[]).is_err());
    }
}
