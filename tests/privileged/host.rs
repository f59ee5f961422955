//! A host that cannot be a node: one clear message each, and nothing changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::harness::node::{pintle_binary, text};

/// User and group `nobody` of Debian.
const NOBODY: u32 = 65_534;

/// Folders and arguments of a `pintle` that is not expected to start.
struct Nowhere(tempfile::TempDir);

impl Nowhere {
    fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let dir = tempfile::tempdir().expect("a folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("open to all");
        Some(Self(dir))
    }

    fn pintle(&self, binary: &Path, command: &str) -> Command {
        let mut pintle = Command::new(binary);
        pintle.arg(command);
        pintle.arg("--data-dir").arg(self.0.path().join("data"));
        pintle.arg("--run-dir").arg(self.0.path().join("run"));
        if command == "up" {
            pintle
                .arg("--kubeconfig")
                .arg(self.0.path().join("kubeconfig"));
        }
        pintle
    }

    /// Asserts that the command failed with one line that has all of `words`, and made nothing.
    fn assert_refused(&self, output: &Output, words: &[&str]) {
        let said = text(&output.stderr);
        assert!(!output.status.success(), "accepted: {said}");
        assert_eq!(said.trim().lines().count(), 1, "one line: {said}");
        for word in words {
            assert!(said.contains(word), "no {word:?} in {said}");
        }
        for name in ["data", "run", "kubeconfig"] {
            assert!(!self.0.path().join(name).exists(), "{name} was made");
        }
    }
}

#[test]
fn not_root() {
    let Some(nowhere) = Nowhere::new() else {
        return;
    };
    // Where the build folder is may be closed to others.
    let binary = nowhere.0.path().join("pintle");
    fs::copy(pintle_binary(), &binary).expect("copied");
    for command in ["up", "down", "status"] {
        let output = nowhere
            .pintle(&binary, command)
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .expect("pintle runs");
        nowhere.assert_refused(&output, &["root", &format!("sudo pintle {command}")]);
    }
}

#[test]
fn no_cgroup_v2() {
    let Some(nowhere) = Nowhere::new() else {
        return;
    };
    let output = in_thread(move || {
        unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
        mount(
            None::<&str>,
            "/",
            None::<&str>,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            None::<&str>,
        )
        .expect("private mounts");
        let mounts = fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
        for line in mounts.lines().rev() {
            let words: Vec<_> = line.split(' ').collect();
            if words[2] == "cgroup2" {
                umount2(words[1], MntFlags::MNT_DETACH).expect("unmounted");
            }
        }
        let output = nowhere.pintle(&pintle_binary(), "up").output();
        (nowhere, output.expect("pintle runs"))
    });
    output.0.assert_refused(
        &output.1,
        &["no cgroup v2", "systemd.unified_cgroup_hierarchy=1"],
    );
}

#[test]
fn no_ebpf() {
    let Some(nowhere) = Nowhere::new() else {
        return;
    };
    // As a kernel without CONFIG_BPF_SYSCALL answers.
    let filter = SeccompFilter::new(
        BTreeMap::from([(nix::libc::SYS_bpf, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(u32::try_from(nix::libc::ENOSYS).expect("an errno")),
        std::env::consts::ARCH.try_into().expect("an architecture"),
    )
    .expect("a filter");
    let program = BpfProgram::try_from(filter).expect("a program");
    // A filter is the thread's, and of what the thread starts.
    let output = in_thread(move || {
        seccompiler::apply_filter(&program).expect("applied");
        let output = nowhere.pintle(&pintle_binary(), "up").output();
        (nowhere, output.expect("pintle runs"))
    });
    output
        .0
        .assert_refused(&output.1, &["no BPF", "CONFIG_BPF_SYSCALL"]);
}

/// Runs in a thread of its own, whose namespaces and filters end with it.
fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(work).join().expect("the thread ends")
}
