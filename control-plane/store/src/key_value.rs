//! The vocabulary of the store: keys, versions, transactions and their answers.
//!
//! Watches nothing and changes nothing: plain data that callers hand to
//! [`Store`](crate::Store) and that travels through the log.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A point in the store's history. Every transaction that writes takes the next one; `0` is
/// the empty store. Always fits an `i64`.
pub type Revision = u64;

/// Names a lease; `0` means "no lease".
pub type LeaseId = u64;

/// How long a lease lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseState {
    /// From the grant, or the last time it was kept alive.
    pub ttl: Duration,
    /// From now.
    pub left: Duration,
}

/// One version of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty for the tombstone in a delete event.
    pub value: Bytes,
    /// Revision at which this incarnation of the key was created.
    pub create_revision: Revision,
    /// Revision that wrote this version.
    pub mod_revision: Revision,
    /// Writes since creation; the first is 1.
    pub version: u64,
    /// Lease the key is bound to, or 0.
    pub lease: LeaseId,
}

/// What [`Store::range`](crate::Store::range) is to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// First key, inclusive.
    pub start: Bytes,
    /// End of the range, exclusive. Empty means "just `start`"; see [`prefix_end`] for all
    /// keys with a prefix.
    pub end: Bytes,
    /// Read the state as of this revision; `None` is the newest.
    pub revision: Option<Revision>,
    /// Most key-values returned; 0 is no limit.
    pub limit: usize,
    /// Leave the values empty.
    pub keys_only: bool,
    /// Return only [`RangeResponse::count`].
    pub count_only: bool,
}

impl RangeRequest {
    /// Everything under `prefix`, at the newest revision.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = prefix_end(&start);
        Self {
            start,
            end,
            ..Self::default()
        }
    }

    /// One key, at the newest revision.
    pub fn key(key: impl Into<Bytes>) -> Self {
        Self {
            start: key.into(),
            ..Self::default()
        }
    }
}

/// Answer to a [`RangeRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeResponse {
    /// The key-values in key order, at most `limit`.
    pub kvs: Vec<KeyValue>,
    /// Whether `limit` cut the answer short.
    pub more: bool,
    /// Keys in the whole range, the returned ones included: `count - kvs.len()` remain.
    pub count: u64,
    /// The store's revision when the range was read (not the revision asked for).
    pub revision: Revision,
}

/// First key after every key that starts with `prefix`. Empty when there is none (`prefix` is
/// all `0xff`), see [`ALL_KEYS_END`] for that.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let Some(last) = prefix.iter().rposition(|byte| *byte != 0xff) else {
        return Bytes::from_static(ALL_KEYS_END);
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end.into()
}

/// An end that is greater than every key the store accepts.
pub const ALL_KEYS_END: &[u8] = &[0xff; 16];

/// What a [`Compare`] looks at. A key that does not exist has revision 0, version 0, lease 0
/// and no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareTarget {
    /// Revision of the last write.
    ModRevision(Revision),
    /// Revision of the creation.
    CreateRevision(Revision),
    /// Writes since creation; `Version(0)` with `Equal` is "does not exist".
    Version(u64),
    /// The value; a comparison with a key that does not exist never holds.
    Value(Bytes),
    /// The lease.
    Lease(LeaseId),
}

/// How the stored side relates to the given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareOp {
    /// stored == given
    Equal,
    /// stored > given
    Greater,
    /// stored < given
    Less,
    /// stored != given
    NotEqual,
}

/// One condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// The key looked at.
    pub key: Bytes,
    /// Empty for just `key`; else every key in `key..end` must hold, and when there is none
    /// the condition is that of a key that does not exist.
    pub end: Bytes,
    /// The given side.
    pub target: CompareTarget,
    /// The relation that must hold.
    pub op: CompareOp,
}

impl Compare {
    /// Holds while nobody wrote `key` after `revision` (0: while it does not exist).
    pub fn mod_revision(key: impl Into<Bytes>, revision: Revision) -> Self {
        Self {
            key: key.into(),
            end: Bytes::new(),
            target: CompareTarget::ModRevision(revision),
            op: CompareOp::Equal,
        }
    }

    /// Holds while `key` does not exist.
    pub fn absent(key: impl Into<Bytes>) -> Self {
        Self::mod_revision(key, 0)
    }
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Writes one key.
    Put {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
        /// Lease to bind the key to, or 0.
        lease: LeaseId,
    },
    /// Writes a key that must exist, keeping what is not given.
    Update {
        /// The key.
        key: Bytes,
        /// The value; `None` keeps the one there is.
        value: Option<Bytes>,
        /// The lease, or 0; `None` keeps the one there is.
        lease: Option<LeaseId>,
    },
    /// Deletes keys.
    Delete {
        /// First key, inclusive.
        start: Bytes,
        /// End, exclusive; empty means "just `start`".
        end: Bytes,
    },
    /// Reads, seeing the transaction's own writes so far.
    Range(RangeRequest),
    /// A transaction inside: its conditions are decided, like all others, on the state before
    /// the outermost transaction.
    Txn(Txn),
}

impl Op {
    /// Writes `key` without a lease.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            lease: 0,
        }
    }

    /// Deletes `key`.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::Delete {
            start: key.into(),
            end: Bytes::new(),
        }
    }

    /// Reads `key`.
    pub fn get(key: impl Into<Bytes>) -> Self {
        Self::Range(RangeRequest::key(key))
    }
}

/// If every compare holds then `success`, else `failure`: all or nothing, at one revision. A
/// key may be written at most once by either branch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// The conditions; none is "always".
    pub compares: Vec<Compare>,
    /// Done when all hold.
    pub success: Vec<Op>,
    /// Done otherwise.
    pub failure: Vec<Op>,
}

impl Txn {
    /// The operations of one branch.
    pub(crate) fn branch(&self, succeeded: bool) -> &[Op] {
        if succeeded {
            &self.success
        } else {
            &self.failure
        }
    }

    /// Whether either branch could change anything.
    pub fn writes(&self) -> bool {
        let writes = |op: &Op| match op {
            Op::Range(_) => false,
            Op::Txn(txn) => txn.writes(),
            Op::Put { .. } | Op::Update { .. } | Op::Delete { .. } => true,
        };
        self.success.iter().chain(&self.failure).any(writes)
    }
}

/// Answer to one [`Op`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpResponse {
    /// The key was written; `prev` is what it replaced.
    Put {
        /// The version before.
        prev: Option<KeyValue>,
    },
    /// The keys were deleted.
    Delete {
        /// What was deleted, in key order.
        prev: Vec<KeyValue>,
    },
    /// What was read.
    Range(RangeResponse),
    /// What the transaction inside came to.
    Txn(TxnResponse),
}

/// Answer to a [`Txn`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnResponse {
    /// Whether the compares held, and so which branch ran.
    pub succeeded: bool,
    /// The transaction's own revision when it changed anything, otherwise the store's.
    pub revision: Revision,
    /// One answer per operation of the branch.
    pub responses: Vec<OpResponse>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_is_the_next_sibling() {
        assert_eq!(&prefix_end(b"/pods/")[..], b"/pods0");
        assert_eq!(&prefix_end(b"a\xff")[..], b"b");
        assert_eq!(&prefix_end(b"\xff\xff")[..], ALL_KEYS_END);
        assert_eq!(&prefix_end(b"")[..], ALL_KEYS_END);
    }
}
