//! What travels through the log: requests, their answers, and their binary form.
//!
//! Watches and changes nothing. The proposer encodes requests, the state machine of every
//! member decodes and applies them; both must agree for ever, so the encoding is written out
//! here and guarded by [`ENCODING`]: numbers are LEB128, byte strings are length-prefixed,
//! enums are one tag byte.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::error::Rejection;
use crate::key_value::{
    Compare, CompareOp, CompareTarget, LeaseId, Op, RangeRequest, Revision, Txn, TxnResponse,
};

/// Version of the encoding of a batch of requests; the first byte of each.
pub(crate) const ENCODING: u8 = 1;

/// Set in a compare's tag when the end of a range follows.
const RANGED: u8 = 4;
/// How deep transactions may lie in each other.
pub(crate) const MAX_DEPTH: usize = 128;

/// One change proposed to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// A transaction.
    Txn(Txn),
    /// Forget superseded versions up to a revision.
    Compact(Revision),
    /// Make a lease.
    LeaseGrant { id: LeaseId, ttl_millis: u64 },
    /// End a lease and delete its keys. Also how the leader announces that one expired.
    LeaseRevoke { id: LeaseId },
}

/// Answer to one [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// To a transaction.
    Txn(TxnResponse),
    /// To everything else.
    Done,
}

/// What applying a request came to.
pub(crate) type Outcome = Result<Reply, Rejection>;

/// A batch of requests that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// It ends too early.
    #[error("the record ends early")]
    Short,
    /// A tag has no meaning.
    #[error("{field} has the unknown tag {tag}")]
    Tag { field: &'static str, tag: u8 },
    /// A newer program wrote it.
    #[error("the record has encoding {found}, this program reads {ENCODING}")]
    Encoding { found: u8 },
    /// Transactions lie in each other too deep.
    #[error("transactions are nested more than {MAX_DEPTH} deep")]
    Deep,
    /// Bytes are left over.
    #[error("{left} bytes follow the record")]
    Trailing { left: usize },
}

/// Encodes a batch.
pub(crate) fn encode(requests: &[Request]) -> Bytes {
    let mut out = BytesMut::with_capacity(requests.iter().map(size_hint).sum::<usize>() + 16);
    out.put_u8(ENCODING);
    put_number(&mut out, requests.len() as u64);
    for request in requests {
        match request {
            Request::Txn(txn) => {
                out.put_u8(0);
                put_txn(&mut out, txn);
            }
            Request::Compact(revision) => {
                out.put_u8(1);
                put_number(&mut out, *revision);
            }
            Request::LeaseGrant { id, ttl_millis } => {
                out.put_u8(2);
                put_number(&mut out, *id);
                put_number(&mut out, *ttl_millis);
            }
            Request::LeaseRevoke { id } => {
                out.put_u8(3);
                put_number(&mut out, *id);
            }
        }
    }
    out.freeze()
}

/// Decodes a batch; the inverse of [`encode`].
pub(crate) fn decode(mut input: Bytes) -> Result<Vec<Request>, DecodeError> {
    let found = take_byte(&mut input)?;
    if found != ENCODING {
        return Err(DecodeError::Encoding { found });
    }
    let requests = take_list(&mut input, |input| {
        Ok(match take_byte(input)? {
            0 => Request::Txn(take_txn(input, 0)?),
            1 => Request::Compact(take_number(input)?),
            2 => Request::LeaseGrant {
                id: take_number(input)?,
                ttl_millis: take_number(input)?,
            },
            3 => Request::LeaseRevoke {
                id: take_number(input)?,
            },
            tag => {
                return Err(DecodeError::Tag {
                    field: "request",
                    tag,
                });
            }
        })
    })?;
    if input.is_empty() {
        Ok(requests)
    } else {
        Err(DecodeError::Trailing { left: input.len() })
    }
}

/// About how many bytes a request takes; never far too small.
pub(crate) fn size_hint(request: &Request) -> usize {
    match request {
        Request::Txn(txn) => txn_size_hint(txn),
        _ => 24,
    }
}

fn txn_size_hint(txn: &Txn) -> usize {
    let compares = txn.compares.iter().map(|compare| {
        let value = match &compare.target {
            CompareTarget::Value(value) => value.len(),
            _ => 10,
        };
        compare.key.len() + compare.end.len() + value + 16
    });
    let ops = txn.success.iter().chain(&txn.failure).map(|op| match op {
        Op::Put { key, value, .. } => key.len() + value.len() + 24,
        Op::Update { key, value, .. } => key.len() + value.as_ref().map_or(0, Bytes::len) + 24,
        Op::Txn(txn) => txn_size_hint(txn),
        Op::Delete { start, end } => start.len() + end.len() + 16,
        Op::Range(range) => range.start.len() + range.end.len() + 40,
    });
    compares.chain(ops).sum::<usize>() + 16
}

