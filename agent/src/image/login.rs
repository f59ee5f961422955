//! Registry logins out of docker configs (imagePullSecrets). Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde::Deserialize;

use super::reference::{DEFAULT_REGISTRY, Reference};
use super::types::RegistryLogin;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
    #[serde(default)]
    identitytoken: String,
}

impl RegistryLogin {
    /// Logins of a `.dockerconfigjson` value.
    pub fn from_docker_config(json: &[u8]) -> serde_json::Result<Vec<Self>> {
        Ok(collect(serde_json::from_slice::<DockerConfig>(json)?.auths))
    }

    /// Logins of a legacy `.dockercfg` value.
    pub fn from_legacy_docker_config(json: &[u8]) -> serde_json::Result<Vec<Self>> {
        Ok(collect(serde_json::from_slice(json)?))
    }

    /// `host[/path]` that the login is for.
    fn scope(&self) -> &str {
        let bare = self
            .registry
            .trim_start_matches("https://")
            .trim_start_matches("http://");
        let bare = bare.trim_end_matches('/');
        match bare {
            "index.docker.io/v1" | "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
            other => other.trim_end_matches("/v1").trim_end_matches("/v2"),
        }
    }
}

fn collect(auths: BTreeMap<String, Entry>) -> Vec<RegistryLogin> {
    auths
        .into_iter()
        .filter_map(|(registry, entry)| {
            let decoded = base64::engine::general_purpose::STANDARD
                .decode(entry.auth.trim())
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            let (username, password) = match decoded.as_deref().and_then(|t| t.split_once(':')) {
                Some((username, password)) => (username.to_owned(), password.to_owned()),
                None if !entry.identitytoken.is_empty() => {
                    ("<token>".to_owned(), entry.identitytoken)
                }
                None => (entry.username, entry.password),
            };
            (!username.is_empty()).then_some(RegistryLogin {
                registry,
                username,
                password,
            })
        })
        .collect()
}

/// The login for a reference: the one with the longest matching path.
pub(super) fn select<'a>(
    logins: &'a [RegistryLogin],
    reference: &Reference,
) -> Option<&'a RegistryLogin> {
    let name = reference.name();
    logins
        .iter()
        .filter(|login| {
            name.strip_prefix(login.scope())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
        .max_by_key(|login| login.scope().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_login_is_used() {
        let json = br#"{"auths":{
            "https://index.docker.io/v1/":{"auth":"aHViOnNlY3JldA=="},
            "reg.example":{"username":"all","password":"p"},
            "reg.example/team":{"username":"team","password":"p"}}}"#;
        let logins = RegistryLogin::from_docker_config(json).unwrap();
        let user = |text: &str| {
            select(&logins, &text.parse().unwrap()).map(|login| login.username.clone())
        };
        assert_eq!(user("nginx").as_deref(), Some("hub"));
        assert_eq!(user("reg.example/x").as_deref(), Some("all"));
        assert_eq!(user("reg.example/team/x").as_deref(), Some("team"));
        assert_eq!(user("reg.example/teams/x").as_deref(), Some("all"));
        assert_eq!(user("other.example/x"), None);
    }
}
