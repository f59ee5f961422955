//! `cargo xtask build`: the release binary with the BPF programs inside.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::run;

/// Builds `target/release/pintle` and gives its path.
pub(crate) fn run_build(workspace: &Path) -> Result<PathBuf> {
    crate::build_ebpf::run(workspace)?;
    // Not position-independent: a pod's shim is this binary again, and the relocations of a
    // PIE of this size would cost every shim megabytes of memory of its own.
    run(Command::new("cargo")
        .args([
            "rustc",
            "--release",
            "--package",
            "pintle",
            "--bin",
            "pintle",
        ])
        .args(["--", "-C", "relocation-model=static"])
        .current_dir(workspace))?;
    let binary = crate::target_dir(workspace).join("release/pintle");
    if !binary.exists() {
        bail!("cargo build left no {}", binary.display());
    }
    let megabytes = binary.metadata().context("looking at the binary")?.len() as f64 / 1_048_576.0;
    println!("build: {} ({megabytes:.1} MiB)", binary.display());
    Ok(binary)
}
