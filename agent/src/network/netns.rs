//! Work inside another network namespace.
//!
//! Changes the namespace of one short-lived thread, never that of a thread of the runtime.

use std::fs::File;
use std::io;
use std::thread;

use nix::sched::{CloneFlags, setns};

/// Runs `work` on a thread of its own that has joined `netns`, and waits for it. Sockets it
/// opens stay in that namespace, and `/proc/sys/net` is that namespace's.
pub(super) fn within<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let joined = thread::Builder::new()
            .name("pod-netns".to_owned())
            .spawn_scoped(scope, || {
                setns(netns, CloneFlags::CLONE_NEWNET)?;
                Ok(work())
            })?
            .join();
        match joined {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
