//! `/healthz`, `/livez` and `/readyz`: for anyone, in Kubernetes' words.

use std::fmt::Write;

use ::http::request::Parts;
use ::http::{Method, Response, StatusCode};
use axum::body::Body;

use super::respond;
use crate::pipeline::Core;
use crate::request::path::Query;

/// Answers a health request, or `None` when the path is not one.
pub(super) fn serve(core: &Core, parts: &Parts) -> Option<Response<Body>> {
    let path = parts.uri.path().trim_matches('/');
    let (endpoint, only) = match path.split_once('/') {
        Some((endpoint, check)) => (endpoint, Some(check)),
        None => (path, None),
    };
    if !matches!(endpoint, "healthz" | "livez" | "readyz") {
        return None;
    }
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return Some(respond::text(
            StatusCode::METHOD_NOT_ALLOWED,
            "method not allowed\n".to_owned(),
        ));
    }
    let checks = checks(core, endpoint);
    if let Some(only) = only {
        return Some(match checks.iter().find(|(name, _)| *name == only) {
            None => respond::page_not_found(),
            Some((_, Ok(()))) => respond::text(StatusCode::OK, "ok".to_owned()),
            Some((name, Err(why))) => respond::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("internal server error: {name}: {why}\n"),
            ),
        });
    }
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let excluded = query.all("exclude");
    let mut report = String::new();
    let mut healthy = true;
    for (name, result) in &checks {
        let line = if excluded.contains(name) {
            writeln!(report, "[+]{name} excluded: ok")
        } else if result.is_ok() {
            writeln!(report, "[+]{name} ok")
        } else {
            healthy = false;
            writeln!(report, "[-]{name} failed: reason withheld")
        };
        debug_assert!(line.is_ok(), "writing to a string does not fail");
    }
    let verbose = query.get("verbose").is_some_and(|value| value != "false");
    Some(if !healthy {
        respond::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{report}{endpoint} check failed\n"),
        )
    } else if verbose {
        respond::text(StatusCode::OK, format!("{report}{endpoint} check passed\n"))
    } else {
        respond::text(StatusCode::OK, "ok".to_owned())
    })
}

fn checks(core: &Core, endpoint: &str) -> Vec<(&'static str, Result<(), String>)> {
    let health = core.store().health();
    let store = match (health.failure, health.leader) {
        (Some(failure), _) => Err(failure),
        (None, None) if endpoint == "readyz" => Err("no leader".to_owned()),
        (None, _) => Ok(()),
    };
    let mut checks = vec![("ping", Ok(())), ("store", store)];
    if endpoint != "livez" {
        let hub = if core.hub().failed() {
            Err("the watch of the store ended".to_owned())
        } else {
            Ok(())
        };
        checks.push(("watch-hub", hub));
    }
    if endpoint == "readyz" {
        let shutdown = if core.shutdown().is_cancelled() {
            Err("process is shutting down".to_owned())
        } else {
            Ok(())
        };
        checks.push(("shutdown", shutdown));
    }
    checks
}
