//! Flags, config file and defaults become one [`Settings`], checked as a whole before
//! anything on the host is touched.
//!
//! `Settings` is also written to `DATA_DIR/instance.json`, so that `pintle down` knows what to
//! remove when no process is left to ask.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_agent::node::object::may_label;
use pintle_agent::session::membership::Membership;
use pintle_control_plane::joined::Joined;
use pintle_control_plane::{Cidr, ControlPlaneConfig, DefaultTolerations, EtcdListen, NodeLife};
use serde::{Deserialize, Serialize};

use crate::cli::{Agent, Instance, Up};
use crate::duration;

/// The config file; every field may be left out. Unknown fields are refused.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ConfigFile {
    kubeconfig: Option<PathBuf>,
    bind: Option<IpAddr>,
    advertise: Option<IpAddr>,
    #[serde(default)]
    tls_sans: Vec<String>,
    node_certificate_life: Option<String>,
    port: Option<u16>,
    node_name: Option<String>,
    node_ip: Option<IpAddr>,
    #[serde(default)]
    node_labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "cidr_text::option::deserialize")]
    pod_cidr: Option<Cidr>,
    #[serde(default, deserialize_with = "cidr_text::option::deserialize")]
    service_cidr: Option<Cidr>,
    cluster_domain: Option<String>,
    etcd_listen: Option<EtcdListen>,
    raft_port: Option<u16>,
    raft_advertise: Option<IpAddr>,
    max_pods: Option<u32>,
    pod_pids_limit: Option<u64>,
    cgroup_parent: Option<PathBuf>,
    #[serde(default, deserialize_with = "duration_text")]
    node_monitor_grace_period: Option<Duration>,
    #[serde(default, deserialize_with = "duration_text")]
    node_startup_grace_period: Option<Duration>,
    node_eviction_rate: Option<f64>,
    secondary_node_eviction_rate: Option<f64>,
    unhealthy_zone_threshold: Option<f64>,
    large_cluster_size_threshold: Option<usize>,
    terminated_pod_gc_threshold: Option<usize>,
    default_not_ready_toleration_seconds: Option<i64>,
    default_unreachable_toleration_seconds: Option<i64>,
    #[serde(default)]
    registries: BTreeMap<String, Registry>,
    #[serde(default)]
    dns: Dns,
}

impl ConfigFile {
    /// What becomes of nodes that fail; what is not said is as Kubernetes has it.
    fn node_life(&self) -> NodeLife {
        let usual = NodeLife::default();
        NodeLife {
            grace: self.node_monitor_grace_period.unwrap_or(usual.grace),
            startup_grace: self
                .node_startup_grace_period
                .unwrap_or(usual.startup_grace),
            eviction_rate: self.node_eviction_rate.unwrap_or(usual.eviction_rate),
            secondary_eviction_rate: self
                .secondary_node_eviction_rate
                .unwrap_or(usual.secondary_eviction_rate),
            unhealthy_zone_threshold: self
                .unhealthy_zone_threshold
                .unwrap_or(usual.unhealthy_zone_threshold),
            large_zone: self
                .large_cluster_size_threshold
                .unwrap_or(usual.large_zone),
            terminated_pods: self
                .terminated_pod_gc_threshold
                .unwrap_or(usual.terminated_pods),
            ..usual
        }
    }

    fn default_tolerations(&self) -> DefaultTolerations {
        let usual = DefaultTolerations::default();
        DefaultTolerations {
            not_ready_seconds: self
                .default_not_ready_toleration_seconds
                .unwrap_or(usual.not_ready_seconds),
            unreachable_seconds: self
                .default_unreachable_toleration_seconds
                .unwrap_or(usual.unreachable_seconds),
        }
    }
}

/// How to reach one registry.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Registry {
    #[serde(default)]
    mirrors: Vec<String>,
}

/// The node's resolver.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Dns {
    #[serde(default)]
    upstreams: Vec<SocketAddr>,
}

/// What an instance is to its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Role {
    /// `pintle up`: control plane and node.
    #[default]
    Server,
    /// `pintle agent`: a node of a cluster that runs elsewhere.
    Agent,
}

