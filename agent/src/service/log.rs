//! Lines the BPF programs write, when they are built to write any.
//!
//! Watches the ring buffer such programs have; changes nothing. Who reacts next: whoever reads
//! the agent's log at level debug.

use std::os::fd::AsFd;

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use tokio::io::Interest;

use crate::sys;

/// Passes records on to `tracing`, which is what the agent logs with.
struct ToTracing;

impl Log for ToTracing {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        tracing::enabled!(target: "pintle_bpf", tracing::Level::DEBUG)
    }

    fn log(&self, record: &Record<'_>) {
        tracing::debug!(target: "pintle_bpf", "{}", record.args());
    }

    fn flush(&self) {}
}

/// Reads the lines of one loaded object.
pub(super) struct ProgramLog {
    logger: EbpfLogger<ToTracing>,
}

impl std::fmt::Debug for ProgramLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramLog").finish_non_exhaustive()
    }
}

impl ProgramLog {
    /// `None` for programs built without lines, which is the rule.
    pub(super) fn of(ebpf: &mut Ebpf) -> Option<Self> {
        let logger = EbpfLogger::init_with_logger(ebpf, ToTracing).ok()?;
        Some(Self { logger })
    }

    /// Reads as long as there is someone who wants it.
    pub(super) async fn run(mut self) {
        let descriptor = self.logger.as_fd().try_clone_to_owned();
        let watched = descriptor.and_then(|fd| sys::watch(fd, Interest::READABLE));
        let watched = match watched {
            Ok(watched) => watched,
            Err(error) => {
                tracing::warn!(%error, "the BPF programs' log cannot be read");
                return;
            }
        };
        while let Ok(mut ready) = watched.readable().await {
            self.logger.flush();
            ready.clear_ready();
        }
    }
}
