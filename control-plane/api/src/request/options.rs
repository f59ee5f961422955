//! Options of requests, from the query string or from a body.

use std::time::Duration;

use pintle_kube_types::status::Status;
use pintle_kube_types::{ErrorList, FieldError, GroupKind, Path};
use serde_json::Value;

use super::path::Query;
use crate::client::PropagationPolicy;
use crate::pipeline::conform::json_type;

/// Longest name of a field manager.
const FIELD_MANAGER_BYTES: usize = 128;

/// What to do with unknown and duplicate fields (`fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and say so in `Warning` headers; the default.
    #[default]
    Warn,
    /// Refuse the request.
    Strict,
}

/// Options of create, update and patch.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// `dryRun=All`: everything but the write.
    pub dry_run: bool,
    /// Who manages the fields this write sets.
    pub field_manager: String,
    /// Who manages them when that is not said; never enough for apply.
    pub default_manager: String,
    /// What to do with unknown fields.
    pub field_validation: FieldValidation,
    /// For apply: take over fields of other managers.
    pub force: bool,
}

/// Format of a patch, from its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// `application/json-patch+json`.
    Json,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`.
    Strategic,
    /// `application/apply-patch+yaml`.
    Apply,
}

/// `resourceVersionMatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VersionMatch {
    /// Not given.
    #[default]
    Unset,
    /// The given revision or a later one.
    NotOlderThan,
    /// Just the given revision.
    Exact,
}

/// Options of list.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// `labelSelector`.
    pub label_selector: String,
    /// `fieldSelector`.
    pub field_selector: String,
    /// `limit`; 0 is none.
    pub limit: usize,
    /// `continue`.
    pub continue_token: String,
    /// `resourceVersion`.
    pub resource_version: String,
    /// `resourceVersionMatch`.
    pub version_match: VersionMatch,
}

/// Options of watch.
#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    /// Selectors and the revision to start after.
    pub list: ListOptions,
    /// `timeoutSeconds`.
    pub timeout: Option<Duration>,
    /// `allowWatchBookmarks`.
    pub allow_bookmarks: bool,
    /// `sendInitialEvents`.
    pub send_initial_events: Option<bool>,
}

/// Options of delete.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// `gracePeriodSeconds`.
    pub grace_period_seconds: Option<i64>,
    /// `propagationPolicy`.
    pub propagation_policy: Option<PropagationPolicy>,
    /// `orphanDependents`, from before there were policies.
    pub orphan_dependents: Option<bool>,
    /// `preconditions.uid`.
    pub precondition_uid: Option<String>,
    /// `preconditions.resourceVersion`.
    pub precondition_resource_version: Option<String>,
    /// `dryRun=All`.
    pub dry_run: bool,
}

impl WriteOptions {
    /// Who manages the fields this write sets.
    pub fn manager(&self) -> &str {
        if self.field_manager.is_empty() {
            &self.default_manager
        } else {
            &self.field_manager
        }
    }

    /// Reads the options of a create, update or patch.
    pub fn from_query(query: &Query, kind: &str) -> Result<Self, Status> {
        let field_validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                return Err(invalid(
                    kind,
                    FieldError::not_supported(
                        &Path::new("fieldValidation"),
                        other,
                        &["", "Ignore", "Strict", "Warn"],
                    ),
                ));
            }
        };
        let field_manager = query.get("fieldManager").unwrap_or_default();
        check_field_manager(field_manager, kind)?;
        Ok(Self {
            dry_run: dry_run(query, kind)?,
            field_manager: field_manager.to_owned(),
            default_manager: String::new(),
            field_validation,
            force: query.flag("force")?.unwrap_or(false),
        })
    }
}

