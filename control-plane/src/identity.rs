//! Service-account tokens as the API uses them: checked against what they are bound to, minted
//! for `serviceaccounts/token`, their keys published.
//!
//! Watches service accounts and pods: a token dies with either. Changes nothing; the API's
//! pipeline authorises the user it gives.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use pintle_api::auth::UserInfo;
use pintle_api::auth::authenticate::{
    Authenticate, IssuedToken, PeerCertificate, RequestAuthenticator, TokenIssuer, TokenSpec,
    VerifyToken,
};
use pintle_api::client::{Client, Informer};
use pintle_kube_types::status::Status;
use serde_json::Value;

use crate::clock;
use crate::service_account::{
    Claims, Reference, ServiceAccountTokens, TokenSubject, service_account_groups,
};

/// Verifies bearer tokens: the signature, then that what the token is bound to still exists.
#[derive(Debug)]
pub struct BoundTokenVerifier {
    tokens: Arc<ServiceAccountTokens>,
    bound: OnceLock<Bound>,
}

#[derive(Debug)]
struct Bound {
    accounts: Informer<ServiceAccount>,
    pods: Informer<Pod>,
}

impl BoundTokenVerifier {
    /// Until [`look_up_through`](Self::look_up_through) no token is accepted.
    pub fn new(tokens: Arc<ServiceAccountTokens>) -> Self {
        Self {
            tokens,
            bound: OnceLock::new(),
        }
    }

    /// Where to look up service accounts and pods: the API is built after its authenticator.
    pub fn look_up_through(&self, client: &Client) {
        self.bound.get_or_init(|| Bound {
            accounts: client.informer(),
            pods: client.informer(),
        });
    }

    /// The API's authenticator with these tokens.
    pub fn authenticator(self: &Arc<Self>) -> Arc<dyn Authenticate> {
        Arc::new(RequestAuthenticator::new(
            Arc::clone(self) as Arc<dyn VerifyToken>
        ))
    }

    fn still_bound(&self, claims: &Claims) -> bool {
        let Some(bound) = self.bound.get() else {
            return false;
        };
        let claims = &claims.kubernetes;
        let key = |name: &str| format!("{}/{name}", claims.namespace);
        // An informer that is still loading would refuse every token of a running cluster.
        if !bound.accounts.has_synced() || !bound.pods.has_synced() {
            return true;
        }
        let account = bound.accounts.get(&key(&claims.serviceaccount.name));
        if account.and_then(|a| a.metadata.uid.clone()).as_ref() != Some(&claims.serviceaccount.uid)
        {
            return false;
        }
        claims.pod.as_ref().is_none_or(|reference| {
            let pod = bound.pods.get(&key(&reference.name));
            pod.and_then(|p| p.metadata.uid.clone()).as_ref() == Some(&reference.uid)
        })
    }
}

impl VerifyToken for BoundTokenVerifier {
    fn verify(&self, token: &str) -> Option<UserInfo> {
        let claims = match self.tokens.verify(token, &[]) {
            Ok(claims) => claims,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "token refused");
                return None;
            }
        };
        if !self.still_bound(&claims) {
            tracing::debug!(subject = claims.sub, "token of a deleted object refused");
            return None;
        }
        let mut user = UserInfo {
            name: claims.sub,
            uid: claims.kubernetes.serviceaccount.uid,
            groups: service_account_groups(&claims.kubernetes.namespace),
            ..UserInfo::default()
        };
        let mut extra = |key: &str, value: String| {
            let key = format!("authentication.kubernetes.io/{key}");
            user.extra.insert(key, vec![value]);
        };
        extra("credential-id", format!("JTI={}", claims.jti));
        if let Some(pod) = claims.kubernetes.pod {
            extra("pod-name", pod.name);
            extra("pod-uid", pod.uid);
        }
        if let Some(node) = claims.kubernetes.node {
            extra("node-name", node.name);
            extra("node-uid", node.uid);
        }
        Some(user)
    }
}

/// Mints the tokens that the API's `serviceaccounts/token` grants.
#[derive(Debug)]
pub struct Minter(pub Arc<ServiceAccountTokens>);

impl TokenIssuer for Minter {
    fn issue(&self, spec: &TokenSpec) -> Result<IssuedToken, Status> {
        let pod = spec
            .bound_object
            .as_ref()
            .filter(|(kind, _, _)| kind == "Pod")
            .map(|(_, name, uid)| Reference {
                name: name.clone(),
                uid: uid.clone(),
            });
        let subject = TokenSubject {
            namespace: spec.namespace.clone(),
            service_account: Reference {
                name: spec.service_account.clone(),
                uid: spec.service_account_uid.clone(),
            },
            pod,
            node: spec.node.as_ref().map(|(name, uid)| Reference {
                name: name.clone(),
                uid: uid.clone(),
            }),
        };
        let audiences = if spec.audiences.is_empty() {
            vec![self.0.issuer().to_owned()]
        } else {
            spec.audiences.clone()
        };
        let seconds = u64::try_from(spec.expiration_seconds).ok();
        let issued = self
            .0
            .issue(subject, audiences.clone(), seconds, clock::now())
            .map_err(|error| Status::internal_error(error.to_string()))?;
        let expires = i64::try_from(clock::unix_seconds(issued.expires)).unwrap_or(i64::MAX);
        Ok(IssuedToken {
            token: issued.token,
            audiences,
            expires: jiff::Timestamp::from_second(expires).unwrap_or(jiff::Timestamp::MAX),
        })
    }
}

/// `/.well-known/openid-configuration` and `/openid/v1/jwks`, for those who verify tokens
/// themselves; as in Kubernetes, not for the unauthenticated.
#[derive(Clone)]
pub struct IdentityEndpoints {
    /// Whose keys are published.
    pub tokens: Arc<ServiceAccountTokens>,
    /// Who may read them.
    pub authenticator: Arc<dyn Authenticate>,
}

impl std::fmt::Debug for IdentityEndpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityEndpoints").finish_non_exhaustive()
    }
}

impl IdentityEndpoints {
    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route(
                "/.well-known/openid-configuration",
                get(
                    |State(endpoints): State<Self>, request: Request| async move {
                        let body = endpoints.tokens.openid_configuration();
                        endpoints.answer(request, "application/json", &body)
                    },
                ),
            )
            .route(
                "/openid/v1/jwks",
                get(
                    |State(endpoints): State<Self>, request: Request| async move {
                        let body = endpoints.tokens.jwks().clone();
                        endpoints.answer(request, "application/jwk-set+json", &body)
                    },
                ),
            )
            .with_state(self)
    }

    fn answer(&self, request: Request, content_type: &'static str, body: &Value) -> Response {
        let (parts, _) = request.into_parts();
        let peer = parts.extensions.get::<PeerCertificate>();
        match self.authenticator.authenticate(&parts, peer) {
            Ok(_) => ([(CONTENT_TYPE, content_type)], body.to_string()).into_response(),
            Err(status) => {
                let code =
                    StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let body = serde_json::to_string(&status).unwrap_or_default();
                (code, [(CONTENT_TYPE, "application/json")], body).into_response()
            }
        }
    }
}
