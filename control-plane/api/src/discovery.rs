//! Discovery: `/api`, `/apis`, `/api/v1`, `/apis/GROUP/VERSION`, legacy and aggregated.
//!
//! Watches nothing and changes nothing: every answer is computed from the [`Registry`], so that
//! what is served and what is announced cannot differ. kubectl learns from it which kinds there
//! are, and with the aggregated form (Kubernetes 1.26 and later) in two requests.

mod documents;

use ::http::header::{ACCEPT, ALLOW, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH, VARY};
use ::http::request::Parts;
use ::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::body::Body;
use pintle_kube_types::status::Status;
use serde_json::Value;

use crate::registry::Registry;

/// The forms of `/api` and `/apis`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Legacy,
    Aggregated(&'static str),
}

/// Answers a discovery request, or `None` when the path is not one of discovery's.
pub fn serve(registry: &Registry, parts: &Parts) -> Option<Response<Body>> {
    let mut segments = parts.uri.path().trim_end_matches('/').split('/').skip(1);
    let root = segments.next()?;
    let (first, second) = (segments.next(), segments.next());
    if segments.next().is_some() {
        return None;
    }
    let form = requested_form(&parts.headers);
    let document =
        match (root, first, second, form) {
            ("api" | "apis", None, None, Form::Aggregated(version)) => {
                return Some(allowed(parts).unwrap_or_else(|| {
                    aggregated(registry, root == "api", version, &parts.headers)
                }));
            }
            ("api", None, None, Form::Legacy) => documents::api_versions(&server_address(parts)),
            ("apis", None, None, Form::Legacy) => documents::group_list(registry),
            ("api", Some(version), None, _) => documents::resource_list(registry, "", version)?,
            ("apis", Some(group), None, _) => documents::group(registry, group)?,
            ("apis", Some(group), Some(version), _) if !group.is_empty() => {
                documents::resource_list(registry, group, version)?
            }
            _ => return None,
        };
    Some(allowed(parts).unwrap_or_else(|| json(&document, "application/json")))
}

/// 405 unless the request reads.
fn allowed(parts: &Parts) -> Option<Response<Body>> {
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return None;
    }
    let status = Status::method_not_allowed();
    let body = serde_json::to_vec(&status).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ALLOW, HeaderValue::from_static("GET"));
    Some(response)
}

fn json(document: &Value, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(document.to_string()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn aggregated(
    registry: &Registry,
    core: bool,
    version: &'static str,
    request: &HeaderMap,
) -> Response<Body> {
    let document = documents::aggregated(registry, core, version);
    let body = document.to_string();
    let etag = entity_tag(body.as_bytes());
    let mut response = if matches_etag(request, &etag) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        json(
            &document,
            if version == "v2" {
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            } else {
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
            },
        )
    };
    let headers = response.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, etag);
    }
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

/// The first form of the `Accept` header that is served.
fn requested_form(headers: &HeaderMap) -> Form {
    let clauses = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    for clause in clauses {
        let mut parameters = clause.split(';').map(str::trim);
        let media_type = parameters.next().unwrap_or_default();
        let parameters: Vec<&str> = parameters.collect();
        if parameters.contains(&"as=APIGroupDiscoveryList")
            && parameters.contains(&"g=apidiscovery.k8s.io")
            && media_type == "application/json"
        {
            if parameters.contains(&"v=v2") {
                return Form::Aggregated("v2");
            }
            if parameters.contains(&"v=v2beta1") {
                return Form::Aggregated("v2beta1");
            }
        } else if matches!(media_type, "application/json" | "*/*" | "application/*")
            && !parameters.iter().any(|p| p.starts_with("as="))
        {
            return Form::Legacy;
        }
    }
    Form::Legacy
}

/// The address the client used, for clients that look at `serverAddressByClientCIDRs`.
fn server_address(parts: &Parts) -> String {
    parts
        .uri
        .authority()
        .map(ToString::to_string)
        .or_else(|| Some(parts.headers.get(HOST)?.to_str().ok()?.to_owned()))
        .unwrap_or_default()
}

