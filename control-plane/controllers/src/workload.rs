//! Controllers that turn a wish for replicas into pods.

pub(crate) mod deployment;
pub(crate) mod replicaset;
