//! Service-account tokens of projected volumes, renewed in time.
//!
//! Asks the control plane for tokens bound to the pod. A token is renewed at 80 % of its life,
//! or after 24 h; until then the one that lies in the volume is kept, also by a new agent,
//! which reads its times from the token itself.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};
use k8s_openapi::jiff::Timestamp;
use pintle_proto::node::CreateToken;
use serde::Deserialize;

use super::{VolumeError, Volumes, volumes};
use crate::pod::backoff;

const RENEW_LATEST: Duration = Duration::from_hours(24);
/// Wait before asking again for a token to replace one that still works.
const RETRY: Duration = Duration::from_secs(30);

/// A token and when to replace it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The JWT.
    pub value: String,
    /// When to ask for the next.
    pub refresh_at: Option<Timestamp>,
}

/// Tokens by volume and position in its sources.
pub type Tokens = BTreeMap<(String, usize), Token>;

/// Gets the tokens of a pod's volumes.
pub(super) async fn fetch(room: &Volumes, pod: &Pod) -> Result<Tokens, VolumeError> {
    let mut tokens = Tokens::new();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let now = room.clock.now();
    for volume in volumes(pod) {
        let sources = volume
            .projected
            .iter()
            .flat_map(|projected| projected.sources.iter().flatten());
        for (index, source) in sources.enumerate() {
            let Some(projection) = &source.service_account_token else {
                continue;
            };
            let file = room.memory_path(uid, &volume.name).join(&projection.path);
            let present = std::fs::read_to_string(file).ok().and_then(|value| {
                let times = times(&value)?;
                Some((value, times))
            });
            let key = (volume.name.clone(), index);
            if let Some((value, times)) = &present
                && times.refresh_at() > now
            {
                let token = Token {
                    value: value.clone(),
                    refresh_at: Some(times.refresh_at()),
                };
                tokens.insert(key, token);
                continue;
            }
            let answer = request(room, pod, projection).await;
            let token = match (answer, present) {
                (Ok(token), _) => token,
                // The old one may still do.
                (Err(error), Some((value, times))) if times.expires() > now => {
                    tracing::warn!(%error, "cannot renew a service-account token");
                    Token {
                        value,
                        refresh_at: Some(backoff::add(now, RETRY)),
                    }
                }
                (Err(error), _) => {
                    return Err(VolumeError::Volume {
                        volume: volume.name.clone(),
                        source: Box::new(error),
                    });
                }
            };
            tokens.insert(key, token);
        }
    }
    Ok(tokens)
}

async fn request(
    room: &Volumes,
    pod: &Pod,
    projection: &ServiceAccountTokenProjection,
) -> Result<Token, VolumeError> {
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.clone())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "default".to_owned());
    let request = CreateToken {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        service_account: account,
        pod_name: pod.metadata.name.clone().unwrap_or_default(),
        pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
        audiences: projection
            .audience
            .clone()
            .filter(|audience| !audience.is_empty())
            .into_iter()
            .collect(),
        expiration_seconds: projection.expiration_seconds.unwrap_or(3600),
    };
    let answer = room
        .control_plane
        .create_token(request)
        .await
        .map_err(VolumeError::Token)?;
    let value = answer
        .status
        .and_then(|status| status.token)
        .unwrap_or_default();
    let refresh_at = times(&value).map(Times::refresh_at);
    Ok(Token { value, refresh_at })
}

/// Claims of a token.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
struct Times {
    iat: i64,
    exp: i64,
}

impl Times {
    fn expires(self) -> Timestamp {
        Timestamp::from_second(self.exp).unwrap_or(Timestamp::MAX)
    }

    fn refresh_at(self) -> Timestamp {
        let issued = Timestamp::from_second(self.iat).unwrap_or(Timestamp::UNIX_EPOCH);
        let life = Duration::from_secs(u64::try_from(self.exp - self.iat).unwrap_or_default());
        backoff::add(issued, life.mul_f64(0.8).min(RENEW_LATEST))
    }
}

fn times(token: &str) -> Option<Times> {
    let claims = token.trim().split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice(&claims).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_token() {
        let claims = URL_SAFE_NO_PAD.encode(r#"{"iat":1000,"exp":4600,"sub":"x"}"#);
        let times = times(&format!("h.{claims}.s"));
        assert_eq!(
            times.map(|times| times.refresh_at().as_second()),
            Some(1000 + 2880)
        );
        assert_eq!(super::times("garbage"), None);
    }
}
