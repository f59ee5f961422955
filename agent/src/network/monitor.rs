//! Hears of links and addresses that come, go or change.
//!
//! Watches the kernel's notifications (rtnetlink(7)) in the namespace it was opened in; changes
//! nothing. Who reacts next: the routes to other nodes, which the kernel drops without a word
//! when the link they use goes down.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::pod::link_prefix;
use crate::sys;

/// `RTMGRP_LINK` and `RTMGRP_IPV4_IFADDR` of linux/rtnetlink.h.
const GROUPS: u32 = 0x1 | 0x10;
/// Changes come in crowds: a link that comes up says so several times.
const SETTLE: Duration = Duration::from_millis(100);

/// A subscription.
pub struct LinkMonitor {
    socket: Socket,
    /// The same socket once more, for the reactor.
    readiness: AsyncFd<OwnedFd>,
    /// Links of pods, which come and go without a bearing on routes to other nodes.
    own_prefix: String,
}

impl std::fmt::Debug for LinkMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkMonitor").finish_non_exhaustive()
    }
}

impl LinkMonitor {
    /// Subscribes, in the calling thread's network namespace.
    pub fn open(instance_id: &str) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        let readiness = sys::watch(socket.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Self {
            socket,
            readiness,
            own_prefix: link_prefix(instance_id),
        })
    }

    /// Waits for a change of something that is not ours, and a moment longer for the changes
    /// that come with it. Cancelling loses nothing that a later call would not see again.
    pub async fn changed(&mut self) -> io::Result<()> {
        while !self.read().await? {}
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    /// Reads one datagram; true when it speaks of something that is not ours.
    async fn read(&mut self) -> io::Result<bool> {
        loop {
            let mut guard = self.readiness.readable().await?;
            match guard.try_io(|_| self.socket.recv_from_full()) {
                Ok(Ok((bytes, _))) => return Ok(self.concerns_others(&bytes)),
                // More happened than the socket could hold: look at everything.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(true),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    fn concerns_others(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
                return true;
            };
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
            let is_ours = match message.payload {
                NetlinkPayload::InnerMessage(
                    RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link),
                ) => name(&link).is_some_and(|name| name.starts_with(&self.own_prefix)),
                NetlinkPayload::InnerMessage(_) => false,
                _ => true,
            };
            if !is_ours {
                return true;
            }
        }
        false
    }
}

fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        })
}
