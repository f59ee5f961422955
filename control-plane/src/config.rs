//! What an operator decides about a control plane, and the checks that need no I/O.
//!
//! Watches and changes no state. [`crate::run`] reads it at start; every refusal names the
//! command-line option it is about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pintle_api::server::DefaultTolerations;
use pintle_controllers::NodeLife;

use crate::etcd::EtcdListen;

/// The port that etcd uses for the same.
const RAFT_PORT: u16 = 2380;
/// How often a node's agent renews its Lease.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Settings of one control plane. [`Default`] is what `pintle up` uses.
#[derive(Clone, Debug)]
pub struct ControlPlaneConfig {
    /// `--data-dir`; the control plane keeps its state in `control-plane/` below it.
    pub data_dir: PathBuf,
    /// `--bind`: where the API listens.
    pub bind: IpAddr,
    /// `--port`; 0 takes a free one.
    pub port: u16,
    /// `--advertise`: address pods and other nodes reach the API at; `None`: `bind`, or the
    /// node's pod gateway when `bind` is loopback or unspecified.
    pub advertise: Option<IpAddr>,
    /// `--tls-san` and whatever else the serving certificate must be valid for: DNS names or
    /// addresses.
    pub more_names: Vec<String>,
    /// `--raft-port`: where other servers reach this one's store, on the address of `bind`;
    /// bound only when there are other servers, or are to be. 0 takes a free one.
    pub raft_port: u16,
    /// `--raft-advertise`: address other servers reach that port at; `None`: that of the API,
    /// or `bind` when it is loopback.
    pub raft_advertise: Option<IpAddr>,
    /// The store waits to be added to the group of another server, instead of beginning a new
    /// cluster. Remembered in the data directory.
    pub joins: Option<Joins>,
    /// `--service-cidr`.
    pub service_cidr: Cidr,
    /// `--pod-cidr`.
    pub pod_cidr: Cidr,
    /// `--cluster-domain`.
    pub cluster_domain: String,
    /// `--node-name`: the node this process also runs; it appears in the serving certificate.
    pub node_name: String,
    /// `--kubeconfig`: where the administrator's kubeconfig is written.
    pub kubeconfig: PathBuf,
    /// `nodeCertificateLife`: how long the certificate of a node lives. It is renewed after
    /// three quarters of that.
    pub node_certificate_life: Duration,
    /// What becomes of nodes that fail (`nodeMonitorGracePeriod` and the like of the config file).
    pub node_life: NodeLife,
    /// How long pods stay on a lost node that do not say it.
    pub default_tolerations: DefaultTolerations,
    /// `--etcd-listen`: where the etcd API is served; port 0 takes a free one.
    pub etcd_listen: Option<EtcdListen>,
}

/// Life of a node's certificate unless the operator says otherwise.
const NODE_CERTIFICATE_LIFE: Duration = Duration::from_hours(365 * 24);
/// The least that leaves time to renew it.
const NODE_CERTIFICATE_LEAST: Duration = Duration::from_secs(20);

impl Default for ControlPlaneConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/pintle"),
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 6443,
            advertise: None,
            raft_port: RAFT_PORT,
            raft_advertise: None,
            joins: None,
            more_names: Vec::new(),
            service_cidr: Cidr::v4([10, 96, 0, 0], 16),
            pod_cidr: Cidr::v4([10, 244, 0, 0], 16),
            cluster_domain: "cluster.local".to_owned(),
            node_name: "localhost".to_owned(),
            kubeconfig: PathBuf::from("/etc/pintle/admin.kubeconfig"),
            node_certificate_life: NODE_CERTIFICATE_LIFE,
            node_life: NodeLife::default(),
            default_tolerations: DefaultTolerations::default(),
            etcd_listen: None,
        }
    }
}

/// The group that a new server joins, and as whom: what [`ControlPlane::add_member`] of one of
/// its servers answered.
///
/// [`ControlPlane::add_member`]: crate::ControlPlane::add_member
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joins {
    /// The cluster.
    pub cluster_id: String,
    /// The id of this server within the group.
    pub member_id: u64,
}

