//! From a Pod to what the runtime starts. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    Capabilities, Container, Pod, PodSecurityContext, SeccompProfile, SecurityContext,
};
use oci_spec::image::ImageConfiguration;
use pintle_shim::spec::{
    CgroupSpec, ContainerSpec, Mount, RootfsSpec, SandboxSpec, Seccomp, UserSpec,
    default_masked_paths, default_readonly_paths,
};

use super::environment::expand;
use super::resources;

/// Longest host name.
const HOST_NAME_MAX: usize = 63;

/// Why a container cannot be configured; Displayed as the waiting message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// Nothing to run.
    #[error("no command specified")]
    NoCommand,
    /// `runAsNonRoot`, and it would be root.
    #[error("container has runAsNonRoot and image will run as root")]
    WouldBeRoot,
    /// `runAsNonRoot` with `runAsUser: 0`.
    #[error("container's runAsUser breaks non-root policy")]
    BreaksNonRoot,
    /// `runAsNonRoot`, and nobody knows.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
    )]
    UnknownUser {
        /// User of the image.
        user: String,
    },
}

/// Host name of a pod, and its fully qualified name where it has a subdomain.
pub fn host_names(pod: &Pod, cluster_domain: &str) -> (String, Option<String>) {
    let spec = pod.spec.as_ref();
    if let Some(name) = spec.and_then(|spec| spec.hostname_override.clone()) {
        return (name, None);
    }
    let mut name = spec
        .and_then(|spec| spec.hostname.clone())
        .filter(|name| !name.is_empty())
        .or_else(|| pod.metadata.name.clone())
        .unwrap_or_default();
    name.truncate(HOST_NAME_MAX);
    let name = name.trim_end_matches(['-', '.']).to_owned();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let qualified = spec
        .and_then(|spec| spec.subdomain.as_deref())
        .filter(|subdomain| !subdomain.is_empty())
        .map(|subdomain| format!("{name}.{subdomain}.{namespace}.svc.{cluster_domain}"));
    match &qualified {
        Some(full)
            if spec.and_then(|spec| spec.set_hostname_as_fqdn) == Some(true)
                && full.len() <= HOST_NAME_MAX + 1 =>
        {
            (full.clone(), qualified)
        }
        _ => (name, qualified),
    }
}

/// The sandbox of a pod.
pub fn sandbox(
    pod: &Pod,
    cluster_domain: &str,
    log_dir: PathBuf,
    pids_max: Option<u64>,
) -> SandboxSpec {
    let spec = pod.spec.as_ref();
    let flag = |value: Option<bool>| value.unwrap_or(false);
    let security = spec.and_then(|spec| spec.security_context.as_ref());
    SandboxSpec {
        pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        hostname: host_names(pod, cluster_domain).0,
        host_network: is_host_network(pod),
        host_pid: flag(spec.and_then(|spec| spec.host_pid)),
        host_ipc: flag(spec.and_then(|spec| spec.host_ipc)),
        share_process_namespace: flag(spec.and_then(|spec| spec.share_process_namespace)),
        shm_size: None,
        sysctls: security
            .and_then(|security| security.sysctls.as_ref())
            .into_iter()
            .flatten()
            .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
            .collect(),
        cgroup: CgroupSpec {
            qos: resources::qos(pod),
            resources: resources::pod_limits(pod, pids_max),
        },
        log_dir,
        labels: BTreeMap::new(),
    }
}

/// Whether the pod uses the node's network.
pub fn is_host_network(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.host_network)
        .unwrap_or(false)
}

/// What the worker knows about a container's run besides the spec.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Id of the run.
    pub id: &'a str,
    /// Number of the run.
    pub attempt: u32,
    /// Image reference.
    pub image: &'a str,
    /// Config of the image.
    pub config: &'a ImageConfiguration,
    /// Root file system.
    pub rootfs: RootfsSpec,
    /// Environment from the spec.
    pub environment: Vec<(String, String)>,
    /// Volumes and files.
    pub mounts: Vec<Mount>,
    /// Log file.
    pub log_path: PathBuf,
    /// Memory of the node.
    pub node_memory: u64,
    /// Directory of seccomp profiles (`localhostProfile`).
    pub seccomp_dir: &'a Path,
    /// Host name, for `HOSTNAME`.
    pub hostname: &'a str,
}

