//! Kubernetes object model without I/O.
