//! Kubeconfigs: the administrator's, and those of `pintle kubeconfig --user`.
//!
//! Changes the file that `--kubeconfig` names, at every start (the port or the certificate may
//! be new); kubectl and the tests read it. A user's is only printed.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::files;
use crate::join::NODE_USER_PREFIX;
use crate::pki::{Identity, Pki, PkiError};

/// Longest life of a user's certificate: there is no way to revoke one.
pub const LONGEST_LIFE: Duration = Duration::from_hours(365 * 24);
/// Longest name or group: `ub-common-name` and `ub-organization-name` of RFC 5280 say 64, but
/// nobody heeds them; this is what keeps a certificate small.
const LONGEST_NAME: usize = 253;

/// Why a user gets no kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// Unusable as a name.
    #[error("--{option} {value:?}: give 1 to {LONGEST_NAME} bytes without control characters")]
    Name {
        /// The option.
        option: &'static str,
        /// What was given.
        value: String,
    },
    /// A node's name.
    #[error(
        "--user {0:?}: a node gets its identity by `pintle agent --join`; choose a name that does not start with {NODE_USER_PREFIX:?}"
    )]
    Node(String),
    /// Too short or too long.
    #[error("--ttl: a user's certificate lives from one minute to 365 days")]
    Life,
    /// The CA cannot sign.
    #[error("sign the user's certificate")]
    Pki(#[from] PkiError),
}

/// A kubeconfig for a user of these groups, good for `life`.
pub fn for_user(
    pki: &Pki,
    server: &str,
    user: &str,
    groups: &[String],
    life: Duration,
    now: SystemTime,
) -> Result<String, KubeconfigError> {
    let names = std::iter::once(("user", user)).chain(groups.iter().map(|g| ("group", g.as_str())));
    for (option, value) in names {
        if value.is_empty() || value.len() > LONGEST_NAME || value.chars().any(char::is_control) {
            return Err(KubeconfigError::Name {
                option,
                value: value.to_owned(),
            });
        }
    }
    if user.starts_with(NODE_USER_PREFIX) {
        return Err(KubeconfigError::Node(user.to_owned()));
    }
    if life < Duration::from_mins(1) || life > LONGEST_LIFE {
        return Err(KubeconfigError::Life);
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let identity = pki.issue_client(user, &groups, life, now)?;
    Ok(render(server, pki.ca_pem(), user, &identity))
}

/// The kubeconfig's text: YAML, with certificates inside so that the file works on its own.
/// `server` is HOST:PORT.
pub fn render(server: &str, ca_pem: &str, user: &str, identity: &Identity) -> String {
    let context = quoted(&format!("{user}@pintle"));
    let user = quoted(user);
    let (server, ca) = (format!("https://{server}"), STANDARD.encode(ca_pem));
    let certificate = STANDARD.encode(&identity.certificate_pem);
    let key = STANDARD.encode(&identity.key_pem);
    // Every other value here is free of YAML's special characters.
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: pintle\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {ca}\n\
         users:\n\
         - name: {user}\n  user:\n    client-certificate-data: {certificate}\n    \
         client-key-data: {key}\n\
         contexts:\n\
         - name: {context}\n  context:\n    cluster: pintle\n    user: {user}\n\
         current-context: {context}\n"
    )
}

/// A YAML scalar: plain where that is safe, else in JSON's double quotes, which YAML shares.
fn quoted(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.@/".contains(&byte));
    if is_plain {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// Writes the kubeconfig, creating its directory; an unchanged file is left alone.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)?;
    }
    files::write_secret(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{ADMIN_USER, ServingNames};

    #[test]
    fn it_holds_what_kubectl_needs() {
        let admin = Identity {
            certificate_pem: "cert".to_owned(),
            key_pem: "key".to_owned(),
        };
        let text = render("127.0.0.1:6443", "ca", ADMIN_USER, &admin);
        for line in [
            "    server: https://127.0.0.1:6443",
            "    certificate-authority-data: Y2E=",
            "    client-certificate-data: Y2VydA==",
            "    client-key-data: a2V5",
            "current-context: kubernetes-admin@pintle",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/admin.kubeconfig");
        write(&path, &text).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_user_has_a_name_that_is_no_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let names = ServingNames::new("cluster.local", "n", &[], &[]);
        let pki = Pki::open(dir.path(), names, crate::clock::now()).unwrap();
        let hour = Duration::from_hours(1);
        let make = |user: &str, group: &str, life| {
            let groups = [group.to_owned()];
            for_user(
                &pki,
                "192.0.2.1:6443",
                user,
                &groups,
                life,
                crate::clock::now(),
            )
        };
        let text = make("jane: doe", "dev", hour).unwrap();
        assert!(text.contains("    user: \"jane: doe\"\n"), "{text}");
        for (user, group, life, said) in [
            ("", "dev", hour, "--user \"\""),
            ("jane", "a\nb", hour, "--group \"a\\nb\""),
            ("system:node:a", "dev", hour, "pintle agent --join"),
            ("jane", "dev", LONGEST_LIFE + hour, "--ttl"),
        ] {
            let error = make(user, group, life).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
