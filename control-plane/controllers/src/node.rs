//! Controllers that look after nodes and what is left of those that went.

pub(crate) mod ipam;
pub(crate) mod lifecycle;
pub(crate) mod pod_gc;
pub(crate) mod ranges;
pub(crate) mod taint_eviction;
mod zones;
