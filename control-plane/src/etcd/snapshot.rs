//! The Maintenance service's snapshot: a database file that etcd's own tools read and restore.
//!
//! Watches and changes nothing. It holds the clients' keys with every version that is kept, and
//! their leases, as of one revision; neither Pintle's objects nor the members are in it. The file
//! is made while it is sent, so it takes little memory and no room on the disk:
//!
//! ```text
//!   store versions, sorted ──▶ trees, nobody listening ──▶ layout
//!                         └──▶ trees ──▶ pages ──▶ chunks, SHA-256 ──▶ client
//! ```

mod bolt;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pintle_proto::etcd::etcdserverpb as pb;
use pintle_proto::etcd::mvccpb;
use pintle_store::{LeaseId, Revision, StoreError, Version, Versions};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::Status;

use super::error::{from_store, stalled, stopped};
use super::{Etcd, keyspace};
use bolt::{Layout, Trees};

#[cfg(test)]
pub(super) use bolt::reader;

/// Bytes of a message.
const CHUNK: usize = 64 << 10;
/// Chunks that may wait for the client.
pub(super) const CHUNKS: usize = 4;

pub(super) type Sender = mpsc::Sender<pb::SnapshotResponse>;

/// Why no more is sent.
enum Ended {
    /// The client left.
    Gone,
    Failed(Status),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Failed(from_store(&error))
    }
}

/// Sends a snapshot. Blocks: for a thread of its own. Unless it answers `Ok`, the client must be
/// told the reason after the last chunk: a stream that just ends looks whole to clients that do
/// not, as etcdctl does, look at the length.
/// A client that takes nothing for `stall` is given up.
pub(super) fn send(
    etcd: &Etcd,
    client: &Sender,
    stall: Duration,
    runtime: &Handle,
) -> Result<(), Status> {
    let mut stream = Stream {
        etcd,
        client,
        stall,
        runtime,
        chunk: BytesMut::with_capacity(CHUNK),
        hash: Sha256::new(),
        left: 0,
        revision: 0,
    };
    match stream.run() {
        Ok(()) => Ok(()),
        Err(Ended::Gone) => Err(Status::cancelled("etcdserver: the client left")),
        Err(Ended::Failed(status)) => {
            tracing::warn!(reason = status.message(), "a snapshot is not finished");
            Err(status)
        }
    }
}

struct Stream<'a> {
    etcd: &'a Etcd,
    client: &'a Sender,
    stall: Duration,
    runtime: &'a Handle,
    chunk: BytesMut,
    hash: Sha256,
    /// Bytes of the database that follow the next chunk's first.
    left: u64,
    revision: Revision,
}

