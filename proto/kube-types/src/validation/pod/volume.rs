//! Rules of a pod's volumes.

use k8s_openapi::api::core::v1::{KeyToPath, Volume};
use serde_json::Value;

use super::VolumeNames;
use crate::field::{ErrorList, FieldError, Path};
use crate::names;
use crate::quantity::Quantity;
use crate::validation::{invalid_each, one_of_or_none};

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Checks all volumes and gives their names.
pub(super) fn volumes(volumes: &[Volume], path: &Path, errors: &mut ErrorList) -> VolumeNames {
    let mut known = VolumeNames::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let name_path = path.child("name");
        if volume.name.is_empty() {
            errors.push(FieldError::required(&name_path, ""));
        } else {
            let messages = names::dns1123_label(&volume.name);
            let valid = messages.is_empty();
            invalid_each(errors, &name_path, &volume.name, messages);
            if valid && !known.insert(volume.name.clone()) {
                errors.push(FieldError::duplicate(&name_path, &volume.name));
            }
        }
        source(volume, &path, errors);
    }
    known
}

fn source(volume: &Volume, path: &Path, errors: &mut ErrorList) {
    // The sources are fields beside the name; there must be exactly one.
    let sources: Vec<String> = match serde_json::to_value(volume) {
        Ok(Value::Object(map)) => map
            .into_iter()
            .map(|(k, _)| k)
            .filter(|k| k != "name")
            .collect(),
        _ => Vec::new(),
    };
    match sources.as_slice() {
        [] => errors.push(FieldError::required(path, "must specify a volume type")),
        [_] => {}
        [_, more @ ..] => {
            for name in more {
                errors.push(FieldError::forbidden(
                    &path.child(name),
                    "may not specify more than 1 volume type",
                ));
            }
        }
    }
    if let Some(empty) = &volume.empty_dir
        && let Some(limit) = &empty.size_limit
        && Quantity::try_from(limit).is_ok_and(|q| q.is_negative())
    {
        errors.push(FieldError::forbidden(
            &path.child("emptyDir.sizeLimit"),
            "SizeLimit field must be a valid resource quantity",
        ));
    }
    if let Some(host) = &volume.host_path {
        let path = path.child("hostPath");
        if host.path.is_empty() {
            errors.push(FieldError::required(&path.child("path"), ""));
        } else {
            no_backsteps(&host.path, &path.child("path"), errors);
        }
        one_of_or_none(
            errors,
            &path.child("type"),
            host.type_.as_deref(),
            &[
                "BlockDevice",
                "CharDevice",
                "Directory",
                "DirectoryOrCreate",
                "File",
                "FileOrCreate",
                "Socket",
            ],
        );
    }
    if let Some(map) = &volume.config_map {
        let path = path.child("configMap");
        if map.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        mode(map.default_mode, &path.child("defaultMode"), errors);
        items(map.items.as_deref(), &path, errors);
    }
    if let Some(secret) = &volume.secret {
        let path = path.child("secret");
        if secret
            .secret_name
            .as_ref()
            .is_none_or(std::string::String::is_empty)
        {
            errors.push(FieldError::required(&path.child("secretName"), ""));
        }
        mode(secret.default_mode, &path.child("defaultMode"), errors);
        items(secret.items.as_deref(), &path, errors);
    }
    if let Some(downward) = &volume.downward_api {
        mode(
            downward.default_mode,
            &path.child("downwardAPI.defaultMode"),
            errors,
        );
        for (i, file) in downward.items.iter().flatten().enumerate() {
            let path = path.child("downwardAPI").index(i);
            if file.path.is_empty() {
                errors.push(FieldError::required(&path.child("path"), ""));
            } else {
                local_path(&file.path, &path.child("path"), errors);
            }
            mode(file.mode, &path.child("mode"), errors);
            if file.field_ref.is_none() && file.resource_field_ref.is_none() {
                errors.push(FieldError::required(
                    &path,
                    "one of fieldRef and resourceFieldRef is required",
                ));
            }
        }
    }
    if let Some(claim) = &volume.persistent_volume_claim
        && claim.claim_name.is_empty()
    {
        errors.push(FieldError::required(
            &path.child("persistentVolumeClaim.claimName"),
            "",
        ));
    }
    if let Some(nfs) = &volume.nfs {
        let path = path.child("nfs");
        if nfs.server.is_empty() {
            errors.push(FieldError::required(&path.child("server"), ""));
        }
        if nfs.path.is_empty() {
            errors.push(FieldError::required(&path.child("path"), ""));
        } else if !nfs.path.starts_with('/') {
            errors.push(FieldError::invalid(
                &path.child("path"),
                &nfs.path,
                "must be an absolute path",
            ));
        }
    }
    if let Some(projected) = &volume.projected {
        mode(
            projected.default_mode,
            &path.child("projected.defaultMode"),
            errors,
        );
        for (i, source) in projected.sources.iter().flatten().enumerate() {
            let path = path.child("projected.sources").index(i);
            if let Some(map) = &source.config_map {
                let path = path.child("configMap");
                if map.name.is_empty() {
                    errors.push(FieldError::required(&path.child("name"), ""));
                }
                items(map.items.as_deref(), &path, errors);
            }
            if let Some(secret) = &source.secret {
                let path = path.child("secret");
                if secret.name.is_empty() {
                    errors.push(FieldError::required(&path.child("name"), ""));
                }
                items(secret.items.as_deref(), &path, errors);
            }
            if let Some(token) = &source.service_account_token {
                let path = path.child("serviceAccountToken");
                if token.expiration_seconds.is_some_and(|s| s < 600) {
                    errors.push(FieldError::invalid(
                        &path.child("expirationSeconds"),
                        token.expiration_seconds,
                        "may not specify a duration less than 10 minutes",
                    ));
                }
                if token.path.is_empty() {
                    errors.push(FieldError::required(&path.child("path"), ""));
                }
            }
        }
    }
}

fn items(items: Option<&[KeyToPath]>, path: &Path, errors: &mut ErrorList) {
    for (i, item) in items.into_iter().flatten().enumerate() {
        let path = path.child("items").index(i);
        if item.key.is_empty() {
            errors.push(FieldError::required(&path.child("key"), ""));
        }
        if item.path.is_empty() {
            errors.push(FieldError::required(&path.child("path"), ""));
        } else {
            local_path(&item.path, &path.child("path"), errors);
        }
        mode(item.mode, &path.child("mode"), errors);
    }
}

fn mode(mode: Option<i32>, path: &Path, errors: &mut ErrorList) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        errors.push(FieldError::invalid(path, mode, FILE_MODE));
    }
}

/// A path inside a volume.
pub(super) fn local_path(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    no_backsteps(text, path, errors);
    if text.starts_with("..") && !text.starts_with("../") && text != ".." {
        errors.push(FieldError::invalid(path, text, "must not start with '..'"));
    }
}

fn no_backsteps(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    }
}
