//! Leadership as a condition of writes: what a leader that was deposed still writes is refused.
//!
//! Who begins to lead writes a key ([`Fence::raise`]); the revision of that write is what its
//! clients' transactions compare from then on. The next leader's write of the same key fails
//! them all, decided where every write is decided: when the store applies it. So it does not
//! matter how late the old leader learns that it leads no more, nor that its server forwards its
//! writes to the new one. (Fencing tokens: Kleppmann, "How to do distributed locking", 2016; in
//! etcd's own recipes the revision of the election's key.)

use std::future::Future;

use bytes::Bytes;
use pintle_kube_types::Status;
use pintle_store::{Compare, Op, Store, StoreError, Txn};

tokio::task_local! {
    /// The fence of the client whose write this task is doing.
    static CURRENT: Fence;
}

/// What a leader's writes hang on. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    key: Bytes,
    revision: u64,
}

impl Fence {
    /// Ends the validity of every fence that was raised at `key` before.
    pub async fn raise(store: &Store, key: &str, leader: &str) -> Result<Self, StoreError> {
        let key = Bytes::from(key.to_owned());
        let put = Op::put(key.clone(), leader.to_owned());
        let txn = Txn {
            success: vec![put],
            ..Txn::default()
        };
        let revision = store.txn(txn).await?.revision;
        Ok(Self { key, revision })
    }

    /// Does `work`, whose writes succeed only as long as the fence stands.
    pub(crate) async fn around<T>(fence: Option<&Self>, work: impl Future<Output = T>) -> T {
        match fence {
            Some(fence) => CURRENT.scope(fence.clone(), work).await,
            None => work.await,
        }
    }

    /// The fence of the write that this task is doing.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Holds as long as nobody raised another one.
    pub(crate) fn compare(&self) -> Compare {
        Compare::mod_revision(self.key.clone(), self.revision)
    }

    /// Reads what [`still_stands`](Self::still_stands) looks at.
    pub(crate) fn read(&self) -> Op {
        Op::get(self.key.clone())
    }

    /// From the answer to [`read`](Self::read).
    pub(crate) fn still_stands(&self, read: &pintle_store::OpResponse) -> bool {
        matches!(read, pintle_store::OpResponse::Range(range)
            if range.kvs.iter().any(|kv| kv.mod_revision == self.revision))
    }
}

/// What a deposed leader hears.
pub(crate) fn deposed() -> Status {
    Status::service_unavailable(
        "the write was refused: it comes from a leader that was replaced meanwhile",
    )
}
