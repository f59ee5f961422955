//! The TLS connection to the API port, as a tonic channel.
//!
//! Watches and changes nothing: it is the wire under [`link`](super::link) and the streams.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use super::identity::Identity;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The server's URL is none.
    #[error("`{url}` is no URL of a control plane")]
    Url {
        /// What was given.
        url: String,
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
    #[error("cannot connect to {url}")]
    Connect {
        /// The server.
        url: String,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// Connects to `url`, whose certificate `ca_pem` must have signed; with `identity` as the
/// client's certificate.
pub async fn connect(
    url: &str,
    ca_pem: &str,
    identity: Option<&Identity>,
) -> Result<Channel, ChannelError> {
    let bad_url = || ChannelError::Url {
        url: url.to_owned(),
    };
    let uri: Uri = url
        .parse()
        .map_err(|_error: http::uri::InvalidUri| bad_url())?;
    let host = uri
        .host()
        .ok_or_else(bad_url)?
        .trim_matches(['[', ']'])
        .to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let name = ServerName::try_from(host.clone())
        .map_err(|_error: rustls_pki_types::InvalidDnsNameError| bad_url())?;
    let config = Arc::new(client_config(ca_pem, identity)?);
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|_error: tonic::transport::Error| bad_url())?
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
            url: url.to_owned(),
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
    let mut config = match identity {
        None => builder.with_no_client_auth(),
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
                .map_err(ChannelError::Tls)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
