//! Controllers that say where a Service's traffic may go.

pub(crate) mod endpoints;
pub(crate) mod endpointslice;
mod membership;