/// One run of a container.
pub fn container(
    pod: &Pod,
    container: &Container,
    run: Run<'_>,
) -> Result<ContainerSpec, BuildError> {
    let image = run.config.config().as_ref();
    let environment = merge_environment(
        image.and_then(|config| config.env().as_ref()),
        run.environment,
        run.hostname,
    );
    let args = command(container, image, &environment)?;
    let pod_security = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let security = container.security_context.as_ref();
    let image_user = image
        .and_then(|config| config.user().clone())
        .filter(|user| !user.is_empty());
    let user = user(pod_security, security, image_user)?;
    let privileged = security.and_then(|security| security.privileged) == Some(true);
    let unmasked = privileged
        || security.and_then(|security| security.proc_mount.as_deref()) == Some("Unmasked");
    let capabilities = security.and_then(|security| security.capabilities.as_ref());
    let cwd = container
        .working_dir
        .clone()
        .filter(|directory| !directory.is_empty())
        .or_else(|| image.and_then(|config| config.working_dir().clone()))
        .filter(|directory| !directory.is_empty())
        .unwrap_or_else(|| "/".to_owned());
    Ok(ContainerSpec {
        id: run.id.to_owned(),
        name: container.name.clone(),
        attempt: run.attempt,
        image: run.image.to_owned(),
        rootfs: run.rootfs,
        args,
        env: environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        cwd: cwd.into(),
        user,
        mounts: run.mounts,
        devices: Vec::new(),
        resources: resources::container_limits(container),
        oom_score_adj: Some(resources::oom_score_adj(pod, container, run.node_memory)),
        capabilities_add: capability_names(capabilities, |capabilities| capabilities.add.as_ref()),
        capabilities_drop: capability_names(capabilities, |capabilities| {
            capabilities.drop.as_ref()
        }),
        privileged,
        read_only_rootfs: security.and_then(|security| security.read_only_root_filesystem)
            == Some(true),
        no_new_privs: no_new_privs(security),
        seccomp: if privileged {
            Seccomp::Unconfined
        } else {
            seccomp(pod_security, security, run.seccomp_dir)
        },
        masked_paths: if unmasked {
            Vec::new()
        } else {
            default_masked_paths()
        },
        readonly_paths: if unmasked {
            Vec::new()
        } else {
            default_readonly_paths()
        },
        tty: container.tty.unwrap_or(false),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        log_path: run.log_path,
        stop_signal: container
            .lifecycle
            .as_ref()
            .and_then(|lifecycle| lifecycle.stop_signal.clone())
            .or_else(|| image.and_then(|config| config.stop_signal().clone())),
        labels: BTreeMap::new(),
    })
}

/// The image's variables, overridden by the container's.
fn merge_environment(
    image: Option<&Vec<String>>,
    own: Vec<(String, String)>,
    hostname: &str,
) -> Vec<(String, String)> {
    let mut merged: Vec<(String, String)> = Vec::new();
    let mut set =
        |name: String, value: String| match merged.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => merged.push((name, value)),
        };
    set(
        "PATH".to_owned(),
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
    );
    set("HOSTNAME".to_owned(), hostname.to_owned());
    for variable in image.into_iter().flatten() {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        set(name.to_owned(), value.to_owned());
    }
    for (name, value) in own {
        set(name, value);
    }
    merged
}

