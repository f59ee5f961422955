//! What a host must have before a node may start: asked before anything is changed.
//!
//! Watches nothing, changes nothing. `pintle up` prints the error and stops.

use std::path::{Path, PathBuf};

/// What the checks found.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where pods' cgroups go: the mount point of cgroup v2, or the parent that was asked for.
    pub cgroup_root: PathBuf,
}

/// Why this host cannot be a node.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// No cgroup2 file system is mounted.
    #[error(
        "no cgroup v2 is mounted: boot with `systemd.unified_cgroup_hierarchy=1`, or \
         `mount -t cgroup2 none /sys/fs/cgroup`"
    )]
    NoCgroupV2,
    /// The configured parent is no cgroup.
    #[error("cgroupParent {0}: not a cgroup v2 directory")]
    CgroupParent(PathBuf),
    /// The mount table cannot be read.
    #[error("/proc/self/mounts cannot be read: is /proc mounted?")]
    Mounts(#[source] std::io::Error),
    /// The kernel refuses BPF.
    #[error(
        "the kernel has no BPF for cgroups, which the Service data path is made of: it must have \
         CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF (Linux 6.1 or newer), and no lockdown or seccomp \
         filter may forbid bpf(2)"
    )]
    NoBpf(#[source] Option<aya::programs::ProgramError>),
}

/// Looks at cgroups and BPF.
pub fn check(cgroup_parent: Option<&Path>) -> Result<Host, PreflightError> {
    let cgroup_root = cgroup_root(cgroup_parent)?;
    match aya::sys::is_program_supported(aya::programs::ProgramType::CgroupSockAddr) {
        Ok(true) => Ok(Host { cgroup_root }),
        Ok(false) => Err(PreflightError::NoBpf(None)),
        Err(error) => Err(PreflightError::NoBpf(Some(error))),
    }
}

/// Where pods' cgroups go.
pub fn cgroup_root(parent: Option<&Path>) -> Result<PathBuf, PreflightError> {
    if let Some(parent) = parent {
        if parent.join("cgroup.procs").exists() && parent.join("cgroup.controllers").exists() {
            return Ok(parent.to_path_buf());
        }
        return Err(PreflightError::CgroupParent(parent.to_path_buf()));
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(PreflightError::Mounts)?;
    v2_mount(&mounts).ok_or(PreflightError::NoCgroupV2)
}

/// Mount point of the first cgroup2 file system of a mount table in proc(5)'s form.
fn v2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_source, target, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(target.replace("\\040", " ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_v2_mount_among_v1_ones() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            v2_mount(hybrid),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(
            v2_mount("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
            Some(PathBuf::from("/sys/fs/cgroup"))
        );
        assert_eq!(v2_mount("proc /proc proc rw 0 0\n"), None);
    }
}
