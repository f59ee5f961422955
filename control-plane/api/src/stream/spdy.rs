//! SPDY/3.1 as kubectl before 1.31 and `kubectl port-forward` use it: many streams on one
//! connection, opened by the client.
//!
//! Owns one connection's streams while [`serve`] runs; exec, attach and port-forward take the
//! streams it hands out. There is no flow control in Kubernetes' clients: a reader that is slow
//! holds up its connection, never memory.

mod frame;

use std::collections::HashMap;
use std::io;

use axum::body::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::sync::mpsc;

use frame::{Decoder, Encoder, Frame};

/// Frames waiting per stream and for the connection.
const QUEUE: usize = 16;
/// Streams open at once on one connection.
const MAX_STREAMS: usize = 1024;
/// Longest data frame that is sent.
const CHUNK: usize = 32 * 1024;
const INVALID_STREAM: u32 = 2;
const REFUSED_STREAM: u32 = 3;

/// A stream the client opened.
#[derive(Debug)]
pub(super) struct SpdyStream {
    headers: frame::Headers,
    /// What the client sends; ends with its half of the stream.
    pub(super) incoming: mpsc::Receiver<Bytes>,
    /// To the client.
    pub(super) outgoing: SpdyWriter,
}

impl SpdyStream {
    /// A header's value, by its lowercase name.
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
            .unwrap_or_default()
    }
}

/// Writes to a stream.
#[derive(Debug, Clone)]
pub(super) struct SpdyWriter {
    id: u32,
    frames: mpsc::Sender<Frame>,
}

/// The connection is gone.
#[derive(Debug, thiserror::Error)]
#[error("the SPDY connection is closed")]
pub(super) struct Closed;

impl SpdyWriter {
    /// Sends bytes.
    pub(super) async fn send(&self, mut data: Bytes) -> Result<(), Closed> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(CHUNK));
            self.frame(piece, false).await?;
        }
        Ok(())
    }

    /// Ends this direction.
    pub(super) async fn finish(&self) -> Result<(), Closed> {
        self.frame(Bytes::new(), true).await
    }

    /// Waits until the connection is gone.
    pub(super) async fn closed(&self) {
        self.frames.closed().await;
    }

    async fn frame(&self, data: Bytes, fin: bool) -> Result<(), Closed> {
        let id = self.id;
        let frame = Frame::Data { id, fin, data };
        self.frames.send(frame).await.ok().ok_or(Closed)
    }
}

/// Speaks SPDY on a connection until the client leaves or everybody here is done: `accepted`
/// is dropped and every writer with it.
pub(super) async fn serve<R, W>(source: R, sink: W, accepted: mpsc::Sender<SpdyStream>)
where
    R: Stream<Item = io::Result<Bytes>>,
    W: Sink<Bytes>,
{
    let (frames, outgoing) = mpsc::channel(QUEUE);
    let mut reading = std::pin::pin!(read(source, frames, accepted));
    let mut writing = std::pin::pin!(write(sink, outgoing));
    tokio::select! {
        end = &mut reading => {
            if end == End::Done {
                // What was queued still goes out; the writer ends with the last stream.
                writing.await;
            }
        }
        () = &mut writing => {}
    }
}

/// Why reading ended.
#[derive(PartialEq, Eq)]
enum End {
    /// The client has left, or speaks something else.
    Left,
    /// Nobody here takes streams any more.
    Done,
}

async fn write<W: Sink<Bytes>>(sink: W, mut frames: mpsc::Receiver<Frame>) {
    let mut sink = std::pin::pin!(sink);
    let mut encoder = Encoder::new();
    while let Some(frame) = frames.recv().await {
        if sink.send(encoder.encode(&frame)).await.is_err() {
            return;
        }
    }
    if sink.send(encoder.encode(&Frame::GoAway)).await.is_ok() && sink.close().await.is_err() {
        tracing::debug!("the SPDY connection broke as it was closed");
    }
}

async fn read<R>(source: R, frames: mpsc::Sender<Frame>, accepted: mpsc::Sender<SpdyStream>) -> End
where
    R: Stream<Item = io::Result<Bytes>>,
{
    let mut source = std::pin::pin!(source);
    let mut decoder = Decoder::new();
    let mut streams: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
    loop {
        let bytes = tokio::select! {
            bytes = source.next() => bytes,
            () = accepted.closed() => return End::Done,
        };
        let Some(Ok(bytes)) = bytes else {
            return End::Left;
        };
        decoder.push(&bytes);
        loop {
            let frame = match decoder.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "SPDY");
                    return End::Left;
                }
            };
            if !receive(frame, &mut streams, &frames, &accepted).await {
                return if accepted.is_closed() {
                    End::Done
                } else {
                    End::Left
                };
            }
        }
    }
}

