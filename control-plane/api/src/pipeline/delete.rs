//! Delete: at once, or in steps that others take (a grace period, finalizers).

use jiff::{SignedDuration, Timestamp};
use pintle_kube_types::status::Status;
use pintle_kube_types::{ErrorList, FieldError, GroupKind, Object, Path, time};
use serde_json::json;

use super::persist::{Current, Effects};
use super::read::no_subresource;
use super::write::ATTEMPTS;
use super::{Attributes, Core, Stored};
use crate::admission;
use crate::auth::authorize::authorize;
use crate::client::PropagationPolicy;
use crate::clock::rfc3339;
use crate::registry::strategy::{Strategy, namespace_finalized, pod, service};
use crate::request::options::{DeleteOptions, ListOptions};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What became of an object that was to be deleted.
#[derive(Debug)]
pub(crate) enum Deletion {
    /// It is gone; this was its last state.
    Removed(Stored),
    /// It waits for its grace period or its finalizers.
    Pending(Stored),
}

/// What a delete does to an object.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing: it is being deleted already.
    Wait,
    /// Writes it with a deletion time.
    Mark(Box<Object>),
    /// Removes it.
    Remove,
}

impl Core {
    /// Deletes an object.
    pub(crate) async fn delete(
        &self,
        attributes: &Attributes,
        options: &DeleteOptions,
    ) -> Result<Deletion, Status> {
        authorize(self, attributes)?;
        if let Some(subresource) = attributes.subresource.as_deref() {
            return Err(no_subresource(attributes, subresource));
        }
        self.delete_named(attributes, options).await
    }