/// A setting that cannot work, with the option that carries it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Not `ADDRESS/PREFIX`.
    #[error("{option} {value}: not a CIDR such as 10.96.0.0/16")]
    Cidr {
        /// The option's name with its dashes.
        option: &'static str,
        /// What was given.
        value: String,
    },
    /// The range leaves no room for what must live in it.
    #[error("{option} {value}: the range is too small, it needs at least {needed} addresses")]
    RangeTooSmall {
        /// The option's name with its dashes.
        option: &'static str,
        /// What was given.
        value: Cidr,
        /// Least number of addresses.
        needed: u128,
    },
    /// Two ranges share addresses.
    #[error("--service-cidr {service} overlaps --pod-cidr {pod}")]
    Overlap {
        /// Service range.
        service: Cidr,
        /// Pod range.
        pod: Cidr,
    },
    /// Not a DNS domain.
    #[error("--cluster-domain {value}: not a lowercase DNS domain such as cluster.local")]
    ClusterDomain {
        /// What was given.
        value: String,
    },
    /// Neither a name nor an address.
    #[error("--tls-san {value}: neither a lowercase DNS name nor an address")]
    ServingName {
        /// What was given.
        value: String,
    },
    /// Not an address others can reach.
    #[error("--advertise {value}: not an address that other machines can reach")]
    Advertise {
        /// What was given.
        value: IpAddr,
    },
    /// Too short or too long.
    #[error("nodeCertificateLife {value:?}: give from {NODE_CERTIFICATE_LEAST:?} to 365 days")]
    NodeCertificateLife {
        /// What was given.
        value: Duration,
    },
    /// A setting about failing nodes that makes no sense.
    #[error("{option} {value}: {reason}")]
    NodeLife {
        /// The setting's name in the config file.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Not usable as a Node's name.
    #[error("--node-name {value}: not a lowercase DNS subdomain (a-z, 0-9, `-` and `.`)")]
    NodeName {
        /// What was given.
        value: String,
    },
}

impl ControlPlaneConfig {
    /// Checks everything that can be checked without touching the machine.
    pub fn check(&self) -> Result<(), ConfigError> {
        // 20 = the first service address and the DNS service at the tenth, with some to spare.
        for (option, value, needed) in [
            ("--service-cidr", self.service_cidr, 16),
            ("--pod-cidr", self.pod_cidr, 8),
        ] {
            if value.size() < needed {
                return Err(ConfigError::RangeTooSmall {
                    option,
                    value,
                    needed,
                });
            }
        }
        if self.service_cidr.overlaps(self.pod_cidr) {
            return Err(ConfigError::Overlap {
                service: self.service_cidr,
                pod: self.pod_cidr,
            });
        }
        if !is_dns_subdomain(&self.cluster_domain) {
            return Err(ConfigError::ClusterDomain {
                value: self.cluster_domain.clone(),
            });
        }
        if !is_dns_subdomain(&self.node_name) {
            return Err(ConfigError::NodeName {
                value: self.node_name.clone(),
            });
        }
        let is_name = |name: &String| name.parse::<IpAddr>().is_ok() || is_dns_subdomain(name);
        if let Some(value) = self.more_names.iter().find(|name| !is_name(name)) {
            return Err(ConfigError::ServingName {
                value: value.clone(),
            });
        }
        if let Some(value) = self.advertise
            && value.is_unspecified()
        {
            return Err(ConfigError::Advertise { value });
        }
        let life = self.node_certificate_life;
        if life < NODE_CERTIFICATE_LEAST || life > NODE_CERTIFICATE_LIFE {
            return Err(ConfigError::NodeCertificateLife { value: life });
        }
        self.check_node_life()
    }

