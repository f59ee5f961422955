//! The KV service: range, put, delete, transactions, compaction.
//!
//! Watches nothing; changes clients' keys through the store, whose watchers react.

use pintle_proto::etcd::etcdserverpb as pb;
use pintle_store::{Op, OpResponse, RangeRequest, RangeResponse, Revision, StoreError, Txn};
use tonic::{Request, Response, Status};

use super::error::{compacted, from_store, stopped};
use super::{Etcd, range, txn};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl pb::kv_server::Kv for Etcd {
    async fn range(&self, request: Request<pb::RangeRequest>) -> Answer<pb::RangeResponse> {
        let request = request.into_inner();
        let (ask, shape) = range::plan(&request)?;
        if !request.serializable {
            let current = self.store().linearizable().await;
            current.map_err(|error| from_store(&error))?;
        }
        let response = self.read(ask).await?;
        let header = self.header(response.revision);
        Ok(Response::new(pb::RangeResponse {
            header: Some(header),
            ..shape.answer(response)
        }))
    }

    async fn put(&self, request: Request<pb::PutRequest>) -> Answer<pb::PutResponse> {
        let request = request.into_inner();
        let wanted = request.prev_kv;
        let (revision, response) = self.write(txn::put(request)?).await?;
        let header = self.header(revision);
        Ok(Response::new(txn::put_answer(response, wanted, header)))
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Answer<pb::DeleteRangeResponse> {
        let request = request.into_inner();
        let (revision, response) = self.write(txn::delete(&request)?).await?;
        let header = self.header(revision);
        let answer = txn::delete_answer(response, request.prev_kv, header);
        Ok(Response::new(answer))
    }

    async fn txn(&self, request: Request<pb::TxnRequest>) -> Answer<pb::TxnResponse> {
        let (txn, branches) = txn::plan(request.into_inner())?;
        let response = self.store().txn(txn).await;
        let response = response.map_err(|error| from_store(&error))?;
        let header = self.header(response.revision);
        Ok(Response::new(txn::answer(response, &branches, header)))
    }

    /// Once it is answered nothing can read what was compacted; the store frees the space right
    /// after, in small steps, so there is nothing for `physical` to wait for.
    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Answer<pb::CompactionResponse> {
        let revision = u64::try_from(request.into_inner().revision);
        let Ok(revision) = revision else {
            return Err(compacted());
        };
        let done = self.store().compact(revision).await;
        done.map_err(|error| from_store(&error))?;
        Ok(Response::new(pb::CompactionResponse {
            header: Some(self.header_now()),
        }))
    }
}

impl Etcd {
    /// Reads; more than one key off the threads that serve connections.
    pub(super) async fn read(&self, ask: RangeRequest) -> Result<RangeResponse, Status> {
        let response: Result<RangeResponse, StoreError> = if ask.end.is_empty() {
            self.store().range(&ask)
        } else {
            let store = self.store().clone();
            let read = tokio::task::spawn_blocking(move || store.range(&ask));
            // It is not aborted and does not panic: the runtime is going away.
            read.await.map_err(|_ended| stopped())?
        };
        response.map_err(|error| from_store(&error))
    }

    /// Does one operation; answers the revision and its response.
    async fn write(&self, op: Op) -> Result<(Revision, Option<OpResponse>), Status> {
        let txn = Txn {
            success: vec![op],
            ..Txn::default()
        };
        let mut response = self
            .store()
            .txn(txn)
            .await
            .map_err(|error| from_store(&error))?;
        Ok((response.revision, response.responses.pop()))
    }
}
