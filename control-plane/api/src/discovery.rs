//! Discovery: `/api`, `/apis`, `/api/v1`, `/apis/GROUP/VERSION`, legacy and aggregated.

use ::http::request::Parts;
use axum::body::Body;

use crate::registry::Registry;

/// Answers a discovery request, or `None` when the path is not one of discovery's.
pub fn serve(registry: &Registry, parts: &Parts) -> Option<::http::Response<Body>> {
    let _ = (registry, parts);
    None
}