    fn check_node_life(&self) -> Result<(), ConfigError> {
        let life = &self.node_life;
        let refuse = |option, value: String, reason| {
            Err(ConfigError::NodeLife {
                option,
                value,
                reason,
            })
        };
        for (option, grace) in [
            ("nodeMonitorGracePeriod", life.grace),
            ("nodeStartupGracePeriod", life.startup_grace),
        ] {
            if grace <= HEARTBEAT {
                return refuse(
                    option,
                    format!("{}s", grace.as_secs_f64()),
                    "nodes tell of themselves every 10s; give them more time than that",
                );
            }
        }
        for (option, rate) in [
            ("nodeEvictionRate", life.eviction_rate),
            ("secondaryNodeEvictionRate", life.secondary_eviction_rate),
        ] {
            if !(rate.is_finite() && rate >= 0.0) {
                return refuse(
                    option,
                    rate.to_string(),
                    "give nodes per second, such as 0.1; 0 evicts from none",
                );
            }
        }
        if !(0.0..=1.0).contains(&life.unhealthy_zone_threshold) {
            return refuse(
                "unhealthyZoneThreshold",
                life.unhealthy_zone_threshold.to_string(),
                "give a share between 0 and 1, such as 0.55",
            );
        }
        for (option, seconds) in [
            (
                "defaultNotReadyTolerationSeconds",
                self.default_tolerations.not_ready_seconds,
            ),
            (
                "defaultUnreachableTolerationSeconds",
                self.default_tolerations.unreachable_seconds,
            ),
        ] {
            if seconds < 0 {
                return refuse(option, seconds.to_string(), "give seconds, such as 300");
            }
        }
        Ok(())
    }

    /// The `kubernetes` Service's address: the first of the service range.
    pub fn api_service_address(&self) -> IpAddr {
        self.service_cidr.nth(1)
    }

    /// The cluster DNS address: the tenth of the service range.
    pub fn cluster_dns(&self) -> IpAddr {
        self.service_cidr.nth(10)
    }

    /// The pod gateway of this process's node: the first address of the first node's PodCIDR.
    pub fn pod_gateway(&self) -> IpAddr {
        self.pod_cidr.nth(1)
    }

    /// Prefix length of one node's share of the pod range.
    pub fn node_cidr_mask(&self) -> u8 {
        let usual = if self.pod_cidr.network().is_ipv4() {
            24
        } else {
            64
        };
        self.pod_cidr.prefix().max(usual)
    }

    /// Whether pods need a listener of their own because `bind` is not reachable for them.
    pub fn needs_gateway_listener(&self) -> bool {
        self.bind.is_loopback()
    }

    /// The address in the `kubernetes` Service's endpoints.
    pub fn advertise_address(&self) -> IpAddr {
        self.advertise
            .unwrap_or(if self.bind.is_loopback() || self.bind.is_unspecified() {
                self.pod_gateway()
            } else {
                self.bind
            })
    }

    /// Where other machines reach the API, given the port that was bound.
    pub fn public_endpoint(&self, port: u16) -> SocketAddr {
        if self.is_loopback_only() {
            self.local_endpoint(port)
        } else {
            SocketAddr::new(self.advertise_address(), port)
        }
    }

    /// Whether no other machine can reach the API.
    pub fn is_loopback_only(&self) -> bool {
        self.bind.is_loopback()
    }

    /// The address other servers reach this one's store at.
    pub fn raft_address(&self) -> IpAddr {
        self.raft_advertise.unwrap_or(if self.bind.is_loopback() {
            self.bind
        } else {
            self.advertise_address()
        })
    }

    /// Host and port for clients on this machine, given the port that was bound.
    pub fn local_endpoint(&self, port: u16) -> SocketAddr {
        let address = match self.bind {
            IpAddr::V4(v4) if v4.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(v6) if v6.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            other => other,
        };
        SocketAddr::new(address, port)
    }

    /// Directory of everything the control plane keeps.
    pub fn state_dir(&self) -> PathBuf {
        self.data_dir.join("control-plane")
    }
}

