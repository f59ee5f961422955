//! Taking over a connection: WebSocket or SPDY/3.1, whichever the client asked for.
//!
//! Changes no state; [`super::remote`] and [`super::port_forward`] speak on what it gives.

use std::time::Duration;

use ::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use ::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use axum::body::Body;
use hyper::upgrade::{OnUpgrade, Upgraded};
use pintle_kube_types::status::{Reason, Status};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// A client that does not finish the upgrade in this time is given up.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// Carries the protocol inside SPDY.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// How the client wants to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// RFC 6455.
    WebSocket,
    /// SPDY/3.1 right after the response.
    Spdy,
}

/// An agreement, and the response that tells the client.
#[derive(Debug)]
pub(super) struct Agreement {
    pub(super) transport: Transport,
    pub(super) response: Response<Body>,
}

/// Agrees on the best protocol both sides have.
pub(super) fn agree(
    headers: &HeaderMap,
    over_websocket: &[&'static str],
    over_spdy: &[&'static str],
) -> Result<Agreement, Status> {
    let asked = headers
        .get(UPGRADE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_ascii_lowercase();
    let (transport, header, upgrade, served) = match asked.as_str() {
        "websocket" => (
            Transport::WebSocket,
            SEC_WEBSOCKET_PROTOCOL,
            "websocket",
            over_websocket,
        ),
        "spdy/3.1" => (Transport::Spdy, STREAM_PROTOCOL, "SPDY/3.1", over_spdy),
        _ => return Err(Status::bad_request("Upgrade request required")),
    };
    let offered: Vec<&str> = headers
        .get_all(&header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let protocol = served
        .iter()
        .find(|protocol| offered.contains(protocol))
        .ok_or_else(|| {
            Status::new(
                Reason::Forbidden,
                format!(
                    "unable to negotiate protocol: client supports {offered:?}, server accepts \
                     {served:?}"
                ),
            )
        })?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(UPGRADE, HeaderValue::from_static(upgrade));
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(header, HeaderValue::from_static(protocol));
    if transport == Transport::WebSocket {
        let accept = headers
            .get(SEC_WEBSOCKET_KEY)
            .map(|key| derive_accept_key(key.as_bytes()))
            .and_then(|accept| HeaderValue::from_str(&accept).ok())
            .ok_or_else(|| Status::bad_request("the Sec-WebSocket-Key header is missing"))?;
        answer.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok(Agreement {
        transport,
        response,
    })
}

/// The connection, once the response is out.
pub(super) async fn upgraded(upgrade: OnUpgrade) -> Option<Upgraded> {
    match tokio::time::timeout(UPGRADE_TIMEOUT, upgrade).await {
        Ok(Ok(upgraded)) => Some(upgraded),
        Ok(Err(error)) => {
            tracing::debug!(%error, "upgrade a connection");
            None
        }
        Err(_elapsed) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        upgrade: &'static str,
        header: &HeaderName,
        protocols: &[&'static str],
    ) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
        headers.insert(
            SEC_WEBSOCKET_KEY,
            HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="),
        );
        for protocol in protocols {
            headers.append(header, HeaderValue::from_static(protocol));
        }
        headers
    }

    #[test]
    fn the_best_common_protocol_is_taken() {
        let (ws, spdy) = (["v5", "v4"], ["v4"]);
        let both = request("WebSocket", &SEC_WEBSOCKET_PROTOCOL, &["v4, v5"]);
        let agreement = agree(&both, &ws, &spdy).unwrap();
        assert_eq!(agreement.transport, Transport::WebSocket);
        let headers = agreement.response.headers();
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "v5");
        assert_eq!(
            headers[SEC_WEBSOCKET_ACCEPT],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );

        let old = request("SPDY/3.1", &STREAM_PROTOCOL, &["v3", "v4"]);
        let agreement = agree(&old, &ws, &spdy).unwrap();
        assert_eq!(agreement.transport, Transport::Spdy);
        assert_eq!(agreement.response.headers()[STREAM_PROTOCOL], "v4");

        let unknown = request("SPDY/3.1", &STREAM_PROTOCOL, &["v1"]);
        assert_eq!(agree(&unknown, &ws, &spdy).unwrap_err().code, 403);
        assert_eq!(agree(&HeaderMap::new(), &ws, &spdy).unwrap_err().code, 400);
    }
}
