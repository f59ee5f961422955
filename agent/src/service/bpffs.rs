//! The BPF filesystem that holds the pins.
//!
//! Watches nothing. Mounts bpffs where it is missing and removes pins. Who reacts next: the
//! kernel, which frees what no pin and no process holds any more.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use super::datapath::DataPathError;

/// Where bpffs is mounted on an ordinary host.
const USUAL: &str = "/sys/fs/bpf";
/// Source of mounts made here, by which they are told from those of others.
const SOURCE: &str = "pintle-bpf";
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Makes sure that `directory` will be on a bpffs.
pub(super) fn mount_for(directory: &Path) -> Result<(), DataPathError> {
    let point = mount_point(directory);
    if is_bpffs(&point) {
        return Ok(());
    }
    let error = |source| DataPathError::Mount {
        path: point.clone(),
        source,
    };
    std::fs::create_dir_all(&point).map_err(error)?;
    rustix::mount::mount(
        SOURCE,
        &point,
        "bpf",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )
    .map_err(|errno| error(errno.into()))
}

/// Undoes [`mount_for`], unless someone else mounted it or something is left in it.
pub(super) fn unmount_own(directory: &Path) {
    let point = mount_point(directory);
    // The kernel itself puts `maps.debug` and `progs.debug` into every bpffs.
    let is_empty = std::fs::read_dir(&point).is_ok_and(|entries| {
        entries
            .flatten()
            .all(|entry| entry.file_name().to_string_lossy().ends_with(".debug"))
    });
    if !is_empty || !is_own(&point) {
        return;
    }
    if let Err(error) = rustix::mount::unmount(&point, UnmountFlags::DETACH) {
        tracing::debug!(path = %point.display(), %error, "bpffs stays mounted");
    }
}

/// Removes a pin or a directory of pins; what is not there is removed already.
pub(super) fn remove(path: &Path) -> Result<(), DataPathError> {
    let result = if path.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DataPathError::RemovePin {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

fn mount_point(directory: &Path) -> PathBuf {
    if directory.starts_with(USUAL) && directory != Path::new(USUAL) {
        return PathBuf::from(USUAL);
    }
    // An own directory on a bpffs that is there already, else a mount of its own.
    directory
        .ancestors()
        .find(|path| is_bpffs(path))
        .unwrap_or(directory)
        .to_owned()
}

fn is_bpffs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == BPF_FS_MAGIC)
}

fn is_own(point: &Path) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else {
        return false;
    };
    mounts.lines().any(|line| {
        let mut fields = line.split(' ');
        fields.next() == Some(SOURCE) && fields.next().map(Path::new) == Some(point)
    })
}
