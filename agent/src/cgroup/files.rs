//! The file operations on a cgroup v2 hierarchy.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::Interest;
use tokio::time::Instant;

use super::CgroupError;

fn failed(operation: impl Into<String>, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let (operation, path) = (operation.into(), path.to_owned());
    move |source| CgroupError::Io {
        operation,
        path,
        source,
    }
}

pub(super) fn find_hierarchy() -> Result<PathBuf, CgroupError> {
    let path = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    parse_hierarchy(&text).ok_or(CgroupError::NoHierarchy)
}

/// First cgroup2 mount of a mountinfo table whose root is the hierarchy's.
fn parse_hierarchy(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, target) = (fields.next()?, fields.next()?);
        (right.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(target))
    })
}

pub(super) fn controllers(path: &Path) -> Result<Vec<String>, CgroupError> {
    let file = path.join("cgroup.controllers");
    let text = fs::read_to_string(&file).map_err(failed("read", &file))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

pub(super) fn create(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(failed("create", path)),
    }
}

pub(super) fn write(dir: &Path, file: &str, value: &str) -> Result<(), CgroupError> {
    let path = dir.join(file);
    // Opened without O_CREAT: a missing file means a missing controller.
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut open| io::Write::write_all(&mut open, value.as_bytes()))
        .map_err(failed(format!("write {value:?} to"), &path))
}

/// Hands a controller down to a cgroup's children.
pub(super) fn enable(dir: &Path, controller: &str) -> Result<(), CgroupError> {
    write(dir, "cgroup.subtree_control", &format!("+{controller}"))
}

pub(super) fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

pub(super) fn kill(path: &Path) -> Result<(), CgroupError> {
    match write(path, "cgroup.kill", "1") {
        Err(CgroupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub(super) async fn remove_tree(path: &Path, patience: Duration) -> Result<(), CgroupError> {
    if !path.exists() {
        return Ok(());
    }
    kill(path)?;
    if !wait_empty(path, patience).await? {
        return Err(CgroupError::Busy {
            path: path.to_owned(),
            waited: patience,
        });
    }
    remove_dirs(path)
}

/// Removes leaves first. Directories are few and the calls do not block.
fn remove_dirs(path: &Path) -> Result<(), CgroupError> {
    for child in children(path) {
        remove_dirs(&child)?;
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(failed("remove", path)),
    }
}

/// Waits until `cgroup.events` says `populated 0`. The kernel raises POLLPRI
/// on the file when it changes, so nothing is polled on a timer.
async fn wait_empty(path: &Path, patience: Duration) -> Result<bool, CgroupError> {
    let events = path.join("cgroup.events");
    let file = match fs::File::open(&events) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        other => other.map_err(failed("open", &events))?,
    };
    if !populated(&file).map_err(failed("read", &events))? {
        return Ok(true);
    }
    let watch =
        crate::sys::watch(file.into(), Interest::PRIORITY).map_err(failed("watch", &events))?;
    let deadline = Instant::now() + patience;
    loop {
        if !populated(watch.get_ref()).map_err(failed("read", &events))? {
            return Ok(true);
        }
        match tokio::time::timeout_at(deadline, watch.ready(Interest::PRIORITY)).await {
            Err(_elapsed) => return Ok(false),
            Ok(ready) => ready.map_err(failed("watch", &events))?.clear_ready(),
        }
    }
}

fn populated(file: impl AsFd) -> io::Result<bool> {
    let mut buffer = [0; 256];
    let length = match rustix::io::pread(file, &mut buffer, 0) {
        // The cgroup was removed while it was watched.
        Err(rustix::io::Errno::NODEV) => return Ok(false),
        other => other?,
    };
    let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
    Ok(super::stats::keyed(&text, "populated") == Some(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_and_unified_hosts_are_told_apart() {
        let hybrid = "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 24 0:27 / /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            parse_hierarchy(hybrid),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        let unified = "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            parse_hierarchy(unified),
            Some(PathBuf::from("/sys/fs/cgroup"))
        );
        assert_eq!(parse_hierarchy("1 2 0:1 / /proc rw - proc proc rw\n"), None);
    }
}
