//! Volumes and the files every container gets.
//!
//! Owns `agent/pods/<uid>/volumes` (what may stay on disk) and `run-dir/volumes/<uid>` (what
//! must not: Secrets, tokens, memory). Watches the ConfigMaps and Secrets of its pods through
//! the session's copy; changes files and mounts. Reacts next: the pod worker, which starts
//! containers on them, and programs that re-read their configuration.
//!
//! - [`payload`]: ConfigMap, Secret, downward API, projected → files (pure).
//! - [`atomic`]: writes such files so that readers see all of the old or all of the new.
//! - [`hosts`], [`resolv`]: /etc/hosts and /etc/resolv.conf (pure).
//! - [`subpath`]: a path inside a volume that cannot lead out of it.
//! - [`mounted`]: tmpfs and bind mounts, and finding them again.
//! - [`token`]: service-account tokens, renewed in time.

pub mod atomic;
pub mod hosts;
pub mod mounted;
pub mod payload;
pub mod resolv;
pub mod subpath;
pub mod token;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume, VolumeMount,
};
use k8s_openapi::jiff::Timestamp;
use pintle_shim::spec::{Mount, Propagation};

use crate::clock::Clock;
use crate::pod::build;
use crate::pod::environment::{Downward, EnvironmentError, expand};
use crate::pod::resources;
use crate::session::{ClusterState, ControlPlane, RequestError};
use payload::Payload;

