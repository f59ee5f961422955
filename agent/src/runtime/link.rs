//! One connection to a shim: requests out, replies and events in.
//!
//! Owns the socket. A reader task (run by the caller) hands replies to those
//! who wait and events to a function; when the shim is gone everyone waiting
//! is told. Descriptors arrive with the first byte of their reply.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pintle_shim::protocol::{Answer, Call, CallError, Event, FdRole, MAX_FRAME, Message, Request};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// A reply with the descriptors that came along.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) result: Result<Answer, CallError>,
    pub(super) fds: Vec<(FdRole, OwnedFd)>,
}

/// The requesting side of a connection.
#[derive(Debug)]
pub(super) struct Link {
    socket: UnixStream,
    /// Held while a frame is written, so that frames do not mix.
    writing: tokio::sync::Mutex<()>,
    /// `None` once the shim is gone.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Reply>>>>,
    next: AtomicU64,
}

impl Link {
    /// Connects to the socket in a sandbox's directory.
    pub(super) async fn connect(dir: &Path) -> io::Result<Arc<Self>> {
        // By descriptor: the path may be longer than a socket address holds.
        let opened = rustix::fs::open(
            dir,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let path = format!(
            "/proc/self/fd/{}/{}",
            std::os::fd::AsRawFd::as_raw_fd(&opened),
            pintle_shim::protocol::SOCKET
        );
        let socket = UnixStream::connect(path).await?;
        Ok(Arc::new(Self {
            socket,
            writing: tokio::sync::Mutex::new(()),
            waiting: Mutex::new(Some(HashMap::new())),
            next: AtomicU64::new(1),
        }))
    }

    /// Process id at the other end, as the kernel saw it at listen time.
    pub(super) fn peer(&self) -> Option<i32> {
        self.socket.peer_cred().ok()?.pid()
    }

    /// Sends a request and waits for its reply; fails when the shim is gone.
    pub(super) async fn call(&self, call: Call) -> io::Result<Reply> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let body = serde_json::to_vec(&Request { id, call })?;
        let length = u32::try_from(body.len())
            .ok()
            .filter(|_| body.len() <= MAX_FRAME)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let (sender, receiver) = oneshot::channel();
        match self.waiting.lock().as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        {
            let _turn = self.writing.lock().await;
            self.write_all(&length.to_le_bytes()).await?;
            self.write_all(&body).await?;
        }
        receiver
            .await
            .map_err(|_gone| io::ErrorKind::BrokenPipe.into())
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.socket.writable().await?;
            match self.socket.try_write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads until the shim is gone.
    pub(super) async fn read(&self, mut on_event: impl FnMut(Event)) {
        let mut input = Input::default();
        while let Ok(true) = input.fill(&self.socket).await {
            loop {
                match input.next_message() {
                    Ok(Some(Message::Event(event))) => on_event(event),
                    Ok(Some(Message::Reply {
                        id,
                        fds: roles,
                        result,
                    })) => {
                        let fds = input.take_fds(&roles);
                        let waiter = self.waiting.lock().as_mut().and_then(|w| w.remove(&id));
                        if let Some(waiter) = waiter {
                            // The caller may have stopped waiting.
                            let _dropped = waiter.send(Reply { result, fds });
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "a shim sent a frame that cannot be read");
                        self.hang_up();
                        return;
                    }
                }
            }
        }
        self.hang_up();
    }

    /// Fails everyone who waits and everyone to come.
    pub(super) fn hang_up(&self) {
        drop(self.waiting.lock().take());
    }
}

#[derive(Debug, Default)]
struct Input {
    /// What a read goes to; kept out of the task's own memory.
    buffer: Vec<u8>,
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
}

impl Input {
    /// Receives something; false at the end.
    async fn fill(&mut self, socket: &UnixStream) -> io::Result<bool> {
        self.buffer.resize(16 * 1024, 0);
        let buffer = &mut self.buffer;
        let (length, fds) = socket
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut slices = [IoSliceMut::new(buffer)];
                let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
                let received =
                    rustix::net::recvmsg(socket.as_fd(), &mut slices, &mut control, flags)?;
                let fds: Vec<OwnedFd> = control
                    .drain()
                    .filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                        _ => None,
                    })
                    .flatten()
                    .collect();
                Ok((received.bytes, fds))
            })
            .await?;
        self.fds.extend(fds);
        self.bytes
            .extend_from_slice(self.buffer.get(..length).unwrap_or_default());
        Ok(length > 0)
    }

    fn next_message(&mut self) -> serde_json::Result<Option<Message>> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(body)?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }

    fn take_fds(&mut self, roles: &[FdRole]) -> Vec<(FdRole, OwnedFd)> {
        let count = roles.len().min(self.fds.len());
        roles.iter().copied().zip(self.fds.drain(..count)).collect()
    }
}
