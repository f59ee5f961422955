//! Puts, deletes and transactions: to the store's operations, and their answers back.
//!
//! Watches and changes nothing. A request is checked and translated once; its answer is made by
//! walking the request again beside the store's responses.

use bytes::Bytes;
use pintle_proto::etcd::etcdserverpb as pb;
use pintle_store::{Compare, CompareOp, CompareTarget, LeaseId, Op, OpResponse, Txn, TxnResponse};
use tonic::Status;

use super::range::{self, Shape};
use super::{error, keyspace};
use pb::compare::{CompareResult, TargetUnion};
use pb::request_op::Request;
use pb::response_op::Response;

/// Most operations of a transaction, those of the longest path through it counted; etcd's
/// default for `--max-txn-ops`.
const MAX_OPS: usize = 128;

/// What must be remembered of an operation to make its answer.
#[derive(Debug)]
pub(super) enum Wanted {
    /// The shape of a range's answer.
    Range(Shape),
    /// Whether the version before a put is wanted.
    Put(bool),
    /// Whether what was deleted is wanted.
    Delete(bool),
    /// Both branches of a transaction.
    Txn(Branches),
}

/// What is wanted of either branch.
#[derive(Debug)]
pub(super) struct Branches {
    success: Vec<Wanted>,
    failure: Vec<Wanted>,
}

/// A transaction for the store.
pub(super) fn plan(request: pb::TxnRequest) -> Result<(Txn, Branches), Status> {
    plan_within(request, MAX_OPS)
}

fn plan_within(request: pb::TxnRequest, budget: usize) -> Result<(Txn, Branches), Status> {
    let ops = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    let Some(left) = budget.checked_sub(ops) else {
        return Err(error::too_many_ops());
    };
    let compares = request
        .compare
        .into_iter()
        .map(compare)
        .collect::<Result<_, _>>()?;
    let branch = |ops: Vec<pb::RequestOp>| -> Result<(Vec<Op>, Vec<Wanted>), Status> {
        let mut planned = (Vec::with_capacity(ops.len()), Vec::with_capacity(ops.len()));
        for op in ops {
            let (op, wanted) = operation(op, left)?;
            planned.0.push(op);
            planned.1.push(wanted);
        }
        Ok(planned)
    };
    let (success, wanted) = branch(request.success)?;
    let (failure, otherwise) = branch(request.failure)?;
    let txn = Txn {
        compares,
        success,
        failure,
    };
    let branches = Branches {
        success: wanted,
        failure: otherwise,
    };
    Ok((txn, branches))
}

fn operation(op: pb::RequestOp, budget: usize) -> Result<(Op, Wanted), Status> {
    match op.request {
        Some(Request::RequestRange(request)) => {
            let (ask, shape) = range::plan(&request)?;
            Ok((Op::Range(ask), Wanted::Range(shape)))
        }
        Some(Request::RequestPut(request)) => {
            let wanted = Wanted::Put(request.prev_kv);
            Ok((put(request)?, wanted))
        }
        Some(Request::RequestDeleteRange(request)) => {
            let wanted = Wanted::Delete(request.prev_kv);
            Ok((delete(&request)?, wanted))
        }
        Some(Request::RequestTxn(request)) => {
            let (txn, branches) = plan_within(request, budget)?;
            Ok((Op::Txn(txn), Wanted::Txn(branches)))
        }
        None => Err(error::key_not_found()),
    }
}

/// A put for the store.
pub(super) fn put(request: pb::PutRequest) -> Result<Op, Status> {
    if request.key.is_empty() {
        return Err(error::empty_key());
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(error::value_provided());
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(error::lease_provided());
    }
    let key = keyspace::key(&request.key);
    let lease = lease(request.lease)?;
    Ok(if request.ignore_value || request.ignore_lease {
        Op::Update {
            key,
            value: (!request.ignore_value).then_some(request.value),
            lease: (!request.ignore_lease).then_some(lease),
        }
    } else {
        Op::Put {
            key,
            value: request.value,
            lease,
        }
    })
}

fn lease(id: i64) -> Result<LeaseId, Status> {
    match id {
        0 => Ok(0),
        id => keyspace::lease(id).ok_or_else(error::lease_not_found),
    }
}

/// A deletion for the store.
pub(super) fn delete(request: &pb::DeleteRangeRequest) -> Result<Op, Status> {
    if request.key.is_empty() {
        return Err(error::empty_key());
    }
    let (start, end) = keyspace::range(&request.key, &request.range_end);
    Ok(Op::Delete { start, end })
}

