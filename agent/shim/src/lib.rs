//! One small process per pod: namespaces, root filesystem, exec, reap.

pub mod protocol;
pub mod spec;
