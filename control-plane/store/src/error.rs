//! Why the store refused or failed.
//!
//! Watches and changes nothing. The API turns these into `metav1.Status` in one place.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::key_value::{LeaseId, Revision};

/// Failure of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The revision asked for was compacted away.
    #[error("revision {requested} is compacted, the oldest kept is {compacted}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The oldest revision that can be read.
        compacted: Revision,
    },
    /// The revision asked for does not exist yet.
    #[error("revision {requested} is in the future, the store is at {current}")]
    FutureRevision {
        /// What was asked for.
        requested: Revision,
        /// Where the store is.
        current: Revision,
    },
    /// The log refused a request that would have no well-defined result.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A file of the data directory is damaged. Nothing was changed.
    #[error(
        "{} is corrupt{}: {detail}; {way_out}",
        path.display(),
        offset.map(|offset| format!(" at offset {offset}")).unwrap_or_default()
    )]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Where in it, when known.
        offset: Option<u64>,
        /// What is wrong.
        detail: String,
        /// What an operator can do.
        way_out: &'static str,
    },
    /// The data directory was written by a newer version.
    #[error(
        "{} has format {found}, this program reads up to {supported}; run a newer pintle on it",
        path.display()
    )]
    FormatTooNew {
        /// The file that says so.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest this program reads.
        supported: u64,
    },
    /// The data directory belongs to another cluster or member.
    #[error("{} belongs to {field} {found}, not {expected}", path.display())]
    ForeignDirectory {
        /// The data directory.
        path: PathBuf,
        /// `cluster` or `member`.
        field: &'static str,
        /// What was configured.
        expected: String,
        /// What is on disk.
        found: String,
    },
    /// Another process has the data directory open.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The data directory.
        path: PathBuf,
    },
    /// This member does not lead; ask the one that does.
    #[error("this member is not the leader{}", leader.map(|id| format!(", member {id} is")).unwrap_or_default())]
    NotLeader {
        /// The leader, when known.
        leader: Option<u64>,
    },
    /// A write was begun, and whether it happened is not known. It is never done twice.
    #[error("the outcome is unknown: {cause}; look whether it happened before trying again")]
    OutcomeUnknown {
        /// What went wrong on the way.
        cause: String,
    },
    /// The group does not take this member's messages.
    #[error("{cause}")]
    Refused {
        /// The sentence of the member that refused, with the way out.
        cause: String,
    },
    /// A change of the group's members cannot be made; nothing was changed.
    #[error("{cause}")]
    Members {
        /// What stands against it, and the way out.
        cause: String,
    },
    /// The store was shut down.
    #[error("the store is closed")]
    Closed,
    /// The disk is full; the store stopped accepting writes.
    #[error("no space left on the disk of {}", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// An operation of the operating system failed.
    #[error("{operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The state database failed.
    #[error("state database: {operation}")]
    Database {
        /// What was tried.
        operation: &'static str,
        /// Why not.
        #[source]
        source: Box<redb::Error>,
    },
    /// Storage failed earlier and the store stopped; the first failure is in the text.
    #[error("the store stopped after a storage failure: {cause}")]
    Failed {
        /// Text of the first failure.
        cause: String,
    },
    /// The replication engine could not be started.
    #[error("start the replication engine: {cause}")]
    Start {
        /// Text of the failure.
        cause: String,
    },
}

/// Why a request has no effect; decided the same on every member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Rejection {
    /// A transaction writes a key twice.
    #[error("key {key:?} is written more than once in a transaction")]
    DuplicateKey {
        /// The key, lossily.
        key: String,
    },
    /// A put without a key, or a key that is too long or starts with sixteen `0xff`.
    #[error("key of {length} bytes is not between 1 and {limit} bytes long")]
    KeyLength {
        /// Its length.
        length: usize,
        /// The longest.
        limit: usize,
    },
    /// An update of a key that does not exist.
    #[error("key {key:?} does not exist")]
    KeyNotFound {
        /// The key, lossily.
        key: String,
    },
    /// Transactions lie in each other too deep.
    #[error("transactions are nested more than {limit} deep")]
    TooDeep {
        /// The deepest.
        limit: usize,
    },
    /// A transaction is larger than the log takes.
    #[error("transaction of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest.
        limit: usize,
    },
    /// The lease does not exist (any more).
    #[error("lease {id:x} not found")]
    LeaseNotFound {
        /// The lease.
        id: LeaseId,
    },
    /// The lease exists already.
    #[error("lease {id:x} exists already")]
    LeaseExists {
        /// The lease.
        id: LeaseId,
    },
    /// A range inside a transaction, or a compaction, names a compacted revision.
    #[error("revision {requested} is compacted, the oldest kept is {compacted}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The oldest revision that can be read.
        compacted: Revision,
    },
    /// A range inside a transaction, or a compaction, names a revision not written yet.
    #[error("revision {requested} is in the future, the store is at {current}")]
    FutureRevision {
        /// What was asked for.
        requested: Revision,
        /// Where the store is.
        current: Revision,
    },
}

impl StoreError {
    /// Wraps an I/O error, telling a full disk apart.
    pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        if matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            Self::DiskFull { path }
        } else {
            Self::Io {
                operation,
                path,
                source,
            }
        }
    }

    /// Wraps a failure of the state database.
    pub(crate) fn database(operation: &'static str, source: impl Into<redb::Error>) -> Self {
        Self::Database {
            operation,
            source: Box::new(source.into()),
        }
    }

    /// The same error once more, for another caller it concerns.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::NotLeader { leader } => Self::NotLeader { leader: *leader },
            Self::OutcomeUnknown { cause } => Self::OutcomeUnknown {
                cause: cause.clone(),
            },
            Self::Refused { cause } => Self::Refused {
                cause: cause.clone(),
            },
            Self::Closed => Self::Closed,
            Self::DiskFull { path } => Self::DiskFull { path: path.clone() },
            Self::Failed { cause } => Self::Failed {
                cause: cause.clone(),
            },
            other => Self::Failed {
                cause: crate::failure::chain(other),
            },
        }
    }

    /// Gives compaction and future revisions of a rejected request their own variants.
    pub(crate) fn rejected(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Compacted {
                requested,
                compacted,
            } => Self::Compacted {
                requested,
                compacted,
            },
            Rejection::FutureRevision { requested, current } => {
                Self::FutureRevision { requested, current }
            }
            other => Self::Rejected(other),
        }
    }
}
