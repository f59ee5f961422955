//! Authentication: client certificates and bearer tokens to a [`UserInfo`].

use bytes::Bytes;
use pintle_kube_types::status::Status;

use super::UserInfo;

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
        parts: &::http::request::Parts,
        peer: Option<&PeerCertificate>,
    ) -> Result<UserInfo, Status>;
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