fn put_txn(out: &mut BytesMut, txn: &Txn) {
    put_number(out, txn.compares.len() as u64);
    for compare in &txn.compares {
        put_bytes(out, &compare.key);
        let op = match compare.op {
            CompareOp::Equal => 0,
            CompareOp::Greater => 1,
            CompareOp::Less => 2,
            CompareOp::NotEqual => 3,
        };
        if compare.end.is_empty() {
            out.put_u8(op);
        } else {
            out.put_u8(op | RANGED);
            put_bytes(out, &compare.end);
        }
        match &compare.target {
            CompareTarget::ModRevision(n) => put_tagged(out, 0, *n),
            CompareTarget::CreateRevision(n) => put_tagged(out, 1, *n),
            CompareTarget::Version(n) => put_tagged(out, 2, *n),
            CompareTarget::Lease(n) => put_tagged(out, 3, *n),
            CompareTarget::Value(value) => {
                out.put_u8(4);
                put_bytes(out, value);
            }
        }
    }
    for branch in [&txn.success, &txn.failure] {
        put_number(out, branch.len() as u64);
        for op in branch {
            match op {
                Op::Put { key, value, lease } => {
                    out.put_u8(0);
                    put_bytes(out, key);
                    put_bytes(out, value);
                    put_number(out, *lease);
                }
                Op::Update { key, value, lease } => {
                    out.put_u8(3);
                    put_bytes(out, key);
                    out.put_u8(u8::from(value.is_some()) | u8::from(lease.is_some()) << 1);
                    if let Some(value) = value {
                        put_bytes(out, value);
                    }
                    if let Some(lease) = lease {
                        put_number(out, *lease);
                    }
                }
                Op::Txn(txn) => {
                    out.put_u8(4);
                    put_txn(out, txn);
                }
                Op::Delete { start, end } => {
                    out.put_u8(1);
                    put_bytes(out, start);
                    put_bytes(out, end);
                }
                Op::Range(range) => {
                    out.put_u8(2);
                    put_bytes(out, &range.start);
                    put_bytes(out, &range.end);
                    put_number(out, range.revision.map_or(0, |revision| revision + 1));
                    put_number(out, range.limit as u64);
                    out.put_u8(u8::from(range.keys_only) | u8::from(range.count_only) << 1);
                }
            }
        }
    }
}

fn take_txn(input: &mut Bytes, depth: usize) -> Result<Txn, DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::Deep);
    }
    let compares = take_list(input, |input| {
        let key = take_bytes(input)?;
        let tag = take_byte(input)?;
        let end = if tag & RANGED == 0 {
            Bytes::new()
        } else {
            take_bytes(input)?
        };
        let op = match tag & !RANGED {
            0 => CompareOp::Equal,
            1 => CompareOp::Greater,
            2 => CompareOp::Less,
            3 => CompareOp::NotEqual,
            tag => {
                return Err(DecodeError::Tag {
                    field: "compare",
                    tag,
                });
            }
        };
        let target = match take_byte(input)? {
            0 => CompareTarget::ModRevision(take_number(input)?),
            1 => CompareTarget::CreateRevision(take_number(input)?),
            2 => CompareTarget::Version(take_number(input)?),
            3 => CompareTarget::Lease(take_number(input)?),
            4 => CompareTarget::Value(take_bytes(input)?),
            tag => {
                return Err(DecodeError::Tag {
                    field: "compare target",
                    tag,
                });
            }
        };
        Ok(Compare {
            key,
            end,
            target,
            op,
        })
    })?;
    let mut take_branch = || {
        take_list(input, |input| {
            Ok(match take_byte(input)? {
                0 => Op::Put {
                    key: take_bytes(input)?,
                    value: take_bytes(input)?,
                    lease: take_number(input)?,
                },
                1 => Op::Delete {
                    start: take_bytes(input)?,
                    end: take_bytes(input)?,
                },
                2 => {
                    let start = take_bytes(input)?;
                    let end = take_bytes(input)?;
                    let revision = take_number(input)?.checked_sub(1);
                    let limit = usize::try_from(take_number(input)?).unwrap_or(usize::MAX);
                    let flags = take_byte(input)?;
                    Op::Range(RangeRequest {
                        start,
                        end,
                        revision,
                        limit,
                        keys_only: flags & 1 != 0,
                        count_only: flags & 2 != 0,
                    })
                }
                3 => {
                    let key = take_bytes(input)?;
                    let given = take_byte(input)?;
                    let value = (given & 1 != 0).then(|| take_bytes(input)).transpose()?;
                    let lease = (given & 2 != 0).then(|| take_number(input)).transpose()?;
                    Op::Update { key, value, lease }
                }
                4 => Op::Txn(take_txn(input, depth + 1)?),
                tag => {
                    return Err(DecodeError::Tag {
                        field: "operation",
                        tag,
                    });
                }
            })
        })
    };
    let success = take_branch()?;
    let failure = take_branch()?;
    Ok(Txn {
        compares,
        success,
        failure,
    })
}

fn put_tagged(out: &mut BytesMut, tag: u8, number: u64) {
    out.put_u8(tag);
    put_number(out, number);
}

