//! Writes the files of a volume so that a reader sees all of the old or all of the new.
//!
//! The layout is Kubernetes' (volume/util/atomic_writer.go): the files are in a directory with
//! a new name each time, `..data` is a symlink to it that is replaced by a rename, and the
//! names a program opens are symlinks through `..data`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::VolumeError;
use super::payload::Payload;

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Brings `directory` to what `payload` says; true when anything changed. `stamp` names the
/// new version and must not have been used before.
pub fn write(
    directory: &Path,
    payload: &Payload,
    group: Option<u32>,
    stamp: &str,
) -> Result<bool, VolumeError> {
    let data = directory.join(DATA);
    let old = fs::read_link(&data).ok();
    if old.is_some() && is_current(&data, payload, group) {
        link_names(directory, payload)?;
        return Ok(false);
    }
    let version = format!("..{stamp}");
    let target = directory.join(&version);
    write_version(&target, payload, group)?;
    let new_link = directory.join(DATA_NEW);
    remove_if_there(&new_link)?;
    symlink(&version, &new_link).map_err(VolumeError::file("link", &new_link))?;
    fs::rename(&new_link, &data).map_err(VolumeError::file("rename", &data))?;
    link_names(directory, payload)?;
    clean(directory, payload, &version)?;
    Ok(true)
}

fn write_version(target: &Path, payload: &Payload, group: Option<u32>) -> Result<(), VolumeError> {
    fs::create_dir(target).map_err(VolumeError::file("create", target))?;
    set_mode(target, 0o755)?;
    for (path, file) in payload {
        let full = target.join(path);
        if let Some(parent) = full.parent() {
            super::make_directory(parent, 0o755)?;
        }
        fs::write(&full, &file.content).map_err(VolumeError::file("write", &full))?;
        set_mode(&full, effective_mode(file.mode, group))?;
        if file.owner.is_some() || group.is_some() {
            std::os::unix::fs::chown(&full, file.owner, group)
                .map_err(VolumeError::file("change the owner of", &full))?;
        }
    }
    Ok(())
}

/// With a group of the pod, the group may read.
fn effective_mode(mode: u32, group: Option<u32>) -> u32 {
    if group.is_some() { mode | 0o440 } else { mode }
}

fn is_current(data: &Path, payload: &Payload, group: Option<u32>) -> bool {
    let mut known = BTreeSet::new();
    if list(data, Path::new(""), &mut known).is_err() {
        return false;
    }
    known.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            let full = data.join(path);
            known.contains(path)
                && fs::metadata(&full)
                    .is_ok_and(|meta| meta.mode() & 0o777 == effective_mode(file.mode, group))
                && fs::read(&full).is_ok_and(|content| content == file.content)
        })
}

fn list(root: &Path, below: &Path, into: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list(root, &path, into)?;
        } else {
            into.insert(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// First parts of the paths: what is visible in the volume.
fn names(payload: &Payload) -> BTreeSet<&str> {
    payload
        .keys()
        .filter_map(|path| path.split('/').next())
        .collect()
}

fn link_names(directory: &Path, payload: &Payload) -> Result<(), VolumeError> {
    for name in names(payload) {
        let link = directory.join(name);
        if link.symlink_metadata().is_err() {
            symlink(Path::new(DATA).join(name), &link).map_err(VolumeError::file("link", &link))?;
        }
    }
    Ok(())
}

/// Removes names that are no more, and every version but the current one.
fn clean(directory: &Path, payload: &Payload, version: &str) -> Result<(), VolumeError> {
    let names = names(payload);
    let entries = fs::read_dir(directory).map_err(VolumeError::file("list", directory))?;
    for entry in entries {
        let entry = entry.map_err(VolumeError::file("list", directory))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if name == DATA || name == version || names.contains(name.as_str()) {
            continue;
        }
        if name.starts_with("..") && path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path).map_err(VolumeError::file("remove", &path))?;
        } else if path.is_symlink() {
            remove_if_there(&path)?;
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> Result<(), VolumeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(VolumeError::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(VolumeError::file("set the mode of", path))
}

#[cfg(test)]
mod tests {
    use super::super::payload::File;
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, content)| {
                let file = File {
                    content: content.as_bytes().to_vec(),
                    mode: 0o640,
                    owner: None,
                };
                ((*path).to_owned(), file)
            })
            .collect()
    }

    #[test]
    fn writes_updates_and_cleans() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(write(root, &payload(&[("a", "1"), ("d/b", "2")]), None, "1").unwrap());
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(root.join("d/b")).unwrap(), "2");
        assert_eq!(fs::metadata(root.join("a")).unwrap().mode() & 0o777, 0o640);
        assert!(!write(root, &payload(&[("a", "1"), ("d/b", "2")]), None, "2").unwrap());
        assert_eq!(
            fs::read_link(root.join("..data")).unwrap(),
            Path::new("..1")
        );
        assert!(write(root, &payload(&[("a", "3"), ("c", "4")]), None, "3").unwrap());
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "3");
        assert_eq!(fs::read_to_string(root.join("c")).unwrap(), "4");
        assert!(root.join("d").symlink_metadata().is_err());
        assert!(!root.join("..1").exists());
    }

    #[test]
    fn interrupted_write_is_made_good() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, &payload(&[("a", "1")]), None, "1").unwrap();
        fs::create_dir(root.join("..2")).unwrap();
        symlink("..2", root.join("..data_tmp")).unwrap();
        assert!(write(root, &payload(&[("a", "2")]), None, "3").unwrap());
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "2");
        assert!(!root.join("..2").exists());
    }
}
