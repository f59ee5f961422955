//! HTTP requests of probes and hooks.
//!
//! Asks the container; changes nothing. Certificates are not verified, as the kubelet does
//! not: the address is the pod's own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::check::{Target, dial_error};

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The action names a port the container does not have.
    #[error("couldn't find port {port} in container")]
    Port {
        /// As named.
        port: String,
    },
    /// Neither the action nor the pod has an address.
    #[error("the pod has no address")]
    NoAddress,
    /// No connection.
    #[error("{words}")]
    Connect {
        /// As Go words it.
        words: String,
    },
    /// No TLS session.
    #[error("tls: handshake failure")]
    Tls(#[source] std::io::Error),
    /// The server's name is none.
    #[error("tls: bad server name")]
    ServerName(#[from] rustls_pki_types::InvalidDnsNameError),
    /// TLS cannot be set up.
    #[error("tls: bad configuration")]
    TlsConfig(#[from] rustls::Error),
    /// The request cannot be made.
    #[error("malformed request")]
    Request(#[from] http::Error),
    /// The exchange broke.
    #[error("broken exchange")]
    Exchange(#[from] hyper::Error),
    /// No answer in time.
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
}

/// A request to a container.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    tls: bool,
    host: String,
    port: u16,
    path: String,
    headers: Vec<(String, String)>,
}

impl HttpRequest {
    /// The request an action asks for.
    pub fn new(action: &HTTPGetAction, target: &Target) -> Result<Self, HttpError> {
        let port = target.port(&action.port).ok_or_else(|| HttpError::Port {
            port: format!("{:?}", action.port),
        })?;
        let host = action
            .host
            .clone()
            .filter(|host| !host.is_empty())
            .or_else(|| target.pod_ip.map(|ip| ip.to_string()))
            .ok_or(HttpError::NoAddress)?;
        let path = action.path.clone().unwrap_or_default();
        let path = if path.starts_with('/') {
            path
        } else {
            format!("/{path}")
        };
        Ok(Self {
            tls: action
                .scheme
                .as_deref()
                .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
            host,
            port,
            path,
            headers: action
                .http_headers
                .iter()
                .flatten()
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect(),
        })
    }

    /// The URL, for messages.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}

/// Status code of the response.
pub async fn get(request: &HttpRequest, timeout: Duration) -> Result<u16, HttpError> {
    tokio::time::timeout(timeout, Box::pin(exchange(request)))
        .await
        .unwrap_or(Err(HttpError::Timeout))
}

async fn exchange(request: &HttpRequest) -> Result<u16, HttpError> {
    let address = format!("{}:{}", request.host, request.port);
    let tcp = TcpStream::connect((request.host.as_str(), request.port))
        .await
        .map_err(|error| HttpError::Connect {
            words: dial_error(&address, &error),
        })?;
    if !request.tls {
        return send(request, tcp).await;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(request.host.clone())?;
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .map_err(HttpError::Tls)?;
    send(request, tls).await
}

async fn send<S>(request: &HttpRequest, stream: S) -> Result<u16, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut builder = http::Request::get(&request.path)
        .header("User-Agent", "kube-probe/1.36")
        .header("Accept", "*/*")
        .header("Connection", "close");
    let names_host = request
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"));
    if !names_host {
        builder = builder.header("Host", format!("{}:{}", request.host, request.port));
    }
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    let message = builder.body(Empty::<Bytes>::new())?;
    let response = async { sender.send_request(message).await };
    tokio::pin!(response);
    tokio::pin!(connection);
    // The connection must be driven until the head of the response is there.
    tokio::select! {
        response = &mut response => Ok(response?.status().as_u16()),
        ended = &mut connection => {
            ended?;
            Ok(response.await?.status().as_u16())
        }
    }
}

/// Path of the gRPC health check.
pub(super) fn check_path() -> http::uri::PathAndQuery {
    http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check")
}

/// Takes any certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
