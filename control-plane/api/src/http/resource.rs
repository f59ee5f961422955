//! Requests for resources: which verb a method and path are, and what each answers.

use std::sync::Arc;

use ::http::header::{CONTENT_TYPE, USER_AGENT};
use ::http::request::Parts;
use ::http::{Method, Request, Response, StatusCode};
use axum::body::Body;
use pintle_kube_types::Object;
use pintle_kube_types::status::Status;
use serde_json::{Value, json};

use super::respond::{self, Wanted};
use super::{list, watch};
use crate::auth::UserInfo;
use crate::auth::authorize::authorize;
use crate::pipeline::conform::{conform, json_type};
use crate::pipeline::{Attributes, Core, Deletion, Stored, Verb};
use crate::request::body;
use crate::request::options::{
    DeleteOptions, ListOptions, WatchOptions, WriteOptions, check_force,
};
use crate::request::path::{Query, ResourcePath};
use crate::stream;

/// Subresources of pods that are streams to the node's agent.
const STREAMS: [&str; 4] = ["log", "exec", "attach", "portforward"];

/// Serves a request for a resource.
pub(super) async fn serve(
    core: Arc<Core>,
    user: UserInfo,
    path: ResourcePath,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let resource = core
        .registry()
        .lookup(&path.group, &path.version, &path.resource)
        .ok_or_else(Status::no_such_resource)?;
    let query = Query::parse(request.uri().query().unwrap_or_default());
    if path.namespace.is_some() != resource.namespaced
        && (path.namespace.is_some() || path.name.is_some())
    {
        return Err(Status::no_such_resource());
    }
    if let Some(subresource) = &path.subresource
        && resource.subresource(subresource).is_none()
    {
        return Err(Status::no_such_resource());
    }
    let watching = path.watch || query.flag("watch")?.unwrap_or(false);
    let verb = verb(request.method(), &path, watching)?;
    if path.subresource.is_none() && !resource.supports(verb.as_str()) {
        return Err(Status::method_not_allowed());
    }
    let attributes = Attributes {
        user: Arc::new(user),
        verb,
        resource,
        subresource: path.subresource,
        namespace: path.namespace,
        name: path.name,
    };
    if attributes.resource.plural == "pods"
        && let Some(subresource) = attributes.subresource.as_deref()
        && STREAMS.contains(&subresource)
    {
        return open_stream(&core, &attributes, subresource, request).await;
    }
    let _permit = match verb {
        Verb::Watch => None,
        Verb::Get | Verb::List => Some(core.limits().read()?),
        _ => Some(core.limits().write()?),
    };
    let (parts, request_body) = request.into_parts();
    let wanted = Wanted::of(&parts, &query)?;
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let one = |code: StatusCode, stored: &Stored| {
        respond::object(&core, &attributes.resource, wanted, code, stored)
    };
    match verb {
        Verb::Get => one(StatusCode::OK, &core.get(&attributes).await?),
        Verb::List => {
            let options = ListOptions::from_query(&query)?;
            let page = core.list(&attributes, &options).await?;
            list::respond(&core, &attributes.resource, wanted, page)
        }
        Verb::Watch => {
            let options = WatchOptions::from_query(&query)?;
            let events = core.watch(&attributes, &options).await?;
            Ok(watch::respond(
                core.clone(),
                attributes.resource.clone(),
                wanted,
                &options,
                events,
            ))
        }
        Verb::Create => {
            // Refused before the body is read, so that nobody sends one in vain.
            authorize(&core, &attributes)?;
            if attributes.resource.namespaced && attributes.namespace.is_none() {
                return Err(Status::method_not_allowed());
            }
            let options = write_options(&parts, &query, "CreateOptions")?;
            let encoding = body::encoding(content_type)?;
            let bytes = body::read(request_body).await?;
            let (object, warnings) = decode(&attributes, &options, &bytes, encoding)?;
            let stored = core.create(&attributes, &options, object).await?;
            one(StatusCode::CREATED, &stored.with_warnings(warnings))
        }
        Verb::Update => {
            authorize(&core, &attributes)?;
            let options = write_options(&parts, &query, "UpdateOptions")?;
            let encoding = body::encoding(content_type)?;
            let bytes = body::read(request_body).await?;
            let (object, warnings) = decode(&attributes, &options, &bytes, encoding)?;
            let stored = core.update(&attributes, &options, object).await?;
            one(written(&stored), &stored.with_warnings(warnings))
        }
        Verb::Patch => {
            authorize(&core, &attributes)?;
            let options = write_options(&parts, &query, "PatchOptions")?;
            let kind = body::patch_kind(content_type)?;
            check_force(&query, kind)?;
            let bytes = body::read(request_body).await?;
            let stored = core.patch(&attributes, &options, kind, &bytes).await?;
            one(written(&stored), &stored)
        }
        Verb::Delete => {
            authorize(&core, &attributes)?;
            let options = delete_options(&query, content_type, request_body).await?;
            let deletion = core.delete(&attributes, &options).await?;
            match deletion {
                Deletion::Removed(stored) if !attributes.resource.strategy.returns_deleted() => {
                    Ok(deleted(&attributes, &stored.object()?))
                }
                Deletion::Pending(stored) if options.cascades() => {
                    one(StatusCode::ACCEPTED, &stored)
                }
                Deletion::Removed(stored) | Deletion::Pending(stored) => {
                    one(StatusCode::OK, &stored)
                }
            }
        }
        Verb::DeleteCollection => {
            authorize(&core, &attributes)?;
            let list = ListOptions::from_query(&query)?;
            let options = delete_options(&query, content_type, request_body).await?;
            let stored = core.delete_collection(&attributes, &list, &options).await?;
            list::respond_deleted(&attributes.resource, &stored)
        }
    }
}

