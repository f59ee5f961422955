//! A place for tests of the data path in the real kernel: own cgroup, own pins.
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use super::ServiceConfig;
use super::datapath::{self, DataPath};
use super::sync::Synchroniser;

/// This process in a cgroup of its own, and a directory for pins.
pub(crate) struct TestNode {
    pub(super) cgroup: PathBuf,
    pub(super) home: PathBuf,
    pub(super) bpffs_dir: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// One test at a time: they move the whole process.
static ALONE: Mutex<()> = Mutex::new(());

impl TestNode {
    /// `None`, with the reason printed, where the kernel or the build lacks something.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if datapath::is_built_without() {
            skip("built without the BPF object (cargo xtask build-ebpf)");
            return None;
        }
        if !nix::unistd::geteuid().is_root() {
            skip("not root");
            return None;
        }
        let Some(root) = cgroup_root() else {
            skip("no cgroup v2");
            return None;
        };
        let alone = ALONE.lock();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let name = format!("pintle-test-{}-{name}", std::process::id());
        let cgroup = root.join(&name);
        std::fs::create_dir_all(&cgroup).unwrap();
        let node = Self {
            home: root.join(own.unwrap_or_default()),
            bpffs_dir: Path::new("/sys/fs/bpf").join(name),
            cgroup,
            _alone: alone,
        };
        move_to(&node.cgroup);
        Some(node)
    }

    pub(crate) fn config(&self) -> ServiceConfig {
        ServiceConfig {
            attach_cgroup: self.cgroup.clone(),
            bpffs_dir: self.bpffs_dir.clone(),
        }
    }

    pub(super) fn open(&self) -> Synchroniser {
        self.synchroniser(DataPath::open(&self.config()).unwrap())
    }

    /// The synchroniser of a data path opened with [`config`](Self::config).
    #[expect(clippy::unused_self, reason = "only a test node may write to its maps")]
    pub(crate) fn synchroniser(&self, data_path: DataPath) -> Synchroniser {
        Synchroniser::new(data_path)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        move_to(&self.home);
        datapath::remove_pins(&self.bpffs_dir).unwrap();
        // Children that other tests started meanwhile are in here too.
        while std::fs::remove_dir(&self.cgroup)
            .is_err_and(|error: std::io::Error| error.raw_os_error() == Some(libc::EBUSY))
        {
            let here = std::fs::read_to_string(self.cgroup.join("cgroup.procs")).unwrap();
            for process in here.lines() {
                // One that has ended since needs no move.
                drop(std::fs::write(self.home.join("cgroup.procs"), process));
            }
        }
    }
}

pub(super) fn move_to(cgroup: &Path) {
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

#[expect(clippy::print_stdout, reason = "the runner of the tests reads it")]
pub(crate) fn skip(reason: &str) {
    println!("skipped: {reason}");
}

fn cgroup_root() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&"cgroup2")).then(|| PathBuf::from(fields[1]))
    })
}