/// Why a volume cannot be set up; Displayed in the `FailedMount` Event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// One of the volumes.
    #[error("MountVolume.SetUp failed for volume \"{volume}\" ")]
    Volume {
        /// Its name.
        volume: String,
        /// Why.
        source: Box<VolumeError>,
    },
    /// A ConfigMap or Secret is missing.
    #[error("{kind} \"{name}\" not found")]
    NotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// It lacks a key.
    #[error("references non-existent {kind} key: {key}")]
    NoKey {
        /// `config` or `secret`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// A path that leads out of the volume.
    #[error("path {path:?} is not allowed in a volume")]
    Path {
        /// As given.
        path: String,
    },
    /// The downward API does not know.
    #[error(transparent)]
    Downward(#[from] EnvironmentError),
    /// The type check of a host path.
    #[error("hostPath type check failed: {path} is not a {wanted}")]
    HostPath {
        /// The path.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
    },
    /// No plugin.
    #[error("no volume plugin matched: {kind} volumes are not supported by this node")]
    Unsupported {
        /// Which source.
        kind: &'static str,
    },
    /// A mount of a volume that the pod does not have.
    #[error("volumeMounts[].name \"{name}\" matches no volume")]
    NoVolume {
        /// The name.
        name: String,
    },
    /// No token.
    #[error("failed to fetch token")]
    Token(#[source] RequestError),
    /// A file operation.
    #[error("cannot {operation} {path}")]
    File {
        /// What.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The background thread that does file operations died.
    #[error("the file operations were aborted")]
    Aborted,
}

impl VolumeError {
    pub(crate) fn file<'a>(
        operation: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::File {
            operation,
            path: path.to_path_buf(),
            source,
        }
    }
}

/// What the room is told once.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// `agent/pods`.
    pub pods_dir: PathBuf,
    /// `run-dir/volumes`, in memory.
    pub memory_dir: PathBuf,
    /// Domain of cluster names.
    pub cluster_domain: String,
    /// Where pods ask for names.
    pub cluster_dns: IpAddr,
}

/// Volumes of all pods. Cheap to clone.
#[derive(Clone)]
pub struct Volumes {
    config: Arc<VolumeConfig>,
    state: ClusterState,
    control_plane: Arc<dyn ControlPlane>,
    clock: Clock,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Volumes")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What preparing found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// When a token must be renewed by preparing again.
    pub refresh_at: Option<Timestamp>,
}

impl Volumes {
    /// The room; makes its directory in memory.
    pub fn build(
        config: VolumeConfig,
        state: ClusterState,
        control_plane: Arc<dyn ControlPlane>,
        clock: Clock,
    ) -> Result<Self, VolumeError> {
        mounted::ensure_memory(&config.memory_dir)?;
        Ok(Self {
            config: Arc::new(config),
            state,
            control_plane,
            clock,
        })
    }

    /// Directory of a pod.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.config.pods_dir.join(uid)
    }

    /// Sets up all volumes of a pod, or brings them up to date. Idempotent.
    pub async fn prepare(&self, pod: &Pod, downward: &Downward) -> Result<Prepared, VolumeError> {
        let tokens = token::fetch(self, pod).await?;
        let refresh_at = tokens.values().filter_map(|token| token.refresh_at).min();
        let (room, pod, downward) = (self.clone(), pod.clone(), downward.clone());
        tokio::task::spawn_blocking(move || room.set_up(&pod, &downward, &tokens))
            .await
            .map_err(|_error: tokio::task::JoinError| VolumeError::Aborted)??;
        Ok(Prepared { refresh_at })
    }

    fn set_up(
        &self,
        pod: &Pod,
        downward: &Downward,
        tokens: &token::Tokens,
    ) -> Result<(), VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        make_directory(&self.pod_dir(uid), 0o750)?;
        for volume in volumes(pod) {
            self.set_up_one(pod, uid, volume, downward, tokens)
                .map_err(|source| VolumeError::Volume {
                    volume: volume.name.clone(),
                    source: Box::new(source),
                })?;
        }
        let conf = resolv::resolv_conf(
            pod,
            &resolv::host_conf(),
            &self.config.cluster_domain,
            self.config.cluster_dns,
        );
        replace(&self.pod_dir(uid).join("resolv.conf"), &conf)?;
        let (hostname, _) = build::host_names(pod, &self.config.cluster_domain);
        replace(
            &self.pod_dir(uid).join("hostname"),
            &format!("{hostname}\n"),
        )
    }

    fn set_up_one(
        &self,
        pod: &Pod,
        uid: &str,
        volume: &Volume,
        downward: &Downward,
        tokens: &token::Tokens,
    ) -> Result<(), VolumeError> {
        if let Some(source) = &volume.empty_dir {
            return self.empty_dir(pod, uid, &volume.name, source);
        }
        if let Some(source) = &volume.host_path {
            return host_path(source);
        }
        let payload = payload::of_volume(pod, volume, &self.state, downward, tokens)?;
        let Some(payload) = payload else {
            return Err(VolumeError::Unsupported {
                kind: payload::kind(volume),
            });
        };
        self.write(pod, uid, &volume.name, &payload)
    }

    fn write(
        &self,
        pod: &Pod,
        uid: &str,
        name: &str,
        payload: &Payload,
    ) -> Result<(), VolumeError> {
        let directory = self.memory_path(uid, name);
        make_directory(&directory, 0o777)?;
        let stamp = self.clock.now().as_nanosecond().to_string();
        atomic::write(&directory, payload, fs_group(pod), &stamp).map(drop)
    }

    fn empty_dir(
        &self,
        pod: &Pod,
        uid: &str,
        name: &str,
        source: &EmptyDirVolumeSource,
    ) -> Result<(), VolumeError> {
        let in_memory = source.medium.as_deref() == Some("Memory");
        let directory = self.path(pod, uid, name).unwrap_or_default();
        let fresh = !directory.exists();
        make_directory(&directory, 0o777)?;
        if in_memory {
            let size = source.size_limit.as_ref().and_then(resources::whole);
            mounted::ensure_tmpfs(&directory, size)?;
        }
        if fresh && let Some(group) = fs_group(pod) {
            std::os::unix::fs::chown(&directory, None, Some(group))
                .map_err(VolumeError::file("change the group of", &directory))?;
            set_mode(&directory, 0o2777)?;
        }
        Ok(())
    }

    fn memory_path(&self, uid: &str, name: &str) -> PathBuf {
        self.config.memory_dir.join(uid).join(name)
    }

    /// Where a volume of a pod lies on the host.
    pub fn path(&self, pod: &Pod, uid: &str, name: &str) -> Option<PathBuf> {
        let volume = volumes(pod).find(|volume| volume.name == name)?;
        if let Some(source) = &volume.host_path {
            return Some(source.path.clone().into());
        }
        match &volume.empty_dir {
            Some(source) if source.medium.as_deref() != Some("Memory") => {
                Some(self.pod_dir(uid).join("volumes").join(name))
            }
            _ => Some(self.memory_path(uid, name)),
        }
    }

    /// The mounts of a container: its volumes and the files every container gets. What the
    /// agent writes itself and keeps up to date is read-only for everyone else.
    pub fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        attempt: u32,
        pod_ips: &[IpAddr],
        environment: &[(String, String)],
    ) -> Result<Vec<Mount>, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut mounts = self.file_mounts(pod, uid, container, attempt, pod_ips)?;
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let source = self.mount_source(pod, uid, container, index, mount, environment)?;
            let target = PathBuf::from(&mount.mount_path);
            mounts.retain(|known| known.target != target);
            mounts.push(Mount {
                source,
                target,
                readonly: mount.read_only.unwrap_or(false) || is_payload(pod, &mount.name),
                propagation: match mount.mount_propagation.as_deref() {
                    Some("HostToContainer") => Propagation::HostToContainer,
                    Some("Bidirectional") => Propagation::Bidirectional,
                    _ => Propagation::Private,
                },
            });
        }
        // Mounts on top of mounts come later.
        mounts.sort_by_key(|mount| mount.target.components().count());
        Ok(mounts)
    }

    fn mount_source(
        &self,
        pod: &Pod,
        uid: &str,
        container: &Container,
        index: usize,
        mount: &VolumeMount,
        environment: &[(String, String)],
    ) -> Result<PathBuf, VolumeError> {
        let volume = self
            .path(pod, uid, &mount.name)
            .ok_or_else(|| VolumeError::NoVolume {
                name: mount.name.clone(),
            })?;
        let look = |name: &str| {
            environment
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.as_str())
        };
        let inner = match (&mount.sub_path, &mount.sub_path_expr) {
            (Some(path), _) if !path.is_empty() => path.clone(),
            (_, Some(text)) if !text.is_empty() => expand(text, look),
            _ => return Ok(volume),
        };
        let private = self
            .config
            .memory_dir
            .join(uid)
            .join(".subpaths")
            .join(&container.name)
            .join(index.to_string());
        subpath::bind(&volume, &inner, &private)?;
        Ok(private)
    }

    fn file_mounts(
        &self,
        pod: &Pod,
        uid: &str,
        container: &Container,
        attempt: u32,
        pod_ips: &[IpAddr],
    ) -> Result<Vec<Mount>, VolumeError> {
        let directory = self.pod_dir(uid);
        let hosts = directory.join("etc-hosts");
        let content = hosts::hosts(pod, pod_ips, &self.config.cluster_domain, || {
            std::fs::read_to_string("/etc/hosts").unwrap_or_default()
        });
        replace(&hosts, &content)?;
        let mut files = vec![
            (hosts, PathBuf::from("/etc/hosts")),
            (directory.join("resolv.conf"), "/etc/resolv.conf".into()),
        ];
        if !build::is_host_network(pod) {
            files.push((directory.join("hostname"), "/etc/hostname".into()));
        }
        let log = self.termination_log(uid, &container.name, attempt);
        if let Some(parent) = log.parent() {
            make_directory(parent, 0o755)?;
        }
        if !log.exists() {
            std::fs::write(&log, "").map_err(VolumeError::file("write", &log))?;
            set_mode(&log, 0o666)?;
        }
        let target = container
            .termination_message_path
            .clone()
            .unwrap_or_else(|| "/dev/termination-log".to_owned());
        files.push((log, target.into()));
        Ok(files
            .into_iter()
            .map(|(source, target)| Mount {
                source,
                target,
                readonly: false,
                propagation: Propagation::Private,
            })
            .collect())
    }

    /// File in which a run of a container leaves its last words.
    pub fn termination_log(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_dir(uid)
            .join("containers")
            .join(container)
            .join(format!("{attempt}.termination-log"))
    }

    /// Removes the volumes of a pod: mounts, then files. Idempotent.
    pub async fn release(&self, uid: &str) -> Result<(), VolumeError> {
        let memory = self.config.memory_dir.join(uid);
        let disk = self.pod_dir(uid).join("volumes");
        tokio::task::spawn_blocking(move || {
            for directory in [memory, disk] {
                mounted::unmount_below(&directory)?;
                match std::fs::remove_dir_all(&directory) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(VolumeError::file("remove", &directory)(error));
                    }
                    _ => {}
                }
            }
            Ok(())
        })
        .await
        .map_err(|_error: tokio::task::JoinError| VolumeError::Aborted)?
    }
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
}

