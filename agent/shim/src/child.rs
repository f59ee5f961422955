//! What a new process does between clone and exec.
//!
//! Runs in the container's process, on its copy of the shim's memory. It tells
//! the shim about failures over a channel that exec closes: an end of file
//! without a message means the program runs.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{Mode, OFlags};

use crate::caps::{self, Caps};
use crate::channel::{self, Note};
use crate::program;
use crate::protocol::CallError;
use crate::rootfs;
use crate::seccomp::{Filters, SeccompError};
use crate::spec::{ContainerSpec, ExecSpec, SandboxSpec};
use crate::sys;
use crate::user::{self, Identity, UserError};

/// Why a process could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("{step}: {source}")]
    Step { step: String, source: io::Error },
    #[error("{what} is not usable")]
    Text { what: &'static str },
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Capability(#[from] caps::UnknownCapability),
    #[error(transparent)]
    Seccomp(#[from] SeccompError),
    #[error(transparent)]
    Refused(#[from] CallError),
}

impl From<SetupError> for CallError {
    fn from(error: SetupError) -> Self {
        let setup = |step: &str, message: String| Self::Setup {
            step: step.to_owned(),
            message,
        };
        match error {
            SetupError::Refused(error) => error,
            SetupError::Step { step, source } => {
                let message = source
                    .raw_os_error()
                    .map(rustix::io::Errno::from_raw_os_error)
                    .map_or_else(|| source.to_string(), program::words);
                Self::Setup { step, message }
            }
            SetupError::Text { what } => setup("container spec", format!("{what} is not usable")),
            SetupError::User(error) => setup("set user", error.to_string()),
            SetupError::Capability(error) => setup("set capabilities", error.to_string()),
            SetupError::Seccomp(error) => setup("set seccomp filter", error.to_string()),
        }
    }
}

pub(crate) fn step<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> SetupError {
    move |source| SetupError::Step {
        step: what.to_owned(),
        source: source.into(),
    }
}

/// Standard streams a process starts with; on a terminal there are none.
#[derive(Debug)]
pub(crate) struct Stdio {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// Everything a container's first process needs of the shim.
pub(crate) struct Create<'a> {
    pub(crate) sandbox: &'a SandboxSpec,
    pub(crate) spec: &'a ContainerSpec,
    /// Mount namespace of the pod's /dev/shm, and the host's to come back to.
    pub(crate) shm: Option<(BorrowedFd<'a>, BorrowedFd<'a>)>,
    pub(crate) stdio: Option<Stdio>,
    pub(crate) channel: OwnedFd,
}

/// Everything a further process needs of the shim.
pub(crate) struct Exec<'a> {
    pub(crate) container: &'a ContainerSpec,
    pub(crate) spec: &'a ExecSpec,
    /// The container's first process, whose namespaces are joined.
    pub(crate) target: BorrowedFd<'a>,
    pub(crate) stdio: Option<Stdio>,
    pub(crate) channel: OwnedFd,
}

/// Becomes a container's first process.
pub(crate) fn create(context: &Create<'_>) -> ! {
    let channel = context.channel.as_fd();
    let error = match prepare_container(context) {
        Ok(identity) => {
            let spec = context.spec;
            let cwd = if spec.cwd.as_os_str().is_empty() {
                Path::new("/")
            } else {
                &spec.cwd
            };
            let env = environment(spec, &identity, &[], spec.tty);
            start(spec, &identity, cwd, &spec.args, &env)
        }
        Err(error) => error,
    };
    give_up(channel, error)
}

fn prepare_container(context: &Create<'_>) -> Result<Identity, SetupError> {
    let spec = context.spec;
    begin()?;
    if let Some(score) = spec.oom_score_adj {
        // Lowering it needs SYS_RESOURCE, which hosts may withhold; the pod is
        // no worse off than with the default.
        let _refused = std::fs::write("/proc/self/oom_score_adj", score.to_string());
    }
    let shm = context
        .shm
        .map(|(holder, host)| {
            setns(holder, CloneFlags::CLONE_NEWNS).map_err(step("enter the pod's /dev/shm"))?;
            let tree = rootfs::clone_shm()?;
            setns(host, CloneFlags::CLONE_NEWNS).map_err(step("leave the pod's /dev/shm"))?;
            Ok::<_, SetupError>(tree)
        })
        .transpose()?;
    let sources = rootfs::collect(context.sandbox, spec, shm)?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)
        .map_err(step("unshare namespaces"))?;
    rootfs::enter(spec, sources)?;
    let identity = identity(spec)?;
    connect_stdio(
        context.stdio.as_ref(),
        context.channel.as_fd(),
        &identity,
        spec.tty,
    )?;
    Ok(identity)
}

/// Becomes a further process of a container.
pub(crate) fn exec(context: &Exec<'_>) -> ! {
    let channel = context.channel.as_fd();
    let error = match prepare_exec(context) {
        Ok(identity) => {
            let container = context.container;
            let cwd = if container.cwd.as_os_str().is_empty() {
                Path::new("/")
            } else {
                &container.cwd
            };
            let tty = context.spec.tty;
            let env = environment(container, &identity, &context.spec.env, tty);
            start(container, &identity, cwd, &context.spec.args, &env)
        }
        Err(error) => error,
    };
    give_up(channel, error)
}

fn prepare_exec(context: &Exec<'_>) -> Result<Identity, SetupError> {
    begin()?;
    setns(
        context.target,
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP,
    )
    .map_err(step("join the container's namespaces"))?;
    let identity = identity(context.container)?;
    let tty = context.spec.tty;
    connect_stdio(
        context.stdio.as_ref(),
        context.channel.as_fd(),
        &identity,
        tty,
    )?;
    if let (true, Some((columns, rows))) = (tty, context.spec.size) {
        let size = rustix::termios::Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(std::io::stdin(), size)
            .map_err(step("set the terminal's size"))?;
    }
    Ok(identity)
}

fn begin() -> Result<(), SetupError> {
    sys::reset_signals().map_err(step("reset signals"))?;
    rustix::process::setsid().map_err(step("start a session"))?;
    // Until exec this process may be seen from containers; its memory and
    // /proc/PID/exe are the host's.
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0).map_err(step("hide from containers"))?;
    rustix::process::umask(Mode::empty());
    Ok(())
}

