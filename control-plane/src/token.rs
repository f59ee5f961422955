//! Join tokens: what a machine shows once to become part of the cluster.
//!
//! Each lies in the cluster's state as a Secret `kube-system/join-token-ID` of type
//! `pintle.io/join-token`, so it survives restarts, every server knows it, and deleting the
//! Secret revokes it. Kubernetes' own type `bootstrap.kubernetes.io/token` is not used: it
//! keeps the secret itself, ours only a hash:
//!
//! ```text
//! token-hash    hex of SHA-256 of `ID.SECRET` (124 random bits: a fast hash hides them)
//! role          agent or server
//! expiration    RFC 3339
//! description   for people
//! ```
//!
//! Watches nothing; [`crate::join`] asks it who may join, `pintle token` creates, lists and
//! deletes. A token that expired is told apart from one that never was for a week, then
//! removed at the next creation.
//!
//! The agent of the server's own process joins with a token that lives in memory alone and
//! never leaves it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use pintle_api::client::{Client, DeleteParams, ListParams};
use pintle_kube_types::status::Status;
use pintle_proto::token::{ID_LENGTH, JoinToken, SECRET_LENGTH, split_credential};
use rand::Rng as _;
use sha2::{Digest as _, Sha256};

use crate::clock;

/// Where the tokens lie.
const NAMESPACE: &str = "kube-system";
const NAME_PREFIX: &str = "join-token-";
/// Type of the Secrets.
pub const SECRET_TYPE: &str = "pintle.io/join-token";
const HASH: &str = "token-hash";
const ROLE: &str = "role";
const EXPIRATION: &str = "expiration";
const DESCRIPTION: &str = "description";
/// How long an expired token is remembered.
const REMEMBERED: Duration = Duration::from_hours(7 * 24);
/// Longest life of a token.
pub const LONGEST_LIFE: Duration = Duration::from_hours(365 * 24);
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// Tries to find an id nobody has.
const ATTEMPTS: usize = 5;

/// What a token lets a machine become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A node.
    Agent,
    /// Another server; nodes need a token of their own.
    Server,
}

impl Role {
    /// As it is stored and typed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Server => "server",
        }
    }

    /// From what was stored or typed.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "agent" => Some(Self::Agent),
            "server" => Some(Self::Server),
            _ => None,
        }
    }
}

/// A token as `pintle token list` shows it: everything but the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Names it.
    pub id: String,
    /// What it is good for.
    pub role: String,
    /// For people.
    pub description: String,
    /// When it ends.
    pub expires: Timestamp,
    hash: String,
}

impl TokenInfo {
    /// Whether its time is over.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.expires <= timestamp(now)
    }
}

/// Why a token lets nobody in; each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum TokenRefusal {
    /// Not the text of a token.
    #[error("this is no join token; make one on a server with `pintle token create`")]
    Malformed,
    /// No such id, or another secret.
    #[error(
        "the join token is not known here: it was revoked or mistyped, or is of another cluster; make a new one on a server with `pintle token create`"
    )]
    Unknown,
    /// Its time is over.
    #[error(
        "the join token {id} expired at {at}; make a new one on a server with `pintle token create`"
    )]
    Expired {
        /// The token.
        id: String,
        /// When.
        at: Timestamp,
    },
    /// Made for something else.
    #[error(
        "the join token {id} is for the role {role}; make one for the role {wanted} on a server with `pintle token create --role {wanted}`"
    )]
    Role {
        /// The token.
        id: String,
        /// Its role.
        role: String,
        /// The role it was shown for.
        wanted: &'static str,
    },
    /// The cluster's state cannot be read.
    #[error("the join token cannot be looked up: {0}")]
    Lookup(Status),
}

/// Why a token cannot be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Too short or too long.
    #[error("a join token lives from one second to 365 days")]
    Life,
    /// Nothing to revoke.
    #[error("there is no join token {0:?}; `pintle token list` shows those there are")]
    NoSuchToken(String),
    /// The API refused.
    #[error("{0}")]
    Api(Status),
}

/// The tokens that are valid now.
#[derive(Debug)]
pub struct JoinTokens {
    client: Client,
    ca_hash: [u8; 32],
    /// Hash of the token of this process's own agent.
    own: Mutex<Option<String>>,
}

impl JoinTokens {
    /// The tokens of the cluster whose CA has this hash.
    pub fn new(client: Client, ca_hash: [u8; 32]) -> Self {
        Self {
            client,
            ca_hash,
            own: Mutex::new(None),
        }
    }

