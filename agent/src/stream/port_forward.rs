//! A connection into a pod's network namespace.
//!
//! The socket is made by a short thread inside the namespace, so that servers on the pod's
//! loopback are reached as well; it stays there, wherever it is used from.

use std::fs::File;
use std::io;
use std::net::TcpStream as StdStream;
use std::path::PathBuf;

use nix::sched::{CloneFlags, setns};
use pintle_proto::node::{Channel, PortForwardTarget, StreamFrame, stream_frame::Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::Streaming;

use super::outcome::Outcome;
use super::{Hangup, Sender};
use crate::runtime::Runtime;

/// Bytes read at once.
const CHUNK: usize = 32 * 1024;

/// Serves one connection.
pub async fn serve(
    runtime: &Runtime,
    target: &PortForwardTarget,
    uid: &str,
    incoming: &mut Streaming<StreamFrame>,
    sender: &Sender,
) -> Outcome {
    let netns = runtime
        .sandbox(uid)
        .and_then(|state| state.sandbox)
        .map(|sandbox| sandbox.netns);
    let (Some(netns), Ok(port)) = (netns, u16::try_from(target.port)) else {
        return Outcome::Internal(format!("pod \"{}\" has no sandbox", target.pod));
    };
    let connected = match connect(netns, port).await {
        Ok(stream) => stream,
        Err(error) => {
            return Outcome::Internal(format!(
                "failed to connect to localhost:{port} inside namespace of pod \"{}\": {error}",
                target.pod
            ));
        }
    };
    let (mut reader, mut writer) = connected.into_split();
    let up = async {
        while let Ok(Some(frame)) = incoming.message().await {
            match frame.frame {
                Some(Frame::Data(data)) => writer.write_all(&data.data).await?,
                Some(Frame::Close(_)) => break,
                _ => {}
            }
        }
        writer.shutdown().await
    };
    let down = async {
        let mut buffer = vec![0; CHUNK];
        while let Ok(read @ 1..) = reader.read(&mut buffer).await {
            sender
                .data(Channel::Stdout, buffer[..read].to_vec())
                .await?;
        }
        sender.close(Channel::Stdout).await
    };
    let both = async {
        let (up, down): (io::Result<()>, Result<(), Hangup>) =
            tokio::join!(Box::pin(up), Box::pin(down));
        if up.is_err() || down.is_err() {
            tracing::trace!("a side of the forwarded connection has gone");
        }
    };
    tokio::select! {
        () = both => {}
        () = sender.hung_up() => {}
    }
    Outcome::Success
}

/// Connects to a port of the pod's loopback.
async fn connect(netns: PathBuf, port: u16) -> io::Result<TcpStream> {
    let (answer, answered) = oneshot::channel();
    std::thread::Builder::new()
        .name("port-forward".to_owned())
        .spawn(move || {
            let result = File::open(netns).and_then(|namespace| {
                // This thread alone moves, and ends with the connection made.
                setns(&namespace, CloneFlags::CLONE_NEWNET)?;
                StdStream::connect(("127.0.0.1", port))
                    .or_else(|_: io::Error| StdStream::connect(("::1", port)))
            });
            if answer.send(result).is_err() {
                tracing::trace!("nobody waits for the connection");
            }
        })?;
    let stream = answered
        .await
        .map_err(|_error: oneshot::error::RecvError| {
            io::Error::from(io::ErrorKind::Interrupted)
        })??;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}
