//! Range requests: what to ask the store for, and what to make of its answer.
//!
//! Watches and changes nothing. The store reads a range in key order, up to a limit; sorting by
//! something else and filtering by revision need the whole range first, so they are done here.

use pintle_proto::etcd::etcdserverpb as pb;
use pintle_proto::etcd::mvccpb;
use pintle_store::{RangeRequest, RangeResponse};
use tonic::Status;

use super::{error, keyspace};
use pb::range_request::{SortOrder, SortTarget};

/// What is done to the store's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    sort: Option<(SortTarget, SortOrder)>,
    /// Bounds of the revision of the last write, then of the creation; 0 is no bound.
    modified: (i64, i64),
    created: (i64, i64),
    /// What the store was not told.
    limit: Option<usize>,
    keys_only: bool,
}

/// The store's request, and the shape of the answer.
pub(super) fn plan(request: &pb::RangeRequest) -> Result<(RangeRequest, Shape), Status> {
    if request.key.is_empty() {
        return Err(error::empty_key());
    }
    let order = SortOrder::try_from(request.sort_order);
    let target = SortTarget::try_from(request.sort_target);
    let (Ok(order), Ok(target)) = (order, target) else {
        return Err(error::invalid_sort_option());
    };
    let sort = match (target, order) {
        // The store's own order.
        (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
        (target, SortOrder::None) => Some((target, SortOrder::Ascend)),
        (target, order) => Some((target, order)),
    };
    let mut shape = Shape {
        sort,
        modified: (request.min_mod_revision, request.max_mod_revision),
        created: (request.min_create_revision, request.max_create_revision),
        limit: None,
        keys_only: false,
    };
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let (start, end) = keyspace::range(&request.key, &request.range_end);
    let mut ask = RangeRequest {
        start,
        end,
        revision: u64::try_from(request.revision).ok().filter(|at| *at > 0),
        limit,
        keys_only: request.keys_only,
        count_only: request.count_only,
    };
    if shape.rearranges() {
        ask.limit = 0;
        shape.limit = (limit > 0).then_some(limit);
        if matches!(sort, Some((SortTarget::Value, _))) {
            shape.keys_only = request.keys_only;
            ask.keys_only = false;
        }
    }
    Ok((ask, shape))
}

impl Shape {
    fn rearranges(&self) -> bool {
        self.sort.is_some() || self.modified != (0, 0) || self.created != (0, 0)
    }

    /// The client's answer, without its header.
    pub(super) fn answer(&self, response: RangeResponse) -> pb::RangeResponse {
        let mut more = response.more;
        let mut kvs: Vec<_> = response.kvs.into_iter().map(keyspace::key_value).collect();
        if self.rearranges() {
            kvs.retain(|kv| {
                within(kv.mod_revision, self.modified) && within(kv.create_revision, self.created)
            });
            if let Some((target, order)) = self.sort {
                sort(&mut kvs, target, order);
            }
            if let Some(limit) = self.limit
                && kvs.len() > limit
            {
                kvs.truncate(limit);
                more = true;
            }
            if self.keys_only {
                for kv in &mut kvs {
                    kv.value.clear();
                }
            }
        }
        pb::RangeResponse {
            header: None,
            kvs,
            more,
            count: i64::try_from(response.count).unwrap_or(i64::MAX),
        }
    }
}

fn within(revision: i64, (min, max): (i64, i64)) -> bool {
    (min == 0 || revision >= min) && (max == 0 || revision <= max)
}

fn sort(kvs: &mut [mvccpb::KeyValue], target: SortTarget, order: SortOrder) {
    let compare = |a: &mvccpb::KeyValue, b: &mvccpb::KeyValue| match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    if order == SortOrder::Descend {
        kvs.sort_by(|a, b| compare(b, a));
    } else {
        kvs.sort_by(compare);
    }
}