    /// Deletes the objects a list selects, and answers them.
    pub(crate) async fn delete_collection(
        &self,
        attributes: &Attributes,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<Vec<Stored>, Status> {
        authorize(self, attributes)?;
        let filter = super::read::filter(attributes, list)?;
        let revision = self
            .store()
            .linearizable()
            .await
            .map_err(super::persist::store_failed)?;
        self.wait_for(revision).await?;
        let entries = self
            .hub()
            .resource(&attributes.resource.prefix)
            .snapshot(&filter.scope)
            .entries;
        let mut deleted = Vec::new();
        for entry in entries.iter().filter(|entry| filter.matches(entry)) {
            let (namespace, name) = match entry.object_key().split_once('/') {
                Some((namespace, name)) => (Some(namespace.to_owned()), name),
                None => (None, entry.object_key()),
            };
            let one = Attributes {
                namespace,
                name: Some(name.to_owned()),
                ..attributes.clone()
            };
            match self.delete_named(&one, options).await {
                Ok(Deletion::Removed(stored) | Deletion::Pending(stored)) => deleted.push(stored),
                Err(status) if status.is_not_found() => {}
                Err(status) => return Err(status),
            }
        }
        Ok(deleted)
    }

    pub(super) async fn delete_named(
        &self,
        attributes: &Attributes,
        options: &DeleteOptions,
    ) -> Result<Deletion, Status> {
        let resource = &attributes.resource;
        let name = attributes.name()?;
        check_options(options)?;
        admission::may_delete(attributes, name)?;
        for _ in 0..ATTEMPTS {
            let current = self.read_named(attributes)?;
            let object = current.object()?;
            check_preconditions(attributes, name, options, &object, &current)?;
            let done = match decide(resource.strategy, &object, options, self.clock().now()) {
                Step::Wait => return Ok(Deletion::Pending(current.stored())),
                Step::Mark(marked) => self
                    .replace(
                        resource,
                        &current,
                        &marked,
                        Effects::default(),
                        options.dry_run,
                    )
                    .await?
                    .map(Deletion::Pending),
                Step::Remove => {
                    let effects = attributes.release(&object);
                    self.remove(&current, effects, options.dry_run)
                        .await?
                        .map(Deletion::Removed)
                }
            };
            if let Some(done) = done {
                return Ok(done);
            }
        }
        Err(Status::server_timeout(
            &resource.group_resource(),
            "delete",
            1,
        ))
    }
}

impl Attributes {
    /// What a removed object gives back.
    pub(super) fn release(&self, object: &Object) -> Effects {
        if self.resource.strategy == Strategy::Service {
            service::release(object)
        } else {
            Effects::default()
        }
    }
}

pub(super) fn check_options(options: &DeleteOptions) -> Result<(), Status> {
    if options.propagation_policy.is_some() && options.orphan_dependents.is_some() {
        let policy = match options.propagation_policy {
            Some(PropagationPolicy::Orphan) => "Orphan",
            Some(PropagationPolicy::Foreground) => "Foreground",
            _ => "Background",
        };
        return Err(Status::invalid(
            &GroupKind::new("meta.k8s.io", "DeleteOptions"),
            "",
            &ErrorList(vec![FieldError::invalid(
                &Path::new("propagationPolicy"),
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            )]),
        ));
    }
    Ok(())
}

pub(super) fn check_preconditions(
    attributes: &Attributes,
    name: &str,
    options: &DeleteOptions,
    object: &Object,
    current: &Current,
) -> Result<(), Status> {
    let failed = |what: &str, given: &str, found: &str| {
        Err(Status::conflict(
            &attributes.resource.group_resource(),
            name,
            format!(
                "Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}"
            ),
        ))
    };
    if let Some(uid) = &options.precondition_uid
        && object.uid() != Some(uid)
    {
        return failed("UID", uid, object.uid().unwrap_or_default());
    }
    if let Some(version) = &options.precondition_resource_version {
        let found = current.revision.to_string();
        if *version != found {
            return failed("ResourceVersion", version, &found);
        }
    }
    Ok(())
}

/// Kubernetes' generic registry (`Store.Delete` and `BeforeDelete`), as a decision.
pub(super) fn decide(
    strategy: Strategy,
    object: &Object,
    options: &DeleteOptions,
    now: Timestamp,
) -> Step {
    let requested = options
        .grace_period_seconds
        .map(|period| if period < 0 { 1 } else { period });
    let finalizers = finalizers(object, options);
    let mut marked = object.clone();
    marked.set_finalizers(&finalizers);
    let finalizers_changed = finalizers != object.finalizers();

    if strategy == Strategy::Namespace {
        if namespace_finalized(object) && finalizers.is_empty() {
            return Step::Remove;
        }
        if object.deletion_timestamp().is_none() {
            marked.set_deletion_timestamp(Some(&rfc3339(now)));
            marked.set_path(&["status", "phase"], json!("Terminating"));
            return Step::Mark(Box::new(marked));
        }
        return if finalizers_changed {
            Step::Mark(Box::new(marked))
        } else {
            Step::Wait
        };
    }

    if strategy == Strategy::Pod {
        let pending = object
            .deletion_timestamp()
            .zip(object.deletion_grace_period_seconds());
        let grace = if let Some((ends, before)) = pending {
            // A pending deletion may only be shortened.
            let Some(period) = requested.filter(|period| *period < before) else {
                return Step::Wait;
            };
            let ends = time::parse_time(ends).unwrap_or(now);
            let shortened = ends
                .checked_sub(SignedDuration::from_secs(before - period))
                .unwrap_or(now);
            marked.set_deletion_timestamp(Some(&rfc3339(shortened)));
            period
        } else {
            let period = pod::grace_period(object, requested);
            let ends = now
                .checked_add(SignedDuration::from_secs(period))
                .unwrap_or(now);
            marked.set_deletion_timestamp(Some(&rfc3339(ends)));
            if object.generation() > 0 {
                marked.set_generation(object.generation() + 1);
            }
            period
        };
        marked.set_deletion_grace_period_seconds(Some(grace));
        return if grace == 0 && finalizers.is_empty() {
            Step::Remove
        } else {
            Step::Mark(Box::new(marked))
        };
    }

    if finalizers.is_empty() {
        return Step::Remove;
    }
    if object.deletion_timestamp().is_none() {
        marked.set_deletion_timestamp(Some(&rfc3339(now)));
        marked.set_deletion_grace_period_seconds(Some(0));
        if object.generation() > 0 {
            marked.set_generation(object.generation() + 1);
        }
    } else if !finalizers_changed {
        return Step::Wait;
    }
    Step::Mark(Box::new(marked))
}

/// The finalizers of an object once the garbage collector's are as the request wants them.
fn finalizers(object: &Object, options: &DeleteOptions) -> Vec<String> {
    let present = object.finalizers();
    let (orphan, foreground) = match (options.orphan_dependents, options.propagation_policy) {
        (Some(orphan), _) => (orphan, false),
        (None, Some(policy)) => (
            policy == PropagationPolicy::Orphan,
            policy == PropagationPolicy::Foreground,
        ),
        (None, None) => (present.contains(&ORPHAN), present.contains(&FOREGROUND)),
    };
    let mut wanted: Vec<String> = present
        .iter()
        .filter(|name| (**name != ORPHAN || orphan) && (**name != FOREGROUND || foreground))
        .map(|name| (*name).to_owned())
        .collect();
    for (name, needed) in [(ORPHAN, orphan), (FOREGROUND, foreground)] {
        if needed && !wanted.iter().any(|present| present == name) {
            wanted.push(name.to_owned());
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).expect("an object")
    }

    fn now() -> Timestamp {
        "2030-01-01T00:00:00Z".parse().expect("a time")
    }

    fn marked(step: Step) -> Object {
        match step {
            Step::Mark(object) => *object,
            other => panic!("expected a marked object, got {other:?}"),
        }
    }

    #[test]
    fn a_running_pod_gets_its_grace_period_which_may_be_shortened() {
        let pod = object(json!({
            "metadata": {"name": "web"},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 30},
        }));
        let options = DeleteOptions::default();
        let ending = marked(decide(Strategy::Pod, &pod, &options, now()));
        assert_eq!(ending.deletion_timestamp(), Some("2030-01-01T00:00:30Z"));
        assert_eq!(ending.deletion_grace_period_seconds(), Some(30));
        assert_eq!(decide(Strategy::Pod, &ending, &options, now()), Step::Wait);

        let sooner = DeleteOptions {
            grace_period_seconds: Some(10),
            ..DeleteOptions::default()
        };
        let ending = marked(decide(Strategy::Pod, &ending, &sooner, now()));
        assert_eq!(ending.deletion_timestamp(), Some("2030-01-01T00:00:10Z"));

        let at_once = DeleteOptions {
            grace_period_seconds: Some(0),
            ..DeleteOptions::default()
        };
        assert_eq!(
            decide(Strategy::Pod, &ending, &at_once, now()),
            Step::Remove
        );
    }

