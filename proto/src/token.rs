//! The text of a join token, which an operator carries from a server to a new machine.
//!
//! ```text
//! k3x9fa.8wq…24 characters…@sha256:9f86d0…64 hex digits
//! ID     SECRET             hash of the cluster CA's public key (SubjectPublicKeyInfo, DER)
//! ```
//!
//! The hash is what the new machine knows the cluster by: it trusts no server whose certificate
//! the CA with this key did not sign, and shows the secret to nobody else. Pure; both sides of
//! the Join service read and write it here.

use std::fmt;
use std::str::FromStr;

/// Length of a token's id.
pub const ID_LENGTH: usize = 6;
/// Length of a token's secret: 124 bits, so that its hash at rest needs no slow function.
pub const SECRET_LENGTH: usize = 24;

/// Identity and secret of a token, and the CA it is for.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Names the token; not secret.
    pub id: String,
    /// Proves that its bearer was given the token.
    pub secret: String,
    /// SHA-256 of the CA's public key.
    pub ca_hash: [u8; 32],
}

/// The text is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFormatError {
    /// There is no `@`.
    #[error(
        "the token has no `@sha256:…` at its end; copy the whole line that `pintle token create` printed"
    )]
    NoHash,
    /// What follows the `@` is no hash.
    #[error("the token does not end in `sha256:` and 64 hexadecimal digits; copy it whole")]
    Hash,
    /// What precedes the `@` is not `ID.SECRET`.
    #[error(
        "the token does not start with an id of {ID_LENGTH} and a secret of {SECRET_LENGTH} lower-case letters and digits, joined by a dot; copy it whole"
    )]
    Credential,
}

impl JoinToken {
    /// `ID.SECRET`: what is shown to the server.
    pub fn credential(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// The two parts of `ID.SECRET`.
pub fn split_credential(credential: &str) -> Option<(&str, &str)> {
    let (id, secret) = credential.split_once('.')?;
    let fits = |text: &str, length: usize| {
        text.len() == length
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (fits(id, ID_LENGTH) && fits(secret, SECRET_LENGTH)).then_some((id, secret))
}

impl FromStr for JoinToken {
    type Err = TokenFormatError;

    fn from_str(text: &str) -> Result<Self, TokenFormatError> {
        let (credential, hash) = text
            .trim()
            .rsplit_once('@')
            .ok_or(TokenFormatError::NoHash)?;
        let ca_hash = hash
            .strip_prefix("sha256:")
            .and_then(unhex)
            .ok_or(TokenFormatError::Hash)?;
        let (id, secret) = split_credential(credential).ok_or(TokenFormatError::Credential)?;
        Ok(Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
            ca_hash,
        })
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@sha256:{}", self.credential(), Hex(&self.ca_hash))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_being_written_and_read() {
        let token = JoinToken {
            id: "abc123".to_owned(),
            secret: "0123456789abcdefghijklmn".to_owned(),
            ca_hash: [0xa7; 32],
        };
        let text = token.to_string();
        assert!(text.starts_with("abc123.0123456789abcdefghijklmn@sha256:a7a7"));
        assert_eq!(format!(" {text}\n").parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains("0123456789"));
    }

    #[test]
    fn what_is_no_token_says_what_is_missing() {
        let hash = "a".repeat(64);
        for (text, error) in [
            ("abc123.0123456789abcdefghijklmn", TokenFormatError::NoHash),
            (
                "abc123.0123456789abcdefghijklmn@sha256:abc",
                TokenFormatError::Hash,
            ),
            (
                &format!("abc123.short@sha256:{hash}"),
                TokenFormatError::Credential,
            ),
            (
                &format!("ABC123.0123456789abcdefghijklmn@sha256:{hash}"),
                TokenFormatError::Credential,
            ),
            (
                &format!("abc123.0123456789abcdefghijklmn@sha256:é{}", &hash[..62]),
                TokenFormatError::Hash,
            ),
            ("", TokenFormatError::NoHash),
        ] {
            assert_eq!(text.parse::<JoinToken>(), Err(error), "{text}");
        }
    }
}
