//! Secret files of the control plane: written whole or not at all, readable by the owner only.
//!
//! Changes files under the data directory and the admin kubeconfig; the PKI and the kubeconfig
//! writer react to what they find there at the next start.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Writes `contents` to a temporary file beside `path` with mode 0600, syncs it and renames it
/// over `path`: a reader, also one after a crash, sees the old file or the new one.
pub(crate) fn write_secret(path: &Path, contents: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let temporary = temporary_name(path);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(contents)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() && std::fs::remove_file(&temporary).is_err() {
        tracing::debug!(path = %temporary.display(), "no temporary file to remove");
    }
    written?;
    File::open(directory)?.sync_all()
}

/// Creates `path` and its missing parents, the last one with mode 0700.
pub(crate) fn create_private_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

/// The error that creating something at `path` would meet, found without creating anything:
/// the nearest existing ancestor has to be a directory.
pub(crate) fn check_creatable(path: &Path) -> io::Result<()> {
    for ancestor in path.ancestors().filter(|a| !a.as_os_str().is_empty()) {
        match std::fs::metadata(ancestor) {
            Ok(metadata) if metadata.is_dir() => return Ok(()),
            Ok(_) => return Err(io::Error::from(io::ErrorKind::NotADirectory)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_replaces_the_old_one_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "old").unwrap();
        write_secret(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_in_the_way_is_found_without_creating_anything() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = check_creatable(&file.join("sub/dir")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        assert!(check_creatable(&dir.path().join("a/b/c")).is_ok());
        assert!(!dir.path().join("a").exists());
    }
}
