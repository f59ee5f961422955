//! Bootstrap tokens: what a node shows once to get its certificate.
//!
//! Owns the hashes of the tokens that are valid now; [`crate::join`] asks it. Only hashes are
//! kept, so that a dump of memory or of a log gives no way in.

use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// The tokens that are valid now.
#[derive(Debug, Default)]
pub struct BootstrapTokens {
    tokens: Mutex<Vec<TokenHash>>,
}

#[derive(Debug)]
struct TokenHash {
    hash: [u8; 32],
    expires: SystemTime,
}

impl BootstrapTokens {
    /// Makes a token that is good until `ttl` from `now`.
    pub fn issue(&self, ttl: Duration, now: SystemTime) -> String {
        let token = hex::encode(rand::random::<[u8; 24]>());
        let mut tokens = self.tokens.lock();
        tokens.retain(|t| t.expires > now);
        tokens.push(TokenHash {
            hash: Sha256::digest(&token).into(),
            expires: now + ttl,
        });
        token
    }

    /// Whether `token` is one of them. Comparing hashes makes the timing say nothing about the
    /// token.
    pub fn accepts(&self, token: &str, now: SystemTime) -> bool {
        let hash: [u8; 32] = Sha256::digest(token).into();
        self.tokens
            .lock()
            .iter()
            .any(|t| t.hash == hash && t.expires > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_until_it_expires() {
        let tokens = BootstrapTokens::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let token = tokens.issue(Duration::from_mins(1), now);
        assert!(tokens.accepts(&token, now));
        assert!(!tokens.accepts("", now));
        assert!(!tokens.accepts(&token[1..], now));
        assert!(!tokens.accepts(&token, now + Duration::from_secs(61)));
    }
}
