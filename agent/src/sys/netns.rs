//! Identity of a socket's network namespace.
//!
//! Owns and changes nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The cookie of the network namespace a socket belongs to, as BPF programs see it; unlike an
/// inode number it is never used again. Linux 5.14.
pub(crate) fn cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is borrowed, so open; the kernel writes at most `length` bytes to
    // `cookie`, which is that long and valid for any bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}
