//! `cargo xtask codegen`: compiles `proto/proto/*.proto` into `proto/src/generated/`, and collects the
//! field numbers of Kubernetes' protobuf messages for the API ([`wire`]).
//!
//! protox parses in Rust, so neither `protoc` nor a build script is needed, and the
//! result is committed. `check` is what the freshness test calls.

mod pointers;
mod wire;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PROTOS: [&str; 4] = ["node.proto", "admin.proto", "raft.proto", "etcd/rpc.proto"];

/// Writes the generated code into the workspace.
pub(crate) fn run(workspace: &Path) -> Result<()> {
    generate(workspace, &generated_dir(workspace))?;
    let (file, text) = wire::generate(workspace)?;
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

/// Fails when the committed code is not what its sources give.
#[cfg(test)]
pub(crate) fn check(workspace: &Path) -> Result<()> {
    let fresh = tempfile::tempdir().context("creating a folder for generated code")?;
    generate(workspace, fresh.path())?;
    for entry in std::fs::read_dir(fresh.path())? {
        let name = entry?.file_name();
        let committed = generated_dir(workspace).join(&name);
        let want = std::fs::read(fresh.path().join(&name))?;
        is_fresh(&committed, &want)?;
    }
    let (committed, want) = wire::generate(workspace)?;
    is_fresh(&committed, want.as_bytes())
}

#[cfg(test)]
fn is_fresh(committed: &Path, want: &[u8]) -> Result<()> {
    let have =
        std::fs::read(committed).with_context(|| format!("reading {}", committed.display()))?;
    anyhow::ensure!(
        want == have,
        "{} is stale: run `cargo xtask codegen`",
        committed.display()
    );
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
        super::check(&crate::workspace()).expect("generated code matches its sources");
    }
}
