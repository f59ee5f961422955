//! A container's log file in the CRI format, with rotation.
//!
//! Owns the open file. Each line becomes `TIME STREAM TAG TEXT`; tag `P` marks
//! a piece of a line that goes on, `F` its end. At 10 MiB the file becomes
//! `NAME.1`, that becomes `NAME.2`, and so on. Readers that follow the file
//! notice the new inode.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::clock;
use crate::spec::limits;

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
}

/// An open log file.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    written: u64,
    max_bytes: u64,
    max_files: u32,
}

impl Log {
    /// Opens the log for appending; an empty path discards everything.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut log = Self {
            path: path.to_owned(),
            file: None,
            written: 0,
            max_bytes: limits::LOG_MAX_BYTES,
            max_files: limits::LOG_MAX_FILES,
        };
        if !path.as_os_str().is_empty() {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            log.reopen()?;
        }
        Ok(log)
    }

    /// Opens the path anew, as after someone else moved the file away.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)?;
        self.written = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Writes complete entries.
    fn append(&mut self, raw: &[u8]) -> io::Result<()> {
        if self.written > 0 && self.written + raw.len() as u64 > self.max_bytes {
            self.rotate()?;
        }
        if let Some(file) = &mut self.file {
            file.write_all(raw)?;
            self.written += raw.len() as u64;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            return Ok(());
        }
        let numbered = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..self.max_files.saturating_sub(1)).rev() {
            match fs::rename(numbered(n), numbered(n + 1)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        fs::rename(&self.path, numbered(1))?;
        self.reopen()
    }
}

/// Cuts one stream's bytes into log entries. Holds the unfinished line.
#[derive(Debug)]
pub(crate) struct Lines {
    source: Source,
    partial: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            partial: Vec::new(),
        }
    }

    /// Logs what arrived.
    pub(crate) fn push(&mut self, bytes: &[u8], log: &mut Log) -> io::Result<()> {
        let mut stamp = String::with_capacity(48);
        clock::write_rfc3339(&mut stamp, clock::now_nanos());
        stamp.push_str(match self.source {
            Source::Stdout => " stdout ",
            Source::Stderr => " stderr ",
        });
        let mut out = Vec::with_capacity(bytes.len() + 64);
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = limits::LOG_MAX_LINE - self.partial.len();
            let window = rest.get(..room.min(rest.len())).unwrap_or(rest);
            if let Some(end) = window.iter().position(|byte| *byte == b'\n') {
                let (line, tail) = rest.split_at(end);
                entry(&mut out, &stamp, b'F', &self.partial, line);
                self.partial.clear();
                rest = tail.get(1..).unwrap_or_default();
            } else if window.len() < room {
                self.partial.extend_from_slice(window);
                rest = &[];
            } else {
                let (piece, tail) = rest.split_at(window.len());
                entry(&mut out, &stamp, b'P', &self.partial, piece);
                self.partial.clear();
                rest = tail;
            }
        }
        if self.partial.is_empty() {
            // An idle container should hold no buffer.
            self.partial = Vec::new();
        }
        if out.is_empty() {
            Ok(())
        } else {
            log.append(&out)
        }
    }

    /// Logs an unfinished last line at the end of the stream.
    pub(crate) fn finish(&mut self, log: &mut Log) -> io::Result<()> {
        if self.partial.is_empty() {
            return Ok(());
        }
        self.push(b"\n", log)
    }
}

fn entry(out: &mut Vec<u8>, stamp: &str, tag: u8, head: &[u8], tail: &[u8]) {
    out.extend_from_slice(stamp.as_bytes());
    out.extend_from_slice(&[tag, b' ']);
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    }

    #[test]
    fn lines_are_tagged_and_joined() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/0.log");
        let mut log = Log::open(&path).unwrap();
        let mut lines = Lines::new(Source::Stdout);
        lines.push(b"one\ntw", &mut log).unwrap();
        lines.push(b"o\n\nlast", &mut log).unwrap();
        lines.finish(&mut log).unwrap();
        assert_eq!(
            lines_of(&path),
            ["stdout F one", "stdout F two", "stdout F ", "stdout F last"]
        );
    }

    #[test]
    fn long_lines_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path).unwrap();
        let mut lines = Lines::new(Source::Stderr);
        let long = vec![b'x'; limits::LOG_MAX_LINE * 2];
        lines.push(&long, &mut log).unwrap();
        lines.push(b"end\n", &mut log).unwrap();
        let got = lines_of(&path);
        assert_eq!(got.len(), 3);
        assert!(
            got.iter()
                .take(2)
                .all(|line| line.starts_with("stderr P x"))
        );
        assert_eq!(got.last().unwrap(), "stderr F end");
    }

    #[test]
    fn files_rotate_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path).unwrap();
        log.max_bytes = 100;
        log.max_files = 3;
        let mut lines = Lines::new(Source::Stdout);
        for n in 0..8 {
            lines
                .push(format!("{n:040}\n").as_bytes(), &mut log)
                .unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["0.log", "0.log.1", "0.log.2"]);
        assert!(fs::read_to_string(&path).unwrap().contains("0007"));
    }
}
