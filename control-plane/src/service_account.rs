//! Service-account tokens: signed here, verified here, their public key published here.
//!
//! Watches and changes no state: a pure function of the cluster's signing key. The node session
//! issues tokens for pods, the API's authenticator has them verified (and then looks whether
//! the service account and pod they are bound to still exist).

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::PublicKeyData as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::clock;

/// Kubernetes' bounds for `spec.expirationSeconds` of a TokenRequest.
const MIN_EXPIRATION: u64 = 600;
const MAX_EXPIRATION: u64 = 1 << 32;
const DEFAULT_EXPIRATION: u64 = 3600;

/// Why a token could not be signed, or is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The signing key cannot be used.
    #[error("load the service account signing key")]
    Key(#[source] jsonwebtoken::errors::Error),
    /// Signing failed.
    #[error("sign a service account token")]
    Sign(#[source] jsonwebtoken::errors::Error),
    /// Not one of our tokens: damaged, foreign or expired.
    #[error("the token is not valid")]
    Invalid(#[source] jsonwebtoken::errors::Error),
}

/// Whom a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSubject {
    /// Namespace of the service account.
    pub namespace: String,
    /// The service account.
    pub service_account: Reference,
    /// The pod the token is bound to.
    pub pod: Option<Reference>,
    /// The node that pod runs on.
    pub node: Option<Reference>,
}

/// An object by name and uid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// metadata.name.
    pub name: String,
    /// metadata.uid.
    #[serde(default)]
    pub uid: String,
}

/// A signed token.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The JWT.
    pub token: String,
    /// When it stops being valid.
    pub expires: SystemTime,
}

/// The claims of a token, in Kubernetes' shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Audiences.
    pub aud: Vec<String>,
    /// Expiry, seconds since the epoch.
    pub exp: u64,
    /// Time of issue.
    pub iat: u64,
    /// Issuer.
    pub iss: String,
    /// Unique id of the token.
    pub jti: String,
    /// Start of validity.
    pub nbf: u64,
    /// `system:serviceaccount:NAMESPACE:NAME`.
    pub sub: String,
    /// What the token is bound to.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
}

/// The `kubernetes.io` claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    /// Namespace of the service account.
    pub namespace: String,
    /// The service account.
    pub serviceaccount: Reference,
    /// The pod, when bound to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    /// The pod's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
}

/// Issues and verifies tokens with the cluster's key.
pub struct ServiceAccountTokens {
    issuer: String,
    signing: EncodingKey,
    verifying: DecodingKey,
    key_id: String,
    jwks: Value,
}