fn compare(request: pb::Compare) -> Result<Compare, Status> {
    if request.key.is_empty() {
        return Err(error::empty_key());
    }
    let unknown =
        || Status::invalid_argument("etcdserver: a compare has an unknown result or target");
    let op = match CompareResult::try_from(request.result) {
        Ok(CompareResult::Equal) => CompareOp::Equal,
        Ok(CompareResult::Greater) => CompareOp::Greater,
        Ok(CompareResult::Less) => CompareOp::Less,
        Ok(CompareResult::NotEqual) => CompareOp::NotEqual,
        Err(_) => return Err(unknown()),
    };
    // The given side decides; where it is left out it is the target's zero.
    let given = match request.target_union {
        Some(given) => given,
        None => match pb::compare::CompareTarget::try_from(request.target) {
            Ok(pb::compare::CompareTarget::Version) => TargetUnion::Version(0),
            Ok(pb::compare::CompareTarget::Create) => TargetUnion::CreateRevision(0),
            Ok(pb::compare::CompareTarget::Mod) => TargetUnion::ModRevision(0),
            Ok(pb::compare::CompareTarget::Value) => TargetUnion::Value(Bytes::new()),
            Ok(pb::compare::CompareTarget::Lease) => TargetUnion::Lease(0),
            Err(_) => return Err(unknown()),
        },
    };
    let (target, op) = match given {
        TargetUnion::Version(given) => number(CompareTarget::Version, given, op),
        TargetUnion::CreateRevision(given) => number(CompareTarget::CreateRevision, given, op),
        TargetUnion::ModRevision(given) => number(CompareTarget::ModRevision, given, op),
        TargetUnion::Lease(given) => number(CompareTarget::Lease, given, op),
        TargetUnion::Value(given) => (CompareTarget::Value(given), op),
    };
    let (key, end) = keyspace::range(&request.key, &request.range_end);
    Ok(Compare {
        key,
        end,
        target,
        op,
    })
}

/// A comparison with a number. The store's are not negative: what is compared with a negative one
/// is greater and differs, always.
fn number(
    target: impl FnOnce(u64) -> CompareTarget,
    given: i64,
    op: CompareOp,
) -> (CompareTarget, CompareOp) {
    match (u64::try_from(given), op) {
        (Ok(given), op) => (target(given), op),
        (Err(_), CompareOp::Greater | CompareOp::NotEqual) => {
            (target(u64::MAX), CompareOp::NotEqual)
        }
        (Err(_), CompareOp::Less | CompareOp::Equal) => (target(0), CompareOp::Less),
    }
}

/// The answer to a put; `wanted`: whether the version before is.
pub(super) fn put_answer(
    response: Option<OpResponse>,
    wanted: bool,
    header: pb::ResponseHeader,
) -> pb::PutResponse {
    let prev = match response {
        Some(OpResponse::Put { prev }) if wanted => prev,
        _ => None,
    };
    pb::PutResponse {
        header: Some(header),
        prev_kv: prev.map(keyspace::key_value),
    }
}

/// The answer to a deletion; `wanted`: whether the deleted versions are.
pub(super) fn delete_answer(
    response: Option<OpResponse>,
    wanted: bool,
    header: pb::ResponseHeader,
) -> pb::DeleteRangeResponse {
    let prev = match response {
        Some(OpResponse::Delete { prev }) => prev,
        _ => Vec::new(),
    };
    pb::DeleteRangeResponse {
        header: Some(header),
        deleted: i64::try_from(prev.len()).unwrap_or(i64::MAX),
        prev_kvs: if wanted {
            prev.into_iter().map(keyspace::key_value).collect()
        } else {
            Vec::new()
        },
    }
}

/// The answer to a transaction.
pub(super) fn answer(
    response: TxnResponse,
    branches: &Branches,
    header: pb::ResponseHeader,
) -> pb::TxnResponse {
    let wanted = if response.succeeded {
        &branches.success
    } else {
        &branches.failure
    };
    let responses = response
        .responses
        .into_iter()
        .zip(wanted)
        .map(|(response, wanted)| pb::ResponseOp {
            response: Some(operation_answer(response, wanted, header)),
        })
        .collect();
    pb::TxnResponse {
        header: Some(header),
        succeeded: response.succeeded,
        responses,
    }
}

fn operation_answer(response: OpResponse, wanted: &Wanted, header: pb::ResponseHeader) -> Response {
    match (wanted, response) {
        (Wanted::Put(prev), response) => {
            Response::ResponsePut(put_answer(Some(response), *prev, header))
        }
        (Wanted::Delete(prev), response) => {
            Response::ResponseDeleteRange(delete_answer(Some(response), *prev, header))
        }
        (Wanted::Range(shape), OpResponse::Range(response)) => {
            Response::ResponseRange(pb::RangeResponse {
                header: Some(header),
                ..shape.answer(response)
            })
        }
        (Wanted::Txn(branches), OpResponse::Txn(response)) => {
            Response::ResponseTxn(answer(response, branches, header))
        }
        // The store answers each operation in kind.
        (Wanted::Range(_), _) => Response::ResponseRange(pb::RangeResponse::default()),
        (Wanted::Txn(_), _) => Response::ResponseTxn(pb::TxnResponse::default()),
    }
}