fn identity(spec: &ContainerSpec) -> Result<Identity, SetupError> {
    // An image without these files has no names to look up.
    let text = |path: &str| match std::fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    };
    Ok(user::resolve(
        &spec.user,
        &text("/etc/passwd"),
        &text("/etc/group"),
    )?)
}

fn connect_stdio(
    stdio: Option<&Stdio>,
    channel: BorrowedFd<'_>,
    identity: &Identity,
    tty: bool,
) -> Result<(), SetupError> {
    let adopt = |fd: BorrowedFd<'_>, n: usize| match n {
        0 => nix::unistd::dup2_stdin(fd),
        1 => nix::unistd::dup2_stdout(fd),
        _ => nix::unistd::dup2_stderr(fd),
    };
    if tty {
        let terminal = open_terminal(channel, identity)?;
        for n in 0..3 {
            adopt(terminal.as_fd(), n).map_err(step("connect the terminal"))?;
        }
        return sys::set_controlling_terminal(terminal.as_fd()).map_err(step("take the terminal"));
    }
    let Some(stdio) = stdio else { return Ok(()) };
    for (n, fd) in [&stdio.stdin, &stdio.stdout, &stdio.stderr]
        .into_iter()
        .enumerate()
    {
        // So that the user can open /dev/stderr and the like. /dev/null stays
        // as it is.
        let stat = rustix::fs::fstat(fd).map_err(step("look at standard streams"))?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo {
            let uid = Some(rustix::fs::Uid::from_raw(identity.uid));
            let gid = Some(rustix::fs::Gid::from_raw(identity.gid));
            rustix::fs::fchown(fd, uid, gid).map_err(step("own standard streams"))?;
        }
        adopt(fd.as_fd(), n).map_err(step("connect standard streams"))?;
    }
    Ok(())
}

/// Opens a terminal of the container's own devpts and gives its master side to
/// the shim.
fn open_terminal(channel: BorrowedFd<'_>, identity: &Identity) -> Result<OwnedFd, SetupError> {
    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
    let failed = || step::<rustix::io::Errno>("open a terminal");
    let master =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(failed())?;
    unlockpt(&master).map_err(failed())?;
    let name = ptsname(&master, Vec::new()).map_err(failed())?;
    let slave = rustix::fs::open(
        name.as_c_str(),
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(failed())?;
    rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(identity.uid)), None)
        .map_err(failed())?;
    if rustix::fs::access("/dev/console", rustix::fs::Access::EXISTS).is_ok() {
        // Only a container's first process gets here with a /dev/console that
        // nothing covers; a second terminal over it would be wrong.
        let console = rustix::fs::stat("/dev/console").map_err(failed())?;
        if rustix::fs::FileType::from_raw_mode(console.st_mode).is_file() {
            rootfs::bind_console(Path::new(&*name.to_string_lossy()))?;
        }
    }
    channel::send(channel, &Note::Terminal, Some(master.as_fd()))
        .map_err(step("hand over the terminal"))?;
    Ok(slave)
}