/// Appends a LEB128 number.
pub(crate) fn put_number(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8((number & 0x7f) as u8);
}

/// Appends a length-prefixed byte string.
pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Takes one byte.
pub(crate) fn take_byte(input: &mut Bytes) -> Result<u8, DecodeError> {
    if input.has_remaining() {
        Ok(input.get_u8())
    } else {
        Err(DecodeError::Short)
    }
}

/// Takes a LEB128 number.
pub(crate) fn take_number(input: &mut Bytes) -> Result<u64, DecodeError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take_byte(input)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(DecodeError::Short)
}

/// Takes a length-prefixed byte string without copying it.
pub(crate) fn take_bytes(input: &mut Bytes) -> Result<Bytes, DecodeError> {
    let length = usize::try_from(take_number(input)?).unwrap_or(usize::MAX);
    if length > input.remaining() {
        return Err(DecodeError::Short);
    }
    Ok(input.split_to(length))
}

/// Takes a list: its length, then its elements.
pub(crate) fn take_list<T>(
    input: &mut Bytes,
    mut take: impl FnMut(&mut Bytes) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let length = usize::try_from(take_number(input)?).unwrap_or(usize::MAX);
    // Each element takes at least a byte, so a hostile length cannot reserve much.
    if length > input.remaining() {
        return Err(DecodeError::Short);
    }
    (0..length).map(|_| take(input)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    fn op() -> impl Strategy<Value = Op> {
        let inner = || proptest::collection::vec(flat_op(), 0..3);
        let nested = (proptest::collection::vec(compare(), 0..2), inner(), inner());
        prop_oneof![
            4 => flat_op(),
            1 => nested.prop_map(|(compares, success, failure)| Op::Txn(Txn {
                compares,
                success,
                failure
            })),
        ]
    }

    fn flat_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (
                bytes(),
                proptest::option::of(bytes()),
                proptest::option::of(any::<u64>())
            )
                .prop_map(|(key, value, lease)| Op::Update { key, value, lease }),
            (bytes(), bytes(), any::<u64>()).prop_map(|(key, value, lease)| Op::Put {
                key,
                value,
                lease
            }),
            (bytes(), bytes()).prop_map(|(start, end)| Op::Delete { start, end }),
            (
                bytes(),
                bytes(),
                proptest::option::of(0..u64::MAX),
                any::<u32>(),
                any::<bool>(),
                any::<bool>()
            )
                .prop_map(|(start, end, revision, limit, keys_only, count_only)| {
                    Op::Range(RangeRequest {
                        start,
                        end,
                        revision,
                        limit: limit as usize,
                        keys_only,
                        count_only,
                    })
                }),
        ]
    }

    fn compare() -> impl Strategy<Value = Compare> {
        let target = prop_oneof![
            any::<u64>().prop_map(CompareTarget::ModRevision),
            any::<u64>().prop_map(CompareTarget::CreateRevision),
            any::<u64>().prop_map(CompareTarget::Version),
            any::<u64>().prop_map(CompareTarget::Lease),
            bytes().prop_map(CompareTarget::Value),
        ];
        let op = prop_oneof![
            Just(CompareOp::Equal),
            Just(CompareOp::Greater),
            Just(CompareOp::Less),
            Just(CompareOp::NotEqual)
        ];
        (bytes(), bytes(), target, op).prop_map(|(key, end, target, op)| Compare {
            key,
            end,
            target,
            op,
        })
    }

    fn request() -> impl Strategy<Value = Request> {
        let ops = || proptest::collection::vec(op(), 0..4);
        prop_oneof![
            (proptest::collection::vec(compare(), 0..4), ops(), ops()).prop_map(
                |(compares, success, failure)| Request::Txn(Txn {
                    compares,
                    success,
                    failure
                })
            ),
            any::<u64>().prop_map(Request::Compact),
            any::<(u64, u64)>().prop_map(|(id, ttl_millis)| Request::LeaseGrant { id, ttl_millis }),
            any::<u64>().prop_map(|id| Request::LeaseRevoke { id }),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(requests in proptest::collection::vec(request(), 0..5)) {
            let encoded = encode(&requests);
            prop_assert_eq!(decode(encoded).unwrap(), requests);
        }

        #[test]
        fn hostile_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = vec![ENCODING];
            framed.extend(input);
            drop(decode(framed.into()));
        }

        #[test]
        fn cut_records_are_short(requests in proptest::collection::vec(request(), 1..3), cut in any::<proptest::sample::Index>()) {
            let encoded = encode(&requests);
            let cut = cut.index(encoded.len());
            prop_assert!(decode(encoded.slice(..cut)).is_err());
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nest = |depth: usize| {
            let txn = (0..depth).fold(Txn::default(), |inner, _| Txn {
                success: vec![Op::Txn(inner)],
                ..Txn::default()
            });
            decode(encode(&[Request::Txn(txn)]))
        };
        assert!(nest(MAX_DEPTH).is_ok());
        assert_eq!(nest(MAX_DEPTH + 1), Err(DecodeError::Deep));
    }
}
