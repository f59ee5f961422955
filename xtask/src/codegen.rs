//! `cargo xtask codegen`: compiles `proto/proto/*.proto` into `proto/src/generated/`.
//!
//! protox parses in Rust, so neither `protoc` nor a build script is needed, and the
//! result is committed. `check` is what the freshness test calls.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PROTOS: [&str; 4] = ["node.proto", "admin.proto", "raft.proto", "etcd/rpc.proto"];

/// Writes the generated code into the workspace.
pub(crate) fn run(workspace: &Path) -> Result<()> {
    generate(workspace, &generated_dir(workspace))
}

/// Fails when the committed code is not what the `.proto` files give.
#[cfg(test)]
pub(crate) fn check(workspace: &Path) -> Result<()> {
    let fresh = tempfile::tempdir().context("creating a folder for generated code")?;
    generate(workspace, fresh.path())?;
    for entry in std::fs::read_dir(fresh.path())? {
        let name = entry?.file_name();
        let committed = generated_dir(workspace).join(&name);
        let want = std::fs::read(fresh.path().join(&name))?;
        let have = std::fs::read(&committed)
            .with_context(|| format!("reading {}", committed.display()))?;
        if want != have {
            anyhow::bail!(
                "{} is stale: run `cargo xtask codegen`",
                committed.display()
            );
        }
    }
    Ok(())
}

fn generated_dir(workspace: &Path) -> PathBuf {
    workspace.join("proto/src/generated")
}

fn generate(workspace: &Path, out: &Path) -> Result<()> {
    let root = workspace.join("proto/proto");
    let set =
        protox::compile(PROTOS.map(|p| root.join(p)), [&root]).context("compiling .proto files")?;
    std::fs::create_dir_all(out)?;
    tonic_prost_build::configure()
        .out_dir(out)
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds(set)
        .context("generating Rust from .proto files")
}

#[cfg(test)]
mod tests {
    #[test]
    fn committed_code_is_fresh() {
        super::check(&crate::workspace()).expect("generated code matches the .proto files");
    }
}
