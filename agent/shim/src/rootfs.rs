//! Builds a container's mount namespace and makes it the process's root.
//!
//! Runs in the container's process. Every mount but the overlay is made
//! detached (fsmount, open_tree) and moved to a place that was resolved inside
//! the new root, so neither a symbolic link of the image nor a race can put it
//! elsewhere. Nothing is ever mounted in the host's namespace. What propagates
//! is decided by the clones taken before `/` is made private.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use crate::child::SetupError;
use crate::devices;
use crate::spec::{ContainerSpec, Mount, Propagation, RootfsSpec, SandboxSpec};
use crate::sys;

const SET_READONLY: u64 = 0x1;
const NOSUID_NODEV_NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

fn step<E: Into<io::Error>>(what: impl Display) -> impl FnOnce(E) -> SetupError {
    move |source| SetupError::Step {
        step: what.to_string(),
        source: source.into(),
    }
}

/// What is taken from the host's mount namespace before leaving it.
pub(crate) struct Sources {
    binds: Vec<OwnedFd>,
    shm: Option<OwnedFd>,
    devices: Vec<(PathBuf, DeviceNode)>,
}

struct DeviceNode {
    block: bool,
    number: u64,
}

/// Clones every bind mount's source, with its propagation and mode.
pub(crate) fn collect(
    sandbox: &SandboxSpec,
    spec: &ContainerSpec,
    shm: Option<OwnedFd>,
) -> Result<Sources, SetupError> {
    let binds = sorted(&spec.mounts)
        .map(clone_source)
        .collect::<Result<_, _>>()?;
    let shm = if sandbox.host_ipc {
        let path = Path::new("/dev/shm");
        path.exists()
            .then(|| clone_tree(CWD, path, false))
            .transpose()?
    } else {
        shm
    };
    let mut devices = Vec::new();
    if spec.privileged {
        host_devices(Path::new("/dev"), &mut devices, 0);
    }
    for device in &spec.devices {
        let node = device_node(&device.source)
            .map_err(step(format_args!("device {}", device.source.display())))?;
        devices.push((device.target.clone(), node));
    }
    Ok(Sources {
        binds,
        shm,
        devices,
    })
}

/// Parents before what is mounted below them.
fn sorted(mounts: &[Mount]) -> impl Iterator<Item = &Mount> {
    let mut order: Vec<&Mount> = mounts.iter().collect();
    order.sort_by_key(|mount| mount.target.components().count());
    order.into_iter()
}

fn clone_tree(dir: BorrowedFd<'_>, path: &Path, recursive: bool) -> Result<OwnedFd, SetupError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    rustix::mount::open_tree(dir, path, flags)
        .map_err(step(format_args!("mount source {}", path.display())))
}

fn clone_source(mount: &Mount) -> Result<OwnedFd, SetupError> {
    let tree = clone_tree(CWD, &mount.source, true)?;
    let propagation = match mount.propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::HostToContainer => libc::MS_SLAVE,
        Propagation::Bidirectional => libc::MS_SHARED,
    };
    let set = if mount.readonly { SET_READONLY } else { 0 };
    sys::mount_setattr(tree.as_fd(), set, propagation, true)
        .map_err(step(format_args!("mount {}", mount.target.display())))?;
    Ok(tree)
}

fn device_node(path: &Path) -> io::Result<DeviceNode> {
    let metadata = fs::metadata(path)?;
    let kind = metadata.file_type();
    if !kind.is_block_device() && !kind.is_char_device() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    Ok(DeviceNode {
        block: kind.is_block_device(),
        number: metadata.rdev(),
    })
}

/// A privileged container sees the host's devices, pseudo terminals aside.
fn host_devices(dir: &Path, found: &mut Vec<(PathBuf, DeviceNode)>, depth: u32) {
    const SKIPPED: [&str; 6] = ["pts", "shm", "mqueue", "fd", "console", "ptmx"];
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if depth == 0 && SKIPPED.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < 4 => host_devices(&path, found, depth + 1),
            Ok(kind) if kind.is_char_device() || kind.is_block_device() => {
                if let Ok(node) = device_node(&path) {
                    found.push((path, node));
                }
            }
            _ => {}
        }
    }
}

/// Device filter rules for the devices a container asked for.
pub(crate) fn device_rules(spec: &ContainerSpec) -> Vec<devices::Rule> {
    spec.devices
        .iter()
        .filter_map(|device| device_node(&device.source).ok())
        .map(|node| devices::Rule {
            block: node.block,
            major: rustix::fs::major(node.number),
            minor: Some(rustix::fs::minor(node.number)),
        })
        .collect()
}

