//! `/openapi/v2` and `/openapi/v3`: what kubectl validates, merges and explains by.
//!
//! Watches nothing and changes nothing but its own cache. A document is built from the
//! [`Registry`] and the schemas of `kube-types` when it is first asked for, and kept only as the
//! gzip bytes that are served; the parsed form, some megabytes, is dropped at once.
//!
//! - [`operations`]: what can be done at which path, from the registry.
//! - [`v3`]: one document per group and version, and the index.
//! - [`v2`]: one document of everything, for kubectl before 1.27.
//! - [`document`]: the same as protobuf, which is the only form those ask for.

mod document;
mod operations;
mod v2;
mod v3;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::sync::LazyLock;

use ::http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, VARY,
};
use ::http::request::Parts;
use ::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use pintle_kube_types::gvk::GroupVersion;
use pintle_kube_types::status::Status;

use crate::discovery::{content_hash, matches_etag};
use crate::registry::Registry;

const JSON: &str = "application/json";
/// `@` is no character of a media type; clients ask with it all the same.
const PROTOBUF_V2_ASKED: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// Encoded documents by name, each with the hash of what it was built from. A document is a
/// function of that hash, so one memo serves the whole process.
static ENCODED: LazyLock<Mutex<HashMap<String, (String, Bytes)>>> = LazyLock::new(Mutex::default);

/// Answers a request below `/openapi`, or `None` when the path is not one of OpenAPI's.
pub fn serve(registry: &Registry, parts: &Parts) -> Option<Response<Body>> {
    let path = parts.uri.path().trim_end_matches('/');
    let rest = path.strip_prefix("/openapi/")?;
    let (version, document) = rest.split_once('/').unwrap_or((rest, ""));
    let answer = match (version, document) {
        ("v2", "") => Answer::V2,
        ("v3", "") => Answer::Index,
        ("v3", document) => Answer::V3(served_group_version(registry, document)?),
        _ => return None,
    };
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Some(failure(&Status::method_not_allowed()));
    }
    Some(respond(registry, &parts.headers, &answer))
}

enum Answer {
    V2,
    Index,
    V3(GroupVersion),
}

/// The group and version of `api/v1` or `apis/GROUP/VERSION`, if it is served.
fn served_group_version(registry: &Registry, document: &str) -> Option<GroupVersion> {
    registry
        .group_versions()
        .into_iter()
        .map(|(group, version)| GroupVersion::new(group, version))
        .find(|gv| document_path(gv) == document)
}

/// `api/v1`, `apis/apps/v1`.
fn document_path(gv: &GroupVersion) -> String {
    if gv.group.is_empty() {
        format!("api/{}", gv.version)
    } else {
        format!("apis/{}/{}", gv.group, gv.version)
    }
}

/// Changes whenever the document of `gv` may have changed.
fn source_hash(registry: &Registry, gv: &GroupVersion) -> String {
    let resources = registry
        .resources()
        .filter(|resource| resource.group == gv.group && resource.version == gv.version)
        .map(|resource| {
            let names: Vec<&str> = resource.subresources.iter().map(|s| s.name).collect();
            format!(
                "{} {} {:?} {names:?}",
                resource.plural, resource.kind, resource.verbs
            )
        });
    let source: Vec<String> = std::iter::once(env!("CARGO_PKG_VERSION").to_owned())
        .chain(resources)
        .collect();
    content_hash(source.join("\n").as_bytes())
}

fn respond(registry: &Registry, request: &HeaderMap, answer: &Answer) -> Response<Body> {
    let accepted = accepted(request);
    let accepts_json = accepted.is_empty()
        || accepted
            .iter()
            .any(|t| matches!(t.as_str(), JSON | "*/*" | "application/*"));
    let group_versions: Vec<GroupVersion> = registry
        .group_versions()
        .into_iter()
        .map(|(group, version)| GroupVersion::new(group, version))
        .collect();
    match answer {
        Answer::Index if accepts_json => {
            let index = v3::index(
                group_versions
                    .iter()
                    .map(|gv| (document_path(gv), source_hash(registry, gv))),
            );
            let body = index.to_string();
            let etag = content_hash(body.as_bytes());
            encoded(request, JSON, &etag, &gzip(body.as_bytes()))
        }
        Answer::V3(gv) if accepts_json => {
            let hash = source_hash(registry, gv);
            let body = cached(&document_path(gv), &hash, || {
                gzip(v3::document(registry, gv).to_string().as_bytes())
            });
            encoded(request, JSON, &hash, &body)
        }
        Answer::V2 => {
            let hash = group_versions
                .iter()
                .map(|gv| source_hash(registry, gv))
                .collect::<String>();
            let hash = content_hash(hash.as_bytes());
            let preferred = accepted.iter().find(|t| {
                PROTOBUF_V2_ASKED.contains(&t.as_str()) || t.as_str() == JSON || *t == "*/*"
            });
            match preferred {
                Some(t) if PROTOBUF_V2_ASKED.contains(&t.as_str()) => {
                    let body = cached("v2.pb", &hash, || {
                        gzip(&document::encode(&v2::document(registry, &group_versions)))
                    });
                    encoded(request, PROTOBUF_V2_ASKED[1], &hash, &body)
                }
                None if !accepts_json => not_acceptable(),
                _ => {
                    let body = cached("v2", &hash, || {
                        let document = v2::document(registry, &group_versions);
                        gzip(document.to_string().as_bytes())
                    });
                    encoded(request, JSON, &hash, &body)
                }
            }
        }
        _ => not_acceptable(),
    }
}

fn cached(name: &str, hash: &str, build: impl FnOnce() -> Bytes) -> Bytes {
    if let Some((of, body)) = ENCODED.lock().get(name)
        && of == hash
    {
        return body.clone();
    }
    // Built without the lock: two first requests at once do the work twice, none waits.
    let body = build();
    ENCODED
        .lock()
        .insert(name.to_owned(), (hash.to_owned(), body.clone()));
    body
}