/// A strong entity tag of a body.
pub(crate) fn entity_tag(body: &[u8]) -> String {
    format!("\"{}\"", content_hash(body))
}

/// 128 bits of a hash that need only tell versions of one document apart.
pub(crate) fn content_hash(body: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hasher as _};
    let (mut one, mut two) = (DefaultHasher::new(), DefaultHasher::new());
    one.write(body);
    two.write_u8(1);
    two.write(body);
    format!("{:016X}{:016X}", one.finish(), two.finish())
}

/// Whether `If-None-Match` names this tag.
pub(crate) fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    headers.get_all(IF_NONE_MATCH).iter().any(|value| {
        value.to_str().is_ok_and(|value| {
            value
                .split(',')
                .map(|tag| tag.trim().trim_start_matches("W/"))
                .any(|tag| tag == etag || tag == "*")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECTL: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
         application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

    fn get(path: &str, accept: &str, etag: Option<&str>) -> Option<Response<Body>> {
        let mut request = ::http::Request::get(path)
            .header(HOST, "10.0.0.1:6443")
            .header(ACCEPT, accept);
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        serve(&Registry::builtin(), &parts)
    }

    async fn body(response: Response<Body>) -> Value {
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        serde_json::from_slice(&bytes.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn legacy_documents_name_groups_and_resources() {
        let root = body(get("/api", "application/json", None).unwrap()).await;
        assert_eq!(root["versions"][0], "v1");
        assert_eq!(
            root["serverAddressByClientCIDRs"][0]["serverAddress"],
            "10.0.0.1:6443"
        );
        let groups = body(get("/apis/", "application/json, */*", None).unwrap()).await;
        let names: Vec<&str> = groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| g["name"].as_str().unwrap())
            .collect();
        assert!(names.contains(&"apps") && !names.contains(&""), "{names:?}");
        let core = body(get("/api/v1", "*/*", None).unwrap()).await;
        assert_eq!(core["groupVersion"], "v1");
        let pods = core["resources"].as_array().unwrap();
        let named = |name: &str| pods.iter().find(|r| r["name"] == name).unwrap();
        assert_eq!(named("pods")["shortNames"][0], "po");
        assert_eq!(named("pods/log")["verbs"][0], "get");
        assert_eq!(named("pods/log")["singularName"], "");
        let apps = body(get("/apis/apps/v1", "*/*", None).unwrap()).await;
        let scale = apps["resources"].as_array().unwrap().iter();
        let scale = scale
            .clone()
            .find(|r| r["name"] == "deployments/scale")
            .unwrap();
        assert_eq!(
            (&scale["group"], &scale["kind"]),
            (&"autoscaling".into(), &"Scale".into())
        );
    }

    #[tokio::test]
    async fn the_aggregated_document_has_an_etag() {
        let response = get("/apis", KUBECTL, None).unwrap();
        let etag = response.headers()[ETAG].to_str().unwrap().to_owned();
        assert_eq!(
            response.headers()[CONTENT_TYPE],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        let list = body(response).await;
        assert_eq!(list["apiVersion"], "apidiscovery.k8s.io/v2");
        let apps = list["items"].as_array().unwrap().iter();
        let apps = apps
            .clone()
            .find(|g| g["metadata"]["name"] == "apps")
            .unwrap();
        let deployment = apps["versions"][0]["resources"].as_array().unwrap().iter();
        let deployment = deployment
            .clone()
            .find(|r| r["resource"] == "deployments")
            .unwrap();
        assert_eq!(deployment["scope"], "Namespaced");
        assert_eq!(deployment["responseKind"]["kind"], "Deployment");
        assert_eq!(
            deployment["subresources"][0]["responseKind"]["kind"],
            "Scale"
        );
        let again = get("/apis", KUBECTL, Some(&etag)).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    }

    #[test]
    fn other_paths_are_not_discoverys() {
        for path in [
            "/api/v1/pods",
            "/apis/apps/v1/deployments",
            "/apis/none/v1",
            "/x",
            "/api/v9",
        ] {
            assert!(get(path, "*/*", None).is_none(), "{path}");
        }
    }
}