/// Builds the tree and pivots into it. The mount namespace must be new.
pub(crate) fn enter(spec: &ContainerSpec, sources: Sources) -> Result<(), SetupError> {
    // Nothing of this namespace may reach the host's, or the other way round;
    // the clones in `sources` keep the propagation they were given.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(step("make / private"))?;
    mount_overlay(&spec.rootfs)?;
    let root = rustix::fs::open(
        &spec.rootfs.merged,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(step("open the root file system"))?;
    let root = Root(root);
    standard_mounts(&root, spec, sources.shm, &sources.devices)?;
    for (mount, tree) in sorted(&spec.mounts).zip(sources.binds) {
        root.bind(&tree, &mount.target, mount.source.is_dir())
            .map_err(step(format_args!("mount {}", mount.target.display())))?;
    }
    if !spec.privileged {
        for path in &spec.readonly_paths {
            root.make_readonly(Path::new(path))?;
        }
        for path in &spec.masked_paths {
            root.mask(Path::new(path))?;
        }
    }
    if !spec.cwd.as_os_str().is_empty() {
        ensure(root.0.as_fd(), &spec.cwd, true).map_err(step("make working directory"))?;
    }
    if spec.read_only_rootfs {
        sys::mount_setattr(root.0.as_fd(), SET_READONLY, 0, false)
            .map_err(step("make the root file system read-only"))?;
    }
    pivot(&root.0)
}

/// Mounted by relative names from the directory all layers share: mount data
/// is limited to one page, and this way more than a hundred layers fit.
fn mount_overlay(rootfs: &RootfsSpec) -> Result<(), SetupError> {
    let base = rootfs
        .lowers
        .first()
        .map(|first| {
            rootfs.lowers.iter().fold(first.clone(), |common, path| {
                common
                    .ancestors()
                    .find(|base| path.starts_with(base))
                    .unwrap_or(common.as_path())
                    .to_owned()
            })
        })
        .unwrap_or_default();
    // With a single layer the layer itself would be the base.
    let base = if rootfs.lowers.len() == 1 {
        base.parent().unwrap_or(&base)
    } else {
        &base
    };
    std::env::set_current_dir(base)
        .map_err(step(format_args!("open image layers {}", base.display())))?;
    let mut data = b"lowerdir=".to_vec();
    for (index, lower) in rootfs.lowers.iter().enumerate() {
        if index > 0 {
            data.push(b':');
        }
        escape(
            &mut data,
            lower.strip_prefix(base).unwrap_or(lower),
            b"\\:,",
        );
    }
    for (key, path) in [(",upperdir=", &rootfs.upper), (",workdir=", &rootfs.work)] {
        data.extend_from_slice(key.as_bytes());
        escape(&mut data, path, b"\\,");
    }
    // The upper layer dies with the container, so it need never be synced
    // (kernel 5.10).
    data.extend_from_slice(b",volatile");
    let data = std::ffi::CString::new(data).map_err(|_nul| SetupError::Text {
        what: "path of an image layer",
    })?;
    let mounted = rustix::mount::mount(
        "overlay",
        &rootfs.merged,
        "overlay",
        MountFlags::empty(),
        Some(data.as_c_str()),
    );
    mounted.map_err(step(format_args!(
        "mount overlay of {} layers",
        rootfs.lowers.len()
    )))?;
    std::env::set_current_dir("/").map_err(step("leave the image layers"))
}

fn escape(out: &mut Vec<u8>, path: &Path, special: &[u8]) {
    for byte in path.as_os_str().as_encoded_bytes() {
        if special.contains(byte) {
            out.push(b'\\');
        }
        out.push(*byte);
    }
}

fn file_system(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, SetupError> {
    let make = || -> rustix::io::Result<OwnedFd> {
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
        rustix::mount::fsconfig_create(context.as_fd())?;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().map_err(step(format_args!("make {kind} file system")))
}

fn standard_mounts(
    root: &Root,
    spec: &ContainerSpec,
    shm: Option<OwnedFd>,
    extra_devices: &[(PathBuf, DeviceNode)],
) -> Result<(), SetupError> {
    let mount = |tree: OwnedFd, target: &str| {
        root.bind(&tree, Path::new(target), true)
            .map_err(step(format_args!("mount {target}")))
    };
    let readonly = if spec.privileged {
        MountAttrFlags::empty()
    } else {
        MountAttrFlags::MOUNT_ATTR_RDONLY
    };
    mount(file_system("proc", &[], NOSUID_NODEV_NOEXEC)?, "/proc")?;
    let dev_attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_STRICTATIME;
    let dev = file_system(
        "tmpfs",
        &[("mode", "755"), ("size", "65536k")],
        dev_attributes,
    )?;
    fill_dev(dev.as_fd(), spec, extra_devices)?;
    mount(dev, "/dev")?;
    let pts = [
        ("newinstance", "1"),
        ("ptmxmode", "0666"),
        ("mode", "0620"),
        ("gid", "5"),
    ];
    let pts_attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    // `newinstance` is the only behaviour since 4.7 and is a flag there.
    mount(
        file_system("devpts", &pts[1..], pts_attributes)?,
        "/dev/pts",
    )?;
    if let Some(shm) = shm {
        mount(shm, "/dev/shm")?;
    }
    match file_system("mqueue", &[], NOSUID_NODEV_NOEXEC) {
        Ok(mqueue) => mount(mqueue, "/dev/mqueue")?,
        // A kernel without POSIX message queues.
        Err(SetupError::Step { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {}
        Err(error) => return Err(error),
    }
    mount(
        file_system("sysfs", &[], NOSUID_NODEV_NOEXEC | readonly)?,
        "/sys",
    )?;
    mount(
        file_system("cgroup2", &[], NOSUID_NODEV_NOEXEC | readonly)?,
        "/sys/fs/cgroup",
    )
}

fn fill_dev(
    dev: BorrowedFd<'_>,
    spec: &ContainerSpec,
    extra: &[(PathBuf, DeviceNode)],
) -> Result<(), SetupError> {
    const LINKS: [(&str, &str); 6] = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("core", "/proc/kcore"),
        ("ptmx", "pts/ptmx"),
    ];
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(dev, name, Mode::from_raw_mode(0o755)).map_err(step("fill /dev"))?;
    }
    for (name, major, minor) in devices::NODES {
        devices::make(dev, name, major, minor).map_err(step(format_args!("make /dev/{name}")))?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, dev, name).map_err(step("fill /dev"))?;
    }
    if spec.tty {
        let mode = Mode::from_raw_mode(0o620);
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(dev, "console", flags, mode).map_err(step("make /dev/console"))?;
    }
    for (target, node) in extra {
        let Ok(name) = target.strip_prefix("/dev") else {
            return Err(SetupError::Text {
                what: "device path outside /dev",
            });
        };
        let below = name
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = below {
            ensure(dev, parent, true).map_err(step(format_args!("make {}", target.display())))?;
        }
        let kind = if node.block {
            rustix::fs::FileType::BlockDevice
        } else {
            rustix::fs::FileType::CharacterDevice
        };
        match rustix::fs::mknodat(dev, name, kind, Mode::from_raw_mode(0o660), node.number) {
            Err(rustix::io::Errno::EXIST) => {}
            other => other.map_err(step(format_args!("make {}", target.display())))?,
        }
    }
    Ok(())
}

/// Opens `path` inside `root`, following the image's links inside it only.
fn open_in(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() {
        Path::new(".")
    } else {
        relative
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(
        root,
        relative,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )
}

/// Opens a directory or file inside `root`, making what is missing.
fn ensure(root: BorrowedFd<'_>, path: &Path, directory: bool) -> rustix::io::Result<OwnedFd> {
    const MOST_LINKS: u32 = 40;
    let mut path = normal(Path::new(""), path);
    for _ in 0..MOST_LINKS {
        match ensure_once(root, &path, directory)? {
            Made::Opened(fd) => return Ok(fd),
            Made::DanglingLink(target) => path = target,
        }
    }
    Err(rustix::io::Errno::LOOP)
}

enum Made {
    Opened(OwnedFd),
    /// A link led to something that does not exist; this is where to go on.
    DanglingLink(PathBuf),
}

/// `path` as seen from `base`, without `.` and `..`, relative to the root.
fn normal(base: &Path, path: &Path) -> PathBuf {
    let mut result = if path.is_absolute() {
        PathBuf::new()
    } else {
        base.to_owned()
    };
    for component in path.components() {
        match component {
            Component::Normal(name) => result.push(name),
            Component::ParentDir => {
                result.pop();
            }
            _ => {}
        }
    }
    result
}

fn ensure_once(root: BorrowedFd<'_>, path: &Path, directory: bool) -> rustix::io::Result<Made> {
    match open_in(root, path, OFlags::PATH) {
        Err(rustix::io::Errno::NOENT) => {}
        other => return other.map(Made::Opened),
    }
    let mut done = PathBuf::new();
    let mut parent = open_in(root, &done, OFlags::PATH | OFlags::DIRECTORY)?;
    let mut components = path.components();
    while let Some(name) = components.next() {
        let rest = components.as_path();
        let before = done.clone();
        done.push(name);
        match open_in(root, &done, OFlags::PATH) {
            Ok(fd) => {
                parent = fd;
                continue;
            }
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let name = Path::new(&name);
        if let Ok(target) = rustix::fs::readlinkat(&parent, name, Vec::new()) {
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            return Ok(Made::DanglingLink(normal(&before, &target).join(rest)));
        }
        if rest.as_os_str().is_empty() && !directory {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o644))?;
        } else {
            rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        }
        parent = open_in(root, &done, OFlags::PATH)?;
    }
    Ok(Made::Opened(parent))
}

struct Root(OwnedFd);

impl Root {
    /// Moves a detached mount to `target`, which is made when missing.
    fn bind(&self, tree: &OwnedFd, target: &Path, directory: bool) -> rustix::io::Result<()> {
        let place = ensure(self.0.as_fd(), target, directory)?;
        attach(tree.as_fd(), place.as_fd())
    }

    fn make_readonly(&self, path: &Path) -> Result<(), SetupError> {
        let what = format_args!("make {} read-only", path.display()).to_string();
        let Some(place) = self.existing(path, &what)? else {
            return Ok(());
        };
        let tree = clone_tree(place.as_fd(), Path::new(""), true)?;
        sys::mount_setattr(tree.as_fd(), SET_READONLY, 0, true).map_err(step(&what))?;
        attach(tree.as_fd(), place.as_fd()).map_err(step(&what))
    }

    fn mask(&self, path: &Path) -> Result<(), SetupError> {
        let what = format_args!("mask {}", path.display()).to_string();
        let Some(place) = self.existing(path, &what)? else {
            return Ok(());
        };
        let stat = rustix::fs::fstat(&place).map_err(step(&what))?;
        let cover = if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            file_system(
                "tmpfs",
                &[("size", "0k")],
                MountAttrFlags::MOUNT_ATTR_RDONLY,
            )?
        } else {
            let null = open_in(self.0.as_fd(), Path::new("/dev/null"), OFlags::PATH)
                .map_err(step(&what))?;
            clone_tree(null.as_fd(), Path::new(""), false)?
        };
        attach(cover.as_fd(), place.as_fd()).map_err(step(&what))
    }

    fn existing(&self, path: &Path, what: &str) -> Result<Option<OwnedFd>, SetupError> {
        match open_in(self.0.as_fd(), path, OFlags::PATH) {
            Ok(fd) => Ok(Some(fd)),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
            Err(error) => Err(step(what)(error)),
        }
    }
}

fn attach(tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", place, "", flags)
}

/// Puts a terminal's slave side at /dev/console. Runs after the pivot.
pub(crate) fn bind_console(terminal: &Path) -> Result<(), SetupError> {
    rustix::mount::mount_bind(terminal, "/dev/console").map_err(step("mount /dev/console"))
}

/// Makes `root` this namespace's root and lets go of the old one.
///
/// `pivot_root(".", ".")` stacks the old root on the new one (pivot_root(2)),
/// so no directory is needed for it.
fn pivot(root: &OwnedFd) -> Result<(), SetupError> {
    let old = rustix::fs::open(
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(step("open the old root"))?;
    rustix::process::fchdir(root).map_err(step("enter the root file system"))?;
    match rustix::process::pivot_root(".", ".") {
        // The initial ramfs cannot be pivoted away from; cover it instead.
        Err(rustix::io::Errno::INVAL) => return cover_root(root),
        other => other.map_err(step("pivot_root"))?,
    }
    rustix::process::fchdir(&old).map_err(step("enter the old root"))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(step("unmount the old root"))?;
    std::env::set_current_dir("/").map_err(step("enter the root file system"))
}

/// The root of a host that runs from its initramfs stays below the new one.
fn cover_root(root: &OwnedFd) -> Result<(), SetupError> {
    rustix::mount::mount_move(".", "/").map_err(step("move the root file system"))?;
    rustix::process::fchdir(root).map_err(step("enter the root file system"))?;
    rustix::process::chroot(".").map_err(step("chroot"))?;
    std::env::set_current_dir("/").map_err(step("enter the root file system"))
}

/// Makes a mount namespace that holds nothing but the pod's /dev/shm, mounted
/// as its root. Runs in a process of its own; the shim keeps the namespace by
/// its descriptor and containers clone the mount from it.
pub(crate) fn shm_namespace(size: u64) -> Result<(), SetupError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(step("make / private"))?;
    let size = size.to_string();
    let shm = file_system(
        "tmpfs",
        &[("mode", "1777"), ("size", &size)],
        NOSUID_NODEV_NOEXEC,
    )?;
    let place = rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(step("open /proc"))?;
    attach(shm.as_fd(), place.as_fd()).map_err(step("mount /dev/shm"))?;
    pivot(&shm)
}

/// Clones the pod's /dev/shm out of the current (holder's) mount namespace.
pub(crate) fn clone_shm() -> Result<OwnedFd, SetupError> {
    clone_tree(CWD, Path::new("/"), false)
}
