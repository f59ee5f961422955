//! The image store: pull, import, unpack, and root file systems for containers.
//!
//! Owns `data-dir/agent/images`. Watches nothing; the pod worker and the
//! command line ask. Blobs are kept by digest, layers are unpacked once per
//! chain id, and an image becomes visible only when all of it is on disk.
//!
//! ```text
//! registry ─┐
//!           ├─▶ blobs ─▶ layer: snapshots ─▶ index.json ─▶ lookup, prepare
//! archive ──┘                                    (visible)
//! ```

mod archive;
mod digest;
mod layer;
mod login;
mod manifest;
mod reference;
mod registry;
mod store;
mod types;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use oci_spec::image::ImageConfiguration;
use parking_lot::Mutex;
use tokio::sync::{RwLock, watch};

pub use digest::Digest;
pub use pintle_shim::spec::RootfsSpec;
pub use reference::Reference;
pub use types::{
    ImageConfig, ImageError, ImageRecord, Mirror, Progress, ProgressFn, PullRequest, RegistryLogin,
};

use archive::Found;
use store::{Disk, Stored};

/// Handle to the node's images; cheap to clone.
#[derive(Debug, Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ImageConfig,
    disk: Disk,
    /// Pulls and imports share it; garbage collection has it alone, since it
    /// cannot tell an unfinished image's blobs from garbage.
    writers: RwLock<()>,
    /// Layers are unpacked one at a time: the disk is the limit.
    unpacking: tokio::sync::Mutex<()>,
    pulls: Mutex<HashMap<String, watch::Receiver<Option<Outcome>>>>,
}

/// How a pull ended, for those who only waited for it.
type Outcome = Result<Box<ImageRecord>, String>;

/// Takes a pull off the list however it ends.
struct Pulling<'a> {
    store: &'a Inner,
    key: String,
    done: watch::Sender<Option<Outcome>>,
}

impl Drop for Pulling<'_> {
    fn drop(&mut self) {
        self.store.pulls.lock().remove(&self.key);
    }
}

