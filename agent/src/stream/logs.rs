//! Reads a container's log, in the CRI format, with its rotated parts.
//!
//! `TIME STREAM TAG TEXT`, where the tag is `P` for a part of a line and `F` for its end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use pintle_proto::node::{Channel, LogsTarget};

use super::follow::Follow;
use super::outcome::Outcome;
use super::{Hangup, Sender};
use crate::clock::Clock;
use crate::pod::worker::{ContainerEntry, PodEntry, PodTable};

/// Rotated parts that there may be.
const PARTS: u32 = 16;
/// Bytes gathered before they are sent.
const CHUNK: usize = 16 * 1024;

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The time, as written.
    pub time: &'a str,
    /// Standard error instead of standard output.
    pub stderr: bool,
    /// The line goes on in the next entry.
    pub partial: bool,
    /// The text, without the newline.
    pub text: &'a [u8],
}

/// Takes an entry apart; `None` when it is none.
pub fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stderr = match parts.next()? {
        b"stdout" => false,
        b"stderr" => true,
        _ => return None,
    };
    let partial = parts.next()?.first() == Some(&b'P');
    Some(Entry {
        time,
        stderr,
        partial,
        text: parts.next().unwrap_or_default(),
    })
}

/// What the reader wants.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    since: Option<Timestamp>,
    timestamps: bool,
    limit: Option<u64>,
    only: Option<bool>,
    tail: Option<usize>,
}

impl Selection {
    /// The selection of a request.
    pub fn new(target: &LogsTarget, now: Timestamp) -> Self {
        let seconds = target
            .since_seconds
            .and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok());
        Self {
            since: seconds.or_else(|| target.since_time.parse().ok()),
            timestamps: target.timestamps,
            limit: target
                .limit_bytes
                .and_then(|bytes| u64::try_from(bytes).ok()),
            only: match target.stream.as_str() {
                "Stdout" => Some(false),
                "Stderr" => Some(true),
                _ => None,
            },
            tail: target
                .tail_lines
                .and_then(|lines| usize::try_from(lines).ok()),
        }
    }

    fn takes(&self, entry: &Entry<'_>) -> bool {
        let in_time = self.since.is_none_or(|since| {
            entry
                .time
                .parse::<Timestamp>()
                .is_ok_and(|time| time >= since)
        });
        in_time && self.only.is_none_or(|stderr| stderr == entry.stderr)
    }
}

/// Entries become the bytes that are sent.
#[derive(Debug)]
pub struct Printer {
    selection: Selection,
    /// The last entry of stdout and of stderr left its line open.
    open: [bool; 2],
    left: Option<u64>,
}

impl Printer {
    /// A printer for a selection.
    pub fn new(selection: Selection) -> Self {
        Self {
            left: selection.limit,
            selection,
            open: [false; 2],
        }
    }

    /// Appends an entry; false when the limit is reached.
    pub fn print(&mut self, line: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(entry) = parse(line) else {
            return true;
        };
        if !self.selection.takes(&entry) {
            return true;
        }
        let begin = out.len();
        let open = &mut self.open[usize::from(entry.stderr)];
        if self.selection.timestamps && !*open {
            out.extend_from_slice(entry.time.as_bytes());
            out.push(b' ');
        }
        *open = entry.partial;
        out.extend_from_slice(entry.text);
        if !entry.partial {
            out.push(b'\n');
        }
        let Some(left) = self.left.as_mut() else {
            return true;
        };
        let printed = (out.len() - begin) as u64;
        if printed >= *left {
            let keep = usize::try_from(*left).unwrap_or(usize::MAX);
            out.truncate(begin + keep);
            *left = 0;
            return false;
        }
        *left -= printed;
        true
    }
}

/// A log's files, the oldest first; the last one is being written.
pub fn parts(log: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = (1..=PARTS)
        .map(|number| {
            let mut name = log.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        })
        .take_while(|path| path.exists())
        .collect();
    files.reverse();
    files.push(log.to_path_buf());
    files
}

/// Reads what is there now; the reader of the last file comes back, for more.
pub(super) fn read_existing(
    files: &[PathBuf],
    printer: &mut Printer,
    out: &mut Vec<Vec<u8>>,
) -> io::Result<Option<BufReader<File>>> {
    let mut buffer = Vec::new();
    let mut last = None;
    let tail = printer.selection.tail;
    let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
    let mut lines = 0usize;
    for path in files {
        let mut reader = match File::open(path) {
            Ok(file) => BufReader::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Some(tail) = tail else {
                if !printer.print(&line, &mut buffer) {
                    out.push(buffer);
                    return Ok(None);
                }
                if buffer.len() >= CHUNK {
                    out.push(std::mem::take(&mut buffer));
                }
                continue;
            };
            let Some(entry) = parse(&line) else { continue };
            if !printer.selection.takes(&entry) {
                continue;
            }
            let ends = !entry.partial;
            kept.push_back(line.clone());
            lines += usize::from(ends);
            while lines > tail {
                let Some(dropped) = kept.pop_front() else {
                    break;
                };
                if parse(&dropped).is_some_and(|entry| !entry.partial) {
                    lines -= 1;
                }
            }
        }
        last = Some(reader);
    }
    for line in kept {
        if !printer.print(&line, &mut buffer) {
            out.push(buffer);
            return Ok(None);
        }
    }
    if !buffer.is_empty() {
        out.push(buffer);
    }
    Ok(last)
}

