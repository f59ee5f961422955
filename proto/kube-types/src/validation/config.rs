//! Rules of ConfigMaps, Secrets, Namespaces and ServiceAccounts.
//!
//! The agent projects these into pods: keys become file names and variables.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};

use super::{Rules, immutable, invalid_each};
use crate::field::{ErrorList, FieldError, Path};
use crate::names;

/// How large the data of a ConfigMap or Secret may be.
const MAX_SIZE: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

/// ConfigMaps.
pub(super) const CONFIG_MAP: Rules<ConfigMap> = Rules {
    create: |new, errors| config_map(new, errors),
    update: |new, old, errors| {
        if old.immutable == Some(true) {
            frozen(errors, "immutable", new.immutable != Some(true));
            frozen(errors, "data", new.data != old.data);
            frozen(errors, "binaryData", new.binary_data != old.binary_data);
        }
        config_map(new, errors);
    },
    status: |_, _, _| {},
};

/// Secrets.
pub(super) const SECRET: Rules<Secret> = Rules {
    create: |new, errors| secret(new, errors),
    update: |new, old, errors| {
        immutable(errors, &Path::new("type"), &new.type_, &old.type_);
        if old.immutable == Some(true) {
            frozen(errors, "immutable", new.immutable != Some(true));
            frozen(errors, "data", new.data != old.data);
        }
        secret(new, errors);
    },
    status: |_, _, _| {},
};

/// Namespaces.
pub(super) const NAMESPACE: Rules<Namespace> = Rules {
    create: |new, errors| namespace(new, errors),
    update: |new, _, errors| namespace(new, errors),
    status: |new, _, errors| {
        let deleting = new.metadata.deletion_timestamp.is_some();
        let phase = new
            .status
            .as_ref()
            .and_then(|s| s.phase.as_deref())
            .unwrap_or("");
        let path = Path::new("status").child("Phase");
        if !deleting && phase == "Terminating" {
            errors.push(FieldError::invalid(
                &path,
                phase,
                "may only be 'Active' if `deletionTimestamp` is empty",
            ));
        }
        if deleting && phase != "Terminating" {
            errors.push(FieldError::invalid(
                &path,
                phase,
                "may only be 'Terminating' if `deletionTimestamp` is not empty",
            ));
        }
    },
};

/// ServiceAccounts.
pub(super) const SERVICE_ACCOUNT: Rules<ServiceAccount> = Rules {
    create: |_, _| {},
    update: |_, _, _| {},
    status: |_, _, _| {},
};

fn frozen(errors: &mut ErrorList, field: &str, changed: bool) {
    if changed {
        errors.push(FieldError::forbidden(&Path::new(field), FROZEN));
    }
}

fn namespace(namespace: &Namespace, errors: &mut ErrorList) {
    let finalizers = namespace
        .spec
        .iter()
        .flat_map(|s| s.finalizers.iter().flatten());
    for finalizer in finalizers {
        let path = Path::new("spec").child("finalizers");
        invalid_each(errors, &path, finalizer, names::qualified_name(finalizer));
        if !finalizer.contains('/') && finalizer != "kubernetes" {
            errors.push(FieldError::invalid(
                &path,
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
}

fn config_map(map: &ConfigMap, errors: &mut ErrorList) {
    let empty = BTreeMap::new();
    let binary = map.binary_data.as_ref().unwrap_or(&empty);
    let mut size = 0;
    for (key, value) in map.data.iter().flatten() {
        let path = Path::new("data").key(key);
        invalid_each(errors, &path, key, names::config_map_key(key));
        if binary.contains_key(key) {
            errors.push(FieldError::invalid(
                &path,
                key,
                "duplicate of key present in binaryData",
            ));
        }
        size += value.len();
    }
    for (key, value) in binary {
        let path = Path::new("binaryData").key(key);
        invalid_each(errors, &path, key, names::config_map_key(key));
        size += value.0.len();
    }
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(&Path::new("[]"), MAX_SIZE));
    }
}

fn secret(secret: &Secret, errors: &mut ErrorList) {
    let empty = BTreeMap::new();
    let data: &BTreeMap<String, ByteString> = secret.data.as_ref().unwrap_or(&empty);
    let path = Path::new("data");
    let mut size = 0;
    for (key, value) in data {
        invalid_each(errors, &path.key(key), key, names::config_map_key(key));
        size += value.0.len();
    }
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(&path, MAX_SIZE));
    }
    let mut require = |key: &str| {
        if !data.contains_key(key) {
            errors.push(FieldError::required(&path.key(key), ""));
        }
    };
    match secret.type_.as_deref().unwrap_or("") {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            let named = secret
                .metadata
                .annotations
                .as_ref()
                .and_then(|a| a.get(key))
                .is_some_and(|name| !name.is_empty());
            if !named {
                errors.push(FieldError::required(
                    &Path::new("metadata").child("annotations").key(key),
                    "",
                ));
            }
        }
        "kubernetes.io/dockercfg" => json_key(data, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => json_key(data, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth"
            if !data.contains_key("username") && !data.contains_key("password") =>
        {
            require("username");
            require("password");
        }
        "kubernetes.io/ssh-auth" if data.get("ssh-privatekey").is_none_or(|v| v.0.is_empty()) => {
            errors.push(FieldError::required(&path.key("ssh-privatekey"), ""));
        }
        "kubernetes.io/tls" => {
            require("tls.crt");
            require("tls.key");
        }
        _ => {}
    }
}

fn json_key(data: &BTreeMap<String, ByteString>, key: &str, errors: &mut ErrorList) {
    let path = Path::new("data").key(key);
    match data.get(key) {
        None => errors.push(FieldError::required(&path, "")),
        Some(bytes) => {
            let parsed: Result<serde_json::Map<String, serde_json::Value>, _> =
                serde_json::from_slice(&bytes.0);
            if let Err(error) = parsed {
                errors.push(FieldError::invalid(
                    &path,
                    "<secret contents redacted>",
                    error.to_string(),
                ));
            }
        }
    }
}
