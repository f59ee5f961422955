//! Kernel calls that no crate wraps safely; all of the shim's unsafe is here.
//!
//! Owns no state. Minimum kernel: 5.12 (mount_setattr); clone3 with
//! CLONE_INTO_CGROUP is 5.7, setns on a pidfd 5.8.
#![expect(
    unsafe_code,
    reason = "clone3, mount_setattr, capset, seccomp and ioctls have no safe wrapper"
)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The C library's constant has a type too small for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a clone this is.
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The caller, with the child's ids.
    Parent {
        /// Process id in the caller's namespace.
        pid: i32,
        /// Its pidfd, close-on-exec.
        pidfd: OwnedFd,
    },
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Forks into new namespaces and a cgroup in one step.
pub(crate) fn clone3(namespaces: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain integers, for which all zeroes is valid.
    let mut args: libc::clone_args = unsafe { zeroed() };
    args.flags = u64::from(namespaces.cast_unsigned()) | libc::CLONE_PIDFD as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // SAFETY: without CLONE_VM the child has its own copy of this address
    // space, as after fork; the shim has one thread, so no lock is held by
    // anyone else in that copy. args and pidfd live until the call returns.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::from_ref(&args),
            size_of::<libc::clone_args>(),
        )
    })?;
    if pid == 0 {
        return Ok(Fork::Child);
    }
    // SAFETY: clone3 succeeded with CLONE_PIDFD, so pidfd is open and ours.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let pid =
        i32::try_from(pid).map_err(|_overflow| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    Ok(Fork::Parent { pid, pidfd })
}

/// Forks to leave the caller's process group; true in the child.
pub(crate) fn fork() -> io::Result<bool> {
    // SAFETY: called before any thread exists, so the child's copy of every
    // lock is free.
    let pid = unsafe { libc::fork() };
    Ok(check(libc::c_long::from(pid))? == 0)
}

/// Ends the process without running destructors or handlers of its parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any code and does not return.
    unsafe { libc::_exit(code) }
}

/// Changes attributes of a mount, and with `recursive` of those below it.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    set: u64,
    propagation: u64,
    recursive: bool,
) -> io::Result<()> {
    // SAFETY: mount_attr is plain integers, for which all zeroes is valid.
    let mut attr: libc::mount_attr = unsafe { zeroed() };
    attr.attr_set = set;
    attr.propagation = propagation;
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string constant and attr lives for the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(&attr),
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Sets effective, permitted and inheritable capabilities of this thread.
pub(crate) fn capset(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let half = |shift: u32| Data {
        effective: ((effective >> shift) & 0xffff_ffff) as u32,
        permitted: ((permitted >> shift) & 0xffff_ffff) as u32,
        inheritable: ((inheritable >> shift) & 0xffff_ffff) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: header and data have the kernel's layout for version 3 (two data
    // words) and live for the call.
    check(unsafe { libc::syscall(libc::SYS_capset, std::ptr::from_ref(&header), data.as_ptr()) })?;
    Ok(())
}

/// This thread's permitted capabilities.
pub(crate) fn permitted_capabilities() -> io::Result<u64> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    // Two words of effective, permitted, inheritable each.
    let mut data = [0_u32; 6];
    // SAFETY: header and data have the kernel's layout for version 3 and live
    // for the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_capget,
            std::ptr::from_ref(&header),
            data.as_mut_ptr(),
        )
    })?;
    let [_, low, _, _, high, _] = data;
    Ok(u64::from(low) | u64::from(high) << 32)
}

/// prctl with integer arguments only.
pub(crate) fn prctl(option: libc::c_int, a: u64, b: u64) -> io::Result<()> {
    // SAFETY: the options used here (see callers) take integers, no pointers.
    check(libc::c_long::from(unsafe {
        libc::prctl(option, a, b, 0u64, 0u64)
    }))?;
    Ok(())
}

/// Names this process for `ps`.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: PR_SET_NAME reads a C string of at most 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Installs a seccomp filter on this thread.
pub(crate) fn install_seccomp(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len())
        .map_err(|_too_long| io::Error::from_raw_os_error(libc::E2BIG))?;
    let filter = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: seccompiler's sock_filter is repr(C) with the kernel's fields;
    // the kernel only reads len entries, which live for the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            std::ptr::from_ref(&filter),
        )
    })?;
    Ok(())
}

