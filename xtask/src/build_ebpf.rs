//! `cargo xtask build-ebpf`: compiles the BPF programs into `target/bpf/pintle.bpf.o`, which
//! the agent's build script embeds.
//!
//! The programs need `core` built for `bpfel-unknown-none`, so a compiler with the source of
//! its own library, and bpf-linker. Two pairs will do: a rustup nightly with `rust-src`, or
//! Debian's `rustc-web` with `rust-web-src`. As root on Debian what is missing is installed;
//! elsewhere the error says what to install. With `PINTLE_BPF_LOG=1` the programs write lines
//! to the agent's log, for debugging them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{find, is_root, output};
use crate::{setup, target_dir};

/// LLVM that Debian's `rustc-web` is built with, and so the one bpf-linker must read.
const DEBIAN_LLVM: &str = "/usr/lib/llvm-22";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_PACKAGES: [&str; 5] = [
    "rustc-web",
    "rust-web-src",
    "llvm-22-dev",
    "libpolly-22-dev",
    "clang-22",
];
const LINKER: &str = "bpf-linker";
const LINKER_VERSION: &str = "0.13.0";
/// When set in the environment, the programs write to the agent's log.
const LOG: &str = "PINTLE_BPF_LOG";
const TARGET: &str = "bpfel-unknown-none";

/// What to install, for people.
const HINT: &str = "\
the BPF programs need a Rust compiler with its library source, and bpf-linker. Install one of
  rustup:     rustup toolchain install nightly --component rust-src && cargo install bpf-linker
  Debian 12:  run `cargo xtask build-ebpf` as root, which installs
              rustc-web rust-web-src llvm-22-dev libpolly-22-dev clang-22 and bpf-linker";

/// A compiler and a linker that fit each other.
struct Toolchain {
    /// Printed before the build.
    name: &'static str,
    rustc: PathBuf,
    linker: PathBuf,
}

/// Where the object lies after [`run`]; `agent/build.rs` looks there.
pub(crate) fn object(workspace: &Path) -> PathBuf {
    target_dir(workspace).join("bpf/pintle.bpf.o")
}

/// Builds the object and returns its path.
pub(crate) fn run(workspace: &Path) -> Result<PathBuf> {
    let toolchain = toolchain(workspace)?;
    let target = target_dir(workspace).join("bpf-build");
    println!("build-ebpf: compiling with {}", toolchain.name);
    run_cargo(workspace, &toolchain, &target)?;
    let built = target.join(TARGET).join("release/pintle-bpf");
    let stripped = target.join("pintle.bpf.o");
    std::fs::copy(&built, &stripped).with_context(|| format!("reading {}", built.display()))?;
    strip(&stripped);
    let object = object(workspace);
    install(&stripped, &object)?;
    println!("build-ebpf: {}", object.display());
    Ok(object)
}

fn run_cargo(workspace: &Path, toolchain: &Toolchain, target: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut path = toolchain
        .linker
        .parent()
        .map(Path::as_os_str)
        .unwrap_or_default()
        .to_owned();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace.join("agent-ebpf"))
        .args([
            "build",
            "--release",
            "--locked",
            "--quiet",
            "--target",
            TARGET,
        ])
        .args(["-Z", "build-std=core"])
        .env("PATH", path)
        .env("RUSTC", &toolchain.rustc)
        // `-Z build-std` on a compiler that is not called nightly.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-C debuginfo=2 -C link-arg=--btf")
        .env("CARGO_TARGET_DIR", target);
    if std::env::var_os(LOG).is_some() {
        command.args(["--features", "log"]);
    }
    for name in [
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTDOC",
    ] {
        command.env_remove(name);
    }
    crate::command::run(&mut command).context("compiling the BPF programs")
}

/// Drops DWARF and keeps BTF; a bigger object works as well.
fn strip(object: &Path) {
    let llvm_strip = find("llvm-strip")
        .or_else(|| Some(Path::new(DEBIAN_LLVM).join("bin/llvm-strip")).filter(|p| p.exists()));
    if let Some(program) = llvm_strip
        && let Err(error) = run_quietly(&program, object)
    {
        println!("build-ebpf: the object keeps its debug sections: {error:#}");
    }
}

fn run_quietly(program: &Path, object: &Path) -> Result<()> {
    output(Command::new(program).arg("--strip-debug").arg(object)).map(drop)
}