impl std::fmt::Debug for ServiceAccountTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceAccountTokens")
            .field("issuer", &self.issuer)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl ServiceAccountTokens {
    /// Tokens of the cluster with this domain, signed by `key` (ECDSA P-256).
    pub fn new(cluster_domain: &str, key: &rcgen::KeyPair) -> Result<Self, TokenError> {
        let signing =
            EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).map_err(TokenError::Key)?;
        // Kubernetes' key id: base64url of the SHA-256 of the public key's DER.
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(key.subject_public_key_info()));
        let mut jwk =
            Jwk::from_encoding_key(&signing, Algorithm::ES256).map_err(TokenError::Key)?;
        jwk.common.key_id = Some(key_id.clone());
        jwk.common.public_key_use = Some(PublicKeyUse::Signature);
        let verifying = DecodingKey::from_jwk(&jwk).map_err(TokenError::Key)?;
        Ok(Self {
            issuer: format!("https://kubernetes.default.svc.{cluster_domain}"),
            signing,
            verifying,
            key_id,
            jwks: json!(JwkSet { keys: vec![jwk] }),
        })
    }

    /// The issuer, also the audience of a token that asks for none.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The public keys: `/openid/v1/jwks`.
    pub fn jwks(&self) -> &Value {
        &self.jwks
    }

    /// The discovery document: `/.well-known/openid-configuration`.
    pub fn openid_configuration(&self) -> Value {
        json!({
            "issuer": self.issuer,
            "jwks_uri": format!("{}/openid/v1/jwks", self.issuer),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    /// Signs a token. No audience means the API's own; the lifetime is brought into
    /// Kubernetes' bounds.
    pub fn issue(
        &self,
        subject: TokenSubject,
        audiences: Vec<String>,
        expiration_seconds: Option<u64>,
        now: SystemTime,
    ) -> Result<IssuedToken, TokenError> {
        let seconds = expiration_seconds
            .filter(|s| *s > 0)
            .unwrap_or(DEFAULT_EXPIRATION)
            .clamp(MIN_EXPIRATION, MAX_EXPIRATION);
        let issued = clock::unix_seconds(now);
        let claims = Claims {
            aud: if audiences.is_empty() {
                vec![self.issuer.clone()]
            } else {
                audiences
            },
            exp: issued + seconds,
            iat: issued,
            iss: self.issuer.clone(),
            jti: hex::encode(rand::random::<[u8; 16]>()),
            nbf: issued,
            sub: service_account_user(&subject.namespace, &subject.service_account.name),
            kubernetes: KubernetesClaims {
                namespace: subject.namespace,
                serviceaccount: subject.service_account,
                pod: subject.pod,
                node: subject.node,
            },
        };
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.key_id.clone());
        let token =
            jsonwebtoken::encode(&header, &claims, &self.signing).map_err(TokenError::Sign)?;
        Ok(IssuedToken {
            token,
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(issued + seconds),
        })
    }

    /// Checks signature, issuer, lifetime and that one of `audiences` is meant (the API's own
    /// when empty).
    pub fn verify(&self, token: &str, audiences: &[&str]) -> Result<Claims, TokenError> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_issuer(&[&self.issuer]);
        if audiences.is_empty() {
            validation.set_audience(&[&self.issuer]);
        } else {
            validation.set_audience(audiences);
        }
        validation.set_required_spec_claims(&["exp", "nbf", "iss", "aud", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = 10;
        jsonwebtoken::decode::<Claims>(token, &self.verifying, &validation)
            .map(|data| data.claims)
            .map_err(TokenError::Invalid)
    }
}

/// The user name of a service account.
pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The groups of a service account.
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> ServiceAccountTokens {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        ServiceAccountTokens::new("cluster.local", &key).unwrap()
    }

    fn subject() -> TokenSubject {
        TokenSubject {
            namespace: "default".to_owned(),
            service_account: Reference {
                name: "web".to_owned(),
                uid: "u1".to_owned(),
            },
            pod: Some(Reference {
                name: "web-0".to_owned(),
                uid: "u2".to_owned(),
            }),
            node: None,
        }
    }

    #[test]
    fn a_token_verifies_with_kubernetes_claims() {
        let tokens = tokens();
        let issued = tokens.issue(subject(), vec![], None, clock::now()).unwrap();
        let claims = tokens.verify(&issued.token, &[]).unwrap();
        assert_eq!(claims.sub, "system:serviceaccount:default:web");
        assert_eq!(claims.exp - claims.iat, 3600);
        let json = serde_json::to_value(&claims).unwrap();
        assert_eq!(json["kubernetes.io"]["pod"]["name"], "web-0");
        assert_eq!(json["kubernetes.io"]["serviceaccount"]["uid"], "u1");
        assert_eq!(tokens.jwks()["keys"][0]["crv"], "P-256");
    }

    #[test]
    fn foreign_expired_and_misdirected_tokens_are_refused() {
        let (ours, theirs) = (tokens(), tokens());
        let foreign = theirs.issue(subject(), vec![], None, clock::now()).unwrap();
        assert!(ours.verify(&foreign.token, &[]).is_err());
        let old = clock::now() - Duration::from_hours(2);
        let expired = ours.issue(subject(), vec![], None, old).unwrap();
        assert!(ours.verify(&expired.token, &[]).is_err());
        let other = vec!["vault".to_owned()];
        let misdirected = ours.issue(subject(), other, None, clock::now()).unwrap();
        assert!(ours.verify(&misdirected.token, &[]).is_err());
        assert!(ours.verify(&misdirected.token, &["vault"]).is_ok());
        assert!(ours.verify("a.b.c", &[]).is_err());
    }
}
