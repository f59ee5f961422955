//! Waits for more of a log.
//!
//! Watches the directory of the log by inotify, and the pod table for the end of the run; no
//! polling. Survives the log's rotation.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pintle_proto::node::Channel;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::logs::Printer;
use super::{Hangup, Sender};
use crate::pod::worker::PodTable;

/// Follows one log.
#[derive(Debug)]
pub struct Follow {
    log: PathBuf,
    events: AsyncFd<rustix::fd::OwnedFd>,
    table: PodTable,
    uid: String,
    container: String,
    attempt: u32,
}

impl Follow {
    /// Begins to watch; what is written from now on is seen.
    pub fn new(
        log: &Path,
        table: PodTable,
        uid: &str,
        container: &str,
        attempt: u32,
    ) -> io::Result<Self> {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        if let Some(directory) = log.parent() {
            inotify::add_watch(
                &events,
                directory,
                WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO,
            )?;
        }
        Ok(Self {
            log: log.to_path_buf(),
            events: crate::sys::watch(events, Interest::READABLE)?,
            table,
            uid: uid.to_owned(),
            container: container.to_owned(),
            attempt,
        })
    }

    /// Sends what comes, until the run has ended and all of it is sent.
    pub async fn run(
        self,
        mut reader: Option<BufReader<File>>,
        printer: &mut Printer,
        sender: &Sender,
    ) -> Result<(), Hangup> {
        let mut changes = self.table.watch();
        let mut partial = Vec::new();
        loop {
            changes.borrow_and_update();
            // Asked before reading: what is written before the end is read after it.
            let running = self.is_running();
            let mut out = Vec::new();
            let more = self.read(&mut reader, &mut partial, printer, &mut out);
            if !out.is_empty() {
                sender.data(Channel::Stdout, out).await?;
            }
            match more {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    tracing::debug!(%error, log = %self.log.display(), "following ends");
                    return Ok(());
                }
            }
            if !running {
                return Ok(());
            }
            tokio::select! {
                () = sender.hung_up() => return Err(Hangup),
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
                read = self.drain() => if read.is_err() { return Ok(()) },
            }
        }
    }

    fn is_running(&self) -> bool {
        self.table.get(&self.uid).is_some_and(|pod| {
            pod.containers.iter().any(|container| {
                container.name == self.container
                    && container.running.is_some()
                    && container.attempt == Some(self.attempt)
            })
        })
    }

    /// Reads to the end, over a rotation if there was one; false when the limit is reached.
    fn read(
        &self,
        reader: &mut Option<BufReader<File>>,
        partial: &mut Vec<u8>,
        printer: &mut Printer,
        out: &mut Vec<u8>,
    ) -> io::Result<bool> {
        loop {
            if reader.is_none() {
                match File::open(&self.log) {
                    Ok(file) => *reader = Some(BufReader::new(file)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            let Some(open) = reader.as_mut() else {
                return Ok(true);
            };
            let rotated = self.is_rotated(open.get_ref());
            loop {
                if open.read_until(b'\n', partial)? == 0 {
                    break;
                }
                if partial.last() != Some(&b'\n') {
                    break;
                }
                let fits = printer.print(partial, out);
                partial.clear();
                if !fits {
                    return Ok(false);
                }
            }
            if !rotated {
                return Ok(true);
            }
            *reader = None;
        }
    }

    /// Whether the open file is no longer the one with the log's name.
    fn is_rotated(&self, open: &File) -> bool {
        match (std::fs::metadata(&self.log), open.metadata()) {
            (Ok(named), Ok(open)) => (named.dev(), named.ino()) != (open.dev(), open.ino()),
            _ => false,
        }
    }

    /// Waits for an event and takes all there are.
    async fn drain(&self) -> io::Result<()> {
        let mut guard = self.events.readable().await?;
        let mut buffer = [const { std::mem::MaybeUninit::<u8>::uninit() }; 4096];
        let mut reader = inotify::Reader::new(self.events.get_ref(), &mut buffer);
        loop {
            match reader.next() {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    guard.clear_ready();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
