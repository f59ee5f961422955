//! A path inside a volume that cannot lead out of it.
//!
//! A program in a pod can replace parts of its volume by symlinks at any time. So the path is
//! resolved by the kernel with the volume as its root (openat2, RESOLVE_IN_ROOT, Linux 5.6),
//! and what was found is bound, by its descriptor, to a private place that the container's
//! mount then starts from.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;

use super::{VolumeError, make_directory, mounted};

/// Binds `inner` of `volume` to `private`; a directory is made when nothing is there.
pub fn bind(volume: &Path, inner: &str, private: &Path) -> Result<(), VolumeError> {
    let bad = || VolumeError::Path {
        path: inner.to_owned(),
    };
    let relative = PathBuf::from(inner);
    if relative
        .components()
        .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return Err(bad());
    }
    let failed = |error: io::Error| VolumeError::File {
        operation: "open",
        path: volume.join(&relative),
        source: error,
    };
    let root = mounted::open_root(volume).map_err(failed)?;
    let found = match open_in(&root, &relative) {
        Err(Errno::NOENT) => {
            make_in(&root, &relative).map_err(|error| failed(error.into()))?;
            open_in(&root, &relative).map_err(|error| failed(error.into()))?
        }
        result => result.map_err(|error| failed(error.into()))?,
    };
    let is_directory = rustix::fs::fstat(&found)
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
        .map_err(|error| failed(error.into()))?;
    mounted::unmount_below(private)?;
    if is_directory {
        make_directory(private, 0o755)?;
    } else {
        if let Some(parent) = private.parent() {
            make_directory(parent, 0o755)?;
        }
        if !private.exists() {
            std::fs::write(private, "").map_err(VolumeError::file("create", private))?;
        }
    }
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    mounted::bind(&by_descriptor, private)
}

fn open_in<Fd: AsFd>(root: Fd, path: &Path) -> Result<OwnedFd, Errno> {
    openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Makes the missing directories of a path, part by part, following no symlink.
fn make_in(root: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let mut current = root.try_clone().map_err(|_error: io::Error| Errno::MFILE)?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        let name = Path::new(name);
        match mkdirat(&current, name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        current = openat2(
            &current,
            name,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlinks_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        std::fs::create_dir(volume.join("etc")).unwrap();
        std::fs::write(dir.path().join("outside"), "no").unwrap();
        std::os::unix::fs::symlink("../../../../etc", volume.join("up")).unwrap();
        let root = mounted::open_root(&volume).unwrap();
        let found = open_in(&root, Path::new("up")).unwrap();
        let real = std::fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        assert_eq!(real, volume.canonicalize().unwrap().join("etc"));
        assert_eq!(
            open_in(&root, Path::new("up/../../outside")).unwrap_err(),
            Errno::NOENT
        );
        assert!(matches!(
            bind(&volume, "../outside", &dir.path().join("p")),
            Err(VolumeError::Path { .. })
        ));
    }

    #[test]
    fn missing_directories_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let root = mounted::open_root(dir.path()).unwrap();
        make_in(&root, Path::new("a/b")).unwrap();
        assert!(dir.path().join("a/b").is_dir());
        std::os::unix::fs::symlink("/", dir.path().join("l")).unwrap();
        assert!(make_in(&root, Path::new("l/x")).is_err());
    }
}
