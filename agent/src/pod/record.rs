//! The machine's facts on disk.
//!
//! Owns `agent/pods/<uid>/{pod,state}.json`. Written before the actions that follow from a
//! change are begun, so that a new agent knows what may be under way. Not synced: a crash of
//! the agent loses nothing of the page cache, and a crash of the machine ends all containers,
//! which the runtime then reports.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::machine::Facts;

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The directory cannot be made, listed or removed.
    #[error("cannot {operation} {path}")]
    Directory {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The record cannot be encoded.
    #[error("cannot encode {path}")]
    Encode {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

/// The record of one pod.
#[derive(Debug)]
pub struct Record {
    directory: PathBuf,
    written: Option<Facts>,
    resource_version: Option<String>,
}

impl Record {
    /// The record in `directory`, which is made.
    pub fn open(directory: PathBuf) -> Result<Self, RecordError> {
        std::fs::create_dir_all(&directory).map_err(|source| RecordError::Directory {
            operation: "create",
            path: directory.clone(),
            source,
        })?;
        Ok(Self {
            directory,
            written: None,
            resource_version: None,
        })
    }

    /// Writes what changed.
    pub fn keep(&mut self, pod: &Pod, facts: &Facts) -> Result<(), RecordError> {
        if self.resource_version.is_none() || self.resource_version != pod.metadata.resource_version
        {
            write(&self.directory.join("pod.json"), pod)?;
            self.resource_version
                .clone_from(&pod.metadata.resource_version);
        }
        if self.written.as_ref() != Some(facts) {
            write(&self.directory.join("state.json"), facts)?;
            self.written = Some(facts.clone());
        }
        Ok(())
    }
}

/// What was kept of a pod. Records that cannot be read count as absent: what the runtime has is
/// adopted all the same.
pub fn read(directory: &Path) -> (Option<Pod>, Option<Facts>) {
    (
        load(&directory.join("pod.json")),
        load(&directory.join("state.json")),
    )
}

/// The UIDs of all pods with a record.
pub fn list(pods_dir: &Path) -> Result<Vec<String>, RecordError> {
    let failed = |source| RecordError::Directory {
        operation: "list",
        path: pods_dir.to_path_buf(),
        source,
    };
    let mut uids = Vec::new();
    let entries = match std::fs::read_dir(pods_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(uids),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Ok(name) = entry.file_name().into_string() {
            uids.push(name);
        }
    }
    Ok(uids)
}

/// Removes a directory and all in it; one that is not there is removed already.
pub fn remove(directory: &Path) -> Result<(), RecordError> {
    match std::fs::remove_dir_all(directory) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RecordError::Directory {
            operation: "remove",
            path: directory.to_path_buf(),
            source,
        }),
        _ => Ok(()),
    }
}

fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read");
            return None;
        }
    };
    match serde_json::from_slice(&content) {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "malformed record");
            None
        }
    }
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), RecordError> {
    let content = serde_json::to_vec(value).map_err(|source| RecordError::Encode {
        path: path.to_path_buf(),
        source,
    })?;
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, content)
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|source| RecordError::Write {
            path: path.to_path_buf(),
            source,
        })
}
