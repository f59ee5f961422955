//! One small process per pod: namespaces, root filesystem, exec, reap.
