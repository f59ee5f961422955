//! HTTP: from a request to the pipeline and back.
//!
//! One fallback handler with a path parser of its own, because custom resources add paths at
//! run time. Authentication happens here; everything after it is the pipeline's. Every error
//! leaves as a `metav1.Status`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use ::http::request::Parts;
use ::http::{Method, Request, Response, StatusCode};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use futures_util::FutureExt;
use pintle_kube_types::status::Status;

use crate::auth::UserInfo;
use crate::auth::authenticate::PeerCertificate;
use crate::auth::authorize::authorize_path;
use crate::pipeline::Core;
use crate::request::path::ResourcePath;
use crate::{discovery, openapi};

mod health;
pub(crate) mod limits;
mod list;
pub(crate) mod metrics;
mod resource;
mod respond;
mod watch;

use metrics::Labels;

/// The API as an axum router.
pub(crate) fn router(core: Arc<Core>) -> Router {
    Router::new().fallback(handle).with_state(core)
}

async fn handle(State(core): State<Arc<Core>>, request: Request<Body>) -> Response<Body> {
    let started = Instant::now();
    let path = ResourcePath::parse(request.uri().path());
    let labels = Labels::of(request.method(), path.as_ref());
    let answered = AssertUnwindSafe(dispatch(core.clone(), path, request))
        .catch_unwind()
        .await;
    let response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(status)) => respond::failure(&status),
        Err(_panic) => {
            // The panic hook has printed it.
            respond::failure(&Status::internal_error(
                "the server panicked while handling the request",
            ))
        }
    };
    core.metrics()
        .observe(labels, response.status().as_u16(), started.elapsed());
    response
}

async fn dispatch(
    core: Arc<Core>,
    path: Option<ResourcePath>,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    if let Some(response) = health::serve(&core, &parts) {
        return Ok(response);
    }
    if parts.uri.path() == "/version" || parts.uri.path() == "/version/" {
        return Ok(respond::json_value(
            StatusCode::OK,
            &serde_json::to_value(&core.config().version).unwrap_or_default(),
        ));
    }
    let user = authenticate(&core, &parts)?;
    if let Some(path) = path {
        return resource::serve(core, user, path, Request::from_parts(parts, body)).await;
    }
    authorize_path(
        &user,
        &parts.method.as_str().to_ascii_lowercase(),
        parts.uri.path(),
    )?;
    if let Some(response) = discovery::serve(core.registry(), &parts)
        .or_else(|| openapi::serve(core.registry(), &parts))
    {
        return Ok(response);
    }
    match parts.uri.path() {
        "/metrics" if parts.method == Method::GET => Ok(core.metrics().render(&core)),
        _ => Ok(respond::page_not_found()),
    }
}

fn authenticate(core: &Core, parts: &Parts) -> Result<UserInfo, Status> {
    core.config()
        .authenticator
        .authenticate(parts, parts.extensions.get::<PeerCertificate>())
}
