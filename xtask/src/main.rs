//! Developer tasks: `cargo xtask --help`.
//!
//! xtask is the project's only script language. Each task is one module; all of them find
//! what they need through [`target_dir`] and run programs through [`command`].

#![expect(clippy::print_stdout, reason = "a task's output is what people read")]
#![expect(
    clippy::cast_precision_loss,
    reason = "figures for people, far below 2^52"
)]

mod bench;
mod build;
mod build_ebpf;
mod cluster;
mod codegen;
mod command;
mod demo;
mod images;
mod journey;
mod setup;
mod test;
mod tidy;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Builds, runs, tests and measures Pintle"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what building, the demo and the tests need and this machine lacks
    Setup,
    /// Compile the BPF programs into target/bpf/
    BuildEbpf,
    /// Build target/release/pintle with the BPF programs inside
    Build,
    /// Install, build, start a node, apply web.yaml and show it reachable
    Demo,
    /// Install what is missing and run every test
    Test {
        /// Only what needs neither root nor a VM
        #[arg(long)]
        quick: bool,
    },
    /// Boot Debian 12's kernel in a VM and check limits there
    Vm {
        /// A binary built before, instead of a fresh release build
        #[arg(long, value_name = "FILE")]
        pintle: Option<PathBuf>,
    },
    /// Measure; the table goes to standard output, JSON to target/bench/
    Bench {
        #[command(subcommand)]
        bench: Bench,
    },
    /// A cluster of several machines on this one, each a network namespace
    Cluster {
        #[command(subcommand)]
        cluster: Cluster,
    },
    /// Build the demo's images from Debian packages into target/images/
    Images,
    /// Check the house rules: arrows between crates, file length, module docs
    Tidy,
    /// Regenerate the gRPC code from proto/proto/*.proto and the field numbers of protobuf bodies
    Codegen,
}

#[derive(Subcommand)]
enum Cluster {
    /// Build it and print its kubeconfig
    Up {
        /// Machines with a control plane and a node
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
        servers: u8,
        /// Machines with a node only
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=20))]
        agents: u8,
        /// A binary built before, instead of a fresh release build
        #[arg(long, value_name = "FILE")]
        pintle: Option<PathBuf>,
    },
    /// Remove it and everything it left on this machine
    Down,
}

#[derive(Subcommand)]
enum Bench {
    /// The store beside Debian's etcd under the same load: puts, reads, watches, memory
    Store {
        /// A binary built before, instead of a fresh release build
        #[arg(long, value_name = "FILE")]
        pintle: Option<PathBuf>,
        /// A load generator built before, likewise
        #[arg(long, value_name = "FILE")]
        load: Option<PathBuf>,
        /// Keys of 1 KiB that both are filled with in the end; 0 leaves that out
        #[arg(long, value_name = "N", default_value_t = 1_000_000)]
        keys: u64,
    },
    /// Start of a node, the journey of web.yaml, memory and idle CPU
    Up {
        /// A binary built before, instead of a fresh release build
        #[arg(long, value_name = "FILE")]
        pintle: Option<PathBuf>,
    },
}

/// Root of the workspace.
fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Cargo's target folder of the workspace.
fn target_dir(workspace: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from)
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    let workspace = workspace();
    match task {
        Task::Setup => setup::run_setup(&workspace),
        Task::BuildEbpf => build_ebpf::run(&workspace).map(drop),
        Task::Build => build::run_build(&workspace).map(drop),
        Task::Demo => demo::run_demo(&workspace),
        Task::Test { quick } => test::run_tests(&workspace, quick),
        Task::Vm { pintle } => {
            setup::run_setup(&workspace)?;
            vm::run_vm(&workspace, &binary(&workspace, pintle)?)
        }
        Task::Bench {
            bench: Bench::Up { pintle },
        } => bench::up::run(&workspace, &binary(&workspace, pintle)?),
        Task::Bench {
            bench: Bench::Store { pintle, load, keys },
        } => {
            let load = load.map_or_else(|| bench::store::build_load(&workspace), Ok)?;
            bench::store::run_store(&workspace, &binary(&workspace, pintle)?, &load, keys)
        }
        Task::Cluster {
            cluster:
                Cluster::Up {
                    servers,
                    agents,
                    pintle,
                },
        } => cluster::up(&workspace, &binary(&workspace, pintle)?, servers, agents),
        Task::Cluster {
            cluster: Cluster::Down,
        } => cluster::down(&workspace),
        Task::Images => images::run(&workspace).map(drop),
        Task::Tidy => tidy::run(&workspace),
        Task::Codegen => codegen::run(&workspace),
    }
}

/// The binary that was named, or a fresh release build.
fn binary(workspace: &Path, named: Option<PathBuf>) -> Result<PathBuf> {
    named.map_or_else(|| build::run_build(workspace), Ok)
}
