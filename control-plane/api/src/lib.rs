//! The Kubernetes REST API.
