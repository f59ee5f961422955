//! Getting a container's image by its pull policy.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use serde::Deserialize;

use super::Rooms;
use crate::describe;
use crate::image::{ImageError, PullRequest, RegistryLogin};
use crate::pod::machine::{Announcement, Event, ImageFailure};

/// Makes sure the image is there; the answer for the machine.
pub(super) async fn ensure(
    rooms: Arc<Rooms>,
    pod: Arc<Pod>,
    container: Container,
    field_path: Option<String>,
) -> Event {
    let name = container.name.clone();
    match obtain(&rooms, &pod, &container, field_path).await {
        Ok(image_id) => Event::ImageReady {
            container: name,
            image_id,
        },
        Err((reason, message)) => Event::ImageFailed {
            container: name,
            reason,
            message,
        },
    }
}

async fn obtain(
    rooms: &Rooms,
    pod: &Pod,
    container: &Container,
    field_path: Option<String>,
) -> Result<String, (ImageFailure, String)> {
    let reference = container.image.clone().unwrap_or_default();
    let policy = container
        .image_pull_policy
        .as_deref()
        .unwrap_or_else(|| default_policy(&reference));
    let announce = |reason: &'static str, message: String| {
        rooms.events.pod(
            pod,
            Announcement {
                warning: false,
                reason,
                message,
                field_path: field_path.clone(),
            },
        );
    };
    if policy != "Always" {
        if let Some(record) = rooms.images.lookup(&reference) {
            announce(
                "Pulled",
                format!(
                    "Container image \"{reference}\" already present on machine and can be accessed by the pod"
                ),
            );
            return Ok(record.id);
        }
        if policy == "Never" {
            return Err((
                ImageFailure::NeverPull,
                format!("Container image \"{reference}\" is not present with pull policy of Never"),
            ));
        }
    }
    announce("Pulling", format!("Pulling image \"{reference}\""));
    let started = rooms.clock.now();
    let request = PullRequest {
        reference: reference.clone(),
        logins: logins(rooms, pod),
    };
    match rooms.images.pull(request).await {
        Ok(record) => {
            let took = go_duration(rooms.clock.since(started));
            announce(
                "Pulled",
                format!(
                    "Successfully pulled image \"{reference}\" in {took} ({took} including waiting). Image size: {} bytes.",
                    record.size
                ),
            );
            Ok(record.id)
        }
        Err(error) => {
            let reason = match &error {
                ImageError::InvalidReference { .. } => ImageFailure::InvalidName,
                _ => ImageFailure::Pull,
            };
            Err((reason, describe::chain(&error)))
        }
    }
}

/// Always for `:latest` or no tag, else `IfNotPresent`.
fn default_policy(reference: &str) -> &'static str {
    if reference.contains('@') {
        return "IfNotPresent";
    }
    let last = reference.rsplit('/').next().unwrap_or(reference);
    match last.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

/// A duration as Go prints it, to the millisecond: `812ms`, `1.204s`, `1m2.5s`.
pub(super) fn go_duration(duration: std::time::Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let mut seconds = format!("{}.{:03}", rest / 1000, rest % 1000);
    seconds.truncate(seconds.trim_end_matches('0').trim_end_matches('.').len());
    if minutes > 0 {
        format!("{minutes}m{seconds}s")
    } else {
        format!("{seconds}s")
    }
}

/// `.dockerconfigjson`.
#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// Logins of the pod's `imagePullSecrets`; what cannot be read is skipped, as the kubelet does.
fn logins(rooms: &Rooms, pod: &Pod) -> Vec<RegistryLogin> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    pod.spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten())
        .filter_map(|reference| rooms.state.secret(namespace, &reference.name))
        .flat_map(|secret| of_secret(&secret))
        .collect()
}

fn of_secret(secret: &Secret) -> Vec<RegistryLogin> {
    let data = secret.data.as_ref();
    let config = data
        .and_then(|data| data.get(".dockerconfigjson"))
        .and_then(|content| serde_json::from_slice::<DockerConfig>(&content.0).ok());
    let auths = match config {
        Some(config) => config.auths,
        None => data
            .and_then(|data| data.get(".dockercfg"))
            .and_then(|content| serde_json::from_slice(&content.0).ok())
            .unwrap_or_default(),
    };
    auths
        .into_iter()
        .filter_map(|(registry, auth)| {
            let (username, password) = if let Some(both) = auth.username.zip(auth.password) {
                both
            } else {
                let decoded = STANDARD.decode(auth.auth?).ok()?;
                let text = String::from_utf8(decoded).ok()?;
                let (username, password) = text.split_once(':')?;
                (username.to_owned(), password.to_owned())
            };
            Some(RegistryLogin {
                registry,
                username,
                password,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn policies() {
        for (reference, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("localhost:5000/nginx", "Always"),
            ("nginx@sha256:00", "IfNotPresent"),
        ] {
            assert_eq!(default_policy(reference), policy, "{reference}");
        }
    }

    #[test]
    fn durations() {
        for (millis, text) in [(5, "5ms"), (1200, "1.2s"), (2000, "2s"), (62_500, "1m2.5s")] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn pull_secrets() {
        let secret: Secret = serde_json::from_value(serde_json::json!({"data": {
            ".dockerconfigjson": STANDARD.encode(
                r#"{"auths":{"r.example":{"auth":"dTpw"},"s.example":{"username":"a","password":"b"}}}"#
            )
        }}))
        .unwrap();
        let logins = of_secret(&secret);
        assert_eq!(logins[0].username, "u");
        assert_eq!(logins[0].password, "p");
        assert_eq!(logins[1].registry, "s.example");
    }
}
