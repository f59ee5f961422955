//! tmpfs and bind mounts of volumes, and finding them again.
//!
//! Changes the node's mount table, only below the agent's own directories.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, StatFs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

use super::{VolumeError, make_directory};

/// `f_type` of a tmpfs (linux/magic.h).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Makes `directory`, in memory: Secrets must not reach a disk.
pub fn ensure_memory(directory: &Path) -> Result<(), VolumeError> {
    make_directory(directory, 0o711)?;
    if is_tmpfs(directory) {
        return Ok(());
    }
    mount_tmpfs(directory, 0o711, None)
}

/// Makes a directory a tmpfs of its own.
pub fn ensure_tmpfs(directory: &Path, size: Option<u64>) -> Result<(), VolumeError> {
    if mount_points()?.iter().any(|point| point == directory) {
        return Ok(());
    }
    mount_tmpfs(directory, 0o777, size)
}

fn mount_tmpfs(directory: &Path, mode: u32, size: Option<u64>) -> Result<(), VolumeError> {
    let mut options = format!("mode={mode:o}");
    if let Some(size) = size {
        options = format!("{options},size={size}");
    }
    let options = std::ffi::CString::new(options).unwrap_or_default();
    mount(
        "tmpfs",
        directory,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(options.as_c_str()),
    )
    .map_err(|error| VolumeError::file("mount a tmpfs on", directory)(error.into()))
}

fn is_tmpfs(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|info: StatFs| info.f_type == TMPFS_MAGIC)
}

/// Binds a file or directory onto another, seen by nobody else.
pub fn bind(source: &Path, target: &Path) -> Result<(), VolumeError> {
    mount_bind(source, target)
        .and_then(|()| mount_change(target, MountPropagationFlags::PRIVATE))
        .map_err(|error| VolumeError::file("bind-mount on", target)(error.into()))
}

/// Unmounts everything at and below a directory, the last mount first.
pub fn unmount_below(directory: &Path) -> Result<(), VolumeError> {
    for point in mount_points()?.iter().rev() {
        if point.starts_with(directory) {
            // Detached, because a program that still uses it must not keep the pod alive.
            match unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(VolumeError::file("unmount", point)(error.into())),
            }
        }
    }
    Ok(())
}

/// Mount points of this process, in the order of mounting.
fn mount_points() -> Result<Vec<PathBuf>, VolumeError> {
    let path = Path::new("/proc/self/mountinfo");
    let text = std::fs::read_to_string(path).map_err(VolumeError::file("read", path))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|field| PathBuf::from(unescape(field)))
        .collect())
}

/// mountinfo writes blanks and backslashes in octal.
fn unescape(field: &str) -> String {
    let mut result = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        result.push_str(&rest[..at]);
        let code = rest
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            result.push(char::from(code));
            rest = &rest[at + 4..];
        } else {
            result.push('\\');
            rest = &rest[at + 1..];
        }
    }
    result.push_str(rest);
    result
}

/// Opens a path for use as the root of further look-ups.
pub(super) fn open_root(path: &Path) -> io::Result<rustix::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn octal() {
        assert_eq!(unescape(r"/a\040b"), "/a b");
        assert_eq!(unescape(r"/a\134b\9"), r"/a\b\9");
    }
}