    /// Makes a token and stores its hash.
    pub async fn create(
        &self,
        role: Role,
        life: Duration,
        description: &str,
        now: SystemTime,
    ) -> Result<JoinToken, TokenError> {
        if life < Duration::from_secs(1) || life > LONGEST_LIFE {
            return Err(TokenError::Life);
        }
        self.forget_old(now).await?;
        let mut attempt = 1;
        loop {
            let token = self.random();
            match self
                .client
                .create(&secret(&token, role, now + life, description))
                .await
            {
                Ok(_) => return Ok(token),
                Err(status) if status.is_already_exists() && attempt < ATTEMPTS => attempt += 1,
                Err(status) => return Err(TokenError::Api(status)),
            }
        }
    }

    /// Every stored token, by the time it ends.
    pub async fn list(&self) -> Result<Vec<TokenInfo>, TokenError> {
        let params = ListParams::default().fields(format!("type={SECRET_TYPE}"));
        let (secrets, _) = self
            .client
            .list::<Secret>(Some(NAMESPACE), &params)
            .await
            .map_err(TokenError::Api)?;
        let mut tokens: Vec<TokenInfo> = secrets.iter().filter_map(info).collect();
        tokens.sort_by(|a, b| (a.expires, &a.id).cmp(&(b.expires, &b.id)));
        Ok(tokens)
    }

    /// Removes a token; machines that joined with it stay. Also takes the whole token.
    pub async fn revoke(&self, id: &str) -> Result<(), TokenError> {
        let name = id.split(['.', '@']).next().unwrap_or_default();
        let is_id = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let stored = if is_id {
            self.stored(name).await.map_err(TokenError::Api)?
        } else {
            None
        };
        if stored.is_none() {
            return Err(TokenError::NoSuchToken(name.to_owned()));
        }
        self.delete(name).await
    }

    /// Whether `credential` (`ID.SECRET`) lets a machine join with this role; gives its id.
    pub async fn check(
        &self,
        credential: &str,
        role: Role,
        now: SystemTime,
    ) -> Result<String, TokenRefusal> {
        let (id, _) = split_credential(credential).ok_or(TokenRefusal::Malformed)?;
        let token = self
            .stored(id)
            .await
            .map_err(TokenRefusal::Lookup)?
            // Comparing hashes makes the timing say nothing about the secret.
            .filter(|token| token.hash == hash(credential))
            .ok_or(TokenRefusal::Unknown)?;
        if token.has_expired(now) {
            return Err(TokenRefusal::Expired {
                id: token.id,
                at: token.expires,
            });
        }
        if token.role != role.as_str() {
            return Err(TokenRefusal::Role {
                id: token.id,
                role: token.role,
                wanted: role.as_str(),
            });
        }
        Ok(token.id)
    }

    /// A token for the agent of this process, which replaces the one before.
    pub fn issue_own(&self) -> JoinToken {
        let token = self.random();
        *self.own.lock() = Some(hash(&token.credential()));
        token
    }

    /// Whether `credential` is that of [`issue_own`](Self::issue_own).
    pub fn is_own(&self, credential: &str) -> bool {
        self.own.lock().as_deref() == Some(hash(credential).as_str())
    }

    fn random(&self) -> JoinToken {
        JoinToken {
            id: random_text(ID_LENGTH),
            secret: random_text(SECRET_LENGTH),
            ca_hash: self.ca_hash,
        }
    }

    async fn stored(&self, id: &str) -> Result<Option<TokenInfo>, Status> {
        match self
            .client
            .get::<Secret>(Some(NAMESPACE), &format!("{NAME_PREFIX}{id}"))
            .await
        {
            Ok(secret) => Ok(info(&secret)),
            Err(status) if status.is_not_found() => Ok(None),
            Err(status) => Err(status),
        }
    }

    async fn delete(&self, id: &str) -> Result<(), TokenError> {
        let deleted = self
            .client
            .delete::<Secret>(
                Some(NAMESPACE),
                &format!("{NAME_PREFIX}{id}"),
                &DeleteParams::default(),
            )
            .await;
        match deleted {
            Err(status) if !status.is_not_found() => Err(TokenError::Api(status)),
            _ => Ok(()),
        }
    }

    async fn forget_old(&self, now: SystemTime) -> Result<(), TokenError> {
        for token in self.list().await? {
            if token.has_expired(now - REMEMBERED) {
                self.delete(&token.id).await?;
            }
        }
        Ok(())
    }
}

fn random_text(length: usize) -> String {
    let mut random = rand::rng();
    (0..length)
        .map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]))
        .collect()
}

fn hash(credential: &str) -> String {
    hex::encode(Sha256::digest(credential))
}

