//! `cargo xtask vm`: the node on Debian 12's own kernel, with every controller on cgroup v2.
//!
//! A hand-made initramfs (busybox, pintle, kubectl, the demo's images and the kernel modules they
//! need) is booted with QEMU's software emulation. The guest runs tests/vm/guest.sh and reports on
//! its console. Emulation is slow: behaviour is checked here, never time.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command::{output, quiet};
use crate::{images, setup};

/// What the node uses of the kernel that Debian builds as modules.
const MODULES: [&str; 14] = [
    "veth",
    "bridge",
    "overlay",
    "sch_ingress",
    "cls_bpf",
    "nf_tables",
    "nft_chain_nat",
    "nft_masq",
    "nft_compat",
    "nf_nat",
    "nf_conntrack",
    "vxlan",
    "fuse",
    "tun",
];

/// How long the guest may take in all.
const PATIENCE: Duration = Duration::from_mins(20);

/// Boots the VM and fails unless every check passed.
pub(crate) fn run_vm(workspace: &Path, pintle: &Path) -> Result<()> {
    let dir = crate::target_dir(workspace).join("vm");
    fs::create_dir_all(&dir)?;
    let debs = crate::target_dir(workspace).join("debs");
    let (kernel, modules) = kernel(&dir, &debs)?;
    let initrd = initramfs(workspace, &dir, &debs, pintle, &modules)?;
    boot(&kernel, &initrd, &dir.join("console.log"))
}

/// Debian's kernel image and the folder of its modules, unpacked under target/vm.
fn kernel(dir: &Path, debs: &Path) -> Result<(PathBuf, PathBuf)> {
    let root = dir.join("kernel");
    if !root.join("boot").exists() {
        setup::refresh_package_lists()?;
        let depends = output(Command::new("apt-cache").args([
            "depends",
            "--no-recommends",
            "--no-suggests",
            "linux-image-cloud-amd64",
        ]))?;
        let package = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-6"))
            .context("linux-image-cloud-amd64 names no kernel package")?;
        println!("vm: unpacking {package}");
        setup::unpack(&setup::download(debs, package)?, &root)?;
    }
    let image = only_child(&root.join("boot"), "vmlinuz-")?;
    let modules = only_child(&root.join("lib/modules"), "")?;
    Ok((image, modules))
}

