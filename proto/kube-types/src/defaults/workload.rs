//! Defaults of the kinds that run pods from a template.
//!
//! The controllers rely on every field set here.

use serde_json::{Map, Value};

use super::{default, is_unset, object_at, pod, str_of};
use crate::object::object_entry;

/// The spec, with its template defaulted.
fn spec_with_template(root: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let spec = object_entry(root, "spec");
    pod::template(object_entry(spec, "template"));
    spec
}

/// A Deployment.
pub(super) fn deployment(root: &mut Map<String, Value>) {
    let spec = spec_with_template(root);
    default(spec, "replicas", 1);
    let strategy = object_entry(spec, "strategy");
    default(strategy, "type", "RollingUpdate");
    if str_of(strategy, "type") == "RollingUpdate" {
        let rolling = object_entry(strategy, "rollingUpdate");
        default(rolling, "maxUnavailable", "25%");
        default(rolling, "maxSurge", "25%");
    }
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "progressDeadlineSeconds", 600);
}

/// A ReplicaSet.
pub(super) fn replica_set(root: &mut Map<String, Value>) {
    default(spec_with_template(root), "replicas", 1);
}

/// A StatefulSet.
pub(super) fn stateful_set(root: &mut Map<String, Value>) {
    let spec = spec_with_template(root);
    default(spec, "podManagementPolicy", "OrderedReady");
    let strategy = object_entry(spec, "updateStrategy");
    default(strategy, "type", "RollingUpdate");
    if str_of(strategy, "type") == "RollingUpdate" {
        default(object_entry(strategy, "rollingUpdate"), "partition", 0);
    }
    let retention = object_entry(spec, "persistentVolumeClaimRetentionPolicy");
    default(retention, "whenDeleted", "Retain");
    default(retention, "whenScaled", "Retain");
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
}

/// A DaemonSet.
pub(super) fn daemon_set(root: &mut Map<String, Value>) {
    let spec = spec_with_template(root);
    let strategy = object_entry(spec, "updateStrategy");
    default(strategy, "type", "RollingUpdate");
    if str_of(strategy, "type") == "RollingUpdate" {
        let rolling = object_entry(strategy, "rollingUpdate");
        default(rolling, "maxUnavailable", 1);
        default(rolling, "maxSurge", 0);
    }
    default(spec, "revisionHistoryLimit", 10);
}

/// A Job.
pub(super) fn job(root: &mut Map<String, Value>) {
    job_spec(object_entry(root, "spec"));
}

fn job_spec(spec: &mut Map<String, Value>) {
    pod::template(object_entry(spec, "template"));
    // Neither: one pod. Only parallelism: a work queue, where completions stay open.
    if is_unset(spec, "completions") && is_unset(spec, "parallelism") {
        spec.insert("completions".to_owned(), 1.into());
    }
    default(spec, "parallelism", 1);
    if is_unset(spec, "backoffLimit") {
        let per_index = !is_unset(spec, "backoffLimitPerIndex");
        let limit = if per_index { i64::from(i32::MAX) } else { 6 };
        spec.insert("backoffLimit".to_owned(), limit.into());
    }
    default(spec, "completionMode", "NonIndexed");
    default(spec, "suspend", false);
    default(spec, "manualSelector", false);
    if is_unset(spec, "podReplacementPolicy") {
        let policy = if spec.get("podFailurePolicy").is_none_or(Value::is_null) {
            "TerminatingOrFailed"
        } else {
            "Failed"
        };
        spec.insert("podReplacementPolicy".to_owned(), policy.into());
    }
}

/// A CronJob.
pub(super) fn cron_job(root: &mut Map<String, Value>) {
    let spec = object_entry(root, "spec");
    default(spec, "concurrencyPolicy", "Allow");
    default(spec, "suspend", false);
    default(spec, "successfulJobsHistoryLimit", 3);
    default(spec, "failedJobsHistoryLimit", 1);
    if let Some(template) = object_at(spec, "jobTemplate")
        && let Some(job) = object_at(template, "spec")
        && let Some(template) = object_at(job, "template")
    {
        pod::template(template);
    }
}
