//! SHA-256 digests, and readers and writers that compute one on the way.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::types::ImageError;

/// `sha256:` and 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(hex::encode(Sha256::digest(bytes)))
    }

    /// Without the algorithm.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{}", self.0)
    }
}

impl FromStr for Digest {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        text.strip_prefix("sha256:")
            .filter(|hex| {
                hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            })
            .map(|hex| Self(hex.to_owned()))
            .ok_or_else(|| ImageError::BadDigest {
                digest: text.to_owned(),
            })
    }
}

impl TryFrom<String> for Digest {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Self, ImageError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Computes a digest piece by piece.
#[derive(Debug, Clone, Default)]
pub(super) struct Hasher(Sha256);

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> Digest {
        Digest(hex::encode(self.0.finalize()))
    }
}

/// Computes the digest of what is read through it.
#[derive(Debug)]
pub(super) struct HashingReader<R> {
    inner: R,
    hasher: Hasher,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner,
            hasher: Hasher::default(),
        }
    }

    /// Reads what is left and gives the digest of everything.
    pub(super) fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.hasher.finish())
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hasher.update(buffer.get(..length).unwrap_or_default());
        Ok(length)
    }
}

/// Chain id of a layer on top of another (OCI image spec, "Layer ChainID").
pub(super) fn chain(parent: Option<&Digest>, diff: &Digest) -> Digest {
    match parent {
        None => diff.clone(),
        Some(parent) => Digest::of(format!("{parent} {diff}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_parse_strictly() {
        let empty = Digest::of(b"");
        assert!(empty.to_string().starts_with("sha256:e3b0c44298fc1c14"));
        assert_eq!(empty.to_string().parse::<Digest>().unwrap(), empty);
        for bad in ["sha256:", "sha512:00", "e3b0", "sha256:../../../etc/passwd"] {
            assert!(bad.parse::<Digest>().is_err());
        }
    }

    #[test]
    fn readers_hash_everything() {
        let mut reader = HashingReader::new(&b"hello world"[..]);
        reader.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(reader.finish().unwrap(), Digest::of(b"hello world"));
    }
}
