//! What is in the files of a volume: ConfigMap, Secret, downward API, projected. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume,
};

use super::VolumeError;
use super::token::Tokens;
use crate::pod::environment::{Downward, field_value, resource_value};
use crate::session::ClusterState;

const DEFAULT_MODE: u32 = 0o644;

/// Files by their path in the volume.
pub type Payload = BTreeMap<String, File>;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its content.
    pub content: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Its owner, when not root.
    pub owner: Option<u32>,
}

fn mode(value: Option<i32>, default: u32) -> u32 {
    value
        .and_then(|mode| u32::try_from(mode).ok())
        .map_or(default, |mode| mode & 0o777)
}

/// The files of a volume; `None` when it is not made of files.
pub fn of_volume(
    pod: &Pod,
    volume: &Volume,
    state: &ClusterState,
    downward: &Downward,
    tokens: &Tokens,
) -> Result<Option<Payload>, VolumeError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut payload = Payload::new();
    if let Some(source) = &volume.config_map {
        let default = mode(source.default_mode, DEFAULT_MODE);
        let map = state.config_map(namespace, &source.name);
        let optional = source.optional.unwrap_or(false);
        let data = config_map_data(map.as_deref(), &source.name, optional)?;
        select(
            "config",
            data,
            source.items.as_deref(),
            default,
            optional,
            &mut payload,
        )?;
    } else if let Some(source) = &volume.secret {
        let default = mode(source.default_mode, DEFAULT_MODE);
        let name = source.secret_name.as_deref().unwrap_or_default();
        let secret = state.secret(namespace, name);
        let optional = source.optional.unwrap_or(false);
        let data = secret_data(secret.as_deref(), name, optional)?;
        select(
            "secret",
            data,
            source.items.as_deref(),
            default,
            optional,
            &mut payload,
        )?;
    } else if let Some(source) = &volume.downward_api {
        let default = mode(source.default_mode, DEFAULT_MODE);
        downward_files(
            pod,
            source.items.as_deref(),
            default,
            downward,
            &mut payload,
        )?;
    } else if let Some(source) = &volume.projected {
        let default = mode(source.default_mode, DEFAULT_MODE);
        for (index, projection) in source.sources.iter().flatten().enumerate() {
            if let Some(source) = &projection.config_map {
                let map = state.config_map(namespace, &source.name);
                let optional = source.optional.unwrap_or(false);
                let data = config_map_data(map.as_deref(), &source.name, optional)?;
                select(
                    "config",
                    data,
                    source.items.as_deref(),
                    default,
                    optional,
                    &mut payload,
                )?;
            }
            if let Some(source) = &projection.secret {
                let secret = state.secret(namespace, &source.name);
                let optional = source.optional.unwrap_or(false);
                let data = secret_data(secret.as_deref(), &source.name, optional)?;
                select(
                    "secret",
                    data,
                    source.items.as_deref(),
                    default,
                    optional,
                    &mut payload,
                )?;
            }
            if let Some(source) = &projection.downward_api {
                downward_files(
                    pod,
                    source.items.as_deref(),
                    default,
                    downward,
                    &mut payload,
                )?;
            }
            if let Some(source) = &projection.service_account_token
                && let Some(token) = tokens.get(&(volume.name.clone(), index))
            {
                let owner = common_user(pod);
                let private = owner.is_some() || super::fs_group(pod).is_some();
                let file = File {
                    content: token.value.clone().into_bytes(),
                    mode: if private { 0o600 } else { default },
                    owner,
                };
                payload.insert(checked(&source.path)?, file);
            }
        }
    } else {
        return Ok(None);
    }
    Ok(Some(payload))
}

/// The kind of a volume that is not made of files, for messages.
pub fn kind(volume: &Volume) -> &'static str {
    if volume.persistent_volume_claim.is_some() {
        "persistentVolumeClaim"
    } else if volume.csi.is_some() {
        "csi"
    } else if volume.nfs.is_some() {
        "nfs"
    } else if volume.image.is_some() {
        "image"
    } else if volume.ephemeral.is_some() {
        "ephemeral"
    } else {
        "these"
    }
}

/// The user that all containers run as, when they agree on one.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|security| security.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|container| {
            container
                .security_context
                .as_ref()
                .and_then(|security| security.run_as_user)
                .or(of_pod)
        });
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

type Data = BTreeMap<String, Vec<u8>>;

