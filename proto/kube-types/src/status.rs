//! `metav1.Status` as a Rust error: every failure a client of the API can see.
//!
//! Built here with Kubernetes' exact words, turned into an HTTP response in one place of the API.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::field::ErrorList;
use crate::gvk::{GroupKind, GroupResource};

/// The machine-readable reason of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The object does not exist.
    NotFound,
    /// An object of that name exists.
    AlreadyExists,
    /// The object changed since it was read, or another manager owns a field.
    Conflict,
    /// The object does not validate.
    Invalid,
    /// The request makes no sense.
    BadRequest,
    /// Nobody we know.
    Unauthorized,
    /// Known, but not allowed.
    Forbidden,
    /// The object is gone and will not come back.
    Gone,
    /// The resource version or continue token is too old.
    Expired,
    /// The verb is not supported on the resource.
    MethodNotAllowed,
    /// No acceptable response format.
    NotAcceptable,
    /// The body's format is unknown.
    UnsupportedMediaType,
    /// The body is too large.
    RequestEntityTooLarge,
    /// Try again later.
    TooManyRequests,
    /// The request took too long.
    Timeout,
    /// The server could not finish in time; it may have happened all the same.
    ServerTimeout,
    /// Our fault.
    InternalError,
    /// Not able to serve now.
    ServiceUnavailable,
    /// Nothing more is known.
    Unknown,
}

impl Reason {
    const ALL: [Self; 19] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::Conflict,
        Self::Invalid,
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Gone,
        Self::Expired,
        Self::MethodNotAllowed,
        Self::NotAcceptable,
        Self::UnsupportedMediaType,
        Self::RequestEntityTooLarge,
        Self::TooManyRequests,
        Self::Timeout,
        Self::ServerTimeout,
        Self::InternalError,
        Self::ServiceUnavailable,
        Self::Unknown,
    ];

    /// As written in `reason`; empty for [`Reason::Unknown`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Invalid => "Invalid",
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::Gone => "Gone",
            Self::Expired => "Expired",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::TooManyRequests => "TooManyRequests",
            Self::Timeout => "Timeout",
            Self::ServerTimeout => "ServerTimeout",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Unknown => "",
        }
    }

    /// The reason of that name, or [`Reason::Unknown`].
    pub fn parse(text: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|r| r.as_str() == text)
            .unwrap_or(Self::Unknown)
    }

    /// The HTTP status code that goes with it.
    pub fn code(self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Invalid => 422,
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::Gone | Self::Expired => 410,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::UnsupportedMediaType => 415,
            Self::RequestEntityTooLarge => 413,
            Self::TooManyRequests => 429,
            Self::Timeout => 504,
            Self::ServerTimeout | Self::InternalError | Self::Unknown => 500,
            Self::ServiceUnavailable => 503,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::parse(&String::deserialize(deserializer)?))
    }
}

/// One cause of a failure, usually a field that does not validate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// Machine-readable, such as `FieldValueInvalid`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field, where one is to blame.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// What a failure is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Group of `kind`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind, or plural resource, of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// When to try again; zero means nothing is known.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde's skip_serializing_if wants"
)]
fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// A failure of an API request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason.
    pub reason: Reason,
    /// For people.
    pub message: String,
    /// What it is about.
    pub details: Option<Box<StatusDetails>>,
}

