//! One small process per pod: namespaces, root filesystem, exec, reap.
//!
//! Owns a pod's namespaces (network, IPC, UTS; a PID namespace where the pod
//! shares one) and every process in it. It is their parent and subreaper,
//! writes their logs, keeps their exit codes, and outlives the agent that
//! started it. It must not know Kubernetes, images or addresses.
//!
//! ```text
//! agent ── requests ──▶ connection ─▶ server ── clone3 ─▶ child: rootfs, user,
//!       ◀── replies ──                 │  ▲               seccomp, caps, exec
//!       ◀── events ───                 │  └─ channel: failure │ end of file ─┘
//!                         state.json ◀─┤
//!                         log files  ◀─┴─ pipes ── container
//! ```
//!
//! One thread, so that clone3 is safe: nobody can hold a lock in the copy.

mod caps;
mod channel;
mod child;
mod clock;
mod connection;
mod devices;
mod log;
mod program;
pub mod protocol;
mod rootfs;
mod seccomp;
mod server;
pub mod spec;
mod start;
mod sys;
mod user;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Entry point of `pintle shim SANDBOX-DIRECTORY`; `args` are those after
/// `shim`. Call it before any thread exists.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let result = match (args.next(), args.next()) {
        (Some(dir), None) => start::start(&PathBuf::from(dir)),
        _ => Err(start::StartError::Usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stdout, reason = "the agent reads the outcome there")]
            {
                println!("{error}");
            }
            ExitCode::FAILURE
        }
    }
}
