//! The two `bpf(2)` commands the BPF library does not offer for cgroup links.
//!
//! Owns nothing; changes which program a link runs. Linux 5.7.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_UPDATE: libc::c_long = 29;

/// First members of `union bpf_attr` for `BPF_OBJ_GET`; the kernel takes the rest as zero.
#[repr(C)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The same for `BPF_LINK_UPDATE`.
#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// Opens what is pinned at `path`.
pub(crate) fn obj_get(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = ObjGet {
        pathname: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    // SAFETY: `attr` and the path it points to are initialised and outlive the call, which
    // reads no more than the size it is told.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET,
            &raw const attr,
            size_of::<ObjGet>(),
        )
    };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets `link` run `program` from now on; packets and calls in flight finish with the old one.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attr = LinkUpdate {
        link_fd: link.as_raw_fd().cast_unsigned(),
        new_prog_fd: program.as_raw_fd().cast_unsigned(),
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: `attr` is initialised and outlives the call, which reads no more than the size
    // it is told; both descriptors are borrowed, so open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_LINK_UPDATE,
            &raw const attr,
            size_of::<LinkUpdate>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Index of the interface a TCX link is attached to; 0 when that interface is gone.
pub(crate) fn link_ifindex(link: BorrowedFd<'_>) -> io::Result<u32> {
    let [a, b, c, d, ..] = link_target(link)?;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// Number of the cgroup a link is attached to, which is also the inode number of the cgroup's
/// directory; 0 when the cgroup is gone.
pub(crate) fn link_cgroup(link: BorrowedFd<'_>) -> io::Result<u64> {
    link_target(link).map(u64::from_ne_bytes)
}

/// The first eight bytes of the union in `struct bpf_link_info`.
fn link_target(link: BorrowedFd<'_>) -> io::Result<[u8; 8]> {
    /// `struct bpf_link_info` up to there.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        kind: u32,
        id: u32,
        prog_id: u32,
        padding: u32,
        target: [u8; 8],
    }
    /// First members of `union bpf_attr` for `BPF_OBJ_GET_INFO_BY_FD`.
    #[repr(C)]
    struct GetInfo {
        bpf_fd: u32,
        info_len: u32,
        info: u64,
    }
    let mut info = Info::default();
    let attr = GetInfo {
        bpf_fd: link.as_raw_fd().cast_unsigned(),
        info_len: u32::try_from(size_of::<Info>()).map_err(io::Error::other)?,
        info: &raw mut info as u64,
    };
    // SAFETY: `attr` is initialised and outlives the call; the kernel writes at most
    // `info_len` bytes to `info`, which is that long and valid for any bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET_INFO_BY_FD,
            &raw const attr,
            size_of::<GetInfo>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info.target)
}