impl ListOptions {
    /// Reads the options of a list or watch.
    pub fn from_query(query: &Query) -> Result<Self, Status> {
        let version_match = match query.get("resourceVersionMatch") {
            None | Some("") => VersionMatch::Unset,
            Some("NotOlderThan") => VersionMatch::NotOlderThan,
            Some("Exact") => VersionMatch::Exact,
            Some(other) => {
                return Err(invalid(
                    "ListOptions",
                    FieldError::not_supported(
                        &Path::new("resourceVersionMatch"),
                        other,
                        &["Exact", "NotOlderThan", ""],
                    ),
                ));
            }
        };
        let text = |name: &str| query.get(name).unwrap_or_default().to_owned();
        Ok(Self {
            label_selector: text("labelSelector"),
            field_selector: text("fieldSelector"),
            limit: query
                .number("limit")?
                .and_then(|limit| usize::try_from(limit).ok())
                .unwrap_or(0),
            continue_token: text("continue"),
            resource_version: text("resourceVersion"),
            version_match,
        })
    }
}

impl WatchOptions {
    /// Reads the options of a watch.
    pub fn from_query(query: &Query) -> Result<Self, Status> {
        Ok(Self {
            list: ListOptions::from_query(query)?,
            timeout: query
                .number("timeoutSeconds")?
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            allow_bookmarks: query.flag("allowWatchBookmarks")?.unwrap_or(false),
            send_initial_events: query.flag("sendInitialEvents")?,
        })
    }
}

impl DeleteOptions {
    /// Reads the options of a delete without a body.
    pub fn from_query(query: &Query) -> Result<Self, Status> {
        Ok(Self {
            grace_period_seconds: query.number("gracePeriodSeconds")?,
            propagation_policy: query
                .get("propagationPolicy")
                .filter(|policy| !policy.is_empty())
                .map(propagation_policy)
                .transpose()?,
            orphan_dependents: query.flag("orphanDependents")?,
            precondition_uid: None,
            precondition_resource_version: None,
            dry_run: dry_run(query, "DeleteOptions")?,
        })
    }

    /// Whether the client asked for what depends on the object to go with it: it then hears by a 202
    /// that this is not done yet.
    pub fn cascades(&self) -> bool {
        self.propagation_policy == Some(PropagationPolicy::Foreground)
            || self.orphan_dependents == Some(false)
    }

    /// Reads a `DeleteOptions` object.
    pub fn from_body(body: &Value) -> Result<Self, Status> {
        let wrong = |field: &str, value: &Value, go: &str| {
            Status::bad_request(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: json: cannot unmarshal {} into Go struct field DeleteOptions.{field} of type {go}",
                json_type(value),
            ))
        };
        if !body.is_object() {
            return Err(Status::bad_request(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct",
                json_type(body),
            )));
        }
        let given = |field: &str| body.get(field).filter(|value| !value.is_null());
        if let Some(kind) = given("kind")
            && !matches!(kind.as_str(), Some("" | "DeleteOptions"))
        {
            return Err(Status::bad_request(format!(
                "decoded object cannot be converted to DeleteOptions: it is of kind {kind}"
            )));
        }
        let mut options = Self::default();
        if let Some(value) = given("gracePeriodSeconds") {
            let seconds = value
                .as_i64()
                .ok_or_else(|| wrong("gracePeriodSeconds", value, "int64"))?;
            options.grace_period_seconds = Some(seconds);
        }
        if let Some(value) = given("propagationPolicy") {
            let policy = value
                .as_str()
                .ok_or_else(|| wrong("propagationPolicy", value, "v1.DeletionPropagation"))?;
            options.propagation_policy = Some(propagation_policy(policy)?);
        }
        if let Some(value) = given("orphanDependents") {
            let orphan = value
                .as_bool()
                .ok_or_else(|| wrong("orphanDependents", value, "bool"))?;
            options.orphan_dependents = Some(orphan);
        }
        if let Some(preconditions) = given("preconditions") {
            if !preconditions.is_object() {
                return Err(wrong("preconditions", preconditions, "v1.Preconditions"));
            }
            let text = |field: &str, go: &str| match preconditions.get(field) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::String(text)) => Ok(Some(text.clone())),
                Some(other) => Err(wrong(&format!("preconditions.{field}"), other, go)),
            };
            options.precondition_uid = text("uid", "types.UID")?;
            options.precondition_resource_version = text("resourceVersion", "string")?;
        }
        if let Some(value) = given("dryRun") {
            let Value::Array(values) = value else {
                return Err(wrong("dryRun", value, "[]string"));
            };
            let values = values.iter().map(|value| {
                value
                    .as_str()
                    .ok_or_else(|| wrong("dryRun", value, "string"))
            });
            let values = values.collect::<Result<Vec<&str>, Status>>()?;
            options.dry_run = check_dry_run(&values, "DeleteOptions")?;
        }
        Ok(options)
    }
}

