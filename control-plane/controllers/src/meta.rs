//! Controllers that keep the cluster's own housekeeping: namespaces, identities and ownership.

pub(crate) mod garbage_collector;
pub(crate) mod namespace;
pub(crate) mod root_ca;
pub(crate) mod service_account;
