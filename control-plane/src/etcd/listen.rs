//! The etcd API's listener: TLS or, on loopback, plain; then gRPC, and HTTP for probes.
//!
//! Watches connections; changes no state. Who a client is, is decided once per connection: over
//! TLS only a certificate of the administrators' group may call anything, and others are told so
//! by every answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Request;
use http::header::CONTENT_TYPE;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use pintle_api::auth::authenticate::{PeerCertificate, certificate_user};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tower::ServiceExt as _;

use super::Etcd;
use crate::pki::ADMIN_GROUP;

/// A client that does not finish its handshake in this time is cut off.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections may finish their requests after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// HTTP/2 pings find clients that vanished: their watches cost.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Requests one connection may have open; clients of etcd share one among all their callers.
const STREAMS: u32 = 16_384;

/// What every connection is served with.
#[derive(Clone)]
struct Services {
    etcd: Etcd,
    http: Router,
    tls: Option<TlsAcceptor>,
}

/// Serves until `shutdown`, then lets requests finish for a moment. Without `tls` everybody who
/// can connect is an administrator.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    etcd: Etcd,
    shutdown: CancellationToken,
) {
    let services = Services {
        http: etcd.http(),
        etcd,
        tls: tls.map(TlsAcceptor::from),
    };
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connection(stream, peer, services.clone(), shutdown.clone());
                connections.spawn(connection);
            }
            Err(error) => {
                // Out of file descriptors or memory: give connections time to end.
                tracing::warn!(%error, "accept a client of the etcd API");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait())
        .await
        .is_err()
    {
        tracing::debug!("clients of the etcd API still connected at the end of the drain time");
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    services: Services,
    shutdown: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set TCP_NODELAY");
    }
    let Some(acceptor) = services.tls.clone() else {
        return answer(stream, services, None, shutdown).await;
    };
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake with a client of the etcd API");
            return;
        }
        Err(_) => return,
    };
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first())
        .map(|leaf| PeerCertificate {
            der: Bytes::copy_from_slice(leaf),
        });
    let refusal = refusal(certificate.as_ref());
    if let Some(refusal) = &refusal {
        tracing::info!(%peer, reason = refusal.message(), "a client of the etcd API is refused");
    }
    answer(stream, services, refusal, shutdown).await;
}

/// Why the owner of a certificate may not call anything.
fn refusal(certificate: Option<&PeerCertificate>) -> Option<Status> {
    let Some(certificate) = certificate else {
        return Some(Status::unauthenticated(
            "etcdserver: a client certificate of the cluster is needed",
        ));
    };
    let user = certificate_user(certificate);
    if user
        .as_ref()
        .is_some_and(|user| user.groups.iter().any(|group| group == ADMIN_GROUP))
    {
        return None;
    }
    let name = user.map_or_else(String::new, |user| user.name);
    Some(Status::permission_denied(format!(
        "etcdserver: permission denied: user {name:?} is not in the group {ADMIN_GROUP}"
    )))
}

async fn answer<S>(
    stream: S,
    services: Services,
    refusal: Option<Status>,
    shutdown: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        if !is_grpc(&request) {
            // Probes need no certificate: they learn nothing but that the store is well.
            let answer = services.http.clone().oneshot(request);
            return async move { Ok(answer.await?.map(Body::new)) }.boxed();
        }
        match &refusal {
            None => services.etcd.grpc(request),
            Some(refusal) => std::future::ready(Ok(refusal.clone().into_http())).boxed(),
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = served {
        tracing::debug!(error, "connection of a client of the etcd API");
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
