//! The BPF object in the kernel: programs, maps, links and their pins.
//!
//! Watches nothing. Changes the pins of this instance on bpffs. Who reacts next: the kernel,
//! which runs the programs.

use std::path::{Path, PathBuf};

use super::ServiceConfig;

/// Why there is no data path.
#[derive(Debug, thiserror::Error)]
pub enum DataPathError {
    /// The program was compiled without the BPF object.
    #[error(
        "this `pintle` was built without its BPF programs, so Services have no data path; hint: build it with `cargo xtask build`"
    )]
    BuiltWithout,
    /// A pin cannot be removed.
    #[error("cannot remove {path}")]
    RemovePin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// The loaded object. Cheap to clone; clones are the same data path.
#[derive(Clone, Debug)]
pub struct DataPath {}

impl DataPath {
    /// Loads the object, adopting what is pinned under [`ServiceConfig::bpffs_dir`].
    pub fn open(config: &ServiceConfig) -> Result<Self, DataPathError> {
        tracing::debug!(bpffs = %config.bpffs_dir.display(), "open");
        Err(DataPathError::BuiltWithout)
    }
}

/// Removes an instance's pins.
pub(super) fn remove_pins(bpffs_dir: &Path) -> Result<(), DataPathError> {
    match std::fs::remove_dir_all(bpffs_dir) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(DataPathError::RemovePin {
                path: bpffs_dir.to_owned(),
                source,
            })
        }
        _ => Ok(()),
    }
}
