//! Developer tasks: `cargo xtask --help`.
//!
//! xtask is the project's only script language. Each task is one module; all of them find
//! what they need through [`target_dir`] and run programs through [`command`].

mod build_ebpf;
mod codegen;
mod command;
mod images;
mod setup;
mod tidy;

use std::path::{Path, PathBuf};

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
    /// Build the demo's images from Debian packages into target/images/
    Images,
    /// Check the house rules: arrows between crates, file length, module docs
    Tidy,
    /// Regenerate the gRPC code from proto/proto/*.proto
    Codegen,
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

fn main() -> Result<()> {
    let workspace = workspace();
    match Cli::parse().task {
        Task::Setup => setup::run_setup(&workspace),
        Task::BuildEbpf => build_ebpf::run(&workspace).map(drop),
        Task::Images => images::run(&workspace).map(drop),
        Task::Tidy => tidy::run(&workspace),
        Task::Codegen => codegen::run(&workspace),
    }
}
