//! Server-side apply, `application/apply-patch+yaml`: who owns which field.
//!
//! [`apply`] merges a manager's configuration into an object and takes away what the manager no longer
//! wants; [`track_update`] records who changed what in every other write. Both keep
//! `metadata.managedFields`; the semantics are those of `structured-merge-diff`. The time is handed in.

use serde_json::{Map, Value, json};

use super::fieldset::FieldSet;
use super::typed::{self, Place};
use crate::object::Object;
use crate::schema::{Schema, normalise};
use crate::status::{Cause, Status};

/// Writers of an object that existed before anything was applied to it.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Where the oldest writers are merged into when there are too many.
const ANCIENT: &str = "ancient-changes";
const MAX_UPDATERS: usize = 10;
/// The manager that may take over what client-side apply left.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Who writes, how, and when.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// The `apiVersion` of the request.
    pub api_version: &'a str,
    /// The subresource written to; empty for the object itself.
    pub subresource: &'a str,
    /// Now, as `metav1.Time`.
    pub time: &'a str,
}

/// A field another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The other manager as messages name it.
    pub manager: String,
    /// The field.
    pub path: String,
}

/// Why a configuration cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields the configuration changes.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// The configuration holds `managedFields`.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// An element occurs twice in a keyed list.
    #[error("failed to create typed patch object: {list}: duplicate entries for key {element}")]
    Duplicate {
        /// The list.
        list: String,
        /// The element.
        element: String,
    },
}

impl From<ApplyError> for Status {
    fn from(error: ApplyError) -> Self {
        let message = error.to_string();
        match error {
            ApplyError::Conflicts(conflicts) => {
                let causes = conflicts
                    .into_iter()
                    .map(|c| Cause {
                        reason: "FieldManagerConflict".to_owned(),
                        message: format!("conflict with {}", c.manager),
                        field: c.path,
                    })
                    .collect();
                Self::apply_conflict(causes, message)
            }
            ApplyError::ManagedFields => Self::bad_request(message),
            ApplyError::Duplicate { .. } => {
                let mut status = Self::new(crate::Reason::Unknown, message);
                status.code = 500;
                status
            }
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager, one.path
        );
    }
    let mut managers: Vec<&str> = conflicts.iter().map(|c| c.manager.as_str()).collect();
    managers.sort_unstable();
    managers.dedup();
    let mut lines = Vec::new();
    for manager in managers {
        lines.push(format!("conflicts with {manager}:"));
        lines.extend(
            conflicts
                .iter()
                .filter(|c| c.manager == manager)
                .map(|c| format!("- {}", c.path)),
        );
    }
    format!(
        "Apply failed with {} conflicts: {}",
        conflicts.len(),
        lines.join("\n")
    )
}

/// How a manager writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Apply,
    Update,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
struct Owner {
    manager: String,
    operation: Operation,
    api_version: String,
    subresource: String,
    time: String,
    fields: FieldSet,
}

impl Owner {
    fn new(write: &Write<'_>, operation: Operation) -> Self {
        Self {
            manager: write.manager.to_owned(),
            operation,
            api_version: write.api_version.to_owned(),
            subresource: write.subresource.to_owned(),
            time: write.time.to_owned(),
            fields: FieldSet::new(),
        }
    }