/// Acts on a frame; false at the end of the connection.
async fn receive(
    frame: Frame,
    streams: &mut HashMap<u32, mpsc::Sender<Bytes>>,
    frames: &mpsc::Sender<Frame>,
    accepted: &mpsc::Sender<SpdyStream>,
) -> bool {
    match frame {
        Frame::SynStream { id, fin, headers } => {
            streams.retain(|_, sender| !sender.is_closed());
            if streams.contains_key(&id) || streams.len() >= MAX_STREAMS {
                let status = REFUSED_STREAM;
                return frames.send(Frame::RstStream { id, status }).await.is_ok();
            }
            let (sender, incoming) = mpsc::channel(QUEUE);
            if !fin {
                streams.insert(id, sender);
            }
            let reply = Frame::SynReply {
                id,
                headers: Vec::new(),
            };
            let stream = SpdyStream {
                headers,
                incoming,
                outgoing: SpdyWriter {
                    id,
                    frames: frames.clone(),
                },
            };
            frames.send(reply).await.is_ok() && accepted.send(stream).await.is_ok()
        }
        Frame::Data { id, fin, data } => {
            let Some(sender) = streams.get(&id) else {
                let status = INVALID_STREAM;
                return frames.send(Frame::RstStream { id, status }).await.is_ok();
            };
            // A stream nobody reads any more swallows what comes.
            let swallowed = !data.is_empty() && sender.send(data).await.is_err();
            if fin {
                streams.remove(&id);
            } else if swallowed {
                tracing::trace!(id, "bytes for a finished SPDY stream");
            }
            true
        }
        Frame::RstStream { id, .. } => {
            streams.remove(&id);
            true
        }
        Frame::Ping { id } => frames.send(Frame::Ping { id }).await.is_ok(),
        Frame::GoAway => false,
        Frame::SynReply { .. } | Frame::Other => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_are_accepted_answered_and_ended() {
        let (client, to_server) = mpsc::channel::<io::Result<Bytes>>(16);
        let (to_client, mut received) = futures_util_sink();
        let (accepted, mut streams) = mpsc::channel(4);
        let source = tokio_stream::wrappers::ReceiverStream::new(to_server);
        let server = serve(source, to_client, accepted);
        let drive = async {
            let mut encoder = Encoder::new();
            let headers = vec![("streamtype".to_owned(), "data".to_owned())];
            for frame in [
                Frame::SynStream {
                    id: 1,
                    fin: false,
                    headers,
                },
                Frame::Data {
                    id: 1,
                    fin: true,
                    data: Bytes::from_static(b"ping"),
                },
                Frame::Data {
                    id: 9,
                    fin: false,
                    data: Bytes::from_static(b"?"),
                },
            ] {
                client.send(Ok(encoder.encode(&frame))).await.unwrap();
            }
            let mut stream = streams.recv().await.unwrap();
            assert_eq!(stream.header("streamtype"), "data");
            assert_eq!(stream.incoming.recv().await.unwrap(), "ping");
            assert_eq!(stream.incoming.recv().await, None);
            stream
                .outgoing
                .send(Bytes::from_static(b"pong"))
                .await
                .unwrap();
            stream.outgoing.finish().await.unwrap();
            drop((stream, streams));
        };
        tokio::join!(server, drive);
        let mut decoder = Decoder::new();
        let mut frames = Vec::new();
        while let Ok(bytes) = received.try_recv() {
            decoder.push(&bytes);
        }
        while let Some(frame) = decoder.next().unwrap() {
            frames.push(frame);
        }
        for expected in [
            Frame::SynReply {
                id: 1,
                headers: vec![],
            },
            Frame::RstStream {
                id: 9,
                status: INVALID_STREAM,
            },
            Frame::Data {
                id: 1,
                fin: false,
                data: Bytes::from_static(b"pong"),
            },
            Frame::Data {
                id: 1,
                fin: true,
                data: Bytes::new(),
            },
            Frame::GoAway,
        ] {
            assert!(frames.contains(&expected), "{expected:?} in {frames:?}");
        }
    }

    fn futures_util_sink() -> (impl Sink<Bytes>, mpsc::UnboundedReceiver<Bytes>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let sink = futures_util::sink::unfold(sender, |sender, bytes: Bytes| async move {
            sender.send(bytes).ok().ok_or(Closed)?;
            Ok::<_, Closed>(sender)
        });
        (sink, receiver)
    }
}
