//! The master side of a pseudo terminal, readable and writable from tasks.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Master side of a terminal. All methods take `&self`, so one task may read
/// while another writes (share it in an `Arc`).
#[derive(Debug)]
pub struct Terminal {
    fd: AsyncFd<OwnedFd>,
}

impl Terminal {
    /// Takes over a terminal's master descriptor.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self {
            fd: super::watch(fd, Interest::READABLE | Interest::WRITABLE)?,
        })
    }

    /// Reads output. 0 when the last process has closed its side.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd
            .async_io(Interest::READABLE, |fd| {
                match rustix::io::read(fd, &mut *buffer) {
                    // The kernel says EIO when no process holds the other side.
                    Err(rustix::io::Errno::IO) => Ok(0),
                    other => other.map_err(io::Error::from),
                }
            })
            .await
    }

    /// Writes all of `bytes` as input.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self
                .fd
                .async_io(Interest::WRITABLE, |fd| {
                    rustix::io::write(fd, bytes).map_err(io::Error::from)
                })
                .await?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sets the window size.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let size = rustix::termios::Winsize {
            ws_col: columns,
            ws_row: rows,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&self.fd, size).map_err(io::Error::from)
    }
}