impl Stream<'_> {
    fn run(&mut self) -> Result<(), Ended> {
        let etcd = self.etcd;
        let (start, end) = keyspace::all();
        let wanted = || self.goes_on().is_ok();
        let versions = etcd.store().versions(start, end, &wanted)?;
        self.revision = versions.revision();
        let mut blank = Vec::new();
        let layout = write(
            &versions,
            // Only its length counts.
            &mut |version| {
                blank.resize(version.value_bytes, 0);
                Ok(Bytes::copy_from_slice(&blank))
            },
            &mut |_page| self.goes_on(),
        )?;
        self.left = layout.bytes();
        self.push(&layout.head())?;
        let value = &mut |version: &Version| Ok(versions.value(version)?);
        let written = write(&versions, value, &mut |page| self.push(&page))?;
        if written != layout {
            // Both are made of one view: a bug, and the client must not take the file for good.
            return Err(Ended::Failed(Status::internal(
                "etcdserver: the snapshot came out different from its plan",
            )));
        }
        self.flush()?;
        // Clients know by the length, which is otherwise a multiple of 512, that it is there.
        let hash = std::mem::take(&mut self.hash).finalize();
        self.answer(Bytes::copy_from_slice(&hash))
    }

    fn push(&mut self, page: &[u8]) -> Result<(), Ended> {
        let mut page = page;
        while !page.is_empty() {
            let (now, later) = page.split_at(page.len().min(CHUNK - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            page = later;
            if self.chunk.len() == CHUNK {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Ended> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, BytesMut::with_capacity(CHUNK)).freeze();
        self.hash.update(&chunk);
        self.left = self.left.saturating_sub(chunk.len() as u64);
        self.answer(chunk)
    }

    fn answer(&self, blob: Bytes) -> Result<(), Ended> {
        self.goes_on()?;
        let answer = pb::SnapshotResponse {
            header: Some(self.etcd.header(self.revision)),
            remaining_bytes: self.left,
            blob,
        };
        self.runtime.block_on(async {
            tokio::select! {
                sent = tokio::time::timeout(self.stall, self.client.send(answer)) => match sent {
                    Ok(sent) => sent.map_err(|_left| Ended::Gone),
                    Err(_) => Err(Ended::Failed(stalled())),
                },
                // A client that takes nothing does not hold up the stop.
                () = self.etcd.inner.shutdown.cancelled() => Err(Ended::Failed(stopped())),
            }
        })
    }

    fn goes_on(&self) -> Result<(), Ended> {
        if self.etcd.inner.shutdown.is_cancelled() {
            return Err(Ended::Failed(stopped()));
        }
        if self.client.is_closed() {
            return Err(Ended::Gone);
        }
        Ok(())
    }
}

/// Writes the buckets of an etcd database.
fn write(
    versions: &Versions,
    value: &mut dyn FnMut(&Version) -> Result<Bytes, Ended>,
    emit: &mut dyn FnMut(Vec<u8>) -> Result<(), Ended>,
) -> Result<Layout, Ended> {
    let mut trees = Trees::new(emit);
    for name in ["alarm", "auth", "authRoles", "authUsers", "cluster"] {
        trees.end_bucket(name.as_bytes())?;
    }
    let mut before = (0, 0);
    for version in versions.in_order()? {
        let version = version?;
        // The store numbers writes within a revision only in its history of changes, which
        // compaction forgets; etcd needs them to differ.
        let sub = if before.0 == version.mod_revision {
            before.1 + 1
        } else {
            0
        };
        before = (version.mod_revision, sub);
        let mut key = revision_key(version.mod_revision, sub);
        let kv = if version.deleted {
            key.push(b't');
            mvccpb::KeyValue {
                key: keyspace::strip(&version.key),
                ..mvccpb::KeyValue::default()
            }
        } else {
            let value = value(&version)?;
            version_as_key_value(&version, value)
        };
        trees.put(&key, &kv.encode_to_vec())?;
    }
    trees.end_bucket(b"key")?;
    for (id, ttl) in versions.leases() {
        if keyspace::is_ours(*id) {
            trees.put(&id.to_be_bytes(), &lease(*id, *ttl).encode_to_vec())?;
        }
    }
    trees.end_bucket(b"lease")?;
    for name in ["members", "members_removed"] {
        trees.end_bucket(name.as_bytes())?;
    }
    let (index, term) = versions.applied();
    trees.put(b"consistent_index", &index.to_be_bytes())?;
    if versions.compacted() > 0 {
        let compacted = revision_key(versions.compacted(), 0);
        trees.put(b"finishedCompactRev", &compacted)?;
        trees.put(b"scheduledCompactRev", &compacted)?;
    }
    trees.put(b"term", &term.to_be_bytes())?;
    trees.end_bucket(b"meta")?;
    Ok(trees.finish())
}

/// etcd's key of a version: its revision and its number within it.
fn revision_key(revision: Revision, sub: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(18);
    key.extend_from_slice(&revision.to_be_bytes());
    key.push(b'_');
    key.extend_from_slice(&sub.to_be_bytes());
    key
}

fn version_as_key_value(version: &Version, value: Bytes) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: keyspace::strip(&version.key),
        create_revision: version.create_revision.cast_signed(),
        mod_revision: version.mod_revision.cast_signed(),
        version: version.version.cast_signed(),
        value,
        lease: version.lease.cast_signed(),
    }
}

/// A lease as etcd stores it.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    id: i64,
    /// Seconds.
    #[prost(int64, tag = "2")]
    ttl: i64,
}

fn lease(id: LeaseId, ttl: Duration) -> Lease {
    Lease {
        id: id.cast_signed(),
        ttl: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
    }
}
