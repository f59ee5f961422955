//! The image store on disk: blobs, snapshots, containers' directories, index.
//!
//! ```text
//! blobs/sha256/HEX      content, complete and verified
//! ingest/               what is on its way; emptied at start
//! snapshots/N/          unpacked layers, short names for overlayfs
//! containers/ID/        upper, work, merged, and the layers it stands on
//! index.json            images, names and chain ids; replaced as a whole
//! ```
//!
//! Nothing is in the index before all of it is synced, so a crash at any
//! moment leaves files that [`Disk::open`] and garbage collection remove.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pintle_shim::spec::RootfsSpec;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::layer;
use super::reference::Reference;
use super::types::{ImageError, ImageRecord};

/// An image with everything it keeps alive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) record: ImageRecord,
    /// Manifest, config and layers.
    pub(super) blobs: Vec<Digest>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    next_snapshot: u64,
    /// Chain id to directory number.
    snapshots: BTreeMap<Digest, u64>,
    /// By image id.
    images: BTreeMap<String, Stored>,
}

/// The store's directories and index.
#[derive(Debug)]
pub(super) struct Disk {
    root: PathBuf,
    index: Mutex<Index>,
    next_temporary: AtomicU64,
    /// Containers prepared by this process and not yet released: never
    /// garbage, whatever a slightly older list of live ones says.
    prepared: Mutex<BTreeSet<String>>,
}

pub(super) fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Store {
        operation,
        path,
        source,
    }
}

