//! The node's copy of its state, on disk.
//!
//! Owns `agent/state.log`: length- and checksum-framed Deltas, the first of them a snapshot.
//! Watches the Deltas of the session. It is a cache that lets an agent manage its pods while
//! the control plane is away, so nothing waits for the disk: a tail lost to a power cut means
//! the session resumes from an earlier revision. The file is mode 0600, for it holds Secrets.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pintle_proto::node::Delta;
use prost::Message;

use super::desired::ClusterState;

/// A log this much longer than its snapshot is written anew.
const SLACK_BYTES: u64 = 4 << 20;

/// Why the checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// The log of Deltas.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    snapshot_length: u64,
}

impl Checkpoint {
    /// Reads the log into `state` and opens it for more. The cluster it was taken from comes
    /// back, when the log says one.
    pub fn open(path: PathBuf, state: &ClusterState) -> Result<Self, CheckpointError> {
        match std::fs::read(&path) {
            Ok(content) => {
                for delta in frames(&content) {
                    state.apply(&delta);
                }
            }
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(CheckpointError::Read { path, source }),
        }
        let mut checkpoint = Self {
            path,
            file: None,
            length: 0,
            snapshot_length: 0,
        };
        if state.revision() > 0 {
            checkpoint.rewrite(state)?;
        }
        Ok(checkpoint)
    }

    /// Keeps a Delta that `state` has applied.
    pub fn append(&mut self, delta: &Delta, state: &ClusterState) -> Result<(), CheckpointError> {
        let Some(file) = self.file.as_mut() else {
            return self.rewrite(state);
        };
        if delta.snapshot || self.length > self.snapshot_length * 2 + SLACK_BYTES {
            return self.rewrite(state);
        }
        let frame = frame(delta);
        self.length += frame.len() as u64;
        file.write_all(&frame)
            .map_err(|source| CheckpointError::Write {
                path: self.path.clone(),
                source,
            })
    }

    fn rewrite(&mut self, state: &ClusterState) -> Result<(), CheckpointError> {
        let temporary = self.path.with_extension("new");
        let frame = frame(&state.snapshot());
        let file = write_file(&temporary, &frame)
            .and_then(|file| std::fs::rename(&temporary, &self.path).map(|()| file))
            .map_err(|source| CheckpointError::Write {
                path: self.path.clone(),
                source,
            })?;
        self.file = Some(file);
        self.length = frame.len() as u64;
        self.snapshot_length = self.length;
        Ok(())
    }
}

fn write_file(path: &Path, content: &[u8]) -> std::io::Result<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)?;
    Ok(file)
}

fn checksum(content: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(content);
    crc.sum()
}

fn frame(delta: &Delta) -> Vec<u8> {
    let body = delta.encode_to_vec();
    let mut frame = Vec::with_capacity(body.len() + 12);
    frame.extend_from_slice(&(body.len() as u64).to_le_bytes());
    frame.extend_from_slice(&checksum(&body).to_le_bytes());
    frame.extend_from_slice(&body);
    frame
}

/// Every whole frame up to the first torn one.
fn frames(mut content: &[u8]) -> Vec<Delta> {
    let mut deltas = Vec::new();
    loop {
        let mut length = [0; 8];
        let mut sum = [0; 4];
        if content.read_exact(&mut length).is_err() || content.read_exact(&mut sum).is_err() {
            return deltas;
        }
        let Ok(length) = usize::try_from(u64::from_le_bytes(length)) else {
            return deltas;
        };
        if length > content.len() {
            return deltas;
        }
        let (body, rest) = content.split_at(length);
        content = rest;
        if checksum(body) != u32::from_le_bytes(sum) {
            return deltas;
        }
        let Ok(delta) = Delta::decode(body) else {
            return deltas;
        };
        deltas.push(delta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_proto::node::{Change, Resource};

    fn pod(revision: u64, name: &str) -> Delta {
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"d"}},"spec":{{"containers":[]}}}}"#
        );
        Delta {
            revision,
            snapshot: revision == 1,
            changes: vec![Change {
                resource: Resource::Pod.into(),
                key: format!("d/{name}"),
                object: object.into_bytes().into(),
            }],
        }
    }

    fn write(path: &Path) -> ClusterState {
        let state = ClusterState::new();
        let mut checkpoint = Checkpoint::open(path.into(), &state).unwrap();
        for (revision, name) in [(1, "a"), (2, "b"), (3, "c")] {
            let delta = pod(revision, name);
            state.apply(&delta);
            checkpoint.append(&delta, &state).unwrap();
        }
        state
    }

    #[test]
    fn state_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.log");
        let state = write(&path);
        let copy = ClusterState::new();
        Checkpoint::open(path, &copy).unwrap();
        assert_eq!(copy.revision(), 3);
        assert_eq!(copy.pods(), state.pods());
    }

    #[test]
    fn torn_tail_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.log");
        write(&path);
        let content = std::fs::read(&path).unwrap();
        for cut in 1..content.len() {
            std::fs::write(&path, &content[..cut]).unwrap();
            let copy = ClusterState::new();
            Checkpoint::open(path.clone(), &copy).unwrap();
            assert!(copy.pods().len() < 3);
        }
    }
}
