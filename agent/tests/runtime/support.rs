//! A runtime in directories of its own, with a busybox root file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_agent::cgroup::{CgroupTree, instance_root};
use pintle_agent::runtime::{
    ContainerSpec, ContainerStatus, Exit, RootfsSpec, Runtime, RuntimeConfig, SandboxSpec,
    default_masked_paths, default_readonly_paths,
};
use pintle_agent::sys::Terminal;
use tokio::io::AsyncReadExt;

pub(crate) struct Fixture {
    pub(crate) runtime: Runtime,
    dir: tempfile::TempDir,
    config: RuntimeConfig,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("pintle-runtime-")
            .tempdir()
            .unwrap();
        let unique = dir
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_start_matches('.');
        let cgroups =
            CgroupTree::build(&instance_root(&format!("test-{unique}")).unwrap()).unwrap();
        let config = RuntimeConfig {
            run_dir: dir.path().join("run"),
            shim_command: vec!["/proc/self/exe".into(), "shim".into()],
            cgroups,
        };
        busybox(&dir.path().join("lower"));
        Self {
            runtime: Runtime::build(config.clone()).unwrap(),
            dir,
            config,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Drops the runtime as a killed agent would, and makes a new one.
    pub(crate) fn restart_agent(&mut self) {
        self.runtime = Runtime::build(self.config.clone()).unwrap();
    }

    pub(crate) async fn sandbox(&self, uid: &str) {
        self.sandbox_with(uid, |_| {}).await;
    }

    pub(crate) async fn sandbox_with(&self, uid: &str, change: impl FnOnce(&mut SandboxSpec)) {
        let mut spec = SandboxSpec {
            pod_uid: uid.to_owned(),
            hostname: format!("pod-{uid}"),
            ..SandboxSpec::default()
        };
        change(&mut spec);
        self.runtime.run_sandbox(spec).await.unwrap();
    }

    /// A container `<pod>-main`; give it another id for a second one.
    pub(crate) fn container(&self, uid: &str, args: &[&str]) -> ContainerSpec {
        let id = format!("{uid}-main");
        ContainerSpec {
            name: "main".to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: vec!["PATH=/bin".to_owned()],
            cwd: "/work".into(),
            rootfs: self.rootfs(),
            log_path: self.path("logs").join(uid).join("0.log"),
            masked_paths: default_masked_paths(),
            readonly_paths: default_readonly_paths(),
            id,
            ..ContainerSpec::default()
        }
    }

    pub(crate) fn shell(&self, uid: &str, script: &str) -> ContainerSpec {
        self.container(uid, &["sh", "-c", script])
    }

    fn rootfs(&self) -> RootfsSpec {
        let base = tempfile::Builder::new()
            .tempdir_in(self.dir.path())
            .unwrap()
            .keep();
        for name in ["upper", "work", "merged"] {
            fs::create_dir(base.join(name)).unwrap();
        }
        RootfsSpec {
            lowers: vec![self.path("lower")],
            upper: base.join("upper"),
            work: base.join("work"),
            merged: base.join("merged"),
        }
    }

    pub(crate) async fn run(&self, uid: &str, script: &str) -> Exit {
        self.run_spec(uid, self.shell(uid, script)).await
    }

    pub(crate) async fn run_spec(&self, uid: &str, spec: ContainerSpec) -> Exit {
        let id = spec.id.clone();
        self.runtime.create_container(uid, spec).await.unwrap();
        self.wait(&id).await
    }

    pub(crate) async fn wait(&self, id: &str) -> Exit {
        let mut events = self.runtime.events();
        let ended = async {
            loop {
                for sandbox in self.runtime.list() {
                    for container in sandbox.containers {
                        if let (true, ContainerStatus::Exited(exit)) =
                            (container.id == id, container.state)
                        {
                            return exit;
                        }
                    }
                }
                events.recv().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .expect("the container ends")
    }

    pub(crate) fn log(&self, uid: &str) -> String {
        fs::read_to_string(self.path("logs").join(uid).join("0.log")).unwrap_or_default()
    }

    pub(crate) async fn wait_log(&self, uid: &str, text: &str) {
        let seen = async {
            while !self.log(uid).contains(text) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), seen)
            .await
            .expect("the log says it");
    }

    /// Removes everything and checks that nothing is left.
    pub(crate) async fn finish(self) {
        self.runtime.teardown_all().await.unwrap();
        assert!(!self.config.cgroups.root().exists());
        assert_eq!(fs::read_dir(self.path("run/pods")).unwrap().count(), 0);
    }
}

/// A case that fails must not leave processes behind either.
impl Drop for Fixture {
    fn drop(&mut self) {
        let root = self.config.cgroups.root();
        if root.exists() {
            fs::write(root.join("cgroup.kill"), "1").unwrap();
            let populated = || {
                fs::read_to_string(root.join("cgroup.events"))
                    .is_ok_and(|text| text.contains("populated 1"))
            };
            while populated() {
                std::thread::yield_now();
            }
            remove_cgroups(root);
        }
    }
}

fn remove_cgroups(path: &Path) {
    for entry in fs::read_dir(path).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            remove_cgroups(&entry.path());
        }
    }
    fs::remove_dir(path).unwrap();
}

fn busybox(root: &Path) {
    for dir in ["bin", "etc", "tmp", "proc", "dev", "sys"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in [
        "sh", "cat", "ls", "sleep", "id", "hostname", "mkdir", "touch", "grep", "tr", "wc",
        "mount", "unshare", "mknod", "head", "tty", "stty", "ps", "readlink", "df", "tail", "true",
        "fold",
    ] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    fs::write(root.join("etc/made"), "made").unwrap();
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/:/bin/sh\nweb:x:101:102::/srv:/bin/sh\n",
    )
    .unwrap();
    fs::write(
        root.join("etc/group"),
        "root:x:0:\nwww:x:102:\nlogs:x:7:web\n",
    )
    .unwrap();
    // A link that leads out of the image must stay inside the container.
    std::os::unix::fs::symlink("/../../escape-host", root.join("link")).unwrap();
}

pub(crate) async fn read_all(mut pipe: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).await.unwrap();
    text
}

pub(crate) async fn read_until(terminal: &Terminal, text: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 1024];
    while !seen.contains(text) {
        let length = terminal.read(&mut buffer).await.unwrap();
        assert!(length > 0, "{text:?} not seen in {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    seen
}

/// A tmpfs on the host whose mounts propagate; gone when dropped.
pub(crate) struct SharedMount(PathBuf);

impl SharedMount {
    pub(crate) fn new(path: &Path) -> Self {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
        fs::create_dir(path).unwrap();
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), None).unwrap();
        let shared = Self(path.to_owned());
        mount_change(path, MountPropagationFlags::SHARED).unwrap();
        fs::create_dir(path.join("from")).unwrap();
        fs::create_dir(path.join("later")).unwrap();
        fs::create_dir(path.join("below")).unwrap();
        shared
    }

    /// Mounts a tmpfs with a file below it.
    pub(crate) fn mount(&self, dir: &str, file: &str) {
        let path = self.0.join(dir);
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &path, "tmpfs", flags, None).unwrap();
        fs::write(path.join(file), "").unwrap();
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        // Detaching takes what is mounted below along.
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// Kills a shim the way an out-of-memory killer would.
pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Proportional set size of a process in KiB.
pub(crate) fn pss_kib(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// How many of the sizes are known.
pub(crate) fn free(sizes: &[u64]) -> usize {
    sizes.iter().filter(|size| **size > 0).count()
}
