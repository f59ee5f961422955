//! Unpacks a layer into a directory that overlayfs can stack.
//!
//! Changes only what lies below the directory: every parent is opened with
//! RESOLVE_IN_ROOT (kernel 5.6), so links in the layer cannot lead out.
//! Whiteouts become overlayfs' own (a 0/0 device, an `opaque` attribute).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::digest::{Digest, HashingReader};
use super::types::ImageError;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const AUFS: &[u8] = b".wh..wh.";

/// Unpacks a compressed or plain layer; its uncompressed digest must be `diff`.
pub(super) fn unpack(
    blob: File,
    layer: &Digest,
    diff: &Digest,
    dir: &Path,
) -> Result<(), ImageError> {
    let failed = |entry: &str| {
        let (layer, entry) = (layer.to_string(), entry.to_owned());
        move |source| ImageError::Unpack {
            layer,
            entry,
            source,
        }
    };
    let plain = decompress(blob).map_err(failed("start of the blob"))?;
    let mut reader = HashingReader::new(plain);
    let root = rustix::fs::open(
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| failed("open the snapshot")(errno.into()))?;
    let mut target = Target {
        root,
        parent: None,
        directories: Vec::new(),
    };
    {
        let mut archive = Archive::new(&mut reader);
        let entries = archive.entries().map_err(failed("read the archive"))?;
        for entry in entries {
            let mut entry = entry.map_err(failed("read the archive"))?;
            let path = entry.path().map_err(failed("read a name"))?.into_owned();
            target
                .apply(&path, &mut entry)
                .map_err(|source| failed(&path.display().to_string())(source))?;
        }
    }
    target.finish().map_err(failed("set directory times"))?;
    let actual = reader.finish().map_err(failed("read the archive"))?;
    if actual != *diff {
        return Err(ImageError::DigestMismatch {
            what: format!("layer {layer}"),
            expected: diff.to_string(),
            actual: actual.to_string(),
        });
    }
    Ok(())
}

/// Opens a gzip, zstd or plain stream by its first bytes.
pub(super) fn decompress(file: File) -> io::Result<Box<dyn Read>> {
    let mut magic = [0; 4];
    let length = rustix::io::pread(&file, &mut magic, 0)?;
    let buffered = io::BufReader::with_capacity(128 * 1024, file);
    Ok(match magic.get(..length).unwrap_or_default() {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(buffered)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::with_buffer(buffered)?),
        _ => Box::new(buffered),
    })
}

struct Target {
    root: OwnedFd,
    /// The directory of the last entry, since neighbours follow each other.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Times of directories are set last: filling them changes these.
    directories: Vec<(PathBuf, u64)>,
}

