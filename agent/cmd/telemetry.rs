//! Logs: one line per event on standard error, human by default, JSON on request.
//!
//! `PINTLE_LOG` filters as `tracing` does (`info`, `pintle_agent=debug,warn`); the default
//! shows warnings, and what an operator wants to see of Pintle itself.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Installs the process's log output. Called once, by commands that run a node.
pub(crate) fn install() {
    let filter = EnvFilter::try_from_env("PINTLE_LOG").unwrap_or_else(|_unset| {
        EnvFilter::new("warn,pintle=info,pintle_control_plane=info,pintle_agent=info")
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let installed = if std::env::var_os("PINTLE_LOG_FORMAT").is_some_and(|form| form == "json") {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
    if let Err(error) = installed {
        eprintln!("pintle: logs stay off: {error}");
    }
}
