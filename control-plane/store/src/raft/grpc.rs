//! Messages between members over gRPC and mutual TLS.
//!
//! Watches connections that come in and members that are to be called; changes nothing: what
//! arrives is for [`PeerService`]. Both sides want a certificate of the cluster's CA that is
//! valid for [`MEMBER_NAME`], so that a node's or a user's certificate opens no door here.
//!
//! A connection is kept per member, and found dead by HTTP/2 pings within two seconds, so that
//! a healed network is used at once and not only when TCP tries again.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use pintle_proto::MAX_MESSAGE_BYTES;
use pintle_proto::raft::raft_client::RaftClient;
use pintle_proto::raft::raft_server::{Raft, RaftServer};
use pintle_proto::raft::{RaftRequest, RaftResponse};
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::{Request, Response, Status};

use super::inbox::PeerService;
use super::transport::{Peer, Transport, TransportError};

/// The DNS name that the certificate of every member carries, whatever its address.
pub const MEMBER_NAME: &str = "raft.pintle.internal";

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A connection that is silent gets a ping, and has as long again to answer it.
const PING: Duration = Duration::from_secs(1);
/// Connections finish their calls within this after a stop.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);

fn member_name() -> ServerName<'static> {
    // A constant that is a DNS name; an address would be refused by every certificate.
    ServerName::try_from(MEMBER_NAME)
        .unwrap_or_else(|_invalid| std::net::IpAddr::from([0, 0, 0, 0]).into())
}

/// Calls other members over gRPC.
#[derive(Clone)]
pub struct GrpcTransport {
    tls: TlsConnector,
    connections: Arc<Mutex<HashMap<Peer, Slot>>>,
}

type Slot = Arc<tokio::sync::Mutex<Option<Connection>>>;

impl std::fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcTransport").finish_non_exhaustive()
    }
}

impl GrpcTransport {
    /// With this member's certificate and the cluster's CA as the only root.
    pub fn new(mut tls: rustls::ClientConfig) -> Self {
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Self {
            tls: TlsConnector::from(Arc::new(tls)),
            connections: Arc::default(),
        }
    }

    async fn connection(&self, peer: &Peer) -> Result<Connection, TransportError> {
        let slot = Arc::clone(self.connections.lock().entry(peer.clone()).or_default());
        let mut slot = slot.lock().await;
        if let Some(connection) = &mut *slot
            && connection.sender.ready().await.is_ok()
        {
            return Ok(connection.clone());
        }
        *slot = None;
        let made = timeout(CONNECT_LIMIT, Connection::make(&self.tls, &peer.address)).await;
        let connection = made
            .map_err(|_elapsed| TransportError::unsent(peer, "connecting took too long"))?
            .map_err(|error| TransportError::unsent(peer, error.to_string()))?;
        *slot = Some(connection.clone());
        Ok(connection)
    }

    async fn call(self, peer: Peer, request: RaftRequest) -> Result<RaftResponse, TransportError> {
        let connection = self.connection(&peer).await?;
        let origin = http::Uri::from_static("https://raft.pintle.internal");
        let mut client = RaftClient::with_origin(connection, origin)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        match client.call(Request::new(request)).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(TransportError::unanswered(
                &peer,
                format!("{}: {}", status.code(), status.message()),
            )),
        }
    }
}

impl Transport for GrpcTransport {
    fn call(
        &self,
        peer: Peer,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, TransportError>> {
        self.clone().call(peer, request).boxed()
    }
}

/// An HTTP/2 connection, as tonic wants it.
#[derive(Clone)]
struct Connection {
    sender: client::SendRequest<Body>,
}

impl Connection {
    async fn make(tls: &TlsConnector, address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = tls.connect(member_name(), stream).await?;
        let (sender, connection) = client::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to a member");
            }
        });
        Ok(Self { sender })
    }
}

impl tower_service::Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.sender.send_request(request).boxed()
    }
}

#[tonic::async_trait]
impl Raft for PeerService {
    async fn call(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        Ok(Response::new(self.handle(request.into_inner()).await))
    }
}

/// Serves members that connect to `listener` until `shutdown`. `tls` must ask for a client's
/// certificate of the cluster's CA; that it is a member's is checked here.
pub async fn serve_peers(
    listener: TcpListener,
    mut tls: rustls::ServerConfig,
    service: PeerService,
    shutdown: CancellationToken,
) {
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let serving =
                    serve_connection(stream, acceptor.clone(), service.clone(), shutdown.clone());
                connections.spawn(async move {
                    if let Err(error) = serving.await {
                        tracing::debug!(%error, %address, "connection of a member");
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors or memory: give connections time to end.
                tracing::warn!(%error, "accept a member's connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    connections.close();
    if timeout(DRAIN_LIMIT, connections.wait()).await.is_err() {
        tracing::debug!("members' connections still open at the end of the drain time");
    }
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    service: PeerService,
    shutdown: CancellationToken,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = timeout(CONNECT_LIMIT * 5, acceptor.accept(stream))
        .await
        .map_err(|_elapsed| io::ErrorKind::TimedOut)??;
    let certificates = stream.get_ref().1.peer_certificates();
    is_member(certificates.and_then(|chain| chain.first()))?;
    let service = RaftServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let connection = server::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING * 5)
        .keep_alive_timeout(PING * 5)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => served.map_err(io::Error::other),
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await.map_err(io::Error::other)
        }
    }
}

/// The chain was verified in the handshake; whose certificate it is was not.
fn is_member(certificate: Option<&CertificateDer<'_>>) -> io::Result<()> {
    let refuse = |cause: String| {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the client is no member of the group: {cause}"),
        )
    };
    let certificate = certificate.ok_or_else(|| refuse("it has no certificate".to_owned()))?;
    ParsedCertificate::try_from(certificate)
        .and_then(|certificate| verify_server_name(&certificate, &member_name()))
        .map_err(|error| refuse(error.to_string()))
}
