//! Imports images from OCI layouts, OCI archives and docker archives.
//!
//! An archive is first unpacked below `ingest`, plain files only; from there
//! it is read like a layout directory. Names come from the archive's own
//! annotations or tags.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use super::digest::{Digest, HashingReader};
use super::layer;
use super::manifest::{self, Descriptor, DockerImage, Document, Index, Manifest};
use super::reference::Reference;
use super::store::{Disk, failed, remove};
use super::types::ImageError;

/// An image whose blobs are all in the store.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) manifest_digest: Digest,
    pub(super) config: Digest,
    pub(super) layers: Vec<Digest>,
    /// Compressed bytes of layers and config.
    pub(super) size: u64,
    pub(super) names: Vec<Reference>,
}

/// Brings the blobs of every image in `path` into the store.
pub(super) fn read(disk: &Disk, path: &Path) -> Result<Vec<Found>, ImageError> {
    if path.is_dir() {
        return read_layout(disk, path, path);
    }
    let staging = disk.temporary();
    let result = stage(path, &staging).and_then(|()| read_layout(disk, &staging, path));
    remove(&staging)?;
    result
}

fn bad(path: &Path, reason: impl Into<String>) -> ImageError {
    ImageError::BadArchive {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// Unpacks the regular files and links of an archive.
fn stage(archive: &Path, staging: &Path) -> Result<(), ImageError> {
    fs::create_dir(staging).map_err(failed("create", staging))?;
    let unreadable = |error: io::Error| bad(archive, error.to_string());
    let file = File::open(archive).map_err(failed("open", archive))?;
    let plain = layer::decompress(file).map_err(unreadable)?;
    let mut tar = tar::Archive::new(plain);
    // Links are resolved by name here, never by the kernel: docker archives
    // use them for layers that occur twice.
    let mut links: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for entry in tar.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let name = entry.path().map_err(unreadable)?.into_owned();
        let Some(name) = inside(Path::new(""), &name) else {
            return Err(bad(
                archive,
                format!("name {} leads out of it", name.display()),
            ));
        };
        let target = staging.join(&name);
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                if let Some(parent) = target.parent() {
                    fs::create_dir_all(parent).map_err(failed("create", parent))?;
                }
                let mut out = File::create(&target).map_err(failed("create", &target))?;
                io::copy(&mut entry, &mut out).map_err(failed("write", &target))?;
            }
            kind @ (EntryType::Symlink | EntryType::Link) => {
                let Some(link) = entry.link_name().map_err(unreadable)? else {
                    continue;
                };
                let base = match kind {
                    EntryType::Symlink => name.parent().unwrap_or(Path::new("")),
                    _ => Path::new(""),
                };
                if let Some(link) = inside(base, &link) {
                    links.insert(name, link);
                }
            }
            _ => {}
        }
    }
    for (name, link) in links {
        let (from, to) = (staging.join(link), staging.join(name));
        if from.is_file() {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(failed("create", parent))?;
            }
            fs::hard_link(&from, &to).map_err(failed("link", &to))?;
        }
    }
    Ok(())
}