    #[test]
    fn an_unscheduled_pod_goes_at_once() {
        let pod = object(json!({"metadata": {"name": "web"}, "spec": {}}));
        let step = decide(Strategy::Pod, &pod, &DeleteOptions::default(), now());
        assert_eq!(step, Step::Remove);
    }

    #[test]
    fn propagation_becomes_a_finalizer() {
        let set = object(json!({"metadata": {"name": "web", "generation": 1}}));
        for (policy, finalizer) in [
            (PropagationPolicy::Foreground, FOREGROUND),
            (PropagationPolicy::Orphan, ORPHAN),
        ] {
            let options = DeleteOptions {
                propagation_policy: Some(policy),
                ..DeleteOptions::default()
            };
            let ending = marked(decide(Strategy::ReplicaSet, &set, &options, now()));
            assert_eq!(ending.finalizers(), [finalizer]);
            assert_eq!(ending.deletion_grace_period_seconds(), Some(0));
            assert_eq!(ending.generation(), 2);
            assert_eq!(
                decide(Strategy::ReplicaSet, &ending, &options, now()),
                Step::Wait
            );
        }
        let background = DeleteOptions::default();
        assert_eq!(
            decide(Strategy::ReplicaSet, &set, &background, now()),
            Step::Remove
        );
    }

    #[test]
    fn a_namespace_ends_when_nothing_holds_it() {
        let namespace = object(json!({
            "metadata": {"name": "x"}, "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }));
        let options = DeleteOptions::default();
        let mut ending = marked(decide(Strategy::Namespace, &namespace, &options, now()));
        assert_eq!(ending.str_at(&["status", "phase"]), Some("Terminating"));
        assert_eq!(
            decide(Strategy::Namespace, &ending, &options, now()),
            Step::Wait
        );
        ending.set_path(&["spec", "finalizers"], json!([]));
        assert_eq!(
            decide(Strategy::Namespace, &ending, &options, now()),
            Step::Remove
        );
    }
}
