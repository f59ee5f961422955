//! The binary form of answers, as the leader sends them to the member that forwarded requests.
//!
//! Watches and changes nothing: pure encoding, in the manner of [`crate::request`]. It travels
//! between members only and is never stored.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Rejection;
use crate::key_value::{KeyValue, OpResponse, RangeResponse, TxnResponse};
use crate::request::{
    DecodeError, MAX_DEPTH, Outcome, Reply, put_bytes, put_number, take_byte, take_bytes,
    take_list, take_number,
};

/// Encodes the outcomes of a batch.
pub(crate) fn encode(outcomes: &[Outcome]) -> Bytes {
    let mut out = BytesMut::with_capacity(64 * outcomes.len() + 16);
    put_number(&mut out, outcomes.len() as u64);
    for outcome in outcomes {
        match outcome {
            Ok(Reply::Done) => out.put_u8(0),
            Ok(Reply::Txn(response)) => {
                out.put_u8(1);
                put_txn(&mut out, response);
            }
            Err(rejection) => {
                out.put_u8(2);
                put_rejection(&mut out, rejection);
            }
        }
    }
    out.freeze()
}

/// The inverse of [`encode`].
pub(crate) fn decode(mut input: Bytes) -> Result<Vec<Outcome>, DecodeError> {
    let outcomes = take_list(&mut input, |input| {
        Ok(match take_byte(input)? {
            0 => Ok(Reply::Done),
            1 => Ok(Reply::Txn(take_txn(input, 0)?)),
            2 => Err(take_rejection(input)?),
            tag => return Err(unknown("outcome", tag)),
        })
    })?;
    if input.is_empty() {
        Ok(outcomes)
    } else {
        Err(DecodeError::Trailing { left: input.len() })
    }
}

fn unknown(field: &'static str, tag: u8) -> DecodeError {
    DecodeError::Tag { field, tag }
}

fn put_txn(out: &mut BytesMut, response: &TxnResponse) {
    out.put_u8(u8::from(response.succeeded));
    put_number(out, response.revision);
    put_number(out, response.responses.len() as u64);
    for response in &response.responses {
        match response {
            OpResponse::Put { prev: None } => out.put_u8(0),
            OpResponse::Put { prev: Some(prev) } => {
                out.put_u8(1);
                put_key_value(out, prev);
            }
            OpResponse::Delete { prev } => {
                out.put_u8(2);
                put_key_values(out, prev);
            }
            OpResponse::Range(range) => {
                out.put_u8(3);
                put_key_values(out, &range.kvs);
                out.put_u8(u8::from(range.more));
                put_number(out, range.count);
                put_number(out, range.revision);
            }
            OpResponse::Txn(response) => {
                out.put_u8(4);
                put_txn(out, response);
            }
        }
    }
}

fn take_txn(input: &mut Bytes, depth: usize) -> Result<TxnResponse, DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::Deep);
    }
    Ok(TxnResponse {
        succeeded: take_byte(input)? != 0,
        revision: take_number(input)?,
        responses: take_list(input, |input| {
            Ok(match take_byte(input)? {
                0 => OpResponse::Put { prev: None },
                1 => OpResponse::Put {
                    prev: Some(take_key_value(input)?),
                },
                2 => OpResponse::Delete {
                    prev: take_list(input, take_key_value)?,
                },
                3 => OpResponse::Range(RangeResponse {
                    kvs: take_list(input, take_key_value)?,
                    more: take_byte(input)? != 0,
                    count: take_number(input)?,
                    revision: take_number(input)?,
                }),
                4 => OpResponse::Txn(take_txn(input, depth + 1)?),
                tag => return Err(unknown("response", tag)),
            })
        })?,
    })
}

fn put_key_values(out: &mut BytesMut, kvs: &[KeyValue]) {
    put_number(out, kvs.len() as u64);
    for kv in kvs {
        put_key_value(out, kv);
    }
}

fn put_key_value(out: &mut BytesMut, kv: &KeyValue) {
    put_bytes(out, &kv.key);
    put_bytes(out, &kv.value);
    for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
        put_number(out, number);
    }
}

fn take_key_value(input: &mut Bytes) -> Result<KeyValue, DecodeError> {
    Ok(KeyValue {
        key: take_bytes(input)?,
        value: take_bytes(input)?,
        create_revision: take_number(input)?,
        mod_revision: take_number(input)?,
        version: take_number(input)?,
        lease: take_number(input)?,
    })
}