/// Serves one request for a log.
pub async fn serve(
    target: &LogsTarget,
    uid: &str,
    pod: &PodEntry,
    container: &ContainerEntry,
    table: &PodTable,
    clock: &Clock,
    sender: &Sender,
) -> Outcome {
    let waiting = || {
        let reason = container.waiting.as_deref().unwrap_or("ContainerCreating");
        Outcome::BadRequest(format!(
            "container \"{}\" in pod \"{}\" is waiting to start: {reason}",
            container.name, pod.summary.name
        ))
    };
    let attempt = if target.previous {
        let previous = container.attempt.and_then(|attempt| attempt.checked_sub(1));
        match previous {
            Some(attempt) => attempt,
            None => {
                return Outcome::BadRequest(format!(
                    "previous terminated container \"{}\" in pod \"{}\" not found",
                    container.name, pod.summary.name
                ));
            }
        }
    } else {
        match container.attempt {
            Some(attempt) => attempt,
            None => return waiting(),
        }
    };
    let log = pod
        .log_dir
        .join(&container.name)
        .join(format!("{attempt}.log"));
    let follow = if target.follow && !target.previous {
        match Follow::new(&log, table.clone(), uid, &container.name, attempt) {
            Ok(follow) => Some(follow),
            Err(error) => return Outcome::Internal(format!("cannot watch the log: {error}")),
        }
    } else {
        None
    };
    let mut printer = Printer::new(Selection::new(target, clock.now()));
    let read = tokio::task::spawn_blocking(move || {
        let mut chunks = Vec::new();
        let reader = read_existing(&parts(&log), &mut printer, &mut chunks);
        (printer, chunks, reader)
    })
    .await;
    let (mut printer, chunks, reader) = match read {
        Ok(read) => read,
        Err(error) => return Outcome::Internal(error.to_string()),
    };
    for chunk in chunks {
        if sender.data(Channel::Stdout, chunk).await.is_err() {
            return Outcome::Success;
        }
    }
    let reader = match reader {
        Ok(reader) => reader,
        Err(error) => return Outcome::Internal(format!("cannot read the log: {error}")),
    };
    let limit_reached = printer.left == Some(0);
    if let Some(follow) = follow
        && !limit_reached
        && let Err(Hangup) = follow.run(reader, &mut printer, sender).await
    {
        tracing::trace!("the reader has gone");
    }
    Outcome::Success
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(dir: &Path) -> PathBuf {
        let log = dir.join("0.log");
        std::fs::write(
            dir.join("0.log.1"),
            "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stderr F two\n",
        )
        .unwrap();
        std::fs::write(
            &log,
            "2026-01-01T00:00:03Z stdout P thr\n2026-01-01T00:00:03Z stdout F ee\n\
             2026-01-01T00:00:04Z stdout F four\n",
        )
        .unwrap();
        log
    }

    fn read(target: &LogsTarget) -> String {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        let mut printer = Printer::new(Selection::new(target, now));
        let mut chunks = Vec::new();
        read_existing(&parts(&log), &mut printer, &mut chunks).unwrap();
        String::from_utf8(chunks.concat()).unwrap()
    }

    #[test]
    fn selections() {
        let whole = LogsTarget::default();
        for (target, expected) in [
            (whole.clone(), "one\ntwo\nthree\nfour\n"),
            (
                LogsTarget {
                    tail_lines: Some(2),
                    ..whole.clone()
                },
                "three\nfour\n",
            ),
            (
                LogsTarget {
                    tail_lines: Some(0),
                    ..whole.clone()
                },
                "",
            ),
            (
                LogsTarget {
                    since_seconds: Some(2),
                    ..whole.clone()
                },
                "three\nfour\n",
            ),
            (
                LogsTarget {
                    since_time: "2026-01-01T00:00:04Z".into(),
                    ..whole.clone()
                },
                "four\n",
            ),
            (
                LogsTarget {
                    limit_bytes: Some(6),
                    ..whole.clone()
                },
                "one\ntw",
            ),
            (
                LogsTarget {
                    stream: "Stderr".into(),
                    ..whole.clone()
                },
                "two\n",
            ),
            (
                LogsTarget {
                    timestamps: true,
                    tail_lines: Some(2),
                    ..whole.clone()
                },
                "2026-01-01T00:00:03Z three\n2026-01-01T00:00:04Z four\n",
            ),
        ] {
            assert_eq!(read(&target), expected, "{target:?}");
        }
    }

    #[test]
    fn entries() {
        assert_eq!(parse(b"t stdout F \n").unwrap().text, b"");
        assert_eq!(parse(b"t stderr F a b c\n").unwrap().text, b"a b c");
        assert!(parse(b"t stdout P x").unwrap().partial);
        assert_eq!(parse(b"nonsense"), None);
    }

    proptest! {
        #[test]
        fn printing_never_panics(lines in proptest::collection::vec(".*", 0..8), limit in 0u64..64) {
            let target = LogsTarget { limit_bytes: i64::try_from(limit).ok(), ..LogsTarget::default() };
            let mut printer = Printer::new(Selection::new(&target, Timestamp::UNIX_EPOCH));
            let mut out = Vec::new();
            for line in lines {
                if !printer.print(line.as_bytes(), &mut out) {
                    break;
                }
            }
            prop_assert!(out.len() as u64 <= limit.max(1));
        }
    }
}
