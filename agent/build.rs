//! Tells the agent where the compiled BPF programs are: `target/bpf/pintle.bpf.o` when
//! `cargo xtask build-ebpf` has made it, else an empty file, so that a plain `cargo check`
//! needs no BPF toolchain. Compiles nothing.

use std::path::PathBuf;

fn main() {
    let var = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .unwrap_or_default()
    };
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || var("CARGO_MANIFEST_DIR").join("../target"),
        PathBuf::from,
    );
    let dir = target.join("bpf");
    let built = dir.join("pintle.bpf.o");
    // The folder is watched rather than the file: Cargo takes a missing file for a change.
    if let Err(error) = std::fs::create_dir_all(&dir) {
        println!("cargo::warning=cannot create {}: {error}", dir.display());
    }
    println!("cargo::rerun-if-changed={}", dir.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    let object = if built.exists() {
        built
    } else {
        let stub = var("OUT_DIR").join("stub.bpf.o");
        if let Err(error) = std::fs::write(&stub, []) {
            println!("cargo::error=cannot write {}: {error}", stub.display());
        }
        stub
    };
    println!("cargo::rustc-env=PINTLE_BPF_OBJECT={}", object.display());
}