impl Status {
    /// A failure with the code that goes with its reason, and no details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            code: reason.code(),
            reason,
            message: message.into(),
            details: None,
        }
    }

    /// The same failure with details.
    #[must_use]
    pub fn with_details(mut self, details: StatusDetails) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    fn about(self, resource: &GroupResource, name: &str) -> Self {
        self.with_details(StatusDetails {
            name: name.to_owned(),
            group: resource.group.to_string(),
            kind: resource.resource.to_string(),
            ..StatusDetails::default()
        })
    }

    /// True for "there is no such object".
    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    /// True for "there is such an object already".
    pub fn is_already_exists(&self) -> bool {
        self.reason == Reason::AlreadyExists
    }

    /// True for a lost race of optimistic concurrency.
    pub fn is_conflict(&self) -> bool {
        self.reason == Reason::Conflict
    }

    /// `deployments.apps "web" not found`
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::new(Reason::NotFound, format!("{resource} {name:?} not found")).about(resource, name)
    }

    /// No such path: `the server could not find the requested resource`
    pub fn no_such_resource() -> Self {
        Self::new(
            Reason::NotFound,
            "the server could not find the requested resource",
        )
        .with_details(StatusDetails::default())
    }

    /// `deployments.apps "web" already exists`
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!("{resource} {name:?} already exists"),
        )
        .about(resource, name)
    }

    /// A generated name collided even after retries.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str, retry_after: i32) -> Self {
        let mut status = Self::new(
            Reason::AlreadyExists,
            format!(
                "{resource} {name:?} already exists, the server was not able to generate a unique name for the object"
            ),
        )
        .about(resource, name);
        if let Some(details) = &mut status.details {
            details.retry_after_seconds = retry_after;
        }
        status
    }

    /// `Operation cannot be fulfilled on deployments.apps "web": …`
    pub fn conflict(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        Self::new(
            Reason::Conflict,
            format!("Operation cannot be fulfilled on {resource} {name:?}: {why}"),
        )
        .about(resource, name)
    }

    /// The conflict of a stale `resourceVersion`.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// A server-side apply met fields of other managers.
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        Self::new(Reason::Conflict, message).with_details(StatusDetails {
            causes,
            ..StatusDetails::default()
        })
    }

    /// `Deployment.apps "web" is invalid: spec.replicas: Invalid value: -1: …`
    pub fn invalid(kind: &GroupKind, name: &str, errors: &ErrorList) -> Self {
        let message = if errors.is_empty() {
            format!("{kind} {name:?} is invalid")
        } else {
            format!("{kind} {name:?} is invalid: {errors}")
        };
        let causes = errors
            .iter()
            .map(|e| Cause {
                reason: e.kind.reason().to_owned(),
                message: e.body(),
                field: e.field.clone(),
            })
            .collect();
        Self::new(Reason::Invalid, message).with_details(StatusDetails {
            name: name.to_owned(),
            group: kind.group.to_string(),
            kind: kind.kind.to_string(),
            causes,
            ..StatusDetails::default()
        })
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// `Unauthorized`
    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// `pods "web" is forbidden: …`; with an empty name `pods is forbidden: …`.
    pub fn forbidden(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        let message = if resource.resource.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {name:?} is forbidden: {why}")
        };
        Self::new(Reason::Forbidden, message).about(resource, name)
    }

    /// The object is gone.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(Reason::Gone, message)
    }

    /// The resource version is too old.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// `create is not supported on resources of kind "pods"`
    pub fn method_not_supported(resource: &GroupResource, action: &str) -> Self {
        let text = resource.to_string();
        Self::new(
            Reason::MethodNotAllowed,
            format!("{action} is not supported on resources of kind {text:?}"),
        )
        .about(resource, "")
    }

    /// A wrong HTTP method on a path.
    pub fn method_not_allowed() -> Self {
        Self::new(
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
        .with_details(StatusDetails::default())
    }

    /// No acceptable response format.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        Self::new(
            Reason::NotAcceptable,
            format!(
                "only the following media types are accepted: {}",
                accepted.join(", ")
            ),
        )
    }

    /// The body's format is unknown.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::new(
            Reason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// `Request entity too large: limit is 3145728`
    pub fn request_entity_too_large(message: impl fmt::Display) -> Self {
        Self::new(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: {message}"),
        )
    }

    /// Try again later.
    pub fn too_many_requests(message: impl Into<String>, retry_after: i32) -> Self {
        Self::new(Reason::TooManyRequests, message).with_details(StatusDetails {
            retry_after_seconds: retry_after,
            ..StatusDetails::default()
        })
    }

    /// `Timeout: …`
    pub fn timeout(message: impl fmt::Display, retry_after: i32) -> Self {
        Self::new(Reason::Timeout, format!("Timeout: {message}")).with_details(StatusDetails {
            retry_after_seconds: retry_after,
            ..StatusDetails::default()
        })
    }

    /// The server could not finish in time.
    pub fn server_timeout(resource: &GroupResource, operation: &str, retry_after: i32) -> Self {
        let mut status = Self::new(
            Reason::ServerTimeout,
            format!(
                "The {operation} operation against {resource} could not be completed at this time, please try again."
            ),
        )
        .about(resource, operation);
        if let Some(details) = &mut status.details {
            details.retry_after_seconds = retry_after;
        }
        status
    }

    /// `Internal error occurred: …`
    pub fn internal_error(error: impl fmt::Display) -> Self {
        let text = error.to_string();
        Self::new(
            Reason::InternalError,
            format!("Internal error occurred: {text}"),
        )
        .with_details(StatusDetails {
            causes: vec![Cause {
                message: text,
                ..Cause::default()
            }],
            ..StatusDetails::default()
        })
    }

    /// Not able to serve now.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(Reason::ServiceUnavailable, message)
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Empty {}
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", "Status")?;
        map.serialize_entry("apiVersion", "v1")?;
        map.serialize_entry("metadata", &Empty {})?;
        map.serialize_entry("status", "Failure")?;
        if !self.message.is_empty() {
            map.serialize_entry("message", &self.message)?;
        }
        if self.reason != Reason::Unknown {
            map.serialize_entry("reason", &self.reason)?;
        }
        if let Some(details) = &self.details {
            map.serialize_entry("details", details)?;
        }
        map.serialize_entry("code", &self.code)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(default)]
        struct Wire {
            code: u16,
            reason: Reason,
            message: String,
            details: Option<Box<StatusDetails>>,
        }
        impl Default for Wire {
            fn default() -> Self {
                Self {
                    code: 500,
                    reason: Reason::Unknown,
                    message: String::new(),
                    details: None,
                }
            }
        }
        let wire = Wire::deserialize(deserializer)?;
        Ok(Self {
            code: wire.code,
            reason: wire.reason,
            message: wire.message,
            details: wire.details,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field::{FieldError, Path};

    #[test]
    fn messages_are_kubernetes() {
        let deployments = GroupResource::new("apps", "deployments");
        assert_eq!(
            Status::not_found(&deployments, "web").message,
            "deployments.apps \"web\" not found"
        );
        assert_eq!(
            Status::already_exists(&deployments, "web").message,
            "deployments.apps \"web\" already exists"
        );
        assert_eq!(
            Status::modified(&deployments, "web").message,
            "Operation cannot be fulfilled on deployments.apps \"web\": the object has been modified; please apply your changes to the latest version and try again"
        );
        assert_eq!(
            Status::forbidden(&GroupResource::new("", "pods"), "", "no").message,
            "pods is forbidden: no"
        );
    }

    #[test]
    fn invalid_lists_causes() {
        let errors: ErrorList = [FieldError::invalid(
            &Path::new("spec").child("replicas"),
            -1,
            "must be greater than or equal to 0",
        )]
        .into_iter()
        .collect();
        let status = Status::invalid(&GroupKind::new("apps", "Deployment"), "web", &errors);
        assert_eq!(
            serde_json::to_value(&status).expect("serializes"),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "Deployment.apps \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "reason": "Invalid", "code": 422,
                "details": {
                    "name": "web", "group": "apps", "kind": "Deployment",
                    "causes": [{
                        "reason": "FieldValueInvalid",
                        "message": "Invalid value: -1: must be greater than or equal to 0",
                        "field": "spec.replicas",
                    }],
                },
            })
        );
        let text = serde_json::to_string(&status).expect("serializes");
        assert_eq!(
            serde_json::from_str::<Status>(&text).expect("parses"),
            status
        );
    }
}
