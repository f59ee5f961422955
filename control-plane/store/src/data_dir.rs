//! The data directory: whose it is, and that only one process has it.
//!
//! Watches nothing; makes `identity.json`, `wal/` and `lock` at first start, and holds the lock
//! while the store is open. Everything else in the store starts from the paths here. A directory
//! that holds data but does not say whose is refused, never filled anew.
//!
//! ```text
//!   lock            flock, held while open
//!   identity.json   format, cluster id, member id
//!   wal/            the log
//!   state.redb      the state
//!   incoming.redb   another member's state, being received
//!   salvage         made by an operator: end the log where it is damaged, once
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::wal::sync_directory;

/// Newest format of the directory as a whole.
const FORMAT: u64 = 1;

/// Whose data it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    format: u64,
    pub(crate) cluster_id: String,
    pub(crate) node_id: u64,
    /// It was made to join a group, and must never form one of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) joined: bool,
}

/// An open, locked data directory.
#[derive(Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
    identity: Identity,
    _lock: File,
}

impl DataDir {
    /// Makes or opens the directory, locks it, and checks whose it is.
    pub(crate) fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        let root = config.data_dir.clone();
        fs::create_dir_all(&root)
            .map_err(|source| StoreError::io("create directory", &root, source))?;
        let lock = lock(&root)?;
        let identity = identity(&root, config)?;
        let wal = root.join("wal");
        match fs::create_dir(&wal) {
            Ok(()) => sync_directory(&root)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(source) => return Err(StoreError::io("create directory", wal, source)),
        }
        Ok(Self {
            root,
            identity,
            _lock: lock,
        })
    }

    /// Whose it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The log's directory.
    pub(crate) fn wal(&self) -> PathBuf {
        self.root.join("wal")
    }

    /// The state database.
    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state.redb")
    }

    /// Whether the operator asked to go on without what is damaged.
    pub(crate) fn salvage(&self) -> bool {
        self.root.join("salvage").exists()
    }

    /// The salvage is done and must not be repeated.
    pub(crate) fn salvaged(&self) -> Result<(), StoreError> {
        let path = self.root.join("salvage");
        fs::remove_file(&path).map_err(|source| StoreError::io("remove", path, source))?;
        sync_directory(&self.root)
    }
}

/// The one field that every format has.
#[derive(Deserialize)]
struct Format {
    format: u64,
}

fn lock(root: &Path) -> Result<File, StoreError> {
    let path = root.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|source| StoreError::io("open", &path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::InUse {
            path: root.to_path_buf(),
        }),
        Err(errno) => Err(StoreError::io("lock", path, errno.into())),
    }
}

fn identity(root: &Path, config: &StoreConfig) -> Result<Identity, StoreError> {
    let path = root.join("identity.json");
    let corrupt = |detail: String| StoreError::Corrupt {
        path: path.clone(),
        offset: None,
        detail,
        way_out: "restore the directory from a copy, or choose an empty one",
    };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if root.join("state.redb").exists() || root.join("wal").exists() {
                return Err(corrupt("it is missing beside existing data".to_owned()));
            }
            let identity = Identity {
                format: FORMAT,
                cluster_id: config.cluster_id.clone().unwrap_or_else(new_cluster_id),
                node_id: config.node_id.max(1),
                joined: config.join,
            };
            write_identity(root, &path, &identity)?;
            return Ok(identity);
        }
        Err(source) => return Err(StoreError::io("read", path, source)),
    };
    // The format first: a newer one may look otherwise.
    let Format { format } =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    if format > FORMAT {
        return Err(StoreError::FormatTooNew {
            path,
            found: format,
            supported: FORMAT,
        });
    }
    let identity: Identity =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    let foreign = |field, expected: String, found: String| StoreError::ForeignDirectory {
        path: root.to_path_buf(),
        field,
        expected,
        found,
    };
    if let Some(expected) = &config.cluster_id
        && *expected != identity.cluster_id
    {
        return Err(foreign("cluster", expected.clone(), identity.cluster_id));
    }
    if config.node_id != 0 && config.node_id != identity.node_id {
        let found = identity.node_id.to_string();
        return Err(foreign("member", config.node_id.to_string(), found));
    }
    Ok(identity)
}

fn new_cluster_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn write_identity(root: &Path, path: &Path, identity: &Identity) -> Result<(), StoreError> {
    let new = root.join("identity.json.new");
    let write = || {
        let mut file = File::create(&new)?;
        serde_json::to_writer_pretty(&mut file, identity)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|source| StoreError::io("write", path, source))?;
    sync_directory(root)
}