/// Puts the object in place only when it differs, so that an unchanged one rebuilds nothing.
fn install(built: &Path, object: &Path) -> Result<()> {
    let bytes = std::fs::read(built).with_context(|| format!("reading {}", built.display()))?;
    if std::fs::read(object).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(dir) = object.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let partial = built.with_extension("tmp");
    std::fs::write(&partial, &bytes).with_context(|| format!("writing {}", partial.display()))?;
    std::fs::rename(&partial, object).with_context(|| format!("writing {}", object.display()))
}

/// The first of the two that is there, else Debian's after installing it.
fn toolchain(workspace: &Path) -> Result<Toolchain> {
    if let Some(toolchain) = rustup(workspace).or_else(|| debian(workspace)) {
        return Ok(toolchain);
    }
    if !is_root() || !Path::new("/etc/debian_version").exists() || find("apt-get").is_none() {
        bail!("{HINT}");
    }
    install_debian(workspace)?;
    debian(workspace).with_context(|| format!("the packages are installed and yet {HINT}"))
}

/// A rustup nightly with `rust-src`, and bpf-linker.
fn rustup(workspace: &Path) -> Option<Toolchain> {
    find("rustup")?;
    let ask = |args: &[&str]| {
        output(
            Command::new("rustup")
                .args(["run", "nightly"])
                .args(args)
                .env("RUSTUP_AUTO_INSTALL", "0"),
        )
        .ok()
    };
    let sysroot = ask(&["rustc", "--print", "sysroot"])?;
    let rustc = PathBuf::from(sysroot.trim()).join("bin/rustc");
    has_library_source(Path::new(sysroot.trim())).then_some(())?;
    Some(Toolchain {
        name: "rustup's nightly",
        rustc,
        linker: linker(workspace)?,
    })
}

/// Debian's `rustc-web` with `rust-web-src`, and bpf-linker.
fn debian(workspace: &Path) -> Option<Toolchain> {
    let rustc = PathBuf::from(DEBIAN_RUSTC);
    if !rustc.exists() || !has_library_source(Path::new("/usr")) || !has_debian_llvm() {
        return None;
    }
    Some(Toolchain {
        name: "Debian's rustc-web",
        rustc,
        linker: linker(workspace)?,
    })
}

fn has_library_source(sysroot: &Path) -> bool {
    sysroot
        .join("lib/rustlib/src/rust/library/core/Cargo.toml")
        .exists()
}

fn has_debian_llvm() -> bool {
    Path::new(DEBIAN_LLVM).join("bin/llvm-config").exists()
}

/// bpf-linker on the PATH, in Cargo's folder or where [`install_debian`] puts it.
fn linker(workspace: &Path) -> Option<PathBuf> {
    let own = tools(workspace).join("bin").join(LINKER);
    find(LINKER).or_else(|| {
        let cargo_home = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
        cargo_home
            .map(|home| home.join("bin").join(LINKER))
            .into_iter()
            .chain([own])
            .find(|path| path.exists())
    })
}

fn tools(workspace: &Path) -> PathBuf {
    target_dir(workspace).join("tools")
}

/// Debian packages, then bpf-linker compiled against Debian's LLVM.
fn install_debian(workspace: &Path) -> Result<()> {
    let rustc_there = Path::new(DEBIAN_RUSTC).exists() && has_library_source(Path::new("/usr"));
    if !rustc_there || !has_debian_llvm() {
        println!("build-ebpf: installing a compiler for BPF from Debian (about 450 MB unpacked)");
        setup::install(&DEBIAN_PACKAGES)?;
    }
    if linker(workspace).is_some() {
        return Ok(());
    }
    println!("build-ebpf: compiling {LINKER} {LINKER_VERSION} (about a minute)");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let path = format!(
        "{DEBIAN_LLVM}/bin:{}",
        std::env::var("PATH").unwrap_or_default()
    );
    crate::command::run(
        Command::new(cargo)
            .args([
                "install",
                LINKER,
                "--version",
                LINKER_VERSION,
                "--locked",
                "--quiet",
            ])
            .args(["--no-default-features", "--features", "llvm-22", "--root"])
            .arg(tools(workspace))
            .env("PATH", path)
            .env("LLVM_PREFIX", DEBIAN_LLVM)
            .env(
                "CARGO_TARGET_DIR",
                target_dir(workspace).join("bpf-build/linker"),
            )
            .env_remove("RUSTFLAGS"),
    )
    .context("installing bpf-linker")
}
