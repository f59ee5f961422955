//! From a client's keys to the store's, and back.
//!
//! Watches and changes nothing. Every key of a client passes [`key`] or [`range`] on its way in
//! and [`strip`] on its way out, so nothing outside `/etcd/` can be named.

use bytes::{BufMut as _, Bytes, BytesMut};
use pintle_proto::etcd::mvccpb;
use pintle_store::{KeyValue, LeaseId};

/// Where clients' keys lie in the store.
const PREFIX: &[u8] = b"/etcd/";
/// The first key after all of them.
const PREFIX_END: &[u8] = b"/etcd0";
/// A range end that stands for "no end".
const NO_END: &[u8] = &[0];

/// The store's key for a client's.
pub(super) fn key(key: &[u8]) -> Bytes {
    let mut whole = BytesMut::with_capacity(PREFIX.len() + key.len());
    whole.put_slice(PREFIX);
    whole.put_slice(key);
    whole.freeze()
}

/// The store's range for a client's: just `start` when `end` is empty, everything from `start`
/// on when it is one zero byte.
pub(super) fn range(start: &[u8], end: &[u8]) -> (Bytes, Bytes) {
    let end = match end {
        [] => Bytes::new(),
        NO_END => Bytes::from_static(PREFIX_END),
        end => key(end),
    };
    (key(start), end)
}

/// The store's range of all clients' keys.
pub(super) fn all() -> (&'static [u8], &'static [u8]) {
    (PREFIX, PREFIX_END)
}

/// The client's key for the store's.
pub(super) fn strip(key: &Bytes) -> Bytes {
    key.slice(PREFIX.len().min(key.len())..)
}

/// A version as clients see it.
pub(super) fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: strip(&kv.key),
        create_revision: kv.create_revision.cast_signed(),
        mod_revision: kv.mod_revision.cast_signed(),
        version: kv.version.cast_signed(),
        value: kv.value,
        lease: kv.lease.cast_signed(),
    }
}

/// The store's lease for a client's; `None` for what cannot be one: 0 stands for "no lease" and
/// the negative half is the store's own.
pub(super) fn lease(id: i64) -> Option<LeaseId> {
    (id > 0).then_some(id.cast_unsigned())
}

/// Whether a lease is one of this API's.
pub(super) fn is_ours(id: LeaseId) -> bool {
    lease(id.cast_signed()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_range_leaves_the_prefix() {
        for (start, end) in [
            (&b"\0"[..], &b"\0"[..]),
            (b"a", b"\0"),
            (b"\xff\xff", b"\0"),
            (b"", b"\xff\xff\xff"),
            (b"/../registry/", b"/../registry0"),
        ] {
            let (start, end) = range(start, end);
            assert!(start.starts_with(PREFIX));
            assert!(end.starts_with(PREFIX) || &end[..] == PREFIX_END);
        }
        assert_eq!(range(b"a", b""), (Bytes::from("/etcd/a"), Bytes::new()));
        assert_eq!(&strip(&key(b"a"))[..], b"a");
    }

    #[test]
    fn the_stores_own_leases_cannot_be_named() {
        assert_eq!((lease(7), lease(0), lease(-7)), (Some(7), None, None));
        assert!(!is_ours(1 << 63) && !is_ours(u64::MAX) && is_ours(1));
    }
}