impl Disk {
    pub(super) fn open(root: &Path) -> Result<Self, ImageError> {
        for dir in ["blobs/sha256", "ingest", "snapshots", "containers"] {
            let path = root.join(dir);
            fs::create_dir_all(&path).map_err(failed("create", &path))?;
        }
        // Layers hold set-uid programs that are nobody's business here.
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))
            .map_err(failed("protect", root))?;
        let file = root.join("index.json");
        let index: Index = match fs::read(&file) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|source| ImageError::Malformed {
                    what: file.display().to_string(),
                    source,
                })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Index::default(),
            Err(error) => return Err(failed("read", &file)(error)),
        };
        let disk = Self {
            root: root.to_owned(),
            index: Mutex::new(index),
            next_temporary: AtomicU64::new(0),
            prepared: Mutex::new(BTreeSet::new()),
        };
        disk.discard_unfinished()?;
        Ok(disk)
    }

    fn discard_unfinished(&self) -> Result<(), ImageError> {
        for entry in entries(&self.root.join("ingest"))? {
            remove(&entry)?;
        }
        let known: BTreeSet<String> = self
            .index
            .lock()
            .snapshots
            .values()
            .map(u64::to_string)
            .collect();
        for entry in entries(&self.root.join("snapshots"))? {
            let name = entry
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if !known.contains(name) {
                remove(&entry)?;
            }
        }
        Ok(())
    }

    /// A path under `ingest` that nobody else uses.
    pub(super) fn temporary(&self) -> PathBuf {
        let n = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        self.root.join("ingest").join(n.to_string())
    }

    pub(super) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    pub(super) fn has_blob(&self, digest: &Digest) -> bool {
        self.blob_path(digest).exists()
    }

    pub(super) fn read_blob(&self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        let path = self.blob_path(digest);
        fs::read(&path).map_err(failed("read", &path))
    }

    /// Keeps a small blob. The caller has verified it.
    pub(super) fn write_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<(), ImageError> {
        if self.has_blob(digest) {
            return Ok(());
        }
        let path = self.temporary();
        fs::write(&path, bytes).map_err(failed("write", &path))?;
        self.keep(&path, digest)
    }

    /// Moves a verified file to its place among the blobs.
    pub(super) fn keep(&self, file: &Path, digest: &Digest) -> Result<(), ImageError> {
        File::open(file)
            .and_then(|file| file.sync_all())
            .map_err(failed("sync", file))?;
        fs::rename(file, self.blob_path(digest)).map_err(failed("keep", file))
    }

    pub(super) fn has_snapshot(&self, chain: &Digest) -> bool {
        self.index.lock().snapshots.contains_key(chain)
    }

    /// Unpacks a layer's blob, unless that was done. One at a time (the caller
    /// sees to it); the index is written when the whole image is there.
    pub(super) fn unpack(
        &self,
        blob: &Digest,
        diff: &Digest,
        chain: &Digest,
    ) -> Result<(), ImageError> {
        if self.has_snapshot(chain) {
            return Ok(());
        }
        let temporary = self.temporary();
        make_dir(&temporary, 0o755)?;
        let path = self.blob_path(blob);
        let file = File::open(&path).map_err(failed("open", &path))?;
        if let Err(error) = layer::unpack(file, blob, diff, &temporary) {
            remove(&temporary)?;
            return Err(error);
        }
        let mut index = self.index.lock();
        index.next_snapshot += 1;
        let number = index.next_snapshot;
        let place = self.root.join("snapshots").join(number.to_string());
        fs::rename(&temporary, &place).map_err(failed("place", &place))?;
        index.snapshots.insert(chain.clone(), number);
        Ok(())
    }

    /// Makes a complete image visible, durably. Its names leave other images.
    pub(super) fn add(&self, mut stored: Stored) -> Result<ImageRecord, ImageError> {
        // Layers are many small files; one sync of the file system for all.
        File::open(&self.root)
            .and_then(|dir| rustix::fs::syncfs(&dir).map_err(io::Error::from))
            .map_err(failed("sync", &self.root))?;
        let mut index = self.index.lock();
        let id = stored.record.id.clone();
        for (other, image) in &mut index.images {
            if *other == id {
                merge(&mut stored.record.repo_tags, &image.record.repo_tags);
                merge(&mut stored.record.repo_digests, &image.record.repo_digests);
                image.blobs.iter().for_each(|blob| {
                    if !stored.blobs.contains(blob) {
                        stored.blobs.push(blob.clone());
                    }
                });
            } else {
                image
                    .record
                    .repo_tags
                    .retain(|tag| !stored.record.repo_tags.contains(tag));
            }
        }
        let record = stored.record.clone();
        index.images.insert(id, stored);
        self.save(&index)?;
        Ok(record)
    }

    fn save(&self, index: &Index) -> Result<(), ImageError> {
        let file = self.root.join("index.json");
        let fresh = self.root.join("index.json.new");
        let write = || -> io::Result<()> {
            let mut out = File::create(&fresh)?;
            out.write_all(&serde_json::to_vec(index)?)?;
            out.sync_all()?;
            fs::rename(&fresh, &file)?;
            File::open(&self.root)?.sync_all()
        };
        write().map_err(failed("write", &file))
    }

    pub(super) fn list(&self) -> Vec<ImageRecord> {
        self.index
            .lock()
            .images
            .values()
            .map(|stored| stored.record.clone())
            .collect()
    }

    pub(super) fn by_id(&self, id: &str) -> Option<ImageRecord> {
        self.index
            .lock()
            .images
            .get(id)
            .map(|stored| stored.record.clone())
    }

    pub(super) fn by_reference(&self, reference: &Reference) -> Option<ImageRecord> {
        let index = self.index.lock();
        let mut images = index.images.values().map(|stored| &stored.record);
        let found = match (&reference.digest, reference.tagged()) {
            (Some(digest), _) => {
                let name = format!("{}@{digest}", reference.name());
                images.find(|record| record.repo_digests.contains(&name))
            }
            (None, Some(tagged)) => images.find(|record| record.repo_tags.contains(&tagged)),
            (None, None) => None,
        };
        found.cloned()
    }

    /// Removes a name, or the image with its last one. False: there is none.
    pub(super) fn forget(&self, reference: &Reference) -> Result<bool, ImageError> {
        let Some(record) = self.by_reference(reference) else {
            return Ok(false);
        };
        let mut index = self.index.lock();
        let Some(stored) = index.images.get_mut(&record.id) else {
            return Ok(false);
        };
        if reference.digest.is_none()
            && let Some(tagged) = reference.tagged()
        {
            stored.record.repo_tags.retain(|tag| *tag != tagged);
            if !stored.record.repo_tags.is_empty() {
                return self.save(&index).map(|()| true);
            }
        }
        index.images.remove(&record.id);
        self.save(&index).map(|()| true)
    }

    /// Removes an image by id with all its names.
    pub(super) fn forget_id(&self, id: &str) -> Result<bool, ImageError> {
        let mut index = self.index.lock();
        if index.images.remove(id).is_none() {
            return Ok(false);
        }
        self.save(&index).map(|()| true)
    }

    /// Makes (or finds) a container's directories.
    pub(super) fn prepare(
        &self,
        container: &str,
        image_id: &str,
    ) -> Result<RootfsSpec, ImageError> {
        let missing = || ImageError::NotFound {
            reference: image_id.to_owned(),
        };
        let chains = self.by_id(image_id).ok_or_else(missing)?.layers;
        let dir = self.container_dir(container)?;
        self.prepared.lock().insert(container.to_owned());
        let spec = |lowers| RootfsSpec {
            lowers,
            upper: dir.join("upper"),
            work: dir.join("work"),
            merged: dir.join("merged"),
        };
        let mut lowers = {
            let index = self.index.lock();
            let path = |chain: &String| {
                let number = index.snapshots.get(&chain.parse().ok()?)?;
                Some(self.root.join("snapshots").join(number.to_string()))
            };
            chains
                .iter()
                .rev()
                .map(path)
                .collect::<Option<Vec<_>>>()
                .ok_or_else(missing)?
        };
        if lowers.is_empty() {
            // An image without layers; overlayfs wants one.
            let empty = self.root.join("containers/.empty");
            make_dir(&empty, 0o755)?;
            lowers.push(empty);
        }
        make_dir(&dir, 0o700)?;
        let layers = dir.join("layers");
        fs::write(&layers, chains.join("\n")).map_err(failed("write", &layers))?;
        let spec = spec(lowers);
        for path in [&spec.upper, &spec.work, &spec.merged] {
            make_dir(path, 0o755)?;
        }
        // The merged root takes its mode from the upper directory.
        if let Some(metadata) = spec.lowers.first().and_then(|top| top.metadata().ok()) {
            fs::set_permissions(&spec.upper, metadata.permissions())
                .map_err(failed("protect", &spec.upper))?;
        }
        Ok(spec)
    }

    pub(super) fn release(&self, container: &str) -> Result<(), ImageError> {
        let dir = self.container_dir(container)?;
        self.prepared.lock().remove(container);
        remove(&dir)
    }

    fn container_dir(&self, container: &str) -> Result<PathBuf, ImageError> {
        let fine = !container.is_empty()
            && !container.starts_with('.')
            && container
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        let path = self.root.join("containers").join(container);
        if fine {
            Ok(path)
        } else {
            Err(failed("name", &path)(io::ErrorKind::InvalidFilename.into()))
        }
    }

    /// Removes containers not in `live` and what nothing refers to.
    pub(super) fn collect(&self, live: &[String]) -> Result<u64, ImageError> {
        for dir in entries(&self.root.join("containers"))? {
            let name = dir
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let in_use = live.iter().any(|id| id == name) || self.prepared.lock().contains(name);
            if name != ".empty" && !in_use {
                remove(&dir)?;
            }
        }
        self.sweep()
    }

    /// Removes blobs and snapshots that no image and no container uses.
    pub(super) fn sweep(&self) -> Result<u64, ImageError> {
        let mut chains: BTreeSet<Digest> = BTreeSet::new();
        for dir in entries(&self.root.join("containers"))? {
            let text = fs::read_to_string(dir.join("layers")).unwrap_or_default();
            chains.extend(text.lines().filter_map(|line| line.parse().ok()));
        }
        let (orphans, blobs) = {
            let mut index = self.index.lock();
            for stored in index.images.values() {
                chains.extend(
                    stored
                        .record
                        .layers
                        .iter()
                        .filter_map(|chain| chain.parse().ok()),
                );
            }
            let orphans: Vec<u64> = index
                .snapshots
                .iter()
                .filter(|(chain, _)| !chains.contains(chain))
                .map(|(_, number)| *number)
                .collect();
            index.snapshots.retain(|chain, _| chains.contains(chain));
            let blobs: BTreeSet<String> = index
                .images
                .values()
                .flat_map(|stored| stored.blobs.iter().map(|blob| blob.hex().to_owned()))
                .collect();
            // Out of the index first: a directory without an entry is removed
            // at the next start, an entry without a directory would be wrong.
            if !orphans.is_empty() {
                self.save(&index)?;
            }
            (orphans, blobs)
        };
        for number in orphans {
            remove(&self.root.join("snapshots").join(number.to_string()))?;
        }
        let mut freed = 0;
        for path in entries(&self.root.join("blobs/sha256"))? {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if !blobs.contains(name) {
                freed += path
                    .metadata()
                    .map(|metadata| metadata.len())
                    .unwrap_or_default();
                remove(&path)?;
            }
        }
        Ok(freed)
    }
}

fn merge(into: &mut Vec<String>, from: &[String]) {
    for name in from {
        if !into.contains(name) {
            into.push(name.clone());
        }
    }
    into.sort();
}

fn make_dir(path: &Path, mode: u32) -> Result<(), ImageError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        other => other.map_err(failed("create", path))?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("protect", path))
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let list = fs::read_dir(dir).map_err(failed("read", dir))?;
    Ok(list.flatten().map(|entry| entry.path()).collect())
}

/// Removes a file or tree; what is not there is removed already.
pub(super) fn remove(path: &Path) -> Result<(), ImageError> {
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(failed("remove", path)),
    }
}