/// Program and arguments: the spec's `command` replaces the image's entrypoint and command,
/// `args` alone replaces the command.
fn command(
    container: &Container,
    image: Option<&oci_spec::image::Config>,
    environment: &[(String, String)],
) -> Result<Vec<String>, BuildError> {
    let look = |name: &str| {
        environment
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    let given = |list: &Option<Vec<String>>| -> Option<Vec<String>> {
        list.as_ref()
            .filter(|list| !list.is_empty())
            .map(|list| list.iter().map(|word| expand(word, look)).collect())
    };
    let entrypoint = image.and_then(|config| config.entrypoint().clone());
    let default_args = image.and_then(|config| config.cmd().clone());
    let words = match (given(&container.command), given(&container.args)) {
        (Some(command), args) => [command, args.unwrap_or_default()].concat(),
        (None, Some(args)) => [entrypoint.unwrap_or_default(), args].concat(),
        (None, None) => [
            entrypoint.unwrap_or_default(),
            default_args.unwrap_or_default(),
        ]
        .concat(),
    };
    if words.is_empty() {
        return Err(BuildError::NoCommand);
    }
    Ok(words)
}

fn user(
    pod: Option<&PodSecurityContext>,
    container: Option<&SecurityContext>,
    image_user: Option<String>,
) -> Result<UserSpec, BuildError> {
    let id = |value: Option<i64>| value.and_then(|id| u32::try_from(id).ok());
    let uid = id(container
        .and_then(|security| security.run_as_user)
        .or_else(|| pod.and_then(|security| security.run_as_user)));
    let gid = id(container
        .and_then(|security| security.run_as_group)
        .or_else(|| pod.and_then(|security| security.run_as_group)));
    let non_root = container
        .and_then(|security| security.run_as_non_root)
        .or_else(|| pod.and_then(|security| security.run_as_non_root))
        .unwrap_or(false);
    if non_root {
        let image_name = image_user
            .as_deref()
            .map(|user| user.split(':').next().unwrap_or_default());
        match (uid, image_name) {
            (Some(0), _) => return Err(BuildError::BreaksNonRoot),
            (None, None | Some("" | "0")) => return Err(BuildError::WouldBeRoot),
            (None, Some(name)) if name.parse::<u32>().is_err() => {
                return Err(BuildError::UnknownUser {
                    user: name.to_owned(),
                });
            }
            (Some(_), _) | (None, Some(_)) => {}
        }
    }
    let mut supplementary_groups: Vec<u32> = pod
        .and_then(|security| security.supplemental_groups.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|group| u32::try_from(*group).ok())
        .collect();
    supplementary_groups.extend(id(pod.and_then(|security| security.fs_group)));
    Ok(UserSpec {
        user: image_user,
        uid,
        gid,
        supplementary_groups,
        strict_groups: pod.and_then(|security| security.supplemental_groups_policy.as_deref())
            == Some("Strict"),
    })
}

fn capability_names(
    capabilities: Option<&Capabilities>,
    pick: fn(&Capabilities) -> Option<&Vec<String>>,
) -> Vec<String> {
    capabilities
        .and_then(pick)
        .into_iter()
        .flatten()
        .cloned()
        .collect()
}

/// As the kubelet's `AddNoNewPrivileges`.
fn no_new_privs(security: Option<&SecurityContext>) -> bool {
    let Some(security) = security else {
        return false;
    };
    let adds_admin = security
        .capabilities
        .as_ref()
        .and_then(|capabilities| capabilities.add.as_ref())
        .is_some_and(|add| add.iter().any(|name| name == "CAP_SYS_ADMIN"));
    if security.privileged == Some(true) || adds_admin {
        return false;
    }
    security.allow_privilege_escalation == Some(false)
}

fn seccomp(
    pod: Option<&PodSecurityContext>,
    container: Option<&SecurityContext>,
    directory: &Path,
) -> Seccomp {
    let profile: Option<&SeccompProfile> = container
        .and_then(|security| security.seccomp_profile.as_ref())
        .or_else(|| pod.and_then(|security| security.seccomp_profile.as_ref()));
    match profile.map(|profile| (profile.type_.as_str(), profile.localhost_profile.as_deref())) {
        Some(("Localhost", Some(name))) => Seccomp::Localhost(directory.join(name)),
        Some(("Unconfined", _)) => Seccomp::Unconfined,
        // Stricter than the kubelet, whose default is Unconfined unless `seccompDefault` is
        // set: here it always is.
        _ => Seccomp::RuntimeDefault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"}, "spec": spec
        }))
        .unwrap()
    }

    fn image(config: &serde_json::Value) -> ImageConfiguration {
        serde_json::from_value(json!({
            "architecture": "amd64", "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": []}
        }))
        .unwrap()
    }

    fn make(pod: &Pod, image: &ImageConfiguration) -> Result<ContainerSpec, BuildError> {
        let run = Run {
            id: "id",
            attempt: 0,
            image: "i",
            config: image,
            rootfs: RootfsSpec::default(),
            environment: vec![("GREETING".into(), "hi".into())],
            mounts: Vec::new(),
            log_path: PathBuf::new(),
            node_memory: 1 << 30,
            seccomp_dir: Path::new("/profiles"),
            hostname: "web",
        };
        container(pod, &pod.spec.as_ref().unwrap().containers[0], run)
    }

    #[test]
    fn commands() {
        let image = image(&json!({"Entrypoint": ["/entry"], "Cmd": ["default"]}));
        for (container, expected) in [
            (json!({"name": "c"}), vec!["/entry", "default"]),
            (
                json!({"name": "c", "args": ["$(GREETING)"]}),
                vec!["/entry", "hi"],
            ),
            (json!({"name": "c", "command": ["/x"]}), vec!["/x"]),
            (
                json!({"name": "c", "command": ["/x"], "args": ["a"]}),
                vec!["/x", "a"],
            ),
        ] {
            let pod = pod(&json!({"containers": [container]}));
            assert_eq!(make(&pod, &image).unwrap().args, expected);
        }
        let empty = super::tests::image(&json!({}));
        let pod = pod(&json!({"containers": [{"name": "c"}]}));
        assert_eq!(make(&pod, &empty).unwrap_err(), BuildError::NoCommand);
    }

    #[test]
    fn non_root() {
        for (user, security, expected) in [
            (
                "",
                json!({"runAsNonRoot": true}),
                Some(BuildError::WouldBeRoot),
            ),
            (
                "0",
                json!({"runAsNonRoot": true}),
                Some(BuildError::WouldBeRoot),
            ),
            ("1000:1000", json!({"runAsNonRoot": true}), None),
            ("www", json!({"runAsNonRoot": true, "runAsUser": 33}), None),
            (
                "www",
                json!({"runAsNonRoot": true}),
                Some(BuildError::UnknownUser { user: "www".into() }),
            ),
            (
                "",
                json!({"runAsNonRoot": true, "runAsUser": 0}),
                Some(BuildError::BreaksNonRoot),
            ),
        ] {
            let image = image(&json!({"User": user, "Cmd": ["x"]}));
            let pod = pod(&json!({"containers": [{"name": "c", "securityContext": security}]}));
            assert_eq!(make(&pod, &image).err(), expected, "{user} {security}");
        }
    }

    #[test]
    fn names_of_the_host() {
        let (name, full) = host_names(&pod(&json!({"containers": []})), "cluster.local");
        assert_eq!((name.as_str(), full), ("web", None));
        let pod = pod(&json!({"containers": [], "hostname": "a", "subdomain": "s"}));
        let (name, full) = host_names(&pod, "cluster.local");
        assert_eq!(name, "a");
        assert_eq!(full.unwrap(), "a.s.ns.svc.cluster.local");
    }
}
