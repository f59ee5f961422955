//! `cargo xtask setup`: installs what building, the demo and the tests need and a fresh
//! Debian 12 machine lacks. Each need is checked first, so a second run does nothing.
//!
//! Without root, or on another distribution, it changes nothing and says what to install.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{find, is_root, output, quiet, run};

/// What any task may need: a program, and the Debian package that brings it.
const NEEDS: [(&str, &str); 9] = [
    ("cc", "gcc"),
    ("make", "make"),
    ("ip", "iproute2"),
    ("dpkg-deb", "dpkg"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("busybox", "busybox-static"),
    ("etcdctl", "etcd-client"),
];

/// The Debian package that holds kubectl 1.20.
const KUBECTL_PACKAGE: &str = "kubernetes-client";
/// The Debian package that holds etcd 3.4.
const ETCD_PACKAGE: &str = "etcd-server";

/// Installs every missing program.
pub(crate) fn run_setup(workspace: &Path) -> Result<()> {
    let mut packages: Vec<&str> = NEEDS
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if find("kubectl").is_none() {
        packages.push(KUBECTL_PACKAGE);
    }
    install(&packages)?;
    debian_kubectl(workspace)?;
    etcd(workspace)?;
    Ok(())
}

/// Installs Debian packages that are not there yet; nothing to do for an empty list.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !is_root() || find("apt-get").is_none() {
        bail!("missing: {list}. As root on Debian: apt-get install --no-install-recommends {list}");
    }
    println!("setup: installing {list}");
    refresh_package_lists()?;
    let attempt = || {
        run(apt()
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages))
    };
    // Lists that are there may still be old, or of some of the archives only.
    attempt()
        .or_else(|_| {
            update()?;
            attempt()
        })
        .with_context(|| format!("installing {list}"))
}

/// `apt-get update`, once, and only where the lists are missing.
pub(crate) fn refresh_package_lists() -> Result<()> {
    if output(Command::new("apt-cache").args(["show", "--no-all-versions", "busybox-static"]))
        .is_ok_and(|text| !text.is_empty())
    {
        return Ok(());
    }
    update()
}

fn update() -> Result<()> {
    println!("setup: reading Debian's package lists");
    quiet(apt().arg("update"))
}

/// An etcd to compare with: that of the PATH, else Debian's, unpacked under target/tools.
/// Installing the package would start a server on the machine.
pub(crate) fn etcd(workspace: &Path) -> Result<PathBuf> {
    if let Some(etcd) = find("etcd") {
        return Ok(etcd);
    }
    let target = crate::target_dir(workspace);
    let dir = target.join("tools").join(ETCD_PACKAGE);
    let etcd = dir.join("usr/bin/etcd");
    if !etcd.exists() {
        println!("setup: unpacking Debian's etcd");
        unpack(&download(&target.join("debs"), ETCD_PACKAGE)?, &dir)?;
    }
    Ok(etcd)
}

/// Debian's kubectl 1.20, unpacked under target/tools beside whatever kubectl the PATH has:
/// the oldest client Pintle promises to serve.
pub(crate) fn debian_kubectl(workspace: &Path) -> Result<PathBuf> {
    let dir = crate::target_dir(workspace).join("tools/kubernetes-client");
    let kubectl = dir.join("usr/bin/kubectl");
    if kubectl.exists() {
        return Ok(kubectl);
    }
    println!("setup: unpacking Debian's kubectl");
    let deb = download(&crate::target_dir(workspace).join("debs"), KUBECTL_PACKAGE)?;
    unpack(&deb, &dir)?;
    Ok(kubectl)
}

/// Downloads one Debian package into `dir` (kept there for the next time).
pub(crate) fn download(dir: &Path, package: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    if let Some(deb) = downloaded(dir, package)? {
        return Ok(deb);
    }
    refresh_package_lists()?;
    let attempt = quiet(
        Command::new("apt-get")
            .args(["download", package])
            .current_dir(dir),
    );
    if attempt.is_err() {
        // The lists name a version the mirror no longer has: read them again, once.
        update()?;
        quiet(
            Command::new("apt-get")
                .args(["download", package])
                .current_dir(dir),
        )?;
    }
    downloaded(dir, package)?.with_context(|| {
        format!(
            "apt-get download {package} left no file in {}",
            dir.display()
        )
    })
}

/// Unpacks a Debian package's files into `root`.
pub(crate) fn unpack(deb: &Path, root: &Path) -> Result<()> {
    std::fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
    quiet(Command::new("dpkg-deb").arg("-x").arg(deb).arg(root))
}

fn downloaded(dir: &Path, package: &str) -> Result<Option<PathBuf>> {
    let prefix = format!("{package}_");
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name.starts_with(&prefix) && path.extension().is_some_and(|ext| ext == "deb") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
    command
}