/// A patch that is no apply takes nothing over.
pub fn check_force(query: &Query, patch: PatchKind) -> Result<(), Status> {
    match query.get("force") {
        Some(_) if patch != PatchKind::Apply => Err(invalid(
            "PatchOptions",
            FieldError::forbidden(
                &Path::new("force"),
                "may not be specified for non-apply patch",
            ),
        )),
        _ => Ok(()),
    }
}

/// A field manager is a short name that can be printed.
fn check_field_manager(name: &str, kind: &str) -> Result<(), Status> {
    let path = Path::new("fieldManager");
    if name.len() > FIELD_MANAGER_BYTES {
        return Err(invalid(
            kind,
            FieldError::too_long(&path, FIELD_MANAGER_BYTES),
        ));
    }
    if name.chars().any(char::is_control) {
        return Err(invalid(
            kind,
            FieldError::invalid(&path, name, "should only contain printable characters"),
        ));
    }
    Ok(())
}

fn propagation_policy(text: &str) -> Result<PropagationPolicy, Status> {
    match text {
        "Orphan" => Ok(PropagationPolicy::Orphan),
        "Background" => Ok(PropagationPolicy::Background),
        "Foreground" => Ok(PropagationPolicy::Foreground),
        other => Err(invalid(
            "DeleteOptions",
            FieldError::not_supported(
                &Path::new("propagationPolicy"),
                other,
                &["Foreground", "Background", "Orphan", "nil"],
            ),
        )),
    }
}

fn dry_run(query: &Query, kind: &str) -> Result<bool, Status> {
    check_dry_run(&query.all("dryRun"), kind)
}

fn check_dry_run(values: &[&str], kind: &str) -> Result<bool, Status> {
    match values.iter().find(|value| **value != "All") {
        Some(other) => Err(invalid(
            kind,
            FieldError::not_supported(&Path::new("dryRun"), other, &["All"]),
        )),
        None => Ok(!values.is_empty()),
    }
}

fn invalid(kind: &str, error: FieldError) -> Status {
    Status::invalid(
        &GroupKind::new("meta.k8s.io", kind.to_owned()),
        "",
        &ErrorList(vec![error]),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn delete_options_of_a_wrong_type_delete_nothing() {
        for body in [
            json!("x"),
            json!([]),
            json!({"kind": "Pod"}),
            json!({"preconditions": "x"}),
            json!({"preconditions": {"uid": 1}}),
            json!({"preconditions": {"resourceVersion": 7}}),
            json!({"dryRun": "All"}),
            json!({"dryRun": [true]}),
            json!({"gracePeriodSeconds": "1"}),
            json!({"orphanDependents": 1}),
        ] {
            let refused = DeleteOptions::from_body(&body).expect_err("400");
            assert_eq!(refused.code, 400, "{body}: {refused}");
        }
        for body in [
            json!({"propagationPolicy": "Foreground"}),
            json!({"orphanDependents": false}),
        ] {
            assert!(DeleteOptions::from_body(&body).expect("options").cascades());
        }
        let options = DeleteOptions::from_body(&json!({
            "kind": "DeleteOptions",
            "preconditions": {"uid": "u", "resourceVersion": "7"},
            "dryRun": ["All"],
        }))
        .expect("options");
        assert!(options.dry_run && !options.cascades());
        assert_eq!(options.precondition_uid.as_deref(), Some("u"));
        assert_eq!(options.precondition_resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn field_managers_are_short_and_printable() {
        let long = format!("fieldManager={}", "x".repeat(129));
        for query in [long.as_str(), "fieldManager=%07"] {
            let refused = WriteOptions::from_query(&Query::parse(query), "PatchOptions");
            assert_eq!(refused.expect_err("422").code, 422);
        }
        let query = Query::parse("fieldManager=me&force=true");
        assert!(check_force(&query, PatchKind::Merge).is_err());
        assert!(check_force(&query, PatchKind::Apply).is_ok());
    }
}
