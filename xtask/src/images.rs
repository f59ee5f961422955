//! `cargo xtask images`: the demo's images as OCI archives, made from Debian packages.
//!
//! They stand in for the images of the same names where no registry can be reached: the
//! programs are Debian's real nginx and busybox. Two tags of nginx differ in the page they
//! serve, so that a rolling update can be seen.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::command::output;
use crate::setup;

/// One image to build.
struct Recipe {
    /// Name of the archive, without `.tar`.
    file: &'static str,
    reference: &'static str,
    packages: &'static [&'static str],
    /// What to write besides the packages' files.
    prepare: Option<fn(&Path, tag: &str) -> Result<()>>,
    config: fn() -> Value,
}

const NGINX_PACKAGES: &[&str] = &[
    "base-files",
    "base-passwd",
    "busybox-static",
    "libc6",
    "libcrypt1",
    "libpcre2-8-0",
    "libssl3",
    "media-types",
    "netbase",
    "nginx",
    "nginx-common",
    "nginx-light",
    "zlib1g",
];

const RECIPES: [Recipe; 3] = [
    Recipe {
        file: "nginx-1.27",
        reference: "docker.io/library/nginx:1.27",
        packages: NGINX_PACKAGES,
        prepare: Some(prepare_nginx),
        config: nginx_config,
    },
    Recipe {
        file: "nginx-1.28",
        reference: "docker.io/library/nginx:1.28",
        packages: NGINX_PACKAGES,
        prepare: Some(prepare_nginx),
        config: nginx_config,
    },
    Recipe {
        file: "busybox-1.36",
        reference: "docker.io/library/busybox:1.36",
        packages: &["base-files", "base-passwd", "busybox-static", "netbase"],
        prepare: None,
        config: busybox_config,
    },
];

/// Every file of an image carries this time, so that the same packages give the same digest.
const FILE_TIME: u64 = 1_735_689_600;

/// Builds the archives that are missing and returns the paths of all.
pub(crate) fn run(workspace: &Path) -> Result<Vec<PathBuf>> {
    let target = crate::target_dir(workspace);
    let out = target.join("images");
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    let mut archives = Vec::new();
    for recipe in &RECIPES {
        let archive = out.join(format!("{}.tar", recipe.file));
        if !archive.exists() {
            println!("images: building {} from Debian packages", recipe.reference);
            build(recipe, &target.join("debs"), &archive)
                .with_context(|| format!("building {}", recipe.reference))?;
        }
        archives.push(archive);
    }
    Ok(archives)
}

fn build(recipe: &Recipe, debs: &Path, archive: &Path) -> Result<()> {
    let work = tempfile::tempdir_in(archive.parent().context("an archive path has a folder")?)?;
    let root = work.path().join("root");
    for package in recipe.packages {
        setup::unpack(&setup::download(debs, package)?, &root)?;
    }
    for unneeded in [
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "usr/share/lintian",
        "usr/share/bug",
    ] {
        let path = root.join(unneeded);
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
    }
    link_busybox(&root)?;
    users(&root)?;
    let tag = recipe.reference.rsplit(':').next().unwrap_or_default();
    if let Some(prepare) = recipe.prepare {
        prepare(&root, tag)?;
    }

    let mut tarball = tar::Builder::new(Vec::new());
    append_tree(&mut tarball, &root, Path::new(""))?;
    let tarball = tarball.into_inner()?;
    let diff_id = digest(&tarball);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(6));
    gzip.write_all(&tarball)?;
    let layer = gzip.finish()?;

    let config = serde_json::to_vec(&json!({
        "created": "2025-01-01T00:00:00Z",
        "architecture": "amd64",
        "os": "linux",
        "config": (recipe.config)(),
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": "2025-01-01T00:00:00Z", "created_by": "cargo xtask images"}],
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer)],
    }))?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] = json!({
        "org.opencontainers.image.ref.name": tag,
        "io.containerd.image.name": recipe.reference,
    });
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }))?;

    let mut files = BTreeMap::new();
    files.insert(
        "oci-layout".to_owned(),
        br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
    );
    files.insert("index.json".to_owned(), index);
    for blob in [layer, config, manifest] {
        files.insert(
            format!("blobs/sha256/{}", &digest(&blob)["sha256:".len()..]),
            blob,
        );
    }
    let partial = work.path().join("archive.tar");
    let mut tar = tar::Builder::new(File::create(&partial)?);
    for (name, bytes) in &files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(FILE_TIME);
        tar.append_data(&mut header, name, bytes.as_slice())?;
    }
    tar.into_inner()?.sync_all()?;
    fs::rename(&partial, archive).with_context(|| format!("writing {}", archive.display()))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Adds a folder's entries in name order, with owners and modes as they are.
