//! How objects lie in the store, and how their revisions are read and watched.
//!
//! - [`key`]: the layout of keys.
//! - [`value`]: an object's encoding, into which the resourceVersion is spliced when read.
//! - [`hub`]: one watch of the whole store, fanned out to caches per resource.
//! - [`watch`]: what one client sees of it, through its namespace and selectors.

pub mod hub;
pub mod key;
pub mod value;
pub mod watch;
