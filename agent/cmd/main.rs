//! The `pintle` command: composition root of control plane, agent and shim.
//!
//! `pintle shim` is how the agent starts a pod's shim: that path leaves before any thread
//! exists and never returns here. Everything else is parsed by [`cli`] and runs on tokio.

mod admin;
mod agent;
mod cli;
mod config;
mod down;
mod duration;
mod image;
mod instance;
mod join_server;
mod kubeconfig;
mod member;
mod node;
mod notify;
mod status;
mod table;
mod telemetry;
mod token;
mod up;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command, Output};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|word| word == "shim") {
        return pintle_shim::main(args);
    }
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough, as `head` does.
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pintle: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether writing to standard output failed because nobody reads it any more. Nothing else that
/// a command does ends in a broken pipe: gRPC reports its own as a `Status`.
fn is_closed_output(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Up(up) => {
            need_root("up", "a node makes namespaces, cgroups and BPF programs")?;
            if up.detach {
                // What can be refused at once is refused here, not in the background's log.
                let settings = config::Settings::resolve(&cli.instance, &up, None)?;
                return notify::detach(&settings.data_dir.join("pintle.log"));
            }
            telemetry::install();
            let ready = notify::Ready::from_environment();
            node_runtime()?.block_on(Box::pin(up::run(cli.instance, *up, ready)))
        }
        Command::Agent(agent) => {
            need_root("agent", "a node makes namespaces, cgroups and BPF programs")?;
            if agent.detach {
                let data_dir = std::path::absolute(&cli.instance.data_dir)?;
                return notify::detach(&data_dir.join("pintle.log"));
            }
            telemetry::install();
            let ready = notify::Ready::from_environment();
            node_runtime()?.block_on(Box::pin(agent::run(cli.instance, *agent, ready)))
        }
        Command::Down => {
            need_root(
                "down",
                "it stops pods and removes what they left on this host",
            )?;
            command_runtime()?.block_on(down::down(&cli.instance))
        }
        Command::Reset { yes } => {
            need_root("reset", "it stops pods and removes the cluster's data")?;
            command_runtime()?.block_on(down::reset(&cli.instance, yes))
        }
        Command::Status { output } => {
            need_root("status", "only root may speak to the instance")?;
            command_runtime()?.block_on(status::run(&cli.instance.run_dir, output))
        }
        Command::Image(command) => {
            need_root("image", "only root may speak to the instance")?;
            command_runtime()?.block_on(image::run(&cli.instance.run_dir, command))
        }
        Command::Member(command) => {
            need_root("member", "only root may speak to the instance")?;
            command_runtime()?.block_on(member::run(&cli.instance.run_dir, command))
        }
        Command::Token(command) => {
            need_root("token", "only root may speak to the instance")?;
            command_runtime()?.block_on(token::run(&cli.instance.run_dir, command))
        }
        Command::Kubeconfig(user) => {
            need_root("kubeconfig", "only root may speak to the instance")?;
            command_runtime()?.block_on(kubeconfig::run(&cli.instance.run_dir, user))
        }
        Command::Completion { shell } => {
            // It panics where it cannot write; memory always can be written.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pintle", &mut script);
            std::io::stdout().write_all(&script)?;
            Ok(())
        }
        Command::Version { output } => version(output),
    }
}

/// Refuses, before anything is looked at, what only root can do.
fn need_root(command: &str, why: &str) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    bail!("must run as root: {why}; try `sudo pintle {command}`")
}

fn version(output: Output) -> Result<()> {
    let (program, api) = (
        env!("CARGO_PKG_VERSION"),
        pintle_control_plane::run::KUBERNETES_VERSION,
    );
    let mut out = std::io::stdout();
    match output {
        Output::Text => writeln!(out, "pintle {program}\nKubernetes API {api}")?,
        Output::Json => {
            writeln!(
                out,
                "{}",
                serde_json::json!({"pintle": program, "kubernetes": api})
            )?;
        }
    }
    Ok(())
}

/// For a node: few threads, since an idle one must cost nothing.
fn node_runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("pintle")
        .build()
        .context("starting the async runtime")
}

fn command_runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the async runtime")
}
