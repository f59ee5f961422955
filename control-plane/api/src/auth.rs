//! Who is asking, and may they: the first two modules of the pipeline.
//!
//! [`authenticate`] turns a certificate or a token into a [`UserInfo`]; [`authorize`] decides
//! whether that user may do what the request asks.

use std::collections::BTreeMap;

pub mod authenticate;
pub mod authorize;

/// Group whose members may do everything.
pub const GROUP_MASTERS: &str = "system:masters";
/// Group of every node's agent.
pub const GROUP_NODES: &str = "system:nodes";
/// Group of every authenticated user.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// Group of every service account.
pub const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// Name prefix of a node's agent.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// Name prefix of a service account: `system:serviceaccount:NAMESPACE:NAME`.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// An authenticated user, as `authentication.k8s.io/v1` `UserInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// Unique name among active users.
    pub name: String,
    /// Unique over time; empty when there is none.
    pub uid: String,
    /// Groups the user is a member of.
    pub groups: Vec<String>,
    /// Further facts of the authenticator (credential id, bound pod, …).
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user of the given name in the given groups.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        Self {
            name: name.into(),
            uid: String::new(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            extra: BTreeMap::new(),
        }
    }

    /// The API server acting for itself.
    pub fn apiserver() -> Self {
        Self::new("system:apiserver", &[GROUP_MASTERS, GROUP_AUTHENTICATED])
    }

    /// A controller of `kube-controller-manager`, as `system:serviceaccount:kube-system:NAME`.
    pub fn controller(name: &str) -> Self {
        Self::new(
            format!("{SERVICE_ACCOUNT_PREFIX}kube-system:{name}"),
            &[
                GROUP_SERVICE_ACCOUNTS,
                "system:serviceaccounts:kube-system",
                GROUP_AUTHENTICATED,
            ],
        )
    }

    /// The scheduler.
    pub fn scheduler() -> Self {
        Self::new("system:kube-scheduler", &[GROUP_AUTHENTICATED])
    }

    /// A node's agent.
    pub fn node(name: &str) -> Self {
        Self::new(
            format!("{NODE_USER_PREFIX}{name}"),
            &[GROUP_NODES, GROUP_AUTHENTICATED],
        )
    }

    /// Whether the user is a member of `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|member| member == group)
    }

    /// The node's name when the user is a node's agent.
    pub fn node_name(&self) -> Option<&str> {
        if self.in_group(GROUP_NODES) {
            self.name.strip_prefix(NODE_USER_PREFIX)
        } else {
            None
        }
    }
}
