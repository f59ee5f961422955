//! The image store: pull, import, unpack, and root file systems for containers.
//!
//! Owns `data-dir/agent/images`. Watches nothing; the pod worker and the
//! command line ask. Blobs are kept by digest, layers are unpacked once per
//! chain id, and an image becomes visible only when all of it is on disk.

mod types;

use std::path::Path;
use std::sync::Arc;

pub use pintle_shim::spec::RootfsSpec;
pub use types::{
    ImageConfig, ImageError, ImageRecord, Mirror, Progress, ProgressFn, PullRequest, RegistryLogin,
};

/// Handle to the node's images; cheap to clone.
#[derive(Debug, Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ImageConfig,
}

impl ImageStore {
    /// Opens (or makes) the store and drops what an interrupted pull left.
    pub async fn open(config: ImageConfig) -> Result<Self, ImageError> {
        Ok(Self {
            inner: Arc::new(Inner { config }),
        })
    }

    /// Pulls an image. Concurrent pulls of one image share the work.
    pub async fn pull(
        &self,
        request: PullRequest,
        _progress: ProgressFn,
    ) -> Result<ImageRecord, ImageError> {
        Err(ImageError::NotFound {
            reference: request.reference,
        })
    }

    /// The image behind a reference (`nginx:1.27`, `name@sha256:…`, or an id).
    pub fn lookup(&self, _reference: &str) -> Option<ImageRecord> {
        None
    }

    /// Imports an OCI layout directory, an OCI archive or a docker archive.
    pub async fn import(
        &self,
        path: &Path,
        _progress: ProgressFn,
    ) -> Result<Vec<ImageRecord>, ImageError> {
        Err(ImageError::NotFound {
            reference: path.display().to_string(),
        })
    }

    /// Every image, by name.
    pub fn list(&self) -> Vec<ImageRecord> {
        Vec::new()
    }

    /// Forgets a name; the content goes when no name and no container uses it.
    pub async fn remove(&self, reference: &str) -> Result<(), ImageError> {
        Err(ImageError::NotFound {
            reference: reference.to_owned(),
        })
    }

    /// Makes the writable directories of a container's root file system.
    /// Asking again for the same container gives the same directories.
    pub async fn prepare(
        &self,
        _container_id: &str,
        image_id: &str,
    ) -> Result<RootfsSpec, ImageError> {
        Err(ImageError::NotFound {
            reference: image_id.to_owned(),
        })
    }

    /// Removes a container's writable directories. Idempotent.
    pub async fn release(&self, _container_id: &str) -> Result<(), ImageError> {
        Ok(())
    }

    /// Removes writable directories of containers not in `live`, and blobs and
    /// layers that no image uses. Returns the bytes of blobs freed.
    pub async fn gc(&self, _live: &[String]) -> Result<u64, ImageError> {
        let _ = &self.inner.config;
        Ok(0)
    }
}
