//! Developer tasks: `cargo xtask --help`.

mod codegen;

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
    /// Regenerate the gRPC code from proto/proto/*.proto
    Codegen,
}

/// Root of the workspace.
fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Codegen => codegen::run(&workspace()),
    }
}
