//! Authentication: client certificates and bearer tokens to a [`UserInfo`].
//!
//! Watches and changes no state: it reads what the TLS connection and the request carry.
//! [`super::authorize`] decides next what the user may do. Nobody is anonymous, except at the
//! paths that load balancers and clients probe before they have an identity.

use std::sync::Arc;

use ::http::header::AUTHORIZATION;
use ::http::request::Parts;
use bytes::Bytes;
use pintle_kube_types::status::Status;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{GROUP_AUTHENTICATED, UserInfo};

/// Name of a user without credentials.
pub const USER_ANONYMOUS: &str = "system:anonymous";
/// Group of users without credentials.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";

/// Paths that need no identity.
const OPEN_PATHS: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

/// The verified client certificate of a TLS connection.
#[derive(Debug, Clone)]
pub struct PeerCertificate {
    /// DER encoding of the leaf certificate.
    pub der: Bytes,
}

/// Turns what a request carries into a user.
pub trait Authenticate: Send + Sync {
    /// The user who sent the request, or 401.
    fn authenticate(
        &self,
        parts: &Parts,
        peer: Option<&PeerCertificate>,
    ) -> Result<UserInfo, Status>;
}

/// Verifies bearer tokens.
pub trait VerifyToken: Send + Sync {
    /// The user a token stands for; `None` when it is not valid (any more).
    fn verify(&self, token: &str) -> Option<UserInfo>;
}

/// The authenticator of the API: a client certificate, else a bearer token, else 401.
pub struct RequestAuthenticator {
    tokens: Arc<dyn VerifyToken>,
}

impl std::fmt::Debug for RequestAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestAuthenticator")
            .finish_non_exhaustive()
    }
}

impl RequestAuthenticator {
    /// Verifies tokens with `tokens`.
    pub fn new(tokens: Arc<dyn VerifyToken>) -> Self {
        Self { tokens }
    }
}

impl Authenticate for RequestAuthenticator {
    fn authenticate(
        &self,
        parts: &Parts,
        peer: Option<&PeerCertificate>,
    ) -> Result<UserInfo, Status> {
        if let Some(user) = peer.and_then(certificate_user) {
            return Ok(user);
        }
        if let Some(token) = bearer_token(parts) {
            return self.tokens.verify(token).ok_or_else(Status::unauthorized);
        }
        if is_open(parts.uri.path()) {
            return Ok(UserInfo::new(USER_ANONYMOUS, &[GROUP_UNAUTHENTICATED]));
        }
        Err(Status::unauthorized())
    }
}

/// The user of a client certificate: the common name, in the groups that the organizations
/// name. The TLS layer has verified the certificate against the cluster's CA.
pub fn certificate_user(peer: &PeerCertificate) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(&peer.der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?;
    if name.is_empty() {
        return None;
    }
    let mut groups: Vec<&str> = subject
        .iter_organization()
        .filter_map(|organization| organization.as_str().ok())
        .collect();
    if !groups.contains(&GROUP_AUTHENTICATED) {
        groups.push(GROUP_AUTHENTICATED);
    }
    Some(UserInfo::new(name, &groups))
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer_token(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn is_open(path: &str) -> bool {
    OPEN_PATHS.iter().any(|open| {
        path.strip_prefix(open)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// A token to mint for a service account (`serviceaccounts/token`).
#[derive(Debug, Clone)]
pub struct TokenSpec {
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub service_account: String,
    /// Uid of the service account.
    pub service_account_uid: String,
    /// Audiences; empty means the API server's own.
    pub audiences: Vec<String>,
    /// Requested life time.
    pub expiration_seconds: i64,
    /// The pod, secret or node the token is bound to: kind, name, uid.
    pub bound_object: Option<(String, String, String)>,
    /// Name and uid of the node the bound pod runs on.
    pub node: Option<(String, String)>,
}

/// A minted token.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    /// The signed token.
    pub token: String,
    /// Audiences it is valid for.
    pub audiences: Vec<String>,
    /// When it expires.
    pub expires: jiff::Timestamp,
}

/// Mints service-account tokens.
pub trait TokenIssuer: Send + Sync {
    /// Signs a token.
    fn issue(&self, spec: &TokenSpec) -> Result<IssuedToken, Status>;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct OneToken;

    impl VerifyToken for OneToken {
        fn verify(&self, token: &str) -> Option<UserInfo> {
            (token == "good").then(|| UserInfo::new("pod", &[]))
        }
    }

    fn ask(path: &str, authorization: Option<&str>) -> Result<UserInfo, Status> {
        let mut request = ::http::Request::get(path);
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        RequestAuthenticator::new(Arc::new(OneToken)).authenticate(&parts, None)
    }

    #[test]
    fn only_probes_are_open_to_anonymous_users() {
        for path in ["/livez", "/readyz/ping", "/healthz?verbose", "/version"] {
            assert_eq!(ask(path, None).unwrap().name, USER_ANONYMOUS, "{path}");
        }
        for path in ["/", "/api", "/apis", "/livezz", "/metrics", "/openapi/v2"] {
            assert_eq!(ask(path, None).unwrap_err().code, 401, "{path}");
        }
    }

    #[test]
    fn a_bad_token_is_refused_everywhere() {
        assert_eq!(ask("/api", Some("Bearer good")).unwrap().name, "pod");
        assert_eq!(ask("/api", Some("bearer  good")).unwrap().name, "pod");
        assert_eq!(ask("/livez", Some("Bearer bad")).unwrap_err().code, 401);
        assert_eq!(ask("/api", Some("Basic good")).unwrap_err().code, 401);
    }
}
