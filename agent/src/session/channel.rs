//! The TLS connection to the API port, as a tonic channel.
//!
//! Watches and changes nothing: it is the wire under [`link`](super::link) and the streams.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use hyper_util::rt::TokioIo;
use rustls::crypto::CryptoProvider;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use super::identity::Identity;
use super::pin::PinnedCa;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The server's address is none.
    #[error("`{server}` is no HOST:PORT such as 192.0.2.10:6443")]
    Address {
        /// What was given.
        server: String,
    },
    /// A certificate or key is no PEM.
    #[error("cannot read the {what}")]
    Pem {
        /// Which.
        what: &'static str,
        /// What the parser said.
        source: rustls_pki_types::pem::Error,
    },
    /// The TLS configuration is refused.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The server does not answer.
    #[error("cannot connect to {server}")]
    Connect {
        /// The server.
        server: String,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// Connects to `server` (HOST:PORT), whose certificate `ca_pem` must have signed; with
/// `identity` as the client's certificate.
pub async fn connect(
    server: &str,
    ca_pem: &str,
    identity: Option<&Identity>,
) -> Result<Channel, ChannelError> {
    dial(server, client_config(ca_pem, identity)?).await
}

/// Connects to `server` (HOST:PORT), known only by the hash of its CA.
pub async fn connect_pinned(
    server: &str,
    pin: impl FnOnce(Arc<CryptoProvider>) -> Arc<PinnedCa>,
) -> Result<Channel, ChannelError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = pin(Arc::clone(&provider));
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ChannelError::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    dial(server, config).await
}

async fn dial(server: &str, mut config: rustls::ClientConfig) -> Result<Channel, ChannelError> {
    let bad = || ChannelError::Address {
        server: server.to_owned(),
    };
    let authority: Authority = server
        .parse()
        .map_err(|_error: http::uri::InvalidUri| bad())?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let port = authority.port_u16().ok_or_else(bad)?;
    let name = ServerName::try_from(host.clone())
        .map_err(|_error: rustls_pki_types::InvalidDnsNameError| bad())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let endpoint = Endpoint::from_shared(format!("https://{server}"))
        .map_err(|_error: tonic::transport::Error| bad())?
        .connect_timeout(Duration::from_secs(5))
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    let connector = tower::service_fn(move |_: Uri| {
        let (config, host, name) = (config.clone(), host.clone(), name.clone());
        async move {
            let tcp = TcpStream::connect((host.as_str(), port)).await?;
            tcp.set_nodelay(true)?;
            let tls = TlsConnector::from(config).connect(name, tcp).await?;
            Ok::<_, std::io::Error>(TokioIo::new(tls))
        }
    });
    endpoint
        .connect_with_connector(connector)
        .await
        .map_err(|source| ChannelError::Connect {
            server: server.to_owned(),
            source,
        })
}

fn client_config(
    ca_pem: &str,
    identity: Option<&Identity>,
) -> Result<rustls::ClientConfig, ChannelError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        let certificate = certificate.map_err(|source| ChannelError::Pem {
            what: "cluster CA",
            source,
        })?;
        roots.add(certificate).map_err(ChannelError::Tls)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ChannelError::Tls)?
        .with_root_certificates(roots);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.certificate_pem.as_bytes())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|source| ChannelError::Pem {
                    what: "client certificate",
                    source,
                })?;
            let key =
                PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).map_err(|source| {
                    ChannelError::Pem {
                        what: "client key",
                        source,
                    }
                })?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(ChannelError::Tls)
        }
    }
}