impl ImageStore {
    /// Opens (or makes) the store and drops what an interrupted pull left.
    pub async fn open(config: ImageConfig) -> Result<Self, ImageError> {
        let root = config.root.clone();
        let disk = blocking(move || Disk::open(&root)).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                disk,
                writers: RwLock::new(()),
                unpacking: tokio::sync::Mutex::new(()),
                pulls: Mutex::new(HashMap::new()),
            }),
        })
    }

    /// Pulls an image. Concurrent pulls of one image with the same logins
    /// share the work.
    pub async fn pull(
        &self,
        request: PullRequest,
        progress: ProgressFn,
    ) -> Result<ImageRecord, ImageError> {
        let reference: Reference = request.reference.parse()?;
        let login = login::select(&request.logins, &reference);
        let key = format!("{reference} {login:?}");
        loop {
            let waiting = {
                let mut pulls = self.inner.pulls.lock();
                if let Some(pull) = pulls.get(&key) {
                    Err(pull.clone())
                } else {
                    let (done, receiver) = watch::channel(None);
                    pulls.insert(key.clone(), receiver);
                    Ok(Pulling {
                        store: &self.inner,
                        key: key.clone(),
                        done,
                    })
                }
            };
            let mut pull = match waiting {
                Ok(pulling) => {
                    let result = self
                        .pull_alone(&reference, &request.logins, &progress)
                        .await;
                    let outcome = match &result {
                        Ok(record) => Ok(Box::new(record.clone())),
                        Err(error) => Err(error.to_string()),
                    };
                    pulling.done.send_replace(Some(outcome));
                    return result;
                }
                Err(pull) => pull,
            };
            let outcome = pull
                .wait_for(Option::is_some)
                .await
                .map(|outcome| outcome.clone());
            match outcome {
                Ok(Some(Ok(record))) => return Ok(*record),
                Ok(Some(Err(message))) => return Err(ImageError::SharedPull { message }),
                // Whoever pulled gave up half-way; do it here.
                Ok(None) | Err(_) => {}
            }
        }
    }

    async fn pull_alone(
        &self,
        reference: &Reference,
        logins: &[RegistryLogin],
        progress: &ProgressFn,
    ) -> Result<ImageRecord, ImageError> {
        let _writing = self.inner.writers.read().await;
        let key = registry::mirror_key(&reference.registry);
        let mirrors = self
            .inner
            .config
            .mirrors
            .get(key)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut first_error = None;
        for source in registry::sources(reference, mirrors, logins) {
            match self.pull_from(&source, reference, progress).await {
                Ok(record) => return Ok(record),
                Err(error) if registry::may_try_next(&error) => {
                    tracing::debug!(%reference, %error, "a registry could not serve an image");
                    // A mirror's "not found" says more than a registry that
                    // cannot be reached.
                    let keep = matches!(first_error, Some(ImageError::RegistryNotFound { .. }));
                    if !keep {
                        first_error = Some(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(first_error.unwrap_or_else(|| ImageError::NotFound {
            reference: reference.to_string(),
        }))
    }

    async fn pull_from(
        &self,
        source: &registry::Source,
        reference: &Reference,
        progress: &ProgressFn,
    ) -> Result<ImageRecord, ImageError> {
        let disk = &self.inner.disk;
        let (digest, manifest) = source.resolve(disk).await?;
        let mut found = source.fetch(disk, digest, &manifest, progress).await?;
        found.names = vec![reference.clone()];
        self.install(found, progress).await
    }

    /// The image behind a reference (`nginx:1.27`, `name@sha256:…`, or an id).
    pub fn lookup(&self, reference: &str) -> Option<ImageRecord> {
        let disk = &self.inner.disk;
        if let Some(record) = disk.by_id(reference) {
            return Some(record);
        }
        let is_hex = reference.len() == 64 && reference.bytes().all(|b| b.is_ascii_hexdigit());
        if is_hex && let Some(record) = disk.by_id(&format!("sha256:{reference}")) {
            return Some(record);
        }
        disk.by_reference(&reference.parse().ok()?)
    }

    /// Imports an OCI layout directory, an OCI archive or a docker archive
    /// (plain, gzip or zstd).
    pub async fn import(
        &self,
        path: &Path,
        progress: ProgressFn,
    ) -> Result<Vec<ImageRecord>, ImageError> {
        let _writing = self.inner.writers.read().await;
        let inner = Arc::clone(&self.inner);
        let source = path.to_owned();
        let images = blocking(move || archive::read(&inner.disk, &source)).await?;
        progress(Progress::Resolved {
            layers: images.iter().map(|image| image.layers.len()).sum(),
            bytes: 0,
        });
        let mut records = Vec::with_capacity(images.len());
        for image in images {
            records.push(self.install(image, &progress).await?);
        }
        Ok(records)
    }

    /// Unpacks an image whose blobs are there, and makes it visible.
    async fn install(
        &self,
        found: Found,
        progress: &ProgressFn,
    ) -> Result<ImageRecord, ImageError> {
        let config: ImageConfiguration =
            manifest::parse("image config", &self.inner.disk.read_blob(&found.config)?)?;
        let diffs = config
            .rootfs()
            .diff_ids()
            .iter()
            .map(|diff| diff.parse())
            .collect::<Result<Vec<Digest>, _>>()?;
        if diffs.len() != found.layers.len() {
            return Err(ImageError::DigestMismatch {
                what: "number of layers".to_owned(),
                expected: diffs.len().to_string(),
                actual: found.layers.len().to_string(),
            });
        }
        let mut chains: Vec<Digest> = Vec::with_capacity(diffs.len());
        for (position, (layer, diff)) in found.layers.iter().zip(&diffs).enumerate() {
            let chain = digest::chain(chains.last(), diff);
            if !self.inner.disk.has_snapshot(&chain) {
                let _turn = self.inner.unpacking.lock().await;
                let inner = Arc::clone(&self.inner);
                let (layer, diff, key) = (layer.clone(), diff.clone(), chain.clone());
                blocking(move || inner.disk.unpack(&layer, &diff, &key)).await?;
            }
            progress(Progress::Unpacked { layer: position });
            chains.push(chain);
        }
        let repo_digests = found
            .names
            .iter()
            .map(|name| format!("{}@{}", name.name(), found.manifest_digest))
            .collect();
        let blobs = [found.manifest_digest.clone(), found.config.clone()]
            .into_iter()
            .chain(found.layers.iter().cloned())
            .collect();
        let record = ImageRecord {
            id: found.config.to_string(),
            manifest_digest: found.manifest_digest.to_string(),
            repo_tags: found.names.iter().filter_map(Reference::tagged).collect(),
            repo_digests,
            size: found.size,
            layers: chains.iter().map(Digest::to_string).collect(),
            config,
        };
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.disk.add(Stored { record, blobs })).await
    }

    /// Every image, by id.
    pub fn list(&self) -> Vec<ImageRecord> {
        self.inner.disk.list()
    }

    /// Forgets a name or, by id, an image; the content goes when no name and
    /// no container uses it.
    pub async fn remove(&self, reference: &str) -> Result<(), ImageError> {
        let forgotten = if self.inner.disk.by_id(reference).is_some() {
            self.inner.disk.forget_id(reference)?
        } else {
            self.inner.disk.forget(&reference.parse()?)?
        };
        if !forgotten {
            return Err(ImageError::NotFound {
                reference: reference.to_owned(),
            });
        }
        // While images arrive the content stays until the next collection.
        if let Ok(_alone) = self.inner.writers.try_write() {
            let inner = Arc::clone(&self.inner);
            blocking(move || inner.disk.sweep()).await?;
        }
        Ok(())
    }

    /// Makes the writable directories of a container's root file system.
    /// Asking again for the same container gives the same directories.
    #[expect(
        clippy::unused_async,
        reason = "callers should not depend on it never waiting"
    )]
    pub async fn prepare(
        &self,
        container_id: &str,
        image_id: &str,
    ) -> Result<RootfsSpec, ImageError> {
        // A few directories: done before a thread would have started on it.
        self.inner.disk.prepare(container_id, image_id)
    }

    /// Removes a container's writable directories. Idempotent.
    pub async fn release(&self, container_id: &str) -> Result<(), ImageError> {
        let inner = Arc::clone(&self.inner);
        let container_id = container_id.to_owned();
        blocking(move || inner.disk.release(&container_id)).await
    }

    /// Removes writable directories of containers not in `live`, and blobs and
    /// layers that no image uses. Returns the bytes of blobs freed. Waits for
    /// pulls under way.
    pub async fn gc(&self, live: &[String]) -> Result<u64, ImageError> {
        let _alone = self.inner.writers.write().await;
        let inner = Arc::clone(&self.inner);
        let live = live.to_vec();
        blocking(move || inner.disk.collect(&live)).await
    }
}

/// Runs file work where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ImageError::Interrupted { source: error }),
    }
}
