//! Create, update and patch.

use pintle_kube_types::patch::apply::{self, Write};
use pintle_kube_types::patch::{self, PatchError};
use pintle_kube_types::status::{Reason, Status};
use pintle_kube_types::{
    ErrorList, FieldError, GroupVersionKind, Object, Path, defaults, names, schema, validation,
};
use serde_json::{Value, json};

use super::conform::{check_kind, check_name, check_namespace, conform_patched, normalise};
use super::persist::{Current, Effects, plain_failure};
use super::read::no_subresource;
use super::{Attributes, Core, Stored};
use crate::admission;
use crate::auth::authorize::authorize;
use crate::clock::rfc3339;
use crate::registry::strategy::{self, Strategy, random_suffix, service};
use crate::request::options::{PatchKind, WriteOptions};

/// Names tried for `generateName`.
const GENERATED_NAMES: usize = 8;
/// Decisions taken anew because somebody else wrote in between.
pub(super) const ATTEMPTS: usize = 64;

impl Core {
    /// Creates an object, or what a subresource creates (a binding, an eviction, a token).
    pub(crate) async fn create(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        mut object: Object,
    ) -> Result<Stored, Status> {
        authorize(self, attributes)?;
        match attributes.subresource.as_deref() {
            None => {}
            Some("binding") => return self.bind(attributes, options, &object).await,
            Some("eviction") => return self.evict(attributes, options, &object).await,
            Some("token") => return self.request_token(attributes, object),
            Some(other) => return Err(no_subresource(attributes, other)),
        }
        check_kind(&attributes.resource, &mut object)?;
        let mut object = normalise(&attributes.resource, object);
        object.metadata_mut().remove("managedFields");
        self.create_object(attributes, options, object).await
    }

