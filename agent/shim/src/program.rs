//! Finds the file behind a container's first argument, and says why not.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FileType};

use crate::protocol::CallError;

/// `$PATH` of a container whose image sets none.
pub(crate) const DEFAULT_PATH: &str =
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Looks a program up the way a shell would, as the current user.
pub(crate) fn find(program: &str, env: &[String]) -> Result<PathBuf, CallError> {
    let refuse = |message: String| CallError::Exec {
        program: program.to_owned(),
        message,
    };
    if program.contains('/') {
        return match check(Path::new(program)) {
            Ok(()) => Ok(PathBuf::from(program)),
            Err(rustix::io::Errno::NOENT) => {
                Err(refuse(format!("stat {program}: no such file or directory")))
            }
            Err(errno) => Err(refuse(words(errno))),
        };
    }
    let path = env
        .iter()
        .rev()
        .find_map(|variable| variable.strip_prefix("PATH="))
        .unwrap_or_default();
    let mut denied = None;
    for dir in path.split(':') {
        let dir = if dir.is_empty() { "." } else { dir };
        let candidate = Path::new(dir).join(OsStr::from_bytes(program.as_bytes()));
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(errno @ rustix::io::Errno::ACCESS) => denied = Some(errno),
            Err(_) => {}
        }
    }
    Err(refuse(match denied {
        Some(errno) => words(errno),
        None => "executable file not found in $PATH".to_owned(),
    }))
}

fn check(path: &Path) -> rustix::io::Result<()> {
    let stat = rustix::fs::stat(path)?;
    if FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(rustix::io::Errno::ISDIR);
    }
    rustix::fs::access(path, Access::EXEC_OK)
}

/// The kernel's words for an error, without Rust's decoration.
pub(crate) fn words(errno: rustix::io::Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let bare = text.split(" (os error").next().unwrap_or(&text);
    bare.to_lowercase()
}
