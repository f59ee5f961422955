//! The instance's cgroup v2 tree: limits, statistics, killing, removal.
//!
//! `<v2 mount>/pintle-<instance>/[burstable|besteffort]/pod<uid>/<container>`,
//! with guaranteed pods directly under the root and the shim in the leaf
//! `shim`. Changes cgroup files only; the runtime decides what goes where.

mod files;
mod limits;
mod stats;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_shim::spec::{CgroupSpec, QosClass, Resources};

pub use stats::CgroupStats;

/// Why a cgroup operation failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup2 file system is mounted.
    #[error("no cgroup v2 hierarchy is mounted (looked in /proc/self/mountinfo)")]
    NoHierarchy,
    /// A file or directory of the hierarchy refused.
    #[error("cannot {operation} {path}")]
    Io {
        /// `create`, `write "100" to`, ….
        operation: String,
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Processes survived SIGKILL for longer than one may wait.
    #[error("processes in {path} did not die within {waited:?}")]
    Busy {
        /// Which cgroup.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
}

/// Controllers that limits need, in the order they are named to people.
pub const WANTED_CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// One instance's cgroups; cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupTree {
    root: PathBuf,
    available: Vec<String>,
}

/// Where the cgroup v2 hierarchy is mounted.
pub fn find_hierarchy() -> Result<PathBuf, CgroupError> {
    files::find_hierarchy()
}

/// The root that an instance uses: `<v2 mount>/pintle-<instance>`.
pub fn instance_root(instance_id: &str) -> Result<PathBuf, CgroupError> {
    Ok(find_hierarchy()?.join(format!("pintle-{instance_id}")))
}

impl CgroupTree {
    /// Creates the instance's root and its QoS children and enables what
    /// controllers the hierarchy has.
    pub fn build(root: &Path) -> Result<Self, CgroupError> {
        let parent = root.parent().unwrap_or(Path::new("/"));
        let mut tree = Self {
            root: root.to_owned(),
            available: files::controllers(parent)?,
        };
        // A controller that cannot be handed down is as good as missing: in a
        // cgroup that holds processes, or one delegated without it.
        tree.available.retain(|controller| {
            let handed_down = files::enable(parent, controller);
            if let Err(error) = &handed_down {
                tracing::debug!(controller, %error, "a cgroup controller cannot be used");
            }
            handed_down.is_ok()
        });
        files::create(root)?;
        tree.enable(root)?;
        for qos in ["burstable", "besteffort"] {
            let path = root.join(qos);
            files::create(&path)?;
            tree.enable(&path)?;
        }
        Ok(tree)
    }

    /// The instance's root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Which of the wanted controllers the hierarchy has.
    pub fn available_controllers(&self) -> Vec<&'static str> {
        WANTED_CONTROLLERS
            .into_iter()
            .filter(|c| self.has(c))
            .collect()
    }

    /// Which of the wanted controllers are missing (bound to cgroup v1 or
    /// disabled); limits of these are not enforced.
    pub fn missing_controllers(&self) -> Vec<&'static str> {
        WANTED_CONTROLLERS
            .into_iter()
            .filter(|c| !self.has(c))
            .collect()
    }

    /// A pod's cgroup.
    pub fn pod_path(&self, qos: QosClass, pod_uid: &str) -> PathBuf {
        let parent = match qos {
            QosClass::Guaranteed => self.root.clone(),
            QosClass::Burstable => self.root.join("burstable"),
            QosClass::BestEffort => self.root.join("besteffort"),
        };
        parent.join(format!("pod{pod_uid}"))
    }

    /// A pod's cgroup wherever it is, when its class is not known any more.
    pub fn find_pod(&self, pod_uid: &str) -> Option<PathBuf> {
        [
            QosClass::Guaranteed,
            QosClass::Burstable,
            QosClass::BestEffort,
        ]
        .into_iter()
        .map(|qos| self.pod_path(qos, pod_uid))
        .find(|path| path.exists())
    }

    /// UIDs of every pod that has a cgroup.
    pub fn pods(&self) -> Vec<String> {
        [
            self.root.clone(),
            self.root.join("burstable"),
            self.root.join("besteffort"),
        ]
        .iter()
        .flat_map(|dir| files::children(dir))
        .filter_map(|path| {
            path.file_name()?
                .to_str()?
                .strip_prefix("pod")
                .map(str::to_owned)
        })
        .collect()
    }

    /// Creates a pod's cgroup with its limits and the shim's leaf.
    pub fn create_pod(&self, pod_uid: &str, spec: &CgroupSpec) -> Result<PathBuf, CgroupError> {
        let path = self.pod_path(spec.qos, pod_uid);
        files::create(&path)?;
        self.apply(&path, &spec.resources)?;
        self.enable(&path)?;
        files::create(&path.join("shim"))?;
        Ok(path)
    }

    /// Creates a container's cgroup with its limits.
    pub fn create_container(
        &self,
        pod: &Path,
        container_id: &str,
        resources: &Resources,
    ) -> Result<PathBuf, CgroupError> {
        let path = pod.join(container_id);
        files::create(&path)?;
        if self.has("memory") {
            // As the kubelet does on cgroup v2: a container dies as a whole.
            files::write(&path, "memory.oom.group", "1")?;
        }
        self.apply(&path, resources)?;
        Ok(path)
    }

    /// Brings limits of an existing cgroup up to date.
    pub fn apply(&self, path: &Path, resources: &Resources) -> Result<(), CgroupError> {
        limits::plan(resources)
            .into_iter()
            .filter(|setting| self.has(setting.controller))
            .try_for_each(
                |setting| match files::write(path, setting.file, &setting.value) {
                    Err(CgroupError::Io { source, .. })
                        if setting.optional && source.kind() == io::ErrorKind::NotFound =>
                    {
                        Ok(())
                    }
                    other => other,
                },
            )
    }

    /// Kills everything in a cgroup and below.
    pub fn kill(&self, path: &Path) -> Result<(), CgroupError> {
        files::kill(path)
    }

    /// Kills, waits until the last process is gone, and removes the tree.
    /// A tree that does not exist is removed already.
    pub async fn remove(&self, path: &Path) -> Result<(), CgroupError> {
        files::remove_tree(path, Duration::from_secs(10)).await
    }

    /// Removes the whole instance's tree.
    pub async fn teardown(&self) -> Result<(), CgroupError> {
        self.remove(&self.root).await
    }

    /// Usage of one cgroup; absent controllers leave their fields `None`.
    pub fn stats(&self, path: &Path) -> CgroupStats {
        stats::read(path)
    }

    fn has(&self, controller: &str) -> bool {
        self.available.iter().any(|c| c == controller)
    }

    fn enable(&self, path: &Path) -> Result<(), CgroupError> {
        for controller in WANTED_CONTROLLERS {
            if self.has(controller) {
                files::enable(path, controller)?;
            }
        }
        Ok(())
    }
}