/// An address range, normalised to its first address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// An IPv4 range; host bits are cleared and `prefix` is capped at 32.
    pub fn v4(address: [u8; 4], prefix: u8) -> Self {
        Self::normalised(IpAddr::from(address), prefix.min(32))
    }

    fn normalised(address: IpAddr, prefix: u8) -> Self {
        let host_bits = u32::from(width(address) - prefix);
        let cleared = to_bits(address)
            .checked_shr(host_bits)
            .and_then(|bits| bits.checked_shl(host_bits))
            .unwrap_or(0);
        Self {
            address: from_bits(address, cleared),
            prefix,
        }
    }

    /// First address of the range.
    pub fn network(self) -> IpAddr {
        self.address
    }

    /// Length of the network prefix.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Number of addresses, saturating.
    pub fn size(self) -> u128 {
        1_u128
            .checked_shl(u32::from(width(self.address) - self.prefix))
            .unwrap_or(u128::MAX)
    }

    /// The `index`-th address after the network address, wrapping inside the range.
    pub fn nth(self, index: u128) -> IpAddr {
        from_bits(
            self.address,
            to_bits(self.address).wrapping_add(index % self.size()),
        )
    }

    /// Whether `address` lies in the range.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Self::normalised(address, self.prefix).address == self.address
    }

    /// Whether the two ranges share an address.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn from_bits(family: IpAddr, bits: u128) -> IpAddr {
    match family {
        // The mask keeps an addition past the last address inside the family.
        IpAddr::V4(_) => {
            let bytes = bits.to_be_bytes();
            IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]])
        }
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The text is not `ADDRESS/PREFIX`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a CIDR such as 10.96.0.0/16")]
pub struct CidrParseError;

impl FromStr for Cidr {
    type Err = CidrParseError;

    fn from_str(text: &str) -> Result<Self, CidrParseError> {
        let (address, prefix) = text.split_once('/').ok_or(CidrParseError)?;
        let address: IpAddr = address.parse().ok().ok_or(CidrParseError)?;
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(CidrParseError);
        }
        let prefix: u8 = prefix.parse().ok().ok_or(CidrParseError)?;
        if prefix > width(address) {
            return Err(CidrParseError);
        }
        Ok(Self::normalised(address, prefix))
    }
}

/// RFC 1123 subdomain in lower case, at most 253 bytes.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_addresses_come_from_the_ranges() {
        let config = ControlPlaneConfig::default();
        config.check().unwrap();
        assert_eq!(config.api_service_address().to_string(), "10.96.0.1");
        assert_eq!(config.cluster_dns().to_string(), "10.96.0.10");
        assert_eq!(config.advertise_address().to_string(), "10.244.0.1");
        assert!(config.needs_gateway_listener());
    }

    #[test]
    fn a_cidr_is_normalised_and_ordered() {
        let cidr: Cidr = "10.1.2.3/16".parse().unwrap();
        assert_eq!(cidr.to_string(), "10.1.0.0/16");
        assert!(cidr.contains("10.1.255.255".parse().unwrap()));
        assert!(!cidr.contains("10.2.0.0".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Cidr>().unwrap().overlaps(cidr));
        assert_eq!("fd00::1/108".parse::<Cidr>().unwrap().size(), 1 << 20);
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "x/8",
            "10.0.0.0/+8",
            "10.0.0.0/",
        ] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrParseError), "{bad}");
        }
    }

    #[test]
    fn refusals_name_the_option() {
        let config = ControlPlaneConfig {
            service_cidr: Cidr::v4([10, 244, 8, 0], 24),
            ..ControlPlaneConfig::default()
        };
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "--service-cidr 10.244.8.0/24 overlaps --pod-cidr 10.244.0.0/16"
        );
        let config = ControlPlaneConfig {
            node_name: "Bad_Name".to_owned(),
            ..ControlPlaneConfig::default()
        };
        assert!(
            config
                .check()
                .unwrap_err()
                .to_string()
                .starts_with("--node-name Bad_Name")
        );
    }
}