fn environment(
    spec: &ContainerSpec,
    identity: &Identity,
    extra: &[String],
    tty: bool,
) -> Vec<String> {
    let mut env: Vec<String> = Vec::with_capacity(spec.env.len() + extra.len() + 4);
    let mut set = |variable: &str| {
        let name = variable.split('=').next().unwrap_or(variable);
        let same = |present: &String| {
            present
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('='))
        };
        match env.iter_mut().find(|present| same(present)) {
            Some(present) => variable.clone_into(present),
            None => env.push(variable.to_owned()),
        }
    };
    set(program::DEFAULT_PATH);
    set(&format!("HOME={}", identity.home));
    if let Ok(name) = rustix::system::uname().nodename().to_str() {
        set(&format!("HOSTNAME={name}"));
    }
    if tty {
        set("TERM=xterm");
    }
    spec.env
        .iter()
        .chain(extra)
        .for_each(|variable| set(variable));
    env
}

/// Drops privileges and executes; returns only on failure.
fn start(
    spec: &ContainerSpec,
    identity: &Identity,
    cwd: &Path,
    args: &[String],
    env: &[String],
) -> SetupError {
    match drop_privileges(spec, identity, cwd) {
        Ok(()) => run(args, env),
        Err(error) => error,
    }
}

fn drop_privileges(
    spec: &ContainerSpec,
    identity: &Identity,
    cwd: &Path,
) -> Result<(), SetupError> {
    let caps = Caps::of(
        spec.privileged,
        &spec.capabilities_add,
        &spec.capabilities_drop,
    )?;
    let filters = if spec.privileged {
        Filters::compile(&crate::spec::Seccomp::Unconfined, caps)?
    } else {
        Filters::compile(&spec.seccomp, caps)?
    };
    std::env::set_current_dir(cwd).map_err(step("enter the working directory"))?;
    if !std::env::current_dir().is_ok_and(|path| path.is_absolute()) {
        return Err(SetupError::Text {
            what: "working directory outside the container",
        });
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    caps::limit_bounding(caps).map_err(step("limit capabilities"))?;
    if !spec.no_new_privs && !filters.is_empty() {
        // Without no_new_privs a filter needs SYS_ADMIN, so it comes first.
        filters.install().map_err(step("install seccomp filter"))?;
    }
    sys::set_ids(identity.uid, identity.gid, &identity.groups).map_err(step("set user"))?;
    caps::apply(caps).map_err(step("set capabilities"))?;
    if spec.no_new_privs {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map_err(step("set no_new_privs"))?;
        filters.install().map_err(step("install seccomp filter"))?;
    }
    Ok(())
}

fn run(args: &[String], env: &[String]) -> SetupError {
    let Some(first) = args.first() else {
        return CallError::Exec {
            program: String::new(),
            message: "no command specified".to_owned(),
        }
        .into();
    };
    let path = match program::find(first, env) {
        Ok(path) => path,
        Err(error) => return error.into(),
    };
    let strings = |list: &[String]| -> Option<Vec<CString>> {
        list.iter()
            .map(|text| CString::new(text.as_str()).ok())
            .collect()
    };
    let (Some(args), Some(env), Ok(path)) = (
        strings(args),
        strings(env),
        CString::new(path.into_os_string().into_encoded_bytes()),
    ) else {
        return SetupError::Text {
            what: "NUL byte in an argument or variable",
        };
    };
    let error = sys::execve(&path, &args, &env);
    let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::INVAL);
    CallError::Exec {
        program: first.clone(),
        message: program::words(errno),
    }
    .into()
}

fn give_up(channel: BorrowedFd<'_>, error: SetupError) -> ! {
    // If the shim is gone nobody wants to know.
    let _nobody = channel::send(channel, &Note::Failed(error.into()), None);
    sys::exit_now(127)
}
