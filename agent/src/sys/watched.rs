//! Registers descriptors with the runtime's reactor.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Wakes tasks when `fd` becomes ready for one of `interest`.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, stays the same descriptor for as long as the
    // AsyncFd owns it, and its as_raw_fd always answers that descriptor.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    Ok(watched?)
}