fn put_rejection(out: &mut BytesMut, rejection: &Rejection) {
    match rejection {
        Rejection::DuplicateKey { key } => {
            out.put_u8(0);
            put_bytes(out, key.as_bytes());
        }
        Rejection::KeyLength { length, limit } => {
            out.put_u8(1);
            put_number(out, *length as u64);
            put_number(out, *limit as u64);
        }
        Rejection::TooLarge { bytes, limit } => {
            out.put_u8(2);
            put_number(out, *bytes as u64);
            put_number(out, *limit as u64);
        }
        Rejection::LeaseNotFound { id } => {
            out.put_u8(3);
            put_number(out, *id);
        }
        Rejection::LeaseExists { id } => {
            out.put_u8(4);
            put_number(out, *id);
        }
        Rejection::Compacted {
            requested,
            compacted,
        } => {
            out.put_u8(5);
            put_number(out, *requested);
            put_number(out, *compacted);
        }
        Rejection::FutureRevision { requested, current } => {
            out.put_u8(6);
            put_number(out, *requested);
            put_number(out, *current);
        }
        Rejection::KeyNotFound { key } => {
            out.put_u8(7);
            put_bytes(out, key.as_bytes());
        }
        Rejection::TooDeep { limit } => {
            out.put_u8(8);
            put_number(out, *limit as u64);
        }
    }
}

fn take_rejection(input: &mut Bytes) -> Result<Rejection, DecodeError> {
    let size = |input: &mut Bytes| -> Result<usize, DecodeError> {
        Ok(usize::try_from(take_number(input)?).unwrap_or(usize::MAX))
    };
    Ok(match take_byte(input)? {
        0 => Rejection::DuplicateKey {
            key: String::from_utf8_lossy(&take_bytes(input)?).into_owned(),
        },
        1 => Rejection::KeyLength {
            length: size(input)?,
            limit: size(input)?,
        },
        2 => Rejection::TooLarge {
            bytes: size(input)?,
            limit: size(input)?,
        },
        3 => Rejection::LeaseNotFound {
            id: take_number(input)?,
        },
        4 => Rejection::LeaseExists {
            id: take_number(input)?,
        },
        5 => Rejection::Compacted {
            requested: take_number(input)?,
            compacted: take_number(input)?,
        },
        6 => Rejection::FutureRevision {
            requested: take_number(input)?,
            current: take_number(input)?,
        },
        7 => Rejection::KeyNotFound {
            key: String::from_utf8_lossy(&take_bytes(input)?).into_owned(),
        },
        8 => Rejection::TooDeep {
            limit: size(input)?,
        },
        tag => return Err(unknown("rejection", tag)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(at: u64) -> KeyValue {
        KeyValue {
            key: Bytes::from(format!("k{at}")),
            value: Bytes::from(at.to_string().repeat(9)),
            create_revision: at,
            mod_revision: at + 1,
            version: at + 2,
            lease: at + 3,
        }
    }

    #[test]
    fn decode_inverts_encode() {
        let outcomes: Vec<Outcome> = vec![
            Ok(Reply::Done),
            Ok(Reply::Txn(TxnResponse {
                succeeded: true,
                revision: 300,
                responses: vec![
                    OpResponse::Put { prev: None },
                    OpResponse::Put { prev: Some(kv(1)) },
                    OpResponse::Delete {
                        prev: vec![kv(2), kv(3)],
                    },
                    OpResponse::Range(RangeResponse {
                        kvs: vec![kv(200)],
                        more: true,
                        count: 9,
                        revision: 8,
                    }),
                    OpResponse::Txn(TxnResponse {
                        succeeded: false,
                        revision: 7,
                        responses: vec![OpResponse::Put { prev: Some(kv(4)) }],
                    }),
                ],
            })),
            Err(Rejection::DuplicateKey { key: "a".into() }),
            Err(Rejection::KeyLength {
                length: 1,
                limit: 2,
            }),
            Err(Rejection::TooLarge { bytes: 1, limit: 2 }),
            Err(Rejection::LeaseNotFound { id: 7 }),
            Err(Rejection::KeyNotFound { key: "b".into() }),
            Err(Rejection::TooDeep { limit: 3 }),
            Err(Rejection::LeaseExists { id: 7 }),
            Err(Rejection::Compacted {
                requested: 1,
                compacted: 2,
            }),
            Err(Rejection::FutureRevision {
                requested: 1,
                current: 2,
            }),
        ];
        let encoded = encode(&outcomes);
        assert_eq!(decode(encoded.clone()).unwrap(), outcomes);
        for cut in 0..encoded.len() {
            decode(encoded.slice(..cut)).unwrap_err();
        }
    }
}