    async fn create_object(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        mut object: Object,
    ) -> Result<Stored, Status> {
        let resource = &attributes.resource;
        check_namespace(attributes, &mut object)?;
        if object
            .resource_version()
            .is_some_and(|version| !matches!(version, "" | "0"))
        {
            return Err(plain_failure(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        object.metadata_mut().remove("resourceVersion");
        let prefix = object
            .generate_name()
            .filter(|prefix| !prefix.is_empty() && object.name().is_none_or(str::is_empty))
            .map(str::to_owned);
        if let Some(prefix) = &prefix {
            object.set_name(&names::generate_name(prefix, &random_suffix()));
        }
        let gvk = resource.gvk();
        defaults::apply_defaults(&gvk, &mut object);
        let mut names_left = GENERATED_NAMES;
        for _ in 0..ATTEMPTS {
            let mut new = object.clone();
            let condition = admission::admit_create(self, attributes, &mut new)?;
            strategy::prepare_create(resource, &mut new);
            self.stamp(&mut new);
            let name = new.name().unwrap_or_default().to_owned();
            let errors = validation::validate_create(&gvk, &new);
            if !errors.is_empty() {
                return Err(Status::invalid(&resource.group_kind(), &name, &errors));
            }
            let key = attributes.key(&name);
            if self.read(&key)?.is_some() {
                let Some(prefix) = &prefix else {
                    return Err(Status::already_exists(&resource.group_resource(), &name));
                };
                names_left -= 1;
                if names_left == 0 {
                    return Err(Status::generate_name_conflict(
                        &resource.group_resource(),
                        &name,
                        1,
                    ));
                }
                object.set_name(&names::generate_name(prefix, &random_suffix()));
                continue;
            }
            let mut effects = self.allocate(attributes, &mut new, None)?;
            effects.compares.extend(condition);
            if let Some(stored) = self
                .insert(resource, &key, &new, effects, options.dry_run)
                .await?
            {
                return Ok(stored.mark_created());
            }
        }
        Err(Status::server_timeout(
            &resource.group_resource(),
            "create",
            1,
        ))
    }

    /// Metadata that only the server sets.
    fn stamp(&self, object: &mut Object) {
        let now = rfc3339(self.clock().now());
        object.set_uid(Some(&uuid::Uuid::new_v4().to_string()));
        object.set_creation_timestamp(Some(&now));
        object.set_deletion_timestamp(None);
        object.set_deletion_grace_period_seconds(None);
        object.metadata_mut().remove("selfLink");
    }

    pub(super) fn allocate(
        &self,
        attributes: &Attributes,
        new: &mut Object,
        old: Option<&Object>,
    ) -> Result<Effects, Status> {
        if attributes.resource.strategy != Strategy::Service || attributes.subresource.is_some() {
            return Ok(Effects::default());
        }
        service::allocate(self.store(), self.pools(), &attributes.resource, new, old)
    }

    /// Replaces an object, its status, its scale or a namespace's finalizers.
    pub(crate) async fn update(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        mut object: Object,
    ) -> Result<Stored, Status> {
        authorize(self, attributes)?;
        let resource = &attributes.resource;
        match attributes.subresource.as_deref() {
            None => {}
            Some("scale") => return self.update_scale(attributes, options, &object).await,
            Some(name @ ("status" | "finalize")) if resource.subresource(name).is_some() => {}
            Some(other) => return Err(no_subresource(attributes, other)),
        }
        check_kind(resource, &mut object)?;
        let mut object = normalise(resource, object);
        check_name(attributes, &mut object)?;
        defaults::apply_defaults(&resource.gvk(), &mut object);
        let missing = match (
            resource.strategy.create_on_update(),
            &attributes.subresource,
        ) {
            (true, None) => Missing::Create,
            _ => Missing::NotFound,
        };
        self.mutate(attributes, options, missing, |_| {
            Ok((object.clone(), Vec::new()))
        })
        .await
    }

    /// Patches an object, its status or its scale.
    pub(crate) async fn patch(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        kind: PatchKind,
        body: &[u8],
    ) -> Result<Stored, Status> {
        authorize(self, attributes)?;
        let resource = &attributes.resource;
        match attributes.subresource.as_deref() {
            None => {}
            Some("scale") => return self.patch_scale(attributes, options, kind, body).await,
            Some("status") if resource.subresource("status").is_some() => {}
            Some(other) => return Err(no_subresource(attributes, other)),
        }
        if kind == PatchKind::Apply {
            return self.apply(attributes, options, body).await;
        }
        let patch = ParsedPatch::parse(kind, body)?;
        let gvk = resource.gvk();
        self.mutate(attributes, options, Missing::NotFound, |old| {
            let old = old.map(Object::to_value).unwrap_or_default();
            let value = patch.apply(&gvk, &old)?;
            let (mut new, warnings) =
                conform_patched(resource, value, patch.strategic(), options.field_validation)?;
            check_name(attributes, &mut new)?;
            defaults::apply_defaults(&gvk, &mut new);
            Ok((new, warnings))
        })
        .await
    }

    /// Read, decide, write; and anew when somebody else wrote in between.
    ///
    /// `make` gives the wanted object from the present one (`None` only where a missing one is
    /// created). When the wanted object carries a
    /// resourceVersion it must be the present one's: a caller that decided on an older
    /// revision gets a Conflict, one that did not say decides again.
    pub(super) async fn mutate(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        missing: Missing,
        make: impl Fn(Option<&Object>) -> Result<(Object, Vec<String>), Status> + Send + Sync,
    ) -> Result<Stored, Status> {
        let resource = &attributes.resource;
        let subresource = attributes.subresource.as_deref();
        let name = attributes.name()?;
        let key = attributes.key(name);
        let gvk = resource.gvk();
        let schema = schema::schema_for(&gvk);
        for _ in 0..ATTEMPTS {
            let Some(current) = self.read(&key)? else {
                if missing != Missing::NotFound {
                    let (mut object, warnings) = make(None)?;
                    if object.resource_version().is_none_or(str::is_empty) {
                        object.metadata_mut().remove("resourceVersion");
                        let created =
                            Box::pin(self.create_object(attributes, options, object)).await?;
                        return Ok(created.with_warnings(warnings));
                    }
                }
                return Err(Status::not_found(&resource.group_resource(), name));
            };
            let old = current.object()?;
            let (mut new, warnings) = make(Some(&old))?;
            check_version(attributes, name, &new, &current)?;
            carry_metadata(attributes, name, &mut new, &old)?;
            strategy::prepare_update(resource, subresource, &mut new, &old);
            if missing != Missing::Apply
                && let Some(schema) = &schema
            {
                let write = Write {
                    manager: options.manager(),
                    api_version: &resource.api_version(),
                    subresource: subresource.unwrap_or_default(),
                    time: &rfc3339(self.clock().now()),
                };
                apply::track_update(Some(&old), &mut new, schema, &write);
            }
            admission::admit_update(attributes, &new, &old)?;
            let errors = match subresource {
                Some("status") => validation::validate_status_update(&gvk, &new, &old),
                Some("finalize") => ErrorList::new(),
                _ => validation::validate_update(&gvk, &new, &old),
            };
            if !errors.is_empty() {
                return Err(Status::invalid(&resource.group_kind(), name, &errors));
            }
            if strategy::ends(resource, &new, &old) {
                let effects = attributes.release(&old);
                if let Some(stored) = self.remove(&current, effects, options.dry_run).await? {
                    return Ok(stored.with_warnings(warnings));
                }
                continue;
            }
            let effects = self.allocate(attributes, &mut new, Some(&old))?;
            if new == old {
                return Ok(current.stored().with_warnings(warnings));
            }
            if let Some(stored) = self
                .replace(resource, &current, &new, effects, options.dry_run)
                .await?
            {
                return Ok(stored.with_warnings(warnings));
            }
        }
        Err(Status::modified(&resource.group_resource(), name))
    }
}

/// What an update does when there is no object to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Fails.
    NotFound,
    /// Creates it.
    Create,
    /// Creates it; and whoever applies has said which fields are whose.
    Apply,
}

/// Optimistic concurrency: a given resourceVersion must be the present one.
fn check_version(
    attributes: &Attributes,
    name: &str,
    new: &Object,
    current: &Current,
) -> Result<(), Status> {
    let resource = &attributes.resource;
    match new.resource_version() {
        None | Some("" | "0") if resource.strategy.unconditional_update() => Ok(()),
        None | Some("" | "0") => Err(Status::invalid(
            &resource.group_kind(),
            name,
            &ErrorList(vec![FieldError::invalid(
                &Path::new("metadata").child("resourceVersion"),
                json!(0),
                "must be specified for an update",
            )]),
        )),
        Some(version) => match version.parse::<u64>() {
            Ok(version) if version == current.revision => Ok(()),
            Ok(_) => Err(Status::modified(&resource.group_resource(), name)),
            Err(error) => {
                tracing::debug!(%error, version, "a resourceVersion that is no number");
                Err(Status::invalid(
                    &resource.group_kind(),
                    name,
                    &ErrorList(vec![FieldError::invalid(
                        &Path::new("metadata").child("resourceVersion"),
                        version,
                        "must be an unsigned integer",
                    )]),
                ))
            }
        },
    }
}

/// Metadata a client cannot change, or may leave out.
fn carry_metadata(
    attributes: &Attributes,
    name: &str,
    new: &mut Object,
    old: &Object,
) -> Result<(), Status> {
    if let Some(uid) = new.uid().filter(|uid| !uid.is_empty())
        && Some(uid) != old.uid()
    {
        return Err(Status::conflict(
            &attributes.resource.group_resource(),
            name,
            format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                old.uid().unwrap_or_default()
            ),
        ));
    }
    let before = old.metadata();
    let metadata = new.metadata_mut();
    metadata.remove("selfLink");
    for field in [
        "uid",
        "resourceVersion",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        match before.and_then(|before| before.get(field)) {
            Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
            None => drop(metadata.remove(field)),
        }
    }
    if metadata.get("creationTimestamp").is_none_or(Value::is_null)
        && let Some(created) = before.and_then(|before| before.get("creationTimestamp"))
    {
        metadata.insert("creationTimestamp".to_owned(), created.clone());
    }
    Ok(())
}

/// A patch that was read, to be applied to one revision after another.
pub(super) enum ParsedPatch {
    Json(Vec<u8>),
    Merge(Value),
    Strategic(Value),
}

impl ParsedPatch {
    pub(super) fn parse(kind: PatchKind, body: &[u8]) -> Result<Self, Status> {
        let object = || -> Result<Value, Status> {
            serde_json::from_slice(body)
                .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))
        };
        match kind {
            PatchKind::Json => Ok(Self::Json(body.to_vec())),
            PatchKind::Merge => Ok(Self::Merge(object()?)),
            PatchKind::Strategic => Ok(Self::Strategic(object()?)),
            PatchKind::Apply => Err(Status::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ])),
        }
    }

    /// The patch, where it is a strategic one.
    fn strategic(&self) -> Option<&Value> {
        match self {
            Self::Strategic(patch) => Some(patch),
            Self::Json(_) | Self::Merge(_) => None,
        }
    }

    pub(super) fn apply(&self, gvk: &GroupVersionKind, current: &Value) -> Result<Value, Status> {
        let patched = match self {
            Self::Json(patch) => patch::json::apply_json_patch(current, patch),
            Self::Merge(patch) => patch::merge::merge_patch(current, patch),
            Self::Strategic(patch) => match schema::schema_for(gvk) {
                Some(schema) => patch::strategic::strategic_merge(current, patch, &schema),
                None => {
                    return Err(Status::unsupported_media_type(&[
                        "application/json-patch+json",
                        "application/merge-patch+json",
                    ]));
                }
            },
        };
        patched.map_err(|error| patch_failed(&error))
    }
}

fn patch_failed(error: &PatchError) -> Status {
    if error.is_unprocessable() {
        Status::new(Reason::Invalid, error.to_string())
    } else if error.is_too_large() {
        Status::request_entity_too_large(error)
    } else {
        Status::bad_request(error.to_string())
    }
}
