//! Controllers that turn a wish for replicas into pods, and guard how many of them go at once.

pub(crate) mod deployment;
pub(crate) mod disruption;
pub(crate) mod replicaset;