/// Everything `pintle up` or `pintle agent` needs to know, complete and checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    #[serde(default)]
    pub(crate) role: Role,
    pub(crate) data_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) bind: IpAddr,
    #[serde(default)]
    pub(crate) advertise: Option<IpAddr>,
    #[serde(default)]
    pub(crate) tls_sans: Vec<String>,
    #[serde(default)]
    pub(crate) node_certificate_life: Option<Duration>,
    pub(crate) port: u16,
    pub(crate) node_name: String,
    pub(crate) node_ip: Option<IpAddr>,
    pub(crate) node_labels: BTreeMap<String, String>,
    #[serde(with = "cidr_text")]
    pub(crate) pod_cidr: Cidr,
    #[serde(with = "cidr_text")]
    pub(crate) service_cidr: Cidr,
    pub(crate) cluster_domain: String,
    /// Where other servers reach this one's store.
    #[serde(default)]
    pub(crate) raft_port: Option<u16>,
    #[serde(default)]
    pub(crate) raft_advertise: Option<IpAddr>,
    /// The cluster this server joined; it has its own file.
    #[serde(skip)]
    pub(crate) joined: Option<Joined>,
    /// Where the etcd API is served.
    pub(crate) etcd_listen: Option<EtcdListen>,
    pub(crate) max_pods: u32,
    pub(crate) pod_pids_limit: Option<u64>,
    /// Where pods' cgroups go and the Service programs attach; `None`: the root of cgroup v2.
    pub(crate) cgroup_parent: Option<PathBuf>,
    pub(crate) registries: BTreeMap<String, Vec<String>>,
    pub(crate) dns_upstreams: Vec<SocketAddr>,
    /// What becomes of nodes that fail; `pintle down` needs none of it.
    #[serde(skip)]
    pub(crate) node_life: NodeLife,
    #[serde(skip)]
    pub(crate) default_tolerations: DefaultTolerations,
}