fn config_map_data(
    map: Option<&ConfigMap>,
    name: &str,
    optional: bool,
) -> Result<Data, VolumeError> {
    let Some(map) = map else {
        return missing("configmap", name, optional);
    };
    let text = map
        .data
        .iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map
        .binary_data
        .iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.0.clone()));
    Ok(text.chain(binary).collect())
}

fn secret_data(secret: Option<&Secret>, name: &str, optional: bool) -> Result<Data, VolumeError> {
    let Some(secret) = secret else {
        return missing("secret", name, optional);
    };
    Ok(secret
        .data
        .iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.0.clone()))
        .collect())
}

fn missing(kind: &'static str, name: &str, optional: bool) -> Result<Data, VolumeError> {
    if optional {
        return Ok(Data::new());
    }
    Err(VolumeError::NotFound {
        kind,
        name: name.to_owned(),
    })
}

fn select(
    kind: &'static str,
    data: Data,
    items: Option<&[KeyToPath]>,
    default: u32,
    optional: bool,
    payload: &mut Payload,
) -> Result<(), VolumeError> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        for (key, content) in data {
            let file = File {
                content,
                mode: default,
                owner: None,
            };
            payload.insert(checked(&key)?, file);
        }
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(content) => {
                let file = File {
                    content: content.clone(),
                    mode: mode(item.mode, default),
                    owner: None,
                };
                payload.insert(checked(&item.path)?, file);
            }
            None if optional => {}
            None => {
                return Err(VolumeError::NoKey {
                    kind,
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(())
}

fn downward_files(
    pod: &Pod,
    items: Option<&[DownwardAPIVolumeFile]>,
    default: u32,
    downward: &Downward,
    payload: &mut Payload,
) -> Result<(), VolumeError> {
    for item in items.into_iter().flatten() {
        let content = if let Some(field) = &item.field_ref {
            field_value(pod, field, downward)?
        } else if let Some(field) = &item.resource_field_ref {
            let first = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.containers.first())
                .cloned()
                .unwrap_or_default();
            resource_value(pod, &first, field, downward)?
        } else {
            continue;
        };
        let file = File {
            content: content.into_bytes(),
            mode: mode(item.mode, default),
            owner: None,
        };
        payload.insert(checked(&item.path)?, file);
    }
    Ok(())
}

/// A path of a file in a volume: relative, and nothing in it leads up or hides as `..data`.
fn checked(path: &str) -> Result<String, VolumeError> {
    let fine = !path.is_empty()
        && !path.starts_with('/')
        && !path.starts_with("..")
        && path
            .split('/')
            .all(|part| !part.is_empty() && part != ".." && part != "." && part.len() <= 255);
    if fine {
        Ok(path.to_owned())
    } else {
        Err(VolumeError::Path {
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths() {
        for good in ["a", "a/b", "tls.crt", "a..b/c"] {
            assert_eq!(checked(good).unwrap(), good);
        }
        for bad in ["", "/a", "../a", "a/../b", "..data", "a//b", "a/."] {
            assert!(checked(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_checked_path_stays_inside(path in "[./a-z]{0,12}") {
            if let Ok(path) = checked(&path) {
                let mut depth = 0i32;
                for part in std::path::Path::new(&path).components() {
                    match part {
                        std::path::Component::Normal(_) => depth += 1,
                        _ => depth -= 100,
                    }
                    prop_assert!(depth > 0);
                }
            }
        }
    }

    #[test]
    fn items_and_modes() {
        let data: Data = [
            ("k".to_owned(), b"v".to_vec()),
            ("l".to_owned(), b"w".to_vec()),
        ]
        .into();
        let mut payload = Payload::new();
        let items = [KeyToPath {
            key: "k".into(),
            path: "dir/file".into(),
            mode: Some(0o400),
        }];
        select(
            "config",
            data.clone(),
            Some(&items),
            0o644,
            false,
            &mut payload,
        )
        .unwrap();
        assert_eq!(payload.keys().collect::<Vec<_>>(), ["dir/file"]);
        assert_eq!(payload["dir/file"].mode, 0o400);
        let items = [KeyToPath {
            key: "x".into(),
            path: "x".into(),
            mode: None,
        }];
        let error = select("config", data, Some(&items), 0o644, false, &mut payload).unwrap_err();
        assert_eq!(error.to_string(), "references non-existent config key: x");
    }
}
