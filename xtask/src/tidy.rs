//! `cargo xtask tidy`: the house rules that a program can check.
//!
//! - **Arrows**: which crate may depend on which (ARCHITECTURE.md), from `cargo metadata`.
//! - **Length**: no source file has more than 1,000 lines before its tests.
//! - **Module docs**: every source file starts with `//!`.
//! - **Unsafe rooms**: only the crates and folders that may hold `unsafe` do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;

/// Crate → the workspace crates it may depend on. No other edge may exist.
const ARROWS: &[(&str, &[&str])] = &[
    ("pintle-ebpf-abi", &[]),
    ("pintle-proto", &[]),
    ("pintle-kube-types", &[]),
    ("pintle-shim", &[]),
    ("pintle-store", &["pintle-proto", "pintle-kube-types"]),
    (
        "pintle-api",
        &["pintle-store", "pintle-proto", "pintle-kube-types"],
    ),
    ("pintle-controllers", &["pintle-api", "pintle-kube-types"]),
    ("pintle-scheduler", &["pintle-api", "pintle-kube-types"]),
    (
        "pintle-control-plane",
        &[
            "pintle-store",
            "pintle-api",
            "pintle-controllers",
            "pintle-scheduler",
            "pintle-proto",
            "pintle-kube-types",
        ],
    ),
    (
        "pintle-agent",
        &[
            "pintle-proto",
            "pintle-kube-types",
            "pintle-ebpf-abi",
            "pintle-shim",
        ],
    ),
    (
        "pintle",
        &[
            "pintle-control-plane",
            "pintle-agent",
            "pintle-shim",
            "pintle-proto",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that no build of the named crate may contain.
const BANNED: &[(&str, &[&str])] = &[
    ("pintle-shim", &["tokio"]),
    ("pintle-kube-types", &["tokio"]),
];

const MAX_LINES: usize = 1000;

/// Where `unsafe` may stand.
const UNSAFE_ROOMS: &[&str] = &["agent/shim/", "agent/src/sys", "agent-ebpf/"];

/// Checks everything and reports all that is wrong at once.
pub(crate) fn run(workspace: &Path) -> Result<()> {
    let mut faults = Vec::new();
    arrows(workspace, &mut faults)?;
    for file in sources(workspace)? {
        let text = std::fs::read_to_string(workspace.join(&file))
            .with_context(|| format!("reading {}", file.display()))?;
        source(&file, &text, &mut faults);
    }
    if faults.is_empty() {
        return Ok(());
    }
    bail!(
        "{} house rules broken:\n  {}",
        faults.len(),
        faults.join("\n  ")
    );
}

fn arrows(workspace: &Path, faults: &mut Vec<String>) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("asking cargo for the workspace's crates")?;
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let Some(may) = allowed.get(name) else {
            faults.push(format!("{name}: not in tidy's table of crates"));
            continue;
        };
        let banned = BANNED
            .iter()
            .find(|(of, _)| *of == name)
            .map_or(&[][..], |(_, list)| *list);
        for dependency in &package.dependencies {
            let is_ours = allowed.contains_key(dependency.name.as_str());
            let is_test = dependency.kind == cargo_metadata::DependencyKind::Development;
            if is_ours && !is_test && !may.contains(&dependency.name.as_str()) {
                faults.push(format!("{name} may not depend on {}", dependency.name));
            }
            if banned.contains(&dependency.name.as_str()) && !is_test {
                faults.push(format!("{name} must not use {}", dependency.name));
            }
        }
    }
    Ok(())
}

fn source(file: &Path, text: &str, faults: &mut Vec<String>) {
    let name = file.display();
    if file.file_name().is_some_and(|file| file == "mod.rs") {
        faults.push(format!("{name}: use foo.rs beside foo/ instead of mod.rs"));
    }
    let mut lines = text
        .lines()
        .skip_while(|line| line.starts_with("#!") || line.trim().is_empty());
    if !lines.next().is_some_and(|line| line.starts_with("//!")) {
        faults.push(format!("{name}: has no //! header"));
    }
    let product = text
        .lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .count();
    if product > MAX_LINES {
        faults.push(format!(
            "{name}: {product} lines before its tests; split it (limit {MAX_LINES})"
        ));
    }
    let path = file.to_string_lossy();
    let in_room = UNSAFE_ROOMS.iter().any(|room| path.starts_with(room));
    // The workspace denies unsafe code; only lifting that lint lets it in.
    if !in_room && text.contains(concat!("(unsafe", "_code")) {
        faults.push(format!(
            "{name}: unsafe code outside agent/shim, agent/src/sys and agent-ebpf"
        ));
    }
}

/// Every Rust file git knows or would add, generated code left out.
fn sources(workspace: &Path) -> Result<Vec<PathBuf>> {
    let listed = crate::command::output(
        std::process::Command::new("git")
            .args([
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                "*.rs",
            ])
            .current_dir(workspace),
    )?;
    Ok(listed
        .lines()
        .filter(|line| !line.contains("/generated/"))
        .map(PathBuf::from)
        .filter(|file| workspace.join(file).exists())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        source(Path::new(path), text, &mut faults);
        faults
    }

    #[test]
    fn a_tidy_file_has_no_fault() {
        assert!(faults("agent/src/pod.rs", "//! Pods.\n\nfn a() {}\n").is_empty());
    }

    #[test]
    fn each_rule_is_noticed() {
        assert_eq!(faults("a/mod.rs", "//! x\n").len(), 1);
        assert_eq!(faults("a/b.rs", "fn a() {}\n").len(), 1);
        assert_eq!(
            faults("a/b.rs", &format!("//! x\n{}", "fn a() {}\n".repeat(1000))).len(),
            1
        );
        assert_eq!(
            faults("a/b.rs", concat!("//! x\n#![expect(unsafe", "_code)]\n")).len(),
            1
        );
        assert!(
            faults(
                "agent/shim/src/x.rs",
                concat!("//! x\n#![expect(unsafe", "_code)]\n")
            )
            .is_empty()
        );
    }

    #[test]
    fn the_workspace_is_tidy() {
        run(&crate::workspace()).expect("house rules hold");
    }
}