impl Target {
    fn apply<R: Read>(&mut self, path: &Path, entry: &mut Entry<'_, R>) -> io::Result<()> {
        let Some((parent, name)) = split(path)? else {
            // The root itself.
            return set_owner_and_mode(self.root.as_fd(), Path::new("."), entry);
        };
        let kind = entry.header().entry_type();
        let bytes = name.as_bytes();
        if bytes == OPAQUE {
            let dir = self.open_parent(&parent)?;
            return mark_opaque(dir);
        }
        if bytes.starts_with(AUFS) {
            return Ok(());
        }
        if let Some(hidden) = bytes.strip_prefix(WHITEOUT) {
            if hidden.is_empty() || hidden == b"." || hidden == b".." {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let name = OsStr::from_bytes(hidden).to_owned();
            let dir = self.open_parent(&parent)?;
            replace(dir, &name, false)?;
            let mode = Mode::empty();
            return Ok(rustix::fs::mknodat(
                dir,
                &name,
                FileType::CharacterDevice,
                mode,
                0,
            )?);
        }
        match kind {
            EntryType::Directory => {
                let dir = self.open_parent(&parent)?;
                replace(dir, &name, true)?;
                match rustix::fs::mkdirat(dir, &name, Mode::from_raw_mode(0o755)) {
                    Err(Errno::EXIST) => {}
                    other => other?,
                }
                set_owner_and_mode(dir, Path::new(&name), entry)?;
                let opened = open_in(dir, Path::new(&name), OFlags::RDONLY | OFlags::DIRECTORY)?;
                set_attributes(&opened, entry)?;
                let mtime = entry.header().mtime().unwrap_or_default();
                self.directories.push((parent.join(&name), mtime));
                Ok(())
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let dir = self.open_parent(&parent)?;
                write_file(dir, &name, entry)
            }
            EntryType::Symlink => {
                let target = link_name(entry)?;
                let dir = self.open_parent(&parent)?;
                replace(dir, &name, false)?;
                rustix::fs::symlinkat(target.as_os_str(), dir, &name)?;
                set_owner(dir, &name, entry)?;
                set_time(dir, &name, entry)
            }
            EntryType::Link => {
                let target = link_name(entry)?;
                let Some((from, from_name)) = split(Path::new(&target))? else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                let from = open_in(self.root.as_fd(), &from, OFlags::PATH | OFlags::DIRECTORY)?;
                let dir = self.open_parent(&parent)?;
                replace(dir, &name, false)?;
                Ok(rustix::fs::linkat(
                    from,
                    &from_name,
                    dir,
                    &name,
                    AtFlags::empty(),
                )?)
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                let dir = self.open_parent(&parent)?;
                make_node(dir, &name, kind, entry)
            }
            // Headers that only describe others.
            _ => Ok(()),
        }
    }

    /// Opens the directory `parent`, making what a sparse archive leaves out.
    fn open_parent(&mut self, parent: &Path) -> io::Result<BorrowedFd<'_>> {
        let known = self.parent.as_ref().is_some_and(|(path, _)| path == parent);
        if !known {
            let fd = match open_in(self.root.as_fd(), parent, OFlags::PATH | OFlags::DIRECTORY) {
                Err(Errno::NOENT) => self.make_parents(parent)?,
                other => other?,
            };
            self.parent = Some((parent.to_owned(), fd));
        }
        self.parent
            .as_ref()
            .map(|(_, fd)| fd.as_fd())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn make_parents(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut done = PathBuf::new();
        let mut current = open_in(self.root.as_fd(), &done, OFlags::PATH | OFlags::DIRECTORY)?;
        for name in path.components() {
            done.push(name);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            current = match open_in(self.root.as_fd(), &done, flags) {
                Err(Errno::NOENT) => {
                    let name = Path::new(name.as_os_str());
                    rustix::fs::mkdirat(&current, name, Mode::from_raw_mode(0o755))?;
                    open_in(self.root.as_fd(), &done, flags)?
                }
                other => other?,
            };
        }
        Ok(current)
    }

    fn finish(self) -> io::Result<()> {
        // Deepest last entries first, so that a parent's time is set after its
        // children's.
        for (path, mtime) in self.directories.iter().rev() {
            match open_in(self.root.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(dir) => rustix::fs::futimens(&dir, &times(*mtime))?,
                // A later entry replaced it.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Parent and name of an entry; None for the root. `..` is refused.
fn split(path: &Path) -> io::Result<Option<(PathBuf, OsString)>> {
    let mut parts: Vec<&OsStr> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => return Err(io::ErrorKind::InvalidFilename.into()),
        }
    }
    Ok(parts
        .pop()
        .map(|name| (parts.iter().collect(), name.to_owned())))
}

fn open_in(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Removes what is in the way of a new entry.
fn replace(dir: BorrowedFd<'_>, name: &OsStr, keep_directory: bool) -> io::Result<()> {
    let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    if !FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?);
    }
    if keep_directory {
        return Ok(());
    }
    let opened = rustix::fs::openat(
        dir,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for child in rustix::fs::Dir::read_from(&opened)? {
        let child = child?;
        let child = OsStr::from_bytes(child.file_name().to_bytes()).to_owned();
        if child != "." && child != ".." {
            replace(opened.as_fd(), &child, false)?;
        }
    }
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

fn write_file<R: Read>(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    entry: &mut Entry<'_, R>,
) -> io::Result<()> {
    replace(dir, name, false)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?;
    let mut file = File::from(file);
    io::copy(entry, &mut file)?;
    set_owner_and_mode(dir, Path::new(name), entry)?;
    let file = OwnedFd::from(file);
    set_attributes(&file, entry)?;
    let mtime = entry.header().mtime().unwrap_or_default();
    Ok(rustix::fs::futimens(&file, &times(mtime))?)
}

fn make_node<R: Read>(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    kind: EntryType,
    entry: &mut Entry<'_, R>,
) -> io::Result<()> {
    let header = entry.header();
    let (kind, device) = match kind {
        EntryType::Fifo => (FileType::Fifo, 0),
        EntryType::Char | EntryType::Block => {
            let major = header.device_major()?.unwrap_or_default();
            let minor = header.device_minor()?.unwrap_or_default();
            let kind = if kind == EntryType::Char {
                FileType::CharacterDevice
            } else {
                FileType::BlockDevice
            };
            (kind, rustix::fs::makedev(major, minor))
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    if kind == FileType::CharacterDevice && device == 0 {
        // Would be a whiteout to overlayfs, which layers say with a name.
        return Err(io::ErrorKind::InvalidData.into());
    }
    replace(dir, name, false)?;
    rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(0o600), device)?;
    set_owner_and_mode(dir, Path::new(name), entry)?;
    set_time(dir, name, entry)
}

fn link_name<R: Read>(entry: &Entry<'_, R>) -> io::Result<OsString> {
    let name = entry
        .link_name()?
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(name.into_owned().into_os_string())
}

fn id(value: io::Result<u64>) -> u32 {
    // Larger ones cannot be expressed; the kernel's own overflow id.
    value
        .ok()
        .and_then(|id| u32::try_from(id).ok())
        .filter(|id| *id != u32::MAX)
        .unwrap_or(65_534)
}

fn set_owner<R: Read>(dir: BorrowedFd<'_>, name: &OsStr, entry: &Entry<'_, R>) -> io::Result<()> {
    let uid = Uid::from_raw(id(entry.header().uid()));
    let gid = Gid::from_raw(id(entry.header().gid()));
    Ok(rustix::fs::chownat(
        dir,
        name,
        Some(uid),
        Some(gid),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Owner first: changing it clears the set-uid bits. `name` is not a link.
fn set_owner_and_mode<R: Read>(
    dir: BorrowedFd<'_>,
    name: &Path,
    entry: &Entry<'_, R>,
) -> io::Result<()> {
    set_owner(dir, name.as_os_str(), entry)?;
    let mode = Mode::from_raw_mode(entry.header().mode()? & 0o7777);
    Ok(rustix::fs::chmodat(dir, name, mode, AtFlags::empty())?)
}

fn times(seconds: u64) -> Timestamps {
    let time = Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or_default(),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn set_time<R: Read>(dir: BorrowedFd<'_>, name: &OsStr, entry: &Entry<'_, R>) -> io::Result<()> {
    let times = times(entry.header().mtime().unwrap_or_default());
    Ok(rustix::fs::utimensat(
        dir,
        name,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Extended attributes come as PAX records (`SCHILY.xattr.NAME`).
fn set_attributes<R: Read>(file: &OwnedFd, entry: &mut Entry<'_, R>) -> io::Result<()> {
    let Some(extensions) = entry.pax_extensions()? else {
        return Ok(());
    };
    for extension in extensions {
        let extension = extension?;
        let Some(name) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.") else {
            continue;
        };
        // Overlayfs' own attributes are ours to set, not the layer's.
        if name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.") {
            continue;
        }
        let flags = rustix::fs::XattrFlags::empty();
        match rustix::fs::fsetxattr(file, name, extension.value_bytes(), flags) {
            // Not every file system has every kind.
            Err(Errno::OPNOTSUPP | Errno::PERM) => {}
            other => other?,
        }
    }
    Ok(())
}

fn mark_opaque(dir: BorrowedFd<'_>) -> io::Result<()> {
    let opened = open_in(dir, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let flags = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::fsetxattr(
        &opened,
        "trusted.overlay.opaque",
        b"y",
        flags,
    )?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    use super::*;

    fn header(kind: EntryType, mode: u32, size: usize) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_uid(1);
        header.set_gid(2);
        header.set_mtime(1000);
        header
    }

    fn file(tar: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, content: &str) {
        let header = &mut header(EntryType::Regular, mode, content.len());
        tar.append_data(header, name, content.as_bytes()).unwrap();
    }

    /// tar::Builder refuses bad names, so they are written into the header.
    fn raw(tar: &mut tar::Builder<Vec<u8>>, name: &str, kind: EntryType, link: &str) {
        let mut header = header(kind, 0o644, 0);
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, io::empty()).unwrap();
    }

    fn unpack_bytes(bytes: &[u8], plain: &[u8], dir: &Path) -> Result<(), ImageError> {
        let mut blob = tempfile::tempfile().unwrap();
        blob.write_all(bytes).unwrap();
        io::Seek::rewind(&mut blob).unwrap();
        unpack(blob, &Digest::of(bytes), &Digest::of(plain), dir)
    }

    #[expect(clippy::print_stdout, reason = "says why a test did nothing")]
    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("skipped: not root");
        }
        root
    }

    #[test]
    fn entries_become_files_with_their_attributes() {
        if !is_root() {
            return;
        }
        let mut tar = tar::Builder::new(Vec::new());
        tar.append_data(
            &mut header(EntryType::Directory, 0o1777, 0),
            "./tmp/",
            io::empty(),
        )
        .unwrap();
        file(&mut tar, "usr/bin/su", 0o4755, "program");
        raw(&mut tar, "usr/bin/link", EntryType::Symlink, "/usr/bin/su");
        raw(&mut tar, "usr/bin/hard", EntryType::Link, "usr/bin/su");
        raw(&mut tar, "fifo", EntryType::Fifo, "");
        raw(&mut tar, "tmp/.wh.gone", EntryType::Regular, "");
        raw(&mut tar, "usr/.wh..wh..opq", EntryType::Regular, "");
        let bytes = tar.into_inner().unwrap();
        let dir = tempfile::tempdir().unwrap();
        unpack_bytes(&bytes, &bytes, dir.path()).unwrap();
        let su = dir.path().join("usr/bin/su").metadata().unwrap();
        assert_eq!(
            (su.mode() & 0o7777, su.uid(), su.gid(), su.nlink()),
            (0o4755, 1, 2, 2)
        );
        assert_eq!(su.mtime(), 1000);
        let tmp = dir.path().join("tmp").metadata().unwrap();
        assert_eq!((tmp.mode() & 0o7777, tmp.mtime()), (0o1777, 1000));
        assert!(
            dir.path()
                .join("fifo")
                .metadata()
                .unwrap()
                .file_type()
                .is_fifo()
        );
        let gone = dir.path().join("tmp/gone").symlink_metadata().unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
        let mut value = [0; 4];
        let length =
            rustix::fs::getxattr(dir.path().join("usr"), "trusted.overlay.opaque", &mut value)
                .unwrap();
        assert_eq!(&value[..length], b"y");
    }

    #[test]
    fn compressed_layers_are_recognised() {
        if !is_root() {
            return;
        }
        let mut tar = tar::Builder::new(Vec::new());
        file(&mut tar, "a", 0o644, "content");
        let plain = tar.into_inner().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let zstd = zstd::encode_all(&plain[..], 1).unwrap();
        for bytes in [gzip.finish().unwrap(), zstd] {
            let dir = tempfile::tempdir().unwrap();
            unpack_bytes(&bytes, &plain, dir.path()).unwrap();
            assert_eq!(
                std::fs::read_to_string(dir.path().join("a")).unwrap(),
                "content"
            );
            let wrong = unpack_bytes(&bytes, b"other", tempfile::tempdir().unwrap().path());
            assert!(matches!(wrong, Err(ImageError::DigestMismatch { .. })));
        }
    }

    #[test]
    fn nothing_escapes_the_directory() {
        if !is_root() {
            return;
        }
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("layer");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(outer.path().join("victim"), "safe").unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        raw(&mut tar, "up", EntryType::Symlink, "../");
        raw(
            &mut tar,
            "abs",
            EntryType::Symlink,
            outer.path().to_str().unwrap(),
        );
        file(&mut tar, "up/victim", 0o644, "evil");
        let bytes = tar.into_inner().unwrap();
        unpack_bytes(&bytes, &bytes, &dir).unwrap();
        assert_eq!(
            std::fs::read_to_string(outer.path().join("victim")).unwrap(),
            "safe"
        );
        assert_eq!(std::fs::read_to_string(dir.join("victim")).unwrap(), "evil");
        for (name, kind, link) in [
            ("../victim", EntryType::Regular, ""),
            ("hard", EntryType::Link, "../victim"),
            ("x/.wh...", EntryType::Regular, ""),
        ] {
            let mut tar = tar::Builder::new(Vec::new());
            raw(&mut tar, name, kind, link);
            let bytes = tar.into_inner().unwrap();
            assert!(unpack_bytes(&bytes, &bytes, &dir).is_err(), "{name}");
        }
        assert_eq!(
            std::fs::read_to_string(outer.path().join("victim")).unwrap(),
            "safe"
        );
    }
}
