//! Eviction: the polite way to take a pod away, which asks the pod's disruption budget first.
//!
//! Reads the pod and the budgets of its namespace; writes the pod (a `DisruptionTarget` condition
//! and its deletion) and, in the same transaction, the status of the budget that allowed it. So of
//! two evictions that race for the last disruption only one happens, and none is spent in vain. Who
//! reacts next: the pod's node, and the disruption controller.

use pintle_kube_types::Object;
use pintle_kube_types::status::{Reason, Status};
use pintle_store::{Compare, Op};

use super::delete::{Step, check_options, check_preconditions, decide};
use super::persist::{Current, Effects};
use super::pods::success;
use super::write::ATTEMPTS;
use super::{Attributes, Core, Stored};
use crate::clock::rfc3339;
use crate::registry::strategy::budget::{self, Answer};
use crate::registry::strategy::{Strategy, pod};
use crate::request::options::{DeleteOptions, WriteOptions};
use crate::storage::key;
use crate::storage::value::Encoded;

const SEVERAL_BUDGETS: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
/// After how many seconds a client asks again when others keep spending the same budget.
const CONTENDED_RETRY_SECONDS: i32 = 10;

impl Core {
    /// Evicts the pod a request names.
    pub(super) async fn evict(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        eviction: &Object,
    ) -> Result<Stored, Status> {
        let name = attributes.name()?;
        let delete = delete_options(attributes, options, eviction)?;
        let pods = Attributes {
            subresource: None,
            ..attributes.clone()
        };
        let mut asked = None;
        for _ in 0..ATTEMPTS {
            let current = self.read_named(&pods)?;
            let object = current.object()?;
            check_preconditions(&pods, name, &delete, &object, &current)?;
            let now = self.clock().now();
            let (effects, spent) = if budget::need_not_ask(&object) {
                (Effects::default(), false)
            } else {
                let found = self.budget_of(attributes, &object).await?;
                asked = found.as_ref().map(|(name, _)| name.clone());
                match found {
                    Some((_, budget)) => spend(&budget, &object, &rfc3339(now))?,
                    None => (Effects::default(), false),
                }
            };
            let mut target = object.clone();
            pod::set_disruption_target(
                &mut target,
                "EvictionByEvictionAPI",
                "Eviction API: evicting",
                &rfc3339(now),
            );
            let dry_run = delete.dry_run;
            let write = async |object: &Object| {
                self.replace(&pods.resource, &current, object, effects, dry_run)
                    .await
            };
            match decide(Strategy::Pod, &target, &delete, now) {
                Step::Mark(marked) => {
                    if write(&marked).await?.is_some() {
                        return Ok(success(201));
                    }
                }
                Step::Wait if target == object => return Ok(success(201)),
                Step::Wait => {
                    if write(&target).await?.is_some() {
                        return Ok(success(201));
                    }
                }
                // Watchers see why before it is gone.
                Step::Remove => {
                    let Some(told) = write(&target).await? else {
                        continue;
                    };
                    let mut then = delete.clone();
                    if !spent || then.precondition_resource_version.is_some() {
                        then.precondition_resource_version = Some(told.revision().to_string());
                    }
                    match self.delete_named(&pods, &then).await {
                        Ok(_) => return Ok(success(201)),
                        // It changed since it was looked at: perhaps it counts now.
                        Err(status)
                            if status.is_conflict()
                                && !spent
                                && delete.precondition_resource_version.is_none() => {}
                        Err(status) => return Err(status),
                    }
                }
            }
        }
        Err(match asked {
            Some(budget) => Status::timeout(
                format!("couldn't update PodDisruptionBudget {budget:?} due to conflicts"),
                CONTENDED_RETRY_SECONDS,
            ),
            None => Status::server_timeout(&pods.resource.group_resource(), "delete", 1),
        })
    }

    /// The budget that covers a pod, with its name; more than one is an error.
    async fn budget_of(
        &self,
        attributes: &Attributes,
        pod: &Object,
    ) -> Result<Option<(String, Current)>, Status> {
        let prefix = key::resource("policy", "poddisruptionbudgets");
        let revision = self
            .store()
            .linearizable()
            .await
            .map_err(super::persist::store_failed)?;
        self.wait_for(revision).await?;
        let entries = self
            .hub()
            .resource(&prefix)
            .snapshot(&key::scope(&prefix, attributes.namespace.as_deref()))
            .entries;
        let mut found = None;
        for entry in entries {
            let budget = entry.object_with_version()?;
            if !budget::covers(&budget, pod) {
                continue;
            }
            let current = Current {
                key: entry.store_key().clone(),
                value: entry.value().clone(),
                revision: entry.revision(),
            };
            let name = budget.name().unwrap_or_default().to_owned();
            if found.replace((name, current)).is_some() {
                return Err(Status::new(Reason::Unknown, SEVERAL_BUDGETS));
            }
        }
        Ok(found)
    }
}

/// Asks a budget; gives what has to be written along with the pod, and whether the pod counted.
fn spend(budget: &Current, pod: &Object, now: &str) -> Result<(Effects, bool), Status> {
    match budget::ask(&budget.object()?, pod, now)? {
        Answer::Free => Ok((Effects::default(), false)),
        Answer::Spent(spent) => Ok((
            Effects {
                compares: vec![Compare::mod_revision(budget.key.clone(), budget.revision)],
                ops: vec![Op::Put {
                    key: budget.key.clone(),
                    value: Encoded::encode(&spent).stored(),
                    lease: 0,
                }],
            },
            true,
        )),
    }
}

/// Checks what an eviction says, and gives how it wants the pod deleted.
fn delete_options(
    attributes: &Attributes,
    options: &WriteOptions,
    eviction: &Object,
) -> Result<DeleteOptions, Status> {
    let (version, kind) = (eviction.api_version(), eviction.kind());
    if !matches!(version, "" | "policy/v1" | "policy/v1beta1") {
        return Err(Status::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version (policy/v1)"
        )));
    }
    if !matches!(kind, "" | "Eviction") {
        return Err(Status::bad_request(format!(
            "no kind {kind:?} is registered for version {version:?}: an Eviction is needed"
        )));
    }
    if attributes.name()? != eviction.name().unwrap_or_default() {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    if let Some(namespace) = eviction.namespace().filter(|given| !given.is_empty())
        && Some(namespace) != attributes.namespace.as_deref()
    {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let mut delete = eviction
        .0
        .get("deleteOptions")
        .filter(|options| !options.is_null())
        .map(DeleteOptions::from_body)
        .transpose()?
        .unwrap_or_default();
    check_options(&delete)?;
    delete.dry_run |= options.dry_run;
    Ok(delete)
}