fn only_child(dir: &Path, prefix: &str) -> Result<PathBuf> {
    fs::read_dir(dir)
        .with_context(|| format!("reading {}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .with_context(|| format!("nothing named {prefix}* in {}", dir.display()))
}

fn initramfs(
    workspace: &Path,
    dir: &Path,
    debs: &Path,
    pintle: &Path,
    modules: &Path,
) -> Result<PathBuf> {
    let root = dir.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for sub in [
        "bin", "sbin", "usr/bin", "etc", "dev", "proc", "sys", "root", "vm", "lib64",
    ] {
        fs::create_dir_all(root.join(sub))?;
    }
    let busybox = dir.join("busybox");
    setup::unpack(&setup::download(debs, "busybox-static")?, &busybox)?;
    fs::copy(busybox.join("bin/busybox"), root.join("bin/busybox"))?;
    for applet in output(Command::new(busybox.join("bin/busybox")).arg("--list"))?.lines() {
        let link = root.join("bin").join(applet);
        if applet != "busybox" {
            symlink("/bin/busybox", link)?;
        }
    }
    for (program, name) in [
        (pintle, "pintle"),
        (&setup::debian_kubectl(workspace)?, "kubectl"),
    ] {
        add_program(&root, program, name)?;
    }
    fs::write(root.join("etc/resolv.conf"), "nameserver 198.18.0.254\n")?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    fs::copy(
        workspace.join("tests/manifests/web.yaml"),
        root.join("vm/web.yaml"),
    )?;
    fs::copy(
        workspace.join("tests/vm/limits.yaml"),
        root.join("vm/limits.yaml"),
    )?;
    fs::write(root.join("vm/config.yaml"), "podPidsLimit: 64\n")?;
    for archive in images::run(workspace)? {
        let name = archive.file_name().context("an archive has a name")?;
        fs::copy(&archive, root.join("vm").join(name))?;
    }
    let loaded = add_modules(&root, modules)?;
    let guest = fs::read_to_string(workspace.join("tests/vm/guest.sh"))?;
    fs::write(root.join("init"), guest.replace("MODULES", &loaded))?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;

    let initrd = dir.join("initrd.cpio");
    quiet(
        Command::new("sh")
            .args([
                "-c",
                "find . -mindepth 1 | cpio --quiet -o -H newc > \"$0\"",
            ])
            .arg(&initrd)
            .current_dir(&root),
    )?;
    Ok(initrd)
}

/// Copies a program and the shared libraries it names.
fn add_program(root: &Path, program: &Path, name: &str) -> Result<()> {
    let target = root.join("usr/bin").join(name);
    fs::copy(program, &target).with_context(|| format!("copying {}", program.display()))?;
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
    // A static program has no libraries to list, which ldd reports as a failure.
    let libraries = output(Command::new("ldd").arg(program)).unwrap_or_default();
    for path in libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let inside = root.join(path.trim_start_matches('/'));
        if let Some(parent) = inside.parent() {
            fs::create_dir_all(parent)?;
        }
        if !inside.exists() {
            fs::copy(path, &inside).with_context(|| format!("copying {path}"))?;
        }
    }
    Ok(())
}

/// Copies the needed modules with all they depend on, and gives the names for modprobe.
fn add_modules(root: &Path, modules: &Path) -> Result<String> {
    let version = modules.file_name().context("a modules folder has a name")?;
    let base = modules
        .ancestors()
        .nth(3)
        .context("a modules folder lies in lib/modules")?;
    quiet(Command::new("depmod").arg("-b").arg(base).arg(version))?;
    let dep = fs::read_to_string(modules.join("modules.dep"))?;
    let mut wanted = BTreeSet::new();
    let mut found = Vec::new();
    for line in dep.lines() {
        let (file, needs) = line.split_once(':').unwrap_or((line, ""));
        let stem = Path::new(file)
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        if let Some(name) = MODULES.iter().find(|name| stem.replace('-', "_") == **name) {
            found.push(*name);
            wanted.insert(file.to_owned());
            wanted.extend(needs.split_whitespace().map(str::to_owned));
        }
    }
    let inside = root.join("lib/modules").join(version);
    for file in &wanted {
        let target = inside.join(file);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(modules.join(file), target)?;
    }
    let lines: Vec<_> = dep
        .lines()
        .filter(|line| wanted.contains(line.split(':').next().unwrap_or(line)))
        .collect();
    fs::write(inside.join("modules.dep"), lines.join("\n") + "\n")?;
    Ok(found.join(" "))
}

fn boot(kernel: &Path, initrd: &Path, log: &Path) -> Result<()> {
    println!("vm: booting {} under emulation", kernel.display());
    let mut child = Command::new("qemu-system-x86_64")
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-m",
            "3072",
            "-smp",
            "2",
        ])
        .args(["-nographic", "-no-reboot", "-nic", "none", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting qemu-system-x86_64")?;
    let console = BufReader::new(child.stdout.take().context("the console")?);
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in console.split(b'\n').map_while(std::result::Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let started = Instant::now();
    let (mut passed, mut failed, mut done, mut all) = (0, Vec::new(), false, String::new());
    while let Ok(line) = lines.recv_timeout(PATIENCE.saturating_sub(started.elapsed())) {
        println!("  {line}");
        all.push_str(&line);
        all.push('\n');
        if let Some(name) = line.strip_prefix("vm: fail ") {
            failed.push(name.to_owned());
        }
        passed += usize::from(line.starts_with("vm: pass "));
        done |= line == "vm: done";
    }
    drop(child.kill());
    drop(child.wait());
    fs::write(log, all)?;
    if !failed.is_empty() || !done {
        let end = if done {
            ""
        } else {
            "the guest did not finish; "
        };
        bail!("{end}failed: {failed:?} (console in {})", log.display());
    }
    println!("vm: {passed} passed, 0 failed");
    Ok(())
}