/// The code of an update or patch.
fn written(stored: &Stored) -> StatusCode {
    if stored.created() {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    }
}

/// The verb of a request, or 405.
fn verb(method: &Method, path: &ResourcePath, watching: bool) -> Result<Verb, Status> {
    let named = path.name.is_some();
    Ok(match *method {
        Method::GET if watching && path.subresource.is_none() => Verb::Watch,
        Method::GET if named => Verb::Get,
        Method::GET => Verb::List,
        Method::POST if !named || path.subresource.is_some() => Verb::Create,
        Method::PUT if named => Verb::Update,
        Method::PATCH if named => Verb::Patch,
        Method::DELETE if named => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        _ => return Err(Status::method_not_allowed()),
    })
}

/// Decodes the body of a create or update.
fn decode(
    attributes: &Attributes,
    options: &WriteOptions,
    bytes: &[u8],
    encoding: body::Encoding,
) -> Result<(Object, Vec<String>), Status> {
    let unrecognised = |why: &str| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why} ({})",
            attributes.resource.kind,
            body::summary(bytes),
        ))
    };
    let (value, duplicates) =
        body::decode(bytes, encoding).map_err(|status| unrecognised(&status.message))?;
    if !value.is_object() {
        return Err(unrecognised(&format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct",
            json_type(&value),
        )));
    }
    match attributes.subresource.as_deref() {
        // The body is the resource's own kind.
        None | Some("status" | "finalize") => conform(
            &attributes.resource,
            value,
            duplicates,
            options.field_validation,
        ),
        Some(_) => Object::from_value(value)
            .map(|object| (object, Vec::new()))
            .ok_or_else(|| Status::bad_request("the request body is no object")),
    }
}

/// The options of a write; who does not say who manages the fields is known by the program's
/// name.
fn write_options(parts: &Parts, query: &Query, kind: &str) -> Result<WriteOptions, Status> {
    let mut options = WriteOptions::from_query(query, kind)?;
    let agent = parts
        .headers
        .get(USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .and_then(|agent| agent.split('/').next())
        .filter(|program| !program.is_empty());
    agent
        .unwrap_or("unknown")
        .clone_into(&mut options.default_manager);
    Ok(options)
}

/// The options of a delete: the body's when there is one, else the query's.
async fn delete_options(
    query: &Query,
    content_type: Option<&str>,
    request_body: Body,
) -> Result<DeleteOptions, Status> {
    let bytes = body::read(request_body).await?;
    let mut options = DeleteOptions::from_query(query)?;
    if bytes.is_empty() {
        return Ok(options);
    }
    let (value, _) = body::decode(&bytes, body::encoding(content_type)?)?;
    let dry_run = options.dry_run;
    options = DeleteOptions::from_body(&value)?;
    options.dry_run |= dry_run;
    Ok(options)
}

/// The Status of a completed delete.
fn deleted(attributes: &Attributes, object: &Object) -> Response<Body> {
    let mut details = json!({
        "name": object.name(),
        "kind": attributes.resource.plural,
        "uid": object.uid(),
    });
    if !attributes.resource.group.is_empty() {
        details["group"] = Value::from(attributes.resource.group.as_ref());
    }
    respond::json_value(
        StatusCode::OK,
        &json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }),
    )
}

async fn open_stream(
    core: &Core,
    attributes: &Attributes,
    subresource: &str,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let allowed = match attributes.verb {
        Verb::Get => true,
        Verb::Create => subresource != "log",
        _ => false,
    };
    if !allowed {
        return Err(Status::method_not_allowed());
    }
    authorize(core, attributes)?;
    let pod = core.read_named(attributes)?.object()?;
    stream::serve(&core.config().node_proxy, subresource, &pod, request).await
}