    /// Appliers are the same across versions, updaters are not.
    fn is_same(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn described(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text = format!("{text} with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text = format!("{text} using {}", self.api_version);
        }
        text
    }

    fn decode(entry: &Value) -> Option<Self> {
        let text = |name: &str| {
            entry
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_owned()
        };
        let operation = match entry.get("operation").and_then(Value::as_str)? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let fields = match entry.get("fieldsV1") {
            Some(fields) => FieldSet::from_fields_v1(fields)?,
            None => FieldSet::new(),
        };
        Some(Self {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields,
        })
    }

    fn encode(&self) -> Value {
        let mut entry = Map::new();
        let mut text = |name: &str, value: &str| {
            if !value.is_empty() {
                entry.insert(name.to_owned(), value.into());
            }
        };
        text("manager", &self.manager);
        text(
            "operation",
            match self.operation {
                Operation::Apply => "Apply",
                Operation::Update => "Update",
            },
        );
        text("apiVersion", &self.api_version);
        text("time", &self.time);
        text("fieldsType", "FieldsV1");
        text("subresource", &self.subresource);
        entry.insert("fieldsV1".to_owned(), self.fields.to_fields_v1());
        Value::Object(entry)
    }
}

/// The owners an object names; malformed entries make the list unusable, as in Kubernetes.
fn owners(object: &Object) -> Option<Vec<Owner>> {
    let Some(entries) = object.metadata().and_then(|m| m.get("managedFields")) else {
        return Some(Vec::new());
    };
    entries
        .as_array()?
        .iter()
        .map(Owner::decode)
        .collect::<Option<Vec<_>>>()
}

fn set_owners(object: &mut Object, mut owners: Vec<Owner>) {
    owners.retain(|o| !o.fields.is_empty());
    owners.sort_by(|a, b| {
        (
            a.operation,
            &a.time,
            &a.manager,
            &a.api_version,
            &a.subresource,
        )
            .cmp(&(
                b.operation,
                &b.time,
                &b.manager,
                &b.api_version,
                &b.subresource,
            ))
    });
    if owners.is_empty() {
        object.remove_path(&["metadata", "managedFields"]);
        return;
    }
    let entries: Vec<Value> = owners.iter().map(Owner::encode).collect();
    object
        .metadata_mut()
        .insert("managedFields".to_owned(), entries.into());
}

/// Fields nobody owns: those that identify an object or are set by the system.
fn nobodys(subresource: &str) -> FieldSet {
    const SYSTEM: &[&[&str]] = &[
        &["apiVersion"],
        &["kind"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ];
    let mut set = FieldSet::of_fields(SYSTEM);
    // Each end point leaves the fields of the other alone.
    let other: &[&[&str]] = if subresource == "status" {
        &[&["spec"], &["metadata", "labels"]]
    } else {
        &[&["status"]]
    };
    set = set.union(&FieldSet::of_fields(other));
    set
}

fn owned(set: &FieldSet, subresource: &str) -> FieldSet {
    let mut set = set.recursive_difference(&nobodys(subresource));
    // Metadata itself belongs to nobody either, but what is in it may.
    if let Some(metadata) = set
        .children
        .get_mut(&super::fieldset::Element::Field("metadata".to_owned()))
    {
        metadata.member = false;
    }
    set.difference(&FieldSet::new())
}

/// The object as far as managers are concerned.
fn bare(object: &Object) -> Value {
    let mut object = object.clone();
    object.remove_path(&["metadata", "managedFields"]);
    object.into_value()
}

/// Takes from all owners but `writer` what a write changed; gives the conflicts with them first.
fn displace(
    owners: &mut [Owner],
    writer: &Owner,
    comparison: &typed::Comparison,
    force: bool,
) -> Result<(), Vec<Conflict>> {
    let changed = comparison.modified.union(&comparison.added);
    let others = || owners.iter().filter(|o| !o.is_same(writer));
    if !force {
        let conflicts: Vec<Conflict> = others()
            .flat_map(|owner| {
                let manager = owner.described();
                owner
                    .fields
                    .intersection(&changed)
                    .paths()
                    .into_iter()
                    .map(move |path| Conflict {
                        manager: manager.clone(),
                        path,
                    })
            })
            .collect();
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
    }
    let gone = changed.union(&comparison.removed);
    for owner in owners.iter_mut().filter(|o| !o.is_same(writer)) {
        owner.fields = owner.fields.difference(&gone);
    }
    Ok(())
}

/// What `manager` no longer wants and nobody else does.
fn prune(place: Place<'_>, merged: &Value, owners: &[Owner], last: Option<&FieldSet>) -> Value {
    let Some(last) = last.filter(|l| !l.is_empty()) else {
        return merged.clone();
    };
    let empty = || Value::Object(Map::new());
    let last = last.with_parents();
    let pruned = typed::remove(place, merged, &last).unwrap_or_else(empty);
    let all = typed::field_set(place, merged).with_parents();
    // Back comes what any manager (this one's new configuration included) owns, with what says which
    // object it is: that is nobody's, but must not go with metadata that somebody no longer wants …
    let kept = typed::field_set(place, &pruned).with_parents();
    let managed = owners
        .iter()
        .fold(nobodys(""), |set, owner| set.union(&owner.fields))
        .with_parents();
    let unwanted = all.difference(&kept).difference(&managed);
    let pruned = typed::remove(place, merged, &unwanted).unwrap_or_else(empty);
    // … and what went along without ever having been this manager's.
    let kept = typed::field_set(place, &pruned).with_parents();
    let unwanted = all.difference(&kept).intersection(&last);
    typed::remove(place, merged, &unwanted).unwrap_or_else(empty)
}

/// Applies a manager's configuration to an object (`None` where there is none yet).
///
/// The result still has to be defaulted and validated. With `force`, fields of other managers are taken
/// over instead of reported as conflicts.
pub fn apply(
    live: Option<&Object>,
    config: &Object,
    schema: &Schema,
    write: &Write<'_>,
    force: bool,
) -> Result<Object, ApplyError> {
    let result = apply_once(live, config, schema, write, force);
    let mut object = match (result, live) {
        // `kubectl apply --server-side` takes over from `kubectl apply`.
        (Err(ApplyError::Conflicts(conflicts)), Some(live)) if write.manager == KUBECTL => {
            let allowed = left_by_client_side_apply(live, schema).paths();
            let rest: Vec<Conflict> = conflicts
                .into_iter()
                .filter(|c| !allowed.contains(&c.path))
                .collect();
            if !rest.is_empty() {
                return Err(ApplyError::Conflicts(rest));
            }
            apply_once(Some(live), config, schema, write, true)?
        }
        (result, _) => result?,
    };
    if write.manager == KUBECTL && live.is_some_and(|live| live.annotation(LAST_APPLIED).is_some())
    {
        let mut text = config.clone();
        text.remove_path(&["metadata", "annotations", LAST_APPLIED]);
        let text = Value::Object(text.0).to_string();
        object.set_annotation(LAST_APPLIED, &format!("{text}\n"));
    }
    Ok(object)
}

fn apply_once(
    live: Option<&Object>,
    config: &Object,
    schema: &Schema,
    write: &Write<'_>,
    force: bool,
) -> Result<Object, ApplyError> {
    let given = config.metadata().and_then(|m| m.get("managedFields"));
    if given.is_some_and(|f| !f.is_null()) {
        return Err(ApplyError::ManagedFields);
    }
    let place = Place::root(schema);
    let mut config = config.to_value();
    normalise(schema, &mut config);
    if let Some((list, element)) = typed::duplicate(place, &config, "") {
        return Err(ApplyError::Duplicate {
            list,
            element: element.to_string(),
        });
    }
    let mut owners = live.and_then(owners).unwrap_or_default();
    let live = live.map_or_else(|| json!({}), bare);
    if owners.is_empty() && live.as_object().is_some_and(|l| !l.is_empty()) {
        let mut before = Owner::new(write, Operation::Update);
        BEFORE_FIRST_APPLY.clone_into(&mut before.manager);
        before.subresource = String::new();
        before.fields = owned(&typed::compare(place, &json!({}), &live).added, "");
        owners.push(before);
    }
    let mut writer = Owner::new(write, Operation::Apply);
    writer.fields = owned(&typed::field_set(place, &config), write.subresource);
    // Fields of the other end point are not part of what is applied.
    let ignored = FieldSet::of_fields(if write.subresource == "status" {
        &[&["spec"]]
    } else {
        &[&["status"]]
    });
    let config = typed::remove(place, &config, &ignored).unwrap_or_else(|| json!({}));
    let merged = typed::merge(place, &live, &config);
    let position = owners.iter().position(|o| o.is_same(&writer));
    let last = position.map(|i| owners[i].clone());
    match position.and_then(|i| owners.get_mut(i)) {
        Some(slot) => *slot = writer.clone(),
        None => owners.push(writer.clone()),
    }
    let result = prune(place, &merged, &owners, last.as_ref().map(|l| &l.fields));
    let comparison = typed::compare(place, &live, &result);
    displace(&mut owners, &writer, &comparison, force).map_err(ApplyError::Conflicts)?;
    // An apply that changes nothing keeps its time.
    if let Some(last) = last
        && last.fields == writer.fields
        && last.api_version == writer.api_version
        && comparison.is_same()
        && let Some(slot) = owners.iter_mut().find(|o| o.is_same(&writer))
    {
        slot.time = last.time;
    }
    let mut object = Object::from_value(result).unwrap_or_default();
    set_owners(&mut object, owners);
    Ok(object)
}

/// Fields of the last client-side apply that nobody has changed since.
fn left_by_client_side_apply(live: &Object, schema: &Schema) -> FieldSet {
    let Some(mut last) = live
        .annotation(LAST_APPLIED)
        .and_then(|text| serde_json::from_str::<Value>(text).ok())
        .filter(Value::is_object)
    else {
        return FieldSet::new();
    };
    normalise(schema, &mut last);
    let place = Place::root(schema);
    let comparison = typed::compare(place, &last, &bare(live));
    typed::field_set(place, &last)
        .with_parents()
        .difference(&comparison.modified)
        .difference(&comparison.removed)
}

/// Records in `new` who wrote what in a create (`live` is `None`), update or patch.
///
/// Where a client sent no managers the known ones are kept; `managedFields: [{}]` forgets them. An
/// object nobody is recorded for is left alone.
pub fn track_update(live: Option<&Object>, new: &mut Object, schema: &Schema, write: &Write<'_>) {
    let sent = new
        .metadata()
        .and_then(|m| m.get("managedFields"))
        .and_then(Value::as_array);
    let reset =
        sent.is_some_and(|list| matches!(list.as_slice(), [Value::Object(one)] if one.is_empty()));
    if reset {
        new.remove_path(&["metadata", "managedFields"]);
        return;
    }
    let known = match owners(new) {
        Some(sent) if !sent.is_empty() => Some(sent),
        _ => live.and_then(owners),
    };
    let mut owners = known.unwrap_or_default();
    if live.is_some() && owners.is_empty() {
        new.remove_path(&["metadata", "managedFields"]);
        return;
    }
    let place = Place::root(schema);
    let old = live.map_or_else(|| json!({}), bare);
    let comparison = typed::compare(place, &old, &bare(new));
    let mut writer = Owner::new(write, Operation::Update);
    let own = owners.iter().position(|o| o.is_same(&writer));
    if comparison.is_same() {
        set_owners(new, owners);
        return;
    }
    // Updates never conflict: the last writer owns.
    let forced = displace(&mut owners, &writer, &comparison, true);
    debug_assert!(forced.is_ok(), "a forced write has no conflicts");
    let before = own.map(|i| owners[i].fields.clone()).unwrap_or_default();
    let fields = before
        .difference(&comparison.removed)
        .union(&comparison.modified)
        .union(&comparison.added);
    writer.fields = owned(&fields, write.subresource);
    match own.and_then(|i| owners.get_mut(i)) {
        Some(slot) => {
            // The time is that of the last change of ownership.
            if slot.fields == writer.fields {
                writer.time.clone_from(&slot.time);
            }
            *slot = writer;
        }
        None => owners.push(writer),
    }
    cap_updaters(&mut owners);
    set_owners(new, owners);
}

/// Merges the oldest updaters where there are too many.
fn cap_updaters(owners: &mut Vec<Owner>) {
    let updaters = owners
        .iter()
        .filter(|o| o.operation == Operation::Update && !o.fields.is_empty())
        .count();
    if updaters <= MAX_UPDATERS {
        return;
    }
    owners.sort_by(|a, b| (a.operation, &a.time).cmp(&(b.operation, &b.time)));
    let mut excess = updaters - MAX_UPDATERS + 1;
    let mut ancient: Option<Owner> = None;
    let mut kept = Vec::with_capacity(owners.len());
    for owner in owners.drain(..) {
        if owner.operation == Operation::Update && excess > 0 {
            excess -= 1;
            match &mut ancient {
                Some(ancient) => {
                    ancient.fields = ancient.fields.union(&owner.fields);
                    ancient.time = owner.time;
                }
                None => {
                    ancient = Some(Owner {
                        manager: ANCIENT.to_owned(),
                        subresource: String::new(),
                        ..owner
                    });
                }
            }
        } else {
            kept.push(owner);
        }
    }
    kept.extend(ancient);
    *owners = kept;
}

#[cfg(test)]
mod tests;
