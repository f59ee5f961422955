//! The services over a real connection, on a store in a folder of its own.

mod access;
mod key_value;
mod leases;
mod state;
mod watches;

use std::time::Duration;

use pintle_proto::etcd::etcdserverpb as pb;
use pintle_proto::etcd::mvccpb;
use pintle_store::{Op, Store, StoreConfig, Txn};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{Etcd, listen};
use crate::server;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A served store.
struct Server {
    _dir: tempfile::TempDir,
    store: Store,
    etcd: Etcd,
    channel: Channel,
    stop: CancellationToken,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    async fn start_with(change: impl FnOnce(&mut StoreConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = StoreConfig {
            data_dir: dir.path().to_path_buf(),
            ..StoreConfig::default()
        };
        change(&mut config);
        let store = Store::open(config).await.unwrap();
        let listener = server::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let etcd = Etcd::new(store.clone(), "n1", url.clone(), tasks, stop.clone());
        tokio::spawn(listen::serve(listener, None, etcd.clone(), stop.clone()));
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        Self {
            _dir: dir,
            store,
            etcd,
            channel,
            stop,
        }
    }

    fn kv(&self) -> pb::kv_client::KvClient<Channel> {
        pb::kv_client::KvClient::new(self.channel.clone())
    }

    fn lease(&self) -> pb::lease_client::LeaseClient<Channel> {
        pb::lease_client::LeaseClient::new(self.channel.clone())
    }

    fn maintenance(&self) -> pb::maintenance_client::MaintenanceClient<Channel> {
        pb::maintenance_client::MaintenanceClient::new(self.channel.clone())
    }

    fn cluster(&self) -> pb::cluster_client::ClusterClient<Channel> {
        pb::cluster_client::ClusterClient::new(self.channel.clone())
    }

    /// Puts and answers the revision.
    async fn put(&self, key: &str, value: &str) -> i64 {
        let response = self.kv().put(put(key, value)).await.unwrap().into_inner();
        response.header.unwrap().revision
    }

    async fn range(&self, request: pb::RangeRequest) -> pb::RangeResponse {
        self.kv().range(request).await.unwrap().into_inner()
    }

    async fn txn(&self, request: pb::TxnRequest) -> Result<pb::TxnResponse, Status> {
        Ok(self.kv().txn(request).await?.into_inner())
    }

    /// A write of Pintle's own, beside this API.
    async fn put_own(&self, key: &'static str) {
        let txn = Txn {
            success: vec![Op::put(key, "own")],
            ..Txn::default()
        };
        self.store.txn(txn).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..pb::PutRequest::default()
    }
}

fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.to_owned().into(),
        ..pb::RangeRequest::default()
    }
}

/// Everything from `key` on.
fn get_from(key: &'static [u8]) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.into(),
        range_end: vec![0].into(),
        ..pb::RangeRequest::default()
    }
}

fn keys(kvs: &[mvccpb::KeyValue]) -> Vec<String> {
    kvs.iter()
        .map(|kv| String::from_utf8_lossy(&kv.key).into_owned())
        .collect()
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, Status>) -> (Code, String) {
    let status = outcome.unwrap_err();
    (status.code(), status.message().to_owned())
}