/// Replaces this process by a program.
pub(crate) fn execve(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| {
        strings
            .iter()
            .map(|string| string.as_ptr())
            .chain(std::iter::once(std::ptr::null()))
            .collect::<Vec<_>>()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both arrays end with a null pointer and point at C strings that
    // outlive the call.
    unsafe { libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Makes a terminal the controlling one of this session.
pub(crate) fn set_controlling_terminal(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an integer.
    check(libc::c_long::from(unsafe {
        libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0)
    }))?;
    Ok(())
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    /// IFF_UP and IFF_RUNNING, in the type of the request.
    const UP_AND_RUNNING: libc::c_short = 0x41;
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: ifreq is plain data, for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *slot = byte.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = UP_AND_RUNNING;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which lives for the call.
    check(libc::c_long::from(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            std::ptr::from_ref(&request),
        )
    }))?;
    Ok(())
}

/// Sets the real and effective ids and groups of this (only) thread.
pub(crate) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: groups lives for the call and its length is passed along.
    check(libc::c_long::from(unsafe {
        libc::setgroups(groups.len(), groups.as_ptr())
    }))?;
    // SAFETY: integers only.
    check(libc::c_long::from(unsafe {
        libc::setresgid(gid, gid, gid)
    }))?;
    // SAFETY: integers only.
    check(libc::c_long::from(unsafe {
        libc::setresuid(uid, uid, uid)
    }))?;
    Ok(())
}

/// Puts every signal back to its default and blocks none.
pub(crate) fn reset_signals() -> io::Result<()> {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL installs no handler; unchangeable signals fail, which
        // is fine.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    nix::sys::signal::sigprocmask(
        nix::sys::signal::SigmaskHow::SIG_SETMASK,
        Some(&nix::sys::signal::SigSet::empty()),
        None,
    )?;
    Ok(())
}

/// Loads a cgroup device program and attaches it to a cgroup, where it stays
/// until the cgroup is removed.
pub(crate) fn attach_device_program(cgroup: BorrowedFd<'_>, program: &[u64]) -> io::Result<()> {
    #[repr(C)]
    struct Load {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
    }
    #[repr(C)]
    struct Attach {
        target: u32,
        program: u32,
        hook: u32,
        flags: u32,
    }
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_PROG_ATTACH: libc::c_int = 8;
    const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
    const BPF_CGROUP_DEVICE: u32 = 6;
    let load = Load {
        prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(program.len())
            .map_err(|_too_long| io::Error::from_raw_os_error(libc::E2BIG))?,
        insns: program.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: Load is a prefix of bpf_attr for this command; its pointers live
    // for the call; the kernel takes missing fields as zero.
    let loaded = check(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            std::ptr::from_ref(&load),
            size_of::<Load>(),
        )
    })?;
    let loaded =
        RawFd::try_from(loaded).map_err(|_overflow| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the call succeeded, so it is an open descriptor of ours.
    let loaded = unsafe { OwnedFd::from_raw_fd(loaded) };
    let attach = Attach {
        target: cgroup.as_raw_fd().cast_unsigned(),
        program: loaded.as_fd().as_raw_fd().cast_unsigned(),
        hook: BPF_CGROUP_DEVICE,
        flags: 0,
    };
    // SAFETY: Attach is a prefix of bpf_attr for this command.
    check(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_ATTACH,
            std::ptr::from_ref(&attach),
            size_of::<Attach>(),
        )
    })?;
    Ok(())
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_files_from(first: u32) {
    // SAFETY: the callers hold no descriptor in that range that they use
    // afterwards.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// Waits for ever while the kernel reaps children by itself.
pub(crate) fn reap_for_ever() -> ! {
    // SAFETY: ignoring SIGCHLD installs no handler; children are then reaped
    // without a wait (sigaction(2), POSIX.1-2001).
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        nix::unistd::pause();
    }
}

/// A real-time signal by number.
pub(crate) fn realtime_signal(number: i32) -> Option<rustix::process::Signal> {
    if !(libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number) {
        return None;
    }
    // SAFETY: the number is one that the C library leaves to programs.
    Some(unsafe { rustix::process::Signal::from_raw_unchecked(number) })
}
