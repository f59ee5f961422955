//! One agent's connection: frames in, frames and descriptors out, never blocking.
//!
//! Owns the socket and its buffers. The server reads requests from it and
//! hands it messages; what the socket does not take at once waits here.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::protocol::{MAX_FRAME, Message, Request};

/// A connected agent.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// Events are sent too.
    pub(crate) subscribed: bool,
    input: Vec<u8>,
    output: VecDeque<Frame>,
}

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    /// Go with the first byte.
    fds: Vec<OwnedFd>,
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Closed {
    /// The agent hung up, or the socket failed.
    Gone,
    /// It sent something that is no request.
    Malformed,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            subscribed: false,
            input: Vec::new(),
            output: VecDeque::new(),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn wants_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads what is there and returns the complete requests.
    pub(crate) fn receive(&mut self) -> Result<Vec<Request>, Closed> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Closed::Gone),
                Ok((length, _)) => {
                    self.input
                        .extend_from_slice(buffer.get(..length).unwrap_or_default());
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(Closed::Gone),
            }
        }
        let mut requests = Vec::new();
        while let Some((length, _)) = self.input.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > MAX_FRAME {
                return Err(Closed::Malformed);
            }
            let Some(body) = self.input.get(4..4 + length) else {
                break;
            };
            requests.push(serde_json::from_slice(body).map_err(|_error| Closed::Malformed)?);
            self.input.drain(..4 + length);
        }
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        Ok(requests)
    }

    /// Queues a message and sends what the socket takes.
    pub(crate) fn send(&mut self, message: &Message, fds: Vec<OwnedFd>) -> Result<(), Closed> {
        let mut bytes = vec![0; 4];
        serde_json::to_writer(&mut bytes, message).map_err(|_error| Closed::Malformed)?;
        let length = u32::try_from(bytes.len() - 4).map_err(|_too_long| Closed::Malformed)?;
        if let Some(head) = bytes.first_chunk_mut::<4>() {
            *head = length.to_le_bytes();
        }
        self.output.push_back(Frame {
            bytes,
            sent: 0,
            fds,
        });
        self.flush()
    }

    /// Sends queued frames until the socket is full.
    pub(crate) fn flush(&mut self) -> Result<(), Closed> {
        while let Some(frame) = self.output.front_mut() {
            match send_some(&self.socket, frame) {
                Ok(length) => {
                    frame.fds.clear();
                    frame.sent += length;
                    if frame.sent >= frame.bytes.len() {
                        self.output.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Closed::Gone),
            }
        }
        Ok(())
    }
}

fn send_some(socket: &OwnedFd, frame: &Frame) -> io::Result<usize> {
    let fds: Vec<BorrowedFd<'_>> = frame.fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let rest = frame.bytes.get(frame.sent..).unwrap_or_default();
    Ok(rustix::net::sendmsg(
        socket,
        &[IoSlice::new(rest)],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?)
}
