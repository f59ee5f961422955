//! The API's listeners: TLS, then HTTP/1.1 or HTTP/2, then REST or gRPC by content type.
//!
//! Watches connections; changes no state itself. Each request carries, as an extension, the
//! [`PeerCertificate`] its connection was verified with: the REST authenticator and the node
//! session read it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use pintle_api::auth::authenticate::PeerCertificate;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// A client that does not finish its handshake in this time is cut off.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections may finish their requests after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// HTTP/2 pings find peers that vanished, nodes above all.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const BACKLOG: i32 = 1024;

/// Binds a TCP listener. With `freebind` (Linux `IP_FREEBIND`, ip(7)) the address need not be on
/// an interface yet: the pod gateway appears only with the first pod.
pub fn bind(address: SocketAddr, freebind: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    // A restart must not wait for the old connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    if freebind {
        match address.ip() {
            IpAddr::V4(_) => socket.set_freebind_v4(true)?,
            IpAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// What the listeners serve.
#[derive(Clone)]
pub struct Services {
    /// The REST API.
    pub rest: Router,
    /// Join, NodeSession.
    pub grpc: Router,
}

/// Serves every listener until `shutdown`, then lets requests finish for a moment.
pub async fn serve(
    listeners: Vec<TcpListener>,
    tls: Arc<rustls::ServerConfig>,
    services: Services,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    let accepting = TaskTracker::new();
    for listener in listeners {
        accepting.spawn(accept(
            listener,
            acceptor.clone(),
            services.clone(),
            connections.clone(),
            shutdown.clone(),
        ));
    }
    accepting.close();
    accepting.wait().await;
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait())
        .await
        .is_err()
    {
        tracing::debug!("connections still open at the end of the drain time");
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    services: Services,
    connections: TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection =
                    connection(stream, acceptor.clone(), services.clone(), shutdown.clone());
                connections.spawn(connection);
            }
            Err(error) => {
                // Out of file descriptors or memory: give connections time to end.
                tracing::warn!(%error, "accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    services: Services,
    shutdown: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set TCP_NODELAY");
    }
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake");
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

    let service = tower::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        let router = if is_grpc(&request) {
            services.grpc.clone()
        } else {
            services.rest.clone()
        };
        router.oneshot(request.map(Body::new))
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
        .max_concurrent_streams(1024)
        // A node's snapshot or a big list should not wait for window updates.
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    let connection = builder
        .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = served {
        tracing::debug!(error, "connection");
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn freebind_takes_an_address_no_interface_has() {
        let absent: SocketAddr = "192.0.2.1:0".parse().unwrap();
        assert_eq!(
            bind(absent, false).unwrap_err().kind(),
            io::ErrorKind::AddrNotAvailable
        );
        bind(absent, true).unwrap();
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error() {
        let first = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let error = bind(first.local_addr().unwrap(), false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
