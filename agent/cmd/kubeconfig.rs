//! `pintle kubeconfig`: access to the cluster for a person or a program.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use pintle_proto::admin::CreateKubeconfigRequest;

use crate::admin;
use crate::cli::Kubeconfig;

/// Has the instance at `run_dir` make a kubeconfig, and prints or writes it.
pub(crate) async fn run(run_dir: &Path, user: Kubeconfig) -> Result<()> {
    let mut client = admin::connect_running(run_dir).await?;
    let request = CreateKubeconfigRequest {
        user: user.user,
        groups: user.groups,
        ttl_seconds: user.ttl.as_secs(),
    };
    let made = client.create_kubeconfig(request).await;
    let text = made.map_err(admin::refused)?.into_inner().kubeconfig;
    match user.output {
        None => std::io::stdout().write_all(text.as_bytes())?,
        Some(path) => {
            write(&path, &text).with_context(|| format!("--output {}", path.display()))?;
        }
    }
    Ok(())
}

/// Replaces the file as a whole: it holds a private key.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.new", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // The first error is the one to tell.
        drop(std::fs::remove_file(&partial));
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_kubeconfig_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jane.kubeconfig");
        std::fs::write(&path, "old").unwrap();
        write(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
