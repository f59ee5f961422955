//! One-way channel from a process being set up to its shim.
//!
//! A seqpacket socket pair, close-on-exec: at most one `Terminal` with its
//! descriptor, then either `Failed` or the end of file that exec causes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::protocol::CallError;

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// Comes with the master side of its terminal.
    Terminal,
    /// It gives up.
    Failed(CallError),
}

/// The shim's and the process's ends.
pub(crate) fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one note.
pub(crate) fn send(
    channel: BorrowedFd<'_>,
    note: &Note,
    fd: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let bytes = serde_json::to_vec(note).unwrap_or_default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let slices = [IoSlice::new(&bytes)];
    rustix::net::sendmsg(channel, &slices, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What reading the channel gave.
pub(crate) enum Received {
    /// Nothing yet.
    Nothing,
    /// The program was executed (or the process died).
    End,
    Note(Note, Option<OwnedFd>),
}

/// Reads one note without waiting.
pub(crate) fn receive(channel: BorrowedFd<'_>) -> Received {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let length = match rustix::net::recvmsg(channel, &mut slices, &mut control, flags) {
        Ok(received) => received.bytes,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::End,
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if length == 0 {
        return Received::End;
    }
    match serde_json::from_slice(bytes.get(..length).unwrap_or_default()) {
        Ok(note) => Received::Note(note, fd),
        Err(error) => Received::Note(
            Note::Failed(CallError::Malformed {
                message: error.to_string(),
            }),
            None,
        ),
    }
}