fn append_tree(tar: &mut tar::Builder<Vec<u8>>, root: &Path, relative: &Path) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(root.join(relative))?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    names.sort();
    for name in names {
        let inner = relative.join(&name);
        let path = root.join(&inner);
        let meta = fs::symlink_metadata(&path)?;
        let mut header = tar::Header::new_gnu();
        header.set_mode(meta.permissions().mode() & 0o7777);
        header.set_uid(u64::from(meta.uid()));
        header.set_gid(u64::from(meta.gid()));
        header.set_mtime(FILE_TIME);
        if meta.is_dir() {
            header.set_entry_type(tar::EntryType::Directory);
            header.set_size(0);
            tar.append_data(&mut header, &inner, std::io::empty())?;
            append_tree(tar, root, &inner)?;
        } else if meta.is_symlink() {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            tar.append_link(&mut header, &inner, fs::read_link(&path)?)?;
        } else {
            header.set_size(meta.len());
            tar.append_data(&mut header, &inner, File::open(&path)?)?;
        }
    }
    Ok(())
}

/// Gives every applet of busybox a link, where no real program has the name.
fn link_busybox(root: &Path) -> Result<()> {
    let busybox = root.join("bin/busybox");
    let applets = output(Command::new(&busybox).arg("--list"))?;
    for applet in applets.lines() {
        let taken = ["bin", "sbin", "usr/bin", "usr/sbin"]
            .iter()
            .any(|dir| fs::symlink_metadata(root.join(dir).join(applet)).is_ok());
        if !taken {
            symlink("/bin/busybox", root.join("bin").join(applet))?;
        }
    }
    Ok(())
}

/// `/etc/passwd` and `/etc/group`, which base-passwd installs from its masters.
fn users(root: &Path) -> Result<()> {
    for name in ["passwd", "group"] {
        fs::copy(
            root.join(format!("usr/share/base-passwd/{name}.master")),
            root.join("etc").join(name),
        )?;
    }
    for dir in ["tmp", "var/tmp"] {
        fs::create_dir_all(root.join(dir))?;
        fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o1777))?;
    }
    for dir in ["run", "proc", "sys", "dev", "root"] {
        fs::create_dir_all(root.join(dir))?;
    }
    Ok(())
}

fn prepare_nginx(root: &Path, tag: &str) -> Result<()> {
    let html = root.join("usr/share/nginx/html");
    fs::create_dir_all(&html)?;
    fs::write(
        html.join("index.html"),
        format!(
            "<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head>\n\
             <body><h1>Welcome to nginx!</h1><p>nginx:{tag}</p></body></html>\n"
        ),
    )?;
    fs::create_dir_all(root.join("var/log/nginx"))?;
    fs::create_dir_all(root.join("var/lib/nginx"))?;
    symlink("/dev/stdout", root.join("var/log/nginx/access.log"))?;
    symlink("/dev/stderr", root.join("var/log/nginx/error.log"))?;
    fs::write(root.join("etc/nginx/nginx.conf"), NGINX_CONF)?;
    Ok(())
}

const NGINX_CONF: &str = "\
user www-data;
worker_processes 1;
error_log /var/log/nginx/error.log notice;
pid /run/nginx.pid;
events { worker_connections 1024; }
http {
    include /etc/nginx/mime.types;
    default_type application/octet-stream;
    access_log /var/log/nginx/access.log combined;
    sendfile on;
    keepalive_timeout 65;
    server {
        listen 80;
        server_name localhost;
        location / { root /usr/share/nginx/html; index index.html; }
    }
}
";

fn nginx_config() -> Value {
    json!({
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "Cmd": ["nginx", "-g", "daemon off;"],
        "ExposedPorts": {"80/tcp": {}},
        "StopSignal": "SIGQUIT",
    })
}

fn busybox_config() -> Value {
    json!({
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "Cmd": ["sh"],
    })
}