/// `path` relative to the archive's root, as seen from `base`.
fn inside(base: &Path, path: &Path) -> Option<PathBuf> {
    let mut result = base.to_owned();
    for component in path.components() {
        match component {
            Component::Normal(name) => result.push(name),
            Component::ParentDir => {
                if !result.pop() {
                    return None;
                }
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some(result)
}

fn read_layout(disk: &Disk, dir: &Path, shown: &Path) -> Result<Vec<Found>, ImageError> {
    let index = dir.join("index.json");
    let docker = dir.join("manifest.json");
    let mut found = if index.is_file() {
        read_oci(disk, dir, &index, shown)?
    } else if docker.is_file() {
        return read_docker(disk, dir, &docker, shown);
    } else {
        return Err(bad(shown, "it has neither index.json nor manifest.json"));
    };
    // `docker save` writes both; only the latter has all the names.
    if docker.is_file() {
        let bytes = fs::read(&docker).map_err(failed("read", &docker))?;
        let images: Vec<DockerImage> = manifest::parse("manifest.json", &bytes)?;
        for image in &mut found {
            let named = images
                .iter()
                .filter(|docker| docker.config.contains(image.config.hex()));
            for tag in named.flat_map(|docker| docker.repo_tags.iter().flatten()) {
                let reference: Reference = tag.parse()?;
                if !image.names.contains(&reference) {
                    image.names.push(reference);
                }
            }
        }
    }
    if found.is_empty() {
        return Err(bad(shown, "it holds no image for this machine"));
    }
    Ok(found)
}

fn read_oci(disk: &Disk, dir: &Path, index: &Path, shown: &Path) -> Result<Vec<Found>, ImageError> {
    let bytes = fs::read(index).map_err(failed("read", index))?;
    let index: Index = manifest::parse("index.json", &bytes)?;
    let mut found: Vec<Found> = Vec::new();
    for descriptor in &index.manifests {
        let names = names(descriptor)?;
        let Some((digest, manifest)) = resolve(dir, descriptor, shown)? else {
            continue;
        };
        if let Some(present) = found
            .iter_mut()
            .find(|image| image.manifest_digest == digest)
        {
            present.names.extend(names);
            continue;
        }
        take_blob(disk, dir, &digest)?;
        take_blob(disk, dir, &manifest.config.digest)?;
        for layer in &manifest.layers {
            manifest::check_layer(layer)?;
            take_blob(disk, dir, &layer.digest)?;
        }
        found.push(Found {
            manifest_digest: digest,
            config: manifest.config.digest.clone(),
            layers: manifest
                .layers
                .iter()
                .map(|layer| layer.digest.clone())
                .collect(),
            size: manifest.config.size
                + manifest.layers.iter().map(|layer| layer.size).sum::<u64>(),
            names,
        });
    }
    Ok(found)
}

/// Follows an index to the manifest for this machine; None when it has none.
fn resolve(
    dir: &Path,
    descriptor: &Descriptor,
    shown: &Path,
) -> Result<Option<(Digest, Manifest)>, ImageError> {
    const MOST_INDEXES: u32 = 4;
    let mut digest = descriptor.digest.clone();
    for _ in 0..MOST_INDEXES {
        let path = layout_blob(dir, &digest);
        let bytes = fs::read(&path).map_err(failed("read", &path))?;
        let actual = Digest::of(&bytes);
        if actual != digest {
            return Err(mismatch("manifest", &digest, &actual));
        }
        match manifest::parse("image manifest", &bytes)? {
            Document::Image(manifest) => return Ok(Some((digest, manifest))),
            Document::Index(index) => match index.select() {
                Some(selected) => digest = selected.digest.clone(),
                None => return Ok(None),
            },
        }
    }
    Err(bad(shown, "its indexes are nested too deeply"))
}

fn names(descriptor: &Descriptor) -> Result<Vec<Reference>, ImageError> {
    let annotation = |key: &str| descriptor.annotations.get(key).map(String::as_str);
    let full = annotation("io.containerd.image.name").or_else(|| {
        // By itself this may be a bare tag, which names nothing.
        annotation("org.opencontainers.image.ref.name").filter(|name| name.contains(['/', ':']))
    });
    full.into_iter().map(str::parse).collect()
}

fn layout_blob(dir: &Path, digest: &Digest) -> PathBuf {
    dir.join("blobs/sha256").join(digest.hex())
}

fn mismatch(what: &str, expected: &Digest, actual: &Digest) -> ImageError {
    ImageError::DigestMismatch {
        what: what.to_owned(),
        expected: expected.to_string(),
        actual: actual.to_string(),
    }
}

/// Copies a blob of a layout into the store, verifying it on the way.
fn take_blob(disk: &Disk, dir: &Path, digest: &Digest) -> Result<(), ImageError> {
    if disk.has_blob(digest) {
        return Ok(());
    }
    let (actual, copy) = copy_in(disk, &layout_blob(dir, digest))?;
    if actual != *digest {
        remove(&copy)?;
        return Err(mismatch("blob", digest, &actual));
    }
    disk.keep(&copy, digest)
}

fn copy_in(disk: &Disk, source: &Path) -> Result<(Digest, PathBuf), ImageError> {
    let copy = disk.temporary();
    let file = File::open(source).map_err(failed("open", source))?;
    let mut reader = HashingReader::new(file);
    let mut out = File::create(&copy).map_err(failed("create", &copy))?;
    io::copy(&mut reader, &mut out).map_err(failed("write", &copy))?;
    let digest = reader.finish().map_err(failed("read", source))?;
    Ok((digest, copy))
}

fn read_docker(
    disk: &Disk,
    dir: &Path,
    file: &Path,
    shown: &Path,
) -> Result<Vec<Found>, ImageError> {
    let bytes = fs::read(file).map_err(failed("read", file))?;
    let images: Vec<DockerImage> = manifest::parse("manifest.json", &bytes)?;
    let mut found = Vec::new();
    for image in images {
        let take = |name: &str| -> Result<(Digest, u64), ImageError> {
            let name = inside(Path::new(""), Path::new(name))
                .ok_or_else(|| bad(shown, format!("name {name} leads out of it")))?;
            let (digest, copy) = copy_in(disk, &dir.join(name))?;
            let size = copy.metadata().map_err(failed("read", &copy))?.len();
            disk.keep(&copy, &digest)?;
            Ok((digest, size))
        };
        let (config, mut size) = take(&image.config)?;
        let mut layers = Vec::with_capacity(image.layers.len());
        for name in &image.layers {
            let (digest, bytes) = take(name)?;
            size += bytes;
            layers.push(digest);
        }
        let names = image.repo_tags.iter().flatten().map(|tag| tag.parse());
        found.push(Found {
            // A docker archive has no manifest; the config stands for it.
            manifest_digest: config.clone(),
            config,
            layers,
            size,
            names: names.collect::<Result<_, _>>()?,
        });
    }
    Ok(found)
}