fn gzip(body: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::default());
    match encoder.write_all(body).and_then(|()| encoder.finish()) {
        Ok(encoded) => Bytes::from(encoded),
        Err(error) => {
            tracing::error!(%error, "compress an OpenAPI document");
            Bytes::new()
        }
    }
}

/// The media types of `Accept`, in order, without parameters.
fn accepted(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|clause| clause.split(';').next())
        .map(|media_type| media_type.trim().to_owned())
        .filter(|media_type| !media_type.is_empty())
        .collect()
}

fn encoded(
    request: &HeaderMap,
    content_type: &'static str,
    hash: &str,
    gzipped: &Bytes,
) -> Response<Body> {
    let etag = format!("\"{hash}\"");
    let mut response = Response::new(Body::empty());
    if matches_etag(request, &etag) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else if accepts_gzip(request) {
        response
            .headers_mut()
            .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        *response.body_mut() = Body::from(gzipped.clone());
    } else {
        let mut plain = Vec::with_capacity(gzipped.len() * 8);
        if let Err(error) = GzDecoder::new(gzipped.as_ref()).read_to_end(&mut plain) {
            return failure(&Status::internal_error(error.to_string()));
        }
        *response.body_mut() = Body::from(plain);
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, etag);
    }
    response
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    request
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            parts.next() == Some("gzip") && parts.next() != Some("q=0")
        })
}

fn not_acceptable() -> Response<Body> {
    failure(&Status::not_acceptable(&[JSON, PROTOBUF_V2_ASKED[1]]))
}

fn failure(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::from(serde_json::to_vec(status).unwrap_or_default()));
    *response.status_mut() =
        StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use serde_json::Value;

    use super::*;

    fn get(path: &str, headers: &[(&str, &str)]) -> Option<Response<Body>> {
        let mut request = ::http::Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        serve(&Registry::builtin(), &parts)
    }

    async fn bytes(response: Response<Body>) -> Bytes {
        axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap()
    }

    async fn json(path: &str) -> Value {
        serde_json::from_slice(&bytes(get(path, &[]).unwrap()).await).unwrap()
    }

    #[tokio::test]
    async fn the_index_leads_to_every_group_version() {
        let index = json("/openapi/v3").await;
        let apps = &index["paths"]["apis/apps/v1"]["serverRelativeURL"];
        let url = apps.as_str().unwrap();
        assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash="), "{url}");
        let response = get(url, &[("accept-encoding", "gzip"), ("accept", JSON)]).unwrap();
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        let etag = response.headers()[ETAG].to_str().unwrap().to_owned();
        let again = get(url, &[("if-none-match", &etag)]).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(get("/openapi/v3/apis/none/v1", &[]).is_none());
        let refused = get(url, &[("accept", "text/html")]).unwrap();
        assert_eq!(refused.status(), StatusCode::NOT_ACCEPTABLE);
    }

    #[tokio::test]
    async fn v3_has_what_kubectl_looks_for() {
        let apps = json("/openapi/v3/apis/apps/v1").await;
        let item = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"];
        let gvk = &item["patch"]["x-kubernetes-group-version-kind"];
        assert_eq!(
            (&gvk["group"], &gvk["kind"]),
            (&"apps".into(), &"Deployment".into())
        );
        let parameters = item["patch"]["parameters"].as_array().unwrap();
        for name in ["fieldValidation", "dryRun", "fieldManager", "force"] {
            assert!(parameters.iter().any(|p| p["name"] == name), "{name}");
        }
        let list = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments"]["get"];
        assert_eq!(list["x-kubernetes-action"], "list");
        let schemas = &apps["components"]["schemas"];
        let name = "io.k8s.api.apps.v1.Deployment";
        assert_eq!(
            schemas[name]["x-kubernetes-group-version-kind"][0]["kind"],
            "Deployment"
        );
        assert_every_reference_resolves(&apps, "#/components/schemas/", schemas);
    }

    #[tokio::test]
    async fn v2_has_the_same_as_json_and_as_protobuf() {
        let v2 = json("/openapi/v2").await;
        let pod = &v2["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(pod["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(
            pod["items"]["$ref"],
            "#/definitions/io.k8s.api.core.v1.Container"
        );
        assert_every_reference_resolves(&v2, "#/definitions/", &v2["definitions"]);

        let response = get("/openapi/v2", &[("accept", PROTOBUF_V2_ASKED[0])]).unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], PROTOBUF_V2_ASKED[1]);
        let document = document::Document::decode(bytes(response).await).unwrap();
        let definitions = document.definitions.unwrap().additional_properties;
        assert_eq!(
            definitions.len(),
            v2["definitions"].as_object().unwrap().len()
        );
        let paths = document.paths.unwrap().path;
        let path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
        let item = paths.iter().find(|p| p.name == path).unwrap();
        let patch = item.value.as_ref().unwrap().patch.as_ref().unwrap();
        assert!(patch.vendor_extension.iter().any(|e| {
            e.name == "x-kubernetes-group-version-kind"
                && e.value.as_ref().unwrap().yaml.contains("Deployment")
        }));
    }

    fn assert_every_reference_resolves(value: &Value, prefix: &str, definitions: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let name = reference.strip_prefix(prefix).unwrap();
                    assert!(definitions.get(name).is_some(), "{reference}");
                }
                for value in map.values() {
                    assert_every_reference_resolves(value, prefix, definitions);
                }
            }
            Value::Array(values) => {
                for value in values {
                    assert_every_reference_resolves(value, prefix, definitions);
                }
            }
            _ => {}
        }
    }
}
