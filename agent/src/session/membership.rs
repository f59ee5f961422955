//! Which cluster this machine joined.
//!
//! Owns `agent/cluster.json`, written last when a machine joins (and so the mark that it did)
//! and again when the list of servers changes. Read at every start: with it and the
//! [`identity`](super::identity) a node needs neither token nor server to come up. The node of
//! a server's own process has none.

use std::path::{Path, PathBuf};

use pintle_proto::node::ClusterSettings;
use serde::{Deserialize, Serialize};

use super::identity::{self, IdentityError};

/// What a node knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// Name of the Node object.
    pub node_name: String,
    /// The cluster CA, PEM.
    pub ca_pem: String,
    /// HOST:PORT the machine joined at: it worked once, whatever the servers say of themselves.
    pub joined_at: String,
    /// HOST:PORT of every API server, as the cluster said last.
    pub servers: Vec<String>,
    /// The cluster's id.
    pub cluster_id: String,
    /// Domain of the cluster's DNS names.
    pub cluster_domain: String,
    /// Address at which pods ask for names.
    pub cluster_dns: String,
    /// Addresses of all Services.
    pub service_cidr: String,
    /// Addresses of all pods.
    pub pod_cidr: String,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// It cannot be read or written.
    #[error(transparent)]
    File(#[from] IdentityError),
    /// It holds something else.
    #[error("{path} is damaged; `pintle reset` and join again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
}

impl Membership {
    /// Takes over what the cluster says of itself.
    #[must_use]
    pub fn with_settings(mut self, settings: &ClusterSettings) -> Self {
        self.cluster_id.clone_from(&settings.cluster_id);
        self.cluster_domain.clone_from(&settings.cluster_domain);
        self.cluster_dns.clone_from(&settings.cluster_dns);
        self.service_cidr.clone_from(&settings.service_cidr);
        self.pod_cidr.clone_from(&settings.pod_cidr);
        self
    }

    /// Where to look for a server, the likeliest first.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses = self.servers.clone();
        if !addresses.contains(&self.joined_at) {
            addresses.push(self.joined_at.clone());
        }
        addresses
    }

    /// The membership of the agent that keeps its state in `agent_dir`; `None` before it joined.
    pub fn load(agent_dir: &Path) -> Result<Option<Self>, MembershipError> {
        let path = agent_dir.join(FILE);
        let Some(text) = identity::read(&path)? else {
            return Ok(None);
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|source| MembershipError::Damaged { path, source })
    }

    /// Replaces the file.
    pub fn save(&self, agent_dir: &Path) -> Result<(), MembershipError> {
        let path = agent_dir.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|source| MembershipError::Damaged {
            path: path.clone(),
            source,
        })?;
        identity::create_directory(agent_dir)?;
        Ok(identity::write(&path, &text)?)
    }
}

const FILE: &str = "cluster.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_comes_back_and_a_damaged_one_is_no_reason_to_join_anew() {
        let dir = tempfile::tempdir().unwrap();
        let agent_dir = dir.path().join("agent");
        assert_eq!(Membership::load(&agent_dir).unwrap(), None);
        let membership = Membership {
            node_name: "n1".into(),
            joined_at: "gateway.example:6443".into(),
            servers: vec!["192.0.2.1:6443".into()],
            ..Membership::default()
        };
        membership.save(&agent_dir).unwrap();
        assert_eq!(
            membership.addresses(),
            ["192.0.2.1:6443", "gateway.example:6443"]
        );
        assert_eq!(Membership::load(&agent_dir).unwrap(), Some(membership));
        std::fs::write(agent_dir.join(FILE), "{").unwrap();
        let error = Membership::load(&agent_dir).unwrap_err();
        assert!(matches!(error, MembershipError::Damaged { .. }));
    }
}
