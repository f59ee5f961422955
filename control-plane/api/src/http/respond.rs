//! Responses: status codes, headers, and the forms of single objects.

use std::sync::Arc;

use ::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WARNING};
use ::http::{HeaderValue, Response, StatusCode};
use axum::body::Body;
use bytes::Bytes;
use pintle_kube_types::Object;
use pintle_kube_types::status::{Reason, Status};
use serde_json::{Value, json};

use crate::pipeline::{Core, Stored};
use crate::registry::Resource;
use crate::request::negotiate::Form;
use crate::request::path::Query;
use crate::table::{self, IncludeObject};

pub(super) const JSON: &str = "application/json";

/// How a client wants its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) form: Form,
    pub(super) include: IncludeObject,
    pub(super) pretty: bool,
    pub(super) gzip: bool,
}

impl Wanted {
    pub(super) fn of(parts: &::http::request::Parts, query: &Query) -> Result<Self, Status> {
        let header = |name: ::http::HeaderName| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let include = match query.get("includeObject") {
            None | Some("" | "Metadata") => IncludeObject::Metadata,
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            Some(other) => {
                return Err(Status::bad_request(format!(
                    "unrecognized includeObject value: {other:?}"
                )));
            }
        };
        // As Kubernetes: people who type requests by hand want to read the answer.
        let agent = header(::http::header::USER_AGENT);
        let pretty = query.flag("pretty")?.unwrap_or_else(|| {
            ["curl", "Wget", "Mozilla/5.0"]
                .iter()
                .any(|by_hand| agent.starts_with(by_hand))
        });
        let gzip = header(::http::header::ACCEPT_ENCODING)
            .split(',')
            .any(|coding| coding.trim().split(';').next() == Some("gzip"));
        Ok(Self {
            form: crate::request::negotiate::negotiate(&parts.headers)?,
            include,
            pretty,
            gzip,
        })
    }
}

/// A response with the headers every one has.
pub(super) fn with_type(
    code: StatusCode,
    content_type: &'static str,
    body: Body,
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub(super) fn text(code: StatusCode, body: String) -> Response<Body> {
    with_type(code, "text/plain; charset=utf-8", Body::from(body))
}

/// What Go's mux answers for a path nothing is at.
pub(super) fn page_not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

pub(super) fn json_bytes(code: StatusCode, bytes: Bytes) -> Response<Body> {
    with_type(code, JSON, Body::from(bytes))
}

pub(super) fn json_value(code: StatusCode, value: &Value) -> Response<Body> {
    json_bytes(code, value.to_string().into())
}

/// A failure as `metav1.Status`.
pub(super) fn failure(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if matches!(status.reason, Reason::InternalError | Reason::Unknown) {
        tracing::error!(%status, "a request failed");
    }
    let body = serde_json::to_vec(status).unwrap_or_default();
    let mut response = json_bytes(code, body.into());
    let retry = status
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(retry));
    }
    response
}

/// One object in the form the client wants.
pub(super) fn object(
    core: &Core,
    resource: &Resource,
    wanted: Wanted,
    code: StatusCode,
    stored: &Stored,
) -> Result<Response<Body>, Status> {
    let mut response = match wanted.form {
        Form::Object if !wanted.pretty => json_bytes(code, stored.json()),
        Form::Object => pretty(code, &stored.object()?.into_value()),
        Form::Yaml => yaml(code, &stored.object()?.into_value())?,
        Form::PartialMetadata => json_value(code, &partial(&stored.object()?)),
        Form::Table => {
            let metadata = json!({"resourceVersion": stored.revision().to_string()});
            let table = table::render(
                resource,
                &[Arc::new(stored.object()?)],
                wanted.include,
                metadata,
                core.clock().now(),
            );
            json_value(code, &table)
        }
    };
    for warning in stored.warnings() {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    Ok(response)
}

pub(super) fn pretty(code: StatusCode, value: &Value) -> Response<Body> {
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    json_bytes(code, bytes.into())
}

pub(super) fn yaml(code: StatusCode, value: &Value) -> Result<Response<Body>, Status> {
    let text = serde_saphyr::to_string(value).map_err(Status::internal_error)?;
    Ok(with_type(code, "application/yaml", Body::from(text)))
}

/// `meta.k8s.io/v1` PartialObjectMetadata.
pub(super) fn partial(object: &Object) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.metadata(),
    })
}