fn timestamp(time: SystemTime) -> Timestamp {
    let seconds = i64::try_from(clock::unix_seconds(time)).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

fn secret(token: &JoinToken, role: Role, expires: SystemTime, description: &str) -> Secret {
    let data: BTreeMap<String, ByteString> = [
        (HASH, hash(&token.credential())),
        (ROLE, role.as_str().to_owned()),
        (EXPIRATION, timestamp(expires).to_string()),
        (DESCRIPTION, description.to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), ByteString(value.into_bytes())))
    .collect();
    Secret {
        metadata: ObjectMeta {
            name: Some(format!("{NAME_PREFIX}{}", token.id)),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

/// What a Secret says; one that was tampered with until it says nothing is no token.
fn info(secret: &Secret) -> Option<TokenInfo> {
    let id = secret.metadata.name.as_deref()?.strip_prefix(NAME_PREFIX)?;
    if secret.type_.as_deref() != Some(SECRET_TYPE) {
        return None;
    }
    let text = |name: &str| {
        let value = secret.data.as_ref()?.get(name)?;
        String::from_utf8(value.0.clone()).ok()
    };
    Some(TokenInfo {
        id: id.to_owned(),
        role: text(ROLE)?,
        description: text(DESCRIPTION).unwrap_or_default(),
        expires: text(EXPIRATION)?.parse().ok()?,
        hash: text(HASH)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestApi;

    const HOUR: Duration = Duration::from_hours(1);

    #[tokio::test(flavor = "multi_thread")]
    async fn a_token_is_good_until_it_expires_or_is_revoked() {
        let api = TestApi::start().await;
        let tokens = JoinTokens::new(api.client(), [7; 32]);
        let now = clock::now();
        let token = tokens
            .create(Role::Agent, HOUR, "rack 4", now)
            .await
            .unwrap();
        let shown = token.credential();
        assert_eq!(
            tokens.check(&shown, Role::Agent, now).await.unwrap(),
            token.id
        );

        // Only the hash is stored.
        let stored: Secret = api
            .client()
            .get(Some(NAMESPACE), &format!("{NAME_PREFIX}{}", token.id))
            .await
            .unwrap();
        let text = serde_json::to_string(&stored).unwrap();
        let dumped = format!("{text}{:?}", stored.data);
        assert!(!dumped.contains(&token.secret));

        let wrong = format!("{}.{}", token.id, "0".repeat(SECRET_LENGTH));
        for unknown in [wrong, format!("zzzzzz.{}", token.secret)] {
            let refusal = tokens.check(&unknown, Role::Agent, now).await.unwrap_err();
            assert!(matches!(refusal, TokenRefusal::Unknown), "{refusal}");
        }
        let refusal = tokens.check("", Role::Agent, now).await.unwrap_err();
        assert!(matches!(refusal, TokenRefusal::Malformed));
        let later = now + HOUR + Duration::from_secs(1);
        let refusal = tokens.check(&shown, Role::Agent, later).await.unwrap_err();
        assert!(matches!(refusal, TokenRefusal::Expired { .. }), "{refusal}");

        let listed = tokens.list().await.unwrap();
        assert_eq!(
            (listed.len(), listed[0].description.as_str()),
            (1, "rack 4")
        );
        tokens.revoke(&token.to_string()).await.unwrap();
        let refusal = tokens.check(&shown, Role::Agent, now).await.unwrap_err();
        assert!(matches!(refusal, TokenRefusal::Unknown), "{refusal}");
        assert!(matches!(
            tokens.revoke(&token.id).await,
            Err(TokenError::NoSuchToken(_))
        ));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tokens_of_the_past_are_removed_and_lives_are_bounded() {
        let api = TestApi::start().await;
        let tokens = JoinTokens::new(api.client(), [7; 32]);
        let now = clock::now();
        tokens.create(Role::Agent, HOUR, "", now).await.unwrap();
        let later = now + HOUR + REMEMBERED + HOUR;
        let second = tokens.create(Role::Agent, HOUR, "", later).await.unwrap();
        let ids: Vec<_> = tokens
            .list()
            .await
            .unwrap()
            .into_iter()
            .map(|t| t.id)
            .collect();
        assert_eq!(ids, [second.id]);
        for life in [Duration::ZERO, LONGEST_LIFE + HOUR] {
            let refused = tokens.create(Role::Agent, life, "", now).await;
            assert!(matches!(refused, Err(TokenError::Life)));
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_own_agents_token_is_stored_nowhere() {
        let api = TestApi::start().await;
        let tokens = JoinTokens::new(api.client(), [7; 32]);
        let first = tokens.issue_own().credential();
        assert!(tokens.is_own(&first));
        let second = tokens.issue_own().credential();
        assert!(tokens.is_own(&second) && !tokens.is_own(&first) && !tokens.is_own(""));
        assert!(tokens.list().await.unwrap().is_empty());
    }
}