/// Why settings cannot be used. Each names the option to change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("--config {path}: cannot be read")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("--config {path}: {reason}")]
    Parse { path: PathBuf, reason: String },
    #[error("--{option} `{value}`: {reason}")]
    Value {
        option: &'static str,
        value: String,
        reason: String,
    },
    #[error("{field}: {reason}")]
    Field { field: &'static str, reason: String },
    #[error("--config {path}: {field} is for servers only; the cluster decides it for its nodes")]
    ServerOnly { path: PathBuf, field: &'static str },
    #[error(transparent)]
    ControlPlane(#[from] pintle_control_plane::config::ConfigError),
    #[error("the host name cannot be read; give one with --node-name")]
    HostName(#[source] nix::errno::Errno),
    #[error("{path}: cannot be written")]
    Save {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl Settings {
    /// Joins flags, the config file, what the cluster decided that this server joined, and
    /// defaults, and checks the result.
    pub(crate) fn resolve(
        instance: &Instance,
        up: &Up,
        joined: Option<Joined>,
    ) -> Result<Self, ConfigError> {
        let defaults = ControlPlaneConfig::default();
        let file = up
            .config
            .as_deref()
            .map(read_file)
            .transpose()?
            .unwrap_or_default();
        let (node_life, default_tolerations) = (file.node_life(), file.default_tolerations());
        let node_name = match up.node_name.clone().or(file.node_name) {
            Some(name) => name,
            None => host_name()?,
        };
        let life = file.node_certificate_life.as_deref().map(|text| {
            duration::parse(text).map_err(|reason| ConfigError::Field {
                field: "nodeCertificateLife",
                reason,
            })
        });
        let settings = Self {
            role: Role::Server,
            data_dir: absolute("data-dir", &instance.data_dir)?,
            run_dir: absolute("run-dir", &instance.run_dir)?,
            kubeconfig: absolute(
                "kubeconfig",
                &up.kubeconfig
                    .clone()
                    .or(file.kubeconfig)
                    .unwrap_or(defaults.kubeconfig),
            )?,
            bind: up.bind.or(file.bind).unwrap_or(defaults.bind),
            advertise: up.advertise.or(file.advertise),
            tls_sans: [up.tls_sans.clone(), file.tls_sans].concat(),
            node_certificate_life: life.transpose()?,
            port: up.port.or(file.port).unwrap_or(defaults.port),
            node_name,
            node_ip: up.node_ip.or(file.node_ip),
            node_labels: file.node_labels,
            pod_cidr: of_cluster(
                "pod-cidr",
                up.pod_cidr.or(file.pod_cidr),
                joined.as_ref().map(|joined| joined.pod_cidr),
                defaults.pod_cidr,
            )?,
            service_cidr: of_cluster(
                "service-cidr",
                up.service_cidr.or(file.service_cidr),
                joined.as_ref().map(|joined| joined.service_cidr),
                defaults.service_cidr,
            )?,
            cluster_domain: of_cluster(
                "cluster-domain",
                up.cluster_domain.clone().or(file.cluster_domain),
                joined.as_ref().map(|joined| joined.cluster_domain.clone()),
                defaults.cluster_domain,
            )?,
            raft_port: up.raft_port.or(file.raft_port),
            raft_advertise: up.raft_advertise.or(file.raft_advertise),
            joined,
            etcd_listen: up.etcd_listen.or(file.etcd_listen),
            max_pods: file.max_pods.unwrap_or(110),
            pod_pids_limit: file.pod_pids_limit,
            cgroup_parent: file.cgroup_parent,
            registries: file
                .registries
                .into_iter()
                .map(|(host, it)| (host, it.mirrors))
                .collect(),
            dns_upstreams: file.dns.upstreams,
            node_life,
            default_tolerations,
        };
        settings.check()?;
        Ok(settings)
    }

    /// Those of an agent: what the cluster decides comes from the membership.
    pub(crate) fn of_member(
        instance: &Instance,
        agent: &Agent,
        file: ConfigFile,
        membership: &Membership,
    ) -> Result<Self, ConfigError> {
        let cluster = |field: &'static str, value: &str| -> Result<Cidr, ConfigError> {
            value
                .parse()
                .map_err(
                    |error: pintle_control_plane::config::CidrParseError| ConfigError::Field {
                        field,
                        reason: error.to_string(),
                    },
                )
        };
        let defaults = ControlPlaneConfig::default();
        let settings = Self {
            role: Role::Agent,
            data_dir: absolute("data-dir", &instance.data_dir)?,
            run_dir: absolute("run-dir", &instance.run_dir)?,
            kubeconfig: PathBuf::new(),
            bind: defaults.bind,
            advertise: None,
            tls_sans: Vec::new(),
            node_certificate_life: None,
            port: defaults.port,
            node_name: membership.node_name.clone(),
            node_ip: agent.node_ip.or(file.node_ip),
            node_labels: file.node_labels,
            pod_cidr: cluster("podCidr", &membership.pod_cidr)?,
            service_cidr: cluster("serviceCidr", &membership.service_cidr)?,
            cluster_domain: membership.cluster_domain.clone(),
            etcd_listen: None,
            raft_port: None,
            raft_advertise: None,
            joined: None,
            node_life: defaults.node_life,
            default_tolerations: defaults.default_tolerations,
            max_pods: file.max_pods.unwrap_or(110),
            pod_pids_limit: file.pod_pids_limit,
            cgroup_parent: file.cgroup_parent,
            registries: file
                .registries
                .into_iter()
                .map(|(host, it)| (host, it.mirrors))
                .collect(),
            dns_upstreams: file.dns.upstreams,
        };
        settings.control_plane().check()?;
        check_labels(&settings.node_labels)?;
        Ok(settings)
    }

    /// The control plane's part of the settings.
    pub(crate) fn control_plane(&self) -> ControlPlaneConfig {
        let defaults = ControlPlaneConfig::default();
        ControlPlaneConfig {
            advertise: self.advertise,
            more_names: self.tls_sans.clone(),
            node_certificate_life: self
                .node_certificate_life
                .unwrap_or(defaults.node_certificate_life),
            data_dir: self.data_dir.clone(),
            bind: self.bind,
            port: self.port,
            service_cidr: self.service_cidr,
            pod_cidr: self.pod_cidr,
            cluster_domain: self.cluster_domain.clone(),
            node_name: self.node_name.clone(),
            kubeconfig: self.kubeconfig.clone(),
            node_life: self.node_life,
            default_tolerations: self.default_tolerations,
            etcd_listen: self.etcd_listen,
            raft_port: self.raft_port.unwrap_or(defaults.raft_port),
            raft_advertise: self.raft_advertise,
            joins: self.joined.as_ref().map(Joined::joins),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.control_plane().check()?;
        check_labels(&self.node_labels)?;
        if self.pod_cidr.prefix() > 24 {
            return Err(ConfigError::Value {
                option: "pod-cidr",
                value: self.pod_cidr.to_string(),
                reason: "too small: each node gets a /24 of it".to_owned(),
            });
        }
        if self.port == 0 {
            return Err(ConfigError::Value {
                option: "port",
                value: "0".to_owned(),
                reason: "give a port from 1 to 65535".to_owned(),
            });
        }
        if self.raft_port == Some(0) {
            return Err(ConfigError::Value {
                option: "raft-port",
                value: "0".to_owned(),
                reason: "give a port from 1 to 65535".to_owned(),
            });
        }
        if let Some(etcd) = self.etcd_listen
            && etcd.address.port() == 0
        {
            return Err(ConfigError::Value {
                option: "etcd-listen",
                value: etcd.to_string(),
                reason: "give a port from 1 to 65535".to_owned(),
            });
        }
        Ok(())
    }

    /// The mark on everything this instance makes on the host: eight hex digits of the hash of
    /// its run directory.
    pub(crate) fn instance_id(&self) -> String {
        instance_id(&self.run_dir)
    }

    /// Writes `instance.json`, atomically.
    pub(crate) fn save(&self) -> Result<(), ConfigError> {
        let path = self.data_dir.join(INSTANCE_FILE);
        let save = |source| ConfigError::Save {
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec_pretty(self).map_err(|error| save(error.into()))?;
        let partial = path.with_extension("json.new");
        std::fs::write(&partial, text).map_err(save)?;
        std::fs::rename(&partial, &path).map_err(save)
    }

    /// Reads what the last `pintle up` of this instance used; `None` when it never ran.
    pub(crate) fn load(instance: &Instance) -> Result<Option<Self>, ConfigError> {
        let path = instance.data_dir.join(INSTANCE_FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let settings = serde_json::from_slice(&text).map_err(|error| ConfigError::Parse {
            path,
            reason: error.to_string(),
        })?;
        Ok(Some(settings))
    }
}

/// What all servers of a cluster have alike: the cluster's, where one was joined.
fn of_cluster<T: PartialEq + ToString>(
    option: &'static str,
    given: Option<T>,
    cluster: Option<T>,
    default: T,
) -> Result<T, ConfigError> {
    match (given, cluster) {
        (Some(given), Some(cluster)) if given != cluster => Err(ConfigError::Value {
            option,
            value: given.to_string(),
            reason: format!(
                "the cluster that this server joined has {}; leave the option out",
                cluster.to_string()
            ),
        }),
        (_, Some(cluster)) => Ok(cluster),
        (Some(given), None) => Ok(given),
        (None, None) => Ok(default),
    }
}

/// A node that asks for labels it may not have would be refused by the API for ever.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    match labels.keys().find(|label| !may_label(label)) {
        None => Ok(()),
        Some(label) => Err(ConfigError::Field {
            field: "nodeLabels",
            reason: format!(
                "a node may not give itself the label {label}; an administrator sets it with kubectl label"
            ),
        }),
    }
}

const INSTANCE_FILE: &str = "instance.json";

/// See [`Settings::instance_id`].
pub(crate) fn instance_id(run_dir: &Path) -> String {
    use sha2::{Digest, Sha256};
    use std::os::unix::ffi::OsStrExt;
    let hash = Sha256::digest(run_dir.as_os_str().as_bytes());
    format!(
        "{:08x}",
        u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
    )
}

impl ConfigFile {
    /// The file `pintle agent` was given, if any.
    pub(crate) fn of_agent(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let file = read_file(path)?;
        for (field, is_given) in [
            ("kubeconfig", file.kubeconfig.is_some()),
            ("bind", file.bind.is_some()),
            ("advertise", file.advertise.is_some()),
            ("tlsSans", !file.tls_sans.is_empty()),
            ("nodeCertificateLife", file.node_certificate_life.is_some()),
            ("port", file.port.is_some()),
            ("podCidr", file.pod_cidr.is_some()),
            ("serviceCidr", file.service_cidr.is_some()),
            ("clusterDomain", file.cluster_domain.is_some()),
            ("etcdListen", file.etcd_listen.is_some()),
            ("raftPort", file.raft_port.is_some()),
            ("raftAdvertise", file.raft_advertise.is_some()),
            (
                "nodeMonitorGracePeriod",
                file.node_monitor_grace_period.is_some(),
            ),
            (
                "nodeStartupGracePeriod",
                file.node_startup_grace_period.is_some(),
            ),
            ("nodeEvictionRate", file.node_eviction_rate.is_some()),
            (
                "secondaryNodeEvictionRate",
                file.secondary_node_eviction_rate.is_some(),
            ),
            (
                "unhealthyZoneThreshold",
                file.unhealthy_zone_threshold.is_some(),
            ),
            (
                "largeClusterSizeThreshold",
                file.large_cluster_size_threshold.is_some(),
            ),
            (
                "terminatedPodGcThreshold",
                file.terminated_pod_gc_threshold.is_some(),
            ),
            (
                "defaultNotReadyTolerationSeconds",
                file.default_not_ready_toleration_seconds.is_some(),
            ),
            (
                "defaultUnreachableTolerationSeconds",
                file.default_unreachable_toleration_seconds.is_some(),
            ),
        ] {
            if is_given {
                let path = path.to_owned();
                return Err(ConfigError::ServerOnly { path, field });
            }
        }
        Ok(file)
    }

    /// Name of the node: the flag's, the file's, or the machine's.
    pub(crate) fn node_name(&self, flag: Option<&str>) -> Result<String, ConfigError> {
        match flag.or(self.node_name.as_deref()) {
            Some(name) => Ok(name.to_owned()),
            None => host_name(),
        }
    }

    /// The name somebody asked for.
    pub(crate) fn given_node_name<'a>(&'a self, flag: Option<&'a str>) -> Option<&'a str> {
        flag.or(self.node_name.as_deref())
    }

    /// Where cgroups go.
    pub(crate) fn cgroup_parent(&self) -> Option<&Path> {
        self.cgroup_parent.as_deref()
    }
}

fn read_file(path: &Path) -> Result<ConfigFile, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    if text.trim().is_empty() {
        return Ok(ConfigFile::default());
    }
    serde_saphyr::from_str(&text).map_err(|error| ConfigError::Parse {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })
}

fn absolute(option: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    std::path::absolute(path).map_err(|error| ConfigError::Value {
        option,
        value: path.display().to_string(),
        reason: error.to_string(),
    })
}

fn host_name() -> Result<String, ConfigError> {
    let name = nix::sys::utsname::uname().map_err(ConfigError::HostName)?;
    Ok(name.nodename().to_string_lossy().to_lowercase())
}

/// Networks as text, in the config file and in `instance.json`.
mod cidr_text {
    use pintle_control_plane::Cidr;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(cidr: &Cidr, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(cidr)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Cidr, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }

    pub(super) mod option {
        use super::{Cidr, Deserializer};

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Cidr>, D::Error> {
            super::deserialize(deserializer).map(Some)
        }
    }
}

/// Durations as Kubernetes' settings have them: `40s`, `1m30s`, `500ms`.
fn duration_text<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    duration::parse(&text)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn resolve(args: &[&str]) -> Result<Settings, ConfigError> {
        let mut words = vec!["pintle", "--run-dir", "/run/t", "up", "--node-name", "n1"];
        words.extend(args);
        let cli = Cli::try_parse_from(words).expect("parses");
        let Command::Up(up) = cli.command else {
            panic!("not `up`")
        };
        Settings::resolve(&cli.instance, &up, None)
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let settings = resolve(&[]).expect("resolves");
        assert_eq!(settings.bind.to_string(), "127.0.0.1");
        assert_eq!(settings.port, 6443);
        assert_eq!(settings.pod_cidr.to_string(), "10.244.0.0/16");
        assert_eq!(settings.service_cidr.to_string(), "10.96.0.0/16");
        assert_eq!(settings.data_dir, PathBuf::from("/var/lib/pintle"));
        assert_eq!(settings.instance_id().len(), 8);
    }

    #[test]
    fn an_error_names_its_option() {
        for (args, want) in [
            (
                ["--pod-cidr", "10.96.0.0/12"],
                "--service-cidr 10.96.0.0/16 overlaps --pod-cidr 10.96.0.0/12",
            ),
            (
                ["--pod-cidr", "10.1.0.0/25"],
                "--pod-cidr `10.1.0.0/25`: too small",
            ),
            (["--port", "0"], "--port `0`"),
            (
                ["--etcd-listen", "127.0.0.1:0"],
                "--etcd-listen `https://127.0.0.1:0`: give a port",
            ),
            (
                ["--cluster-domain", "Cluster_Local"],
                "--cluster-domain Cluster_Local",
            ),
        ] {
            let error = resolve(&args).expect_err("refused").to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn patience_with_nodes_is_a_setting() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("config.yaml");
        let resolve = |text: &str| {
            std::fs::write(&file, text).expect("written");
            resolve(&["--config", file.to_str().expect("text")])
        };
        let settings = resolve("nodeMonitorGracePeriod: 1m30s\nnodeEvictionRate: 1\ndefaultUnreachableTolerationSeconds: 30\n")
            .expect("resolves");
        assert_eq!(settings.node_life.grace, Duration::from_secs(90));
        assert_eq!(settings.default_tolerations.unreachable_seconds, 30);
        assert_eq!(settings.default_tolerations.not_ready_seconds, 300);
        for (text, want) in [
            (
                "nodeMonitorGracePeriod: 8s",
                "nodeMonitorGracePeriod 8s: nodes tell",
            ),
            (
                "nodeEvictionRate: -1",
                "nodeEvictionRate -1: give nodes per second",
            ),
            (
                "unhealthyZoneThreshold: 55",
                "unhealthyZoneThreshold 55: give a share",
            ),
            (
                "defaultNotReadyTolerationSeconds: -1",
                "defaultNotReadyTolerationSeconds -1: give seconds",
            ),
        ] {
            let error = resolve(text).expect_err("refused").to_string();
            assert!(error.starts_with(want), "{error}");
        }
        let error = resolve("nodeMonitorGracePeriod: soon")
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("`soon` is no length of time such as"),
            "{error}"
        );
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, "port: 7443\nnodeName: from-file\netcdListen: http://127.0.0.1:2379\nregistries:\n  docker.io:\n    mirrors: [\"http://127.0.0.1:5000\"]\n")
            .expect("written");
        let file = file.to_str().expect("text");
        let settings = resolve(&["--config", file, "--port", "8443"]).expect("resolves");
        assert_eq!((settings.port, settings.node_name.as_str()), (8443, "n1"));
        assert_eq!(settings.registries["docker.io"], ["http://127.0.0.1:5000"]);
        std::fs::write(file, "nodeLabels: {node-role.kubernetes.io/db: \"\"}\n").expect("written");
        let error = resolve(&["--config", file])
            .expect_err("refused")
            .to_string();
        assert!(error.contains("node-role.kubernetes.io/db"), "{error}");
        let etcd = settings.etcd_listen.expect("from the file");
        assert_eq!(etcd.to_string(), "http://127.0.0.1:2379");
        std::fs::write(file, "prot: 1\n").expect("written");
        let error = resolve(&["--config", file])
            .expect_err("refused")
            .to_string();
        assert!(error.contains("prot"), "{error}");
    }
}
