//! The image store's vocabulary: records, requests, progress and errors.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

/// What [`super::ImageStore`] needs.
#[derive(Debug, Clone, Default)]
pub struct ImageConfig {
    /// Directory of the store (`data-dir/agent/images`).
    pub root: PathBuf,
    /// Mirrors by registry name (`docker.io`), tried in order before it.
    pub mirrors: BTreeMap<String, Vec<Mirror>>,
}

/// Where to ask instead of a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// `host[:port]`.
    pub host: String,
    /// Plain HTTP instead of HTTPS.
    pub plain_http: bool,
}

/// What to pull.
#[derive(Debug, Clone, Default)]
pub struct PullRequest {
    /// Reference as the pod has it (`nginx:1.27`).
    pub reference: String,
    /// Credentials to try, from imagePullSecrets; first match by registry.
    pub logins: Vec<RegistryLogin>,
}

/// A login for a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    /// Registry host as in `auths` of a docker config (`https://…/v1/` is fine).
    pub registry: String,
    /// User.
    pub username: String,
    /// Password or token.
    pub password: String,
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RegistryLogin")
            .field("registry", &self.registry)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// How far a pull or import is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The manifest is known: number of layers and compressed bytes in all.
    Resolved {
        /// Layers.
        layers: usize,
        /// Bytes of those not yet in the store.
        bytes: u64,
    },
    /// Bytes of layers received so far.
    Downloaded {
        /// Bytes.
        bytes: u64,
    },
    /// A layer is on disk.
    Unpacked {
        /// Its position.
        layer: usize,
    },
}

/// Receives progress; called from the task that does the work.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Digest of the config: the image id.
    pub id: String,
    /// Digest of the manifest.
    pub manifest_digest: String,
    /// Normalised `registry/repository:tag` names.
    pub repo_tags: Vec<String>,
    /// `registry/repository@digest` names.
    pub repo_digests: Vec<String>,
    /// Compressed bytes of layers and config.
    pub size: u64,
    /// Chain ids of the layers, lowest first.
    pub layers: Vec<String>,
    /// The image's config.
    pub config: ImageConfiguration,
}

/// Why an image operation failed. Displayed as a pod's status shows it.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The reference cannot be parsed.
    #[error("invalid reference format: {reference:?}: {reason}")]
    InvalidReference {
        /// As given.
        reference: String,
        /// What is wrong.
        reason: String,
    },
    /// Not in the store.
    #[error("image {reference:?} is not present")]
    NotFound {
        /// As given.
        reference: String,
    },
    /// The registry has no such image.
    #[error("failed to pull {reference:?}: {message}")]
    RegistryNotFound {
        /// Normalised reference.
        reference: String,
        /// The registry's words.
        message: String,
    },
    /// The registry wants (other) credentials.
    #[error("failed to pull {reference:?}: {message}")]
    Unauthorized {
        /// Normalised reference.
        reference: String,
        /// The registry's words.
        message: String,
    },
    /// The registry could not be reached or failed.
    #[error("failed to pull {reference:?}: {message}")]
    Registry {
        /// Normalised reference.
        reference: String,
        /// What it said, or why it could not be asked.
        message: String,
    },
    /// Another task's pull of the same image failed.
    #[error("{message}")]
    SharedPull {
        /// That failure's words.
        message: String,
    },
    /// No manifest of an index fits this machine.
    #[error("no match for platform {platform} in the manifest of {reference:?}")]
    NoPlatform {
        /// Reference or archive.
        reference: String,
        /// This machine's.
        platform: String,
    },
    /// Content is not what its digest says.
    #[error("digest mismatch of {what}: expected {expected}, got {actual}")]
    DigestMismatch {
        /// Blob or layer.
        what: String,
        /// Promised.
        expected: String,
        /// Computed.
        actual: String,
    },
    /// A digest that is not `sha256:` and 64 hex digits.
    #[error("unsupported digest {digest:?}")]
    BadDigest {
        /// As found.
        digest: String,
    },
    /// An archive or layout that is neither.
    #[error("{path} is no OCI layout, OCI archive or docker archive: {reason}")]
    BadArchive {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A manifest, index or config that cannot be understood.
    #[error("malformed {what}")]
    Malformed {
        /// Which document.
        what: String,
        /// Where parsing stopped.
        source: serde_json::Error,
    },
    /// A layer that cannot be unpacked.
    #[error("cannot unpack layer {layer}: {entry}")]
    Unpack {
        /// Digest.
        layer: String,
        /// Which entry, or what was being done.
        entry: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A media type we do not know.
    #[error("unsupported layer media type {media_type:?}")]
    UnsupportedMediaType {
        /// As given.
        media_type: String,
    },
    /// The program is shutting down, or the work panicked.
    #[error("interrupted")]
    Interrupted {
        /// Which of the two.
        source: tokio::task::JoinError,
    },
    /// The store's own files.
    #[error("image store: cannot {operation} {path}")]
    Store {
        /// `write`, ….
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}
