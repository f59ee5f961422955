//! What the agent tells about its pods.
//!
//! Watches the facts of every pod's machine; changes `status` of the Pod objects and records
//! Events, by requests on the session. Reacts next: the controllers, the scheduler, DNS and
//! the service data path (through EndpointSlices), and people with `kubectl`.
//!
//! - [`pod_status`]: facts → `v1.PodStatus`, as the kubelet writes it (pure).
//! - [`publisher`]: newest wins, sent when it differs.
//! - [`events`]: Events with the agent as their source.

pub mod events;
pub mod pod_status;
pub mod publisher;

pub use events::{EventSink, Events};
pub use pod_status::{HostAddresses, pod_status};
pub use publisher::StatusPublisher;
