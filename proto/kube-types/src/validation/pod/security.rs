//! Rules of the security context of pods and containers.

use k8s_openapi::api::core::v1::{Container, PodSpec, SeccompProfile, SecurityContext};

use crate::field::{ErrorList, FieldError, Path};
use crate::validation::{one_of, one_of_or_none};

const ID_RANGE: &str = "must be between 0 and 2147483647, inclusive";

fn id(value: Option<i64>, path: &Path, errors: &mut ErrorList) {
    if let Some(value) = value
        && !(0..=i64::from(i32::MAX)).contains(&value)
    {
        errors.push(FieldError::invalid(path, value, ID_RANGE));
    }
}

/// Rules of a pod's security context.
pub(super) fn pod(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let path = path.child("securityContext");
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.push(FieldError::invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        ));
    }
    let Some(context) = &spec.security_context else {
        return;
    };
    id(context.run_as_user, &path.child("runAsUser"), errors);
    id(context.run_as_group, &path.child("runAsGroup"), errors);
    id(context.fs_group, &path.child("fsGroup"), errors);
    for (i, group) in context.supplemental_groups.iter().flatten().enumerate() {
        id(
            Some(*group),
            &path.child("supplementalGroups").index(i),
            errors,
        );
    }
    for (i, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = path.child("sysctls").index(i).child("name");
        if sysctl.name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !is_sysctl(&sysctl.name) {
            errors.push(FieldError::invalid(
                &path,
                &sysctl.name,
                "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            ));
        } else if context
            .sysctls
            .iter()
            .flatten()
            .take(i)
            .any(|s| s.name == sysctl.name)
        {
            errors.push(FieldError::duplicate(&path, &sysctl.name));
        }
    }
    one_of_or_none(
        errors,
        &path.child("fsGroupChangePolicy"),
        context.fs_group_change_policy.as_deref(),
        &["Always", "OnRootMismatch"],
    );
    one_of_or_none(
        errors,
        &path.child("supplementalGroupsPolicy"),
        context.supplemental_groups_policy.as_deref(),
        &["Merge", "Strict"],
    );
    if let Some(profile) = &context.seccomp_profile {
        seccomp(profile, &path.child("seccompProfile"), errors);
    }
}

fn is_sysctl(name: &str) -> bool {
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            match (part.bytes().next(), part.bytes().last()) {
                (Some(first), Some(last)) => {
                    edge(first)
                        && edge(last)
                        && part.bytes().all(|b| edge(b) || matches!(b, b'-' | b'_'))
                }
                _ => false,
            }
        })
}

fn seccomp(profile: &SeccompProfile, path: &Path, errors: &mut ErrorList) {
    one_of(
        errors,
        &path.child("type"),
        Some(&profile.type_),
        &["Localhost", "RuntimeDefault", "Unconfined"],
    );
    let file = profile.localhost_profile.as_deref();
    let path = path.child("localhostProfile");
    if profile.type_ == "Localhost" {
        match file {
            None | Some("") => errors.push(FieldError::required(
                &path,
                "must be set when seccomp type is Localhost",
            )),
            Some(file) => super::volume::local_path(file, &path, errors),
        }
    } else if file.is_some() {
        errors.push(FieldError::invalid(
            &path,
            file,
            "can only be set when seccomp type is Localhost",
        ));
    }
}

/// Rules of a container's security context.
pub(super) fn container(container: &Container, path: &Path, errors: &mut ErrorList) {
    let Some(context) = &container.security_context else {
        return;
    };
    let path = path.child("securityContext");
    context_rules(context, &path, errors);
}

fn context_rules(context: &SecurityContext, path: &Path, errors: &mut ErrorList) {
    id(context.run_as_user, &path.child("runAsUser"), errors);
    id(context.run_as_group, &path.child("runAsGroup"), errors);
    one_of_or_none(
        errors,
        &path.child("procMount"),
        context.proc_mount.as_deref(),
        &["Default", "Unmasked"],
    );
    if let Some(profile) = &context.seccomp_profile {
        seccomp(profile, &path.child("seccompProfile"), errors);
    }
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            errors.push(FieldError::invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            ));
        }
        let admin = context
            .capabilities
            .iter()
            .flat_map(|c| c.add.iter().flatten())
            .any(|c| c == "CAP_SYS_ADMIN");
        if admin {
            errors.push(FieldError::invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            ));
        }
    }
}
