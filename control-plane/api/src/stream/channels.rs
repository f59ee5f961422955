//! The raw bytes of an upgraded connection, in both directions: directly, or inside binary
//! WebSocket messages.
//!
//! Changes no state; [`super::spdy`] speaks on it.

use std::io;

use axum::body::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::codec::{BytesCodec, FramedWrite};
use tokio_util::io::ReaderStream;

/// Bytes read at once.
const CHUNK: usize = 32 * 1024;

/// The connection itself.
pub(super) fn direct(
    upgraded: Upgraded,
) -> (
    impl Stream<Item = io::Result<Bytes>>,
    impl Sink<Bytes, Error = io::Error>,
) {
    let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
    (
        ReaderStream::with_capacity(reader, CHUNK),
        FramedWrite::new(writer, BytesCodec::new()),
    )
}

/// The payload of the connection's WebSocket messages.
pub(super) async fn in_websocket(
    upgraded: Upgraded,
) -> (
    impl Stream<Item = io::Result<Bytes>>,
    impl Sink<Bytes, Error = Error>,
) {
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (sink, source) = socket.split();
    let source = source.filter_map(|message| async move {
        match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        }
    });
    (
        Box::pin(source),
        sink.with(|bytes: Bytes| std::future::ready(Ok::<_, Error>(Message::Binary(bytes)))),
    )
}
