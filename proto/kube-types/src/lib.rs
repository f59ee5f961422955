//! Kubernetes object model without I/O.
//!
//! This crate owns what a Kubernetes object *is*: the dynamic [`Object`] every API request carries,
//! names, selectors and quantities, the four patch types, the schemas of the built-in kinds, their
//! defaults and their validation, and the errors ([`Status`]) a client sees. It knows no socket, no
//! clock and no randomness of its own: times and random bytes are handed in, so that every function
//! gives the same answer for the same arguments.
//!
//! ```text
//!   bytes ──► json ──► schema::check ──► schema::normalise ──► defaults ──► validation ──► Object
//!                          │                                                   │
//!                          └── strict / type errors ──► Status ◄── ErrorList ──┘
//!   Object + patch ──► patch::{json, merge, strategic, apply} ──► Object (then as above)
//! ```
//!
//! Who reacts next: the API's registry stores what comes out of here; controllers, scheduler and
//! agent read the same objects as `k8s-openapi` types.

pub mod defaults;
pub mod field;
pub mod gvk;
pub mod hash;
pub mod json;
pub mod names;
pub mod object;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod time;
pub mod validation;

pub use field::{ErrorList, FieldError, Path};
pub use gvk::{GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource};
pub use object::{Object, ObjectError};
pub use quantity::Quantity;
pub use selector::{FieldSelector, LabelSelector};
pub use status::{Reason, Status};