/// Whether a volume's files are the agent's own: ConfigMaps, Secrets, the downward API.
fn is_payload(pod: &Pod, name: &str) -> bool {
    volumes(pod).any(|volume| {
        volume.name == name && volume.host_path.is_none() && volume.empty_dir.is_none()
    })
}

fn fs_group(pod: &Pod) -> Option<u32> {
    let security = pod.spec.as_ref()?.security_context.as_ref()?;
    u32::try_from(security.fs_group?).ok()
}

/// The names of the ConfigMaps and Secrets that a pod's volumes are made of.
pub fn references(pod: &Pod) -> BTreeMap<&'static str, Vec<String>> {
    let mut names: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for volume in volumes(pod) {
        let projected = volume
            .projected
            .iter()
            .flat_map(|projected| projected.sources.iter().flatten());
        let maps = volume
            .config_map
            .iter()
            .map(|source| source.name.clone())
            .chain(
                projected
                    .clone()
                    .filter_map(|source| source.config_map.as_ref())
                    .map(|source| source.name.clone()),
            );
        names.entry("ConfigMap").or_default().extend(maps);
        let secrets = volume
            .secret
            .iter()
            .filter_map(|source| source.secret_name.clone())
            .chain(
                projected
                    .filter_map(|source| source.secret.as_ref())
                    .map(|source| source.name.clone()),
            );
        names.entry("Secret").or_default().extend(secrets);
    }
    names
}

pub(crate) fn make_directory(path: &Path, mode: u32) -> Result<(), VolumeError> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path).map_err(VolumeError::file("create", path))?;
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(VolumeError::file("set the mode of", path))
}

/// Writes a file in place, so that containers which have it mounted see the change.
fn replace(path: &Path, content: &str) -> Result<(), VolumeError> {
    if std::fs::read(path).is_ok_and(|old| old == content.as_bytes()) {
        return Ok(());
    }
    std::fs::write(path, content).map_err(VolumeError::file("write", path))?;
    set_mode(path, 0o644)
}

fn host_path(source: &HostPathVolumeSource) -> Result<(), VolumeError> {
    let path = Path::new(&source.path);
    let kind = std::fs::metadata(path).ok().map(|meta| meta.file_type());
    let check = |holds: bool, wanted: &'static str| {
        if holds {
            Ok(())
        } else {
            Err(VolumeError::HostPath {
                path: path.to_path_buf(),
                wanted,
            })
        }
    };
    let is = |test: fn(&std::fs::FileType) -> bool| kind.as_ref().is_some_and(test);
    match source.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" => {
            if kind.is_none() {
                make_directory(path, 0o755)?;
                return Ok(());
            }
            check(is(std::fs::FileType::is_dir), "directory")
        }
        "Directory" => check(is(std::fs::FileType::is_dir), "directory"),
        "FileOrCreate" => {
            if kind.is_none() {
                std::fs::write(path, "").map_err(VolumeError::file("create", path))?;
                return set_mode(path, 0o644);
            }
            check(is(std::fs::FileType::is_file), "file")
        }
        "File" => check(is(std::fs::FileType::is_file), "file"),
        "Socket" => check(is(std::fs::FileType::is_socket), "socket"),
        "CharDevice" => check(is(std::fs::FileType::is_char_device), "character device"),
        "BlockDevice" => check(is(std::fs::FileType::is_block_device), "block device"),
        // As the container runtimes do: what is not there becomes a directory.
        _ if kind.is_none() => make_directory(path, 0o755),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_agent_writes_is_kept_from_writers() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {"containers": [], "volumes": [
                {"name": "config", "configMap": {"name": "c"}},
                {"name": "secret", "secret": {"secretName": "s"}},
                {"name": "labels", "downwardAPI": {"items": []}},
                {"name": "all", "projected": {"sources": []}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "host", "hostPath": {"path": "/srv"}},
            ]}
        }))
        .unwrap();
        for name in ["config", "secret", "labels", "all"] {
            assert!(is_payload(&pod, name), "{name}");
        }
        for name in ["scratch", "memory", "host", "absent"] {
            assert!(!is_payload(&pod, name), "{name}");
        }
    }
}
