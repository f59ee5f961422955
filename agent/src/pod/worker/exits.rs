//! How containers ended, and what the runtime has of a pod when it is taken up.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;

use super::Rooms;
use super::table::log_dir;
use crate::pod::machine::{Observed, ObservedContainer, Termination};
use crate::runtime::{ContainerStatus, Exit};

/// Longest message of a termination.
const MESSAGE_LIMIT: u64 = 4096;
/// Longest message taken from the log instead.
const LOG_LIMIT: u64 = 2048;
const LOG_LINES: usize = 80;

/// Nanoseconds since the epoch as a time.
pub(super) fn at(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// What the runtime has of a pod.
pub(super) fn observe(rooms: &Rooms, pod: &Pod) -> Observed {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let Some(state) = rooms.sandboxes.sandbox(uid) else {
        return Observed::default();
    };
    let spec_of = |name: &str| {
        pod.spec.as_ref().and_then(|spec| {
            spec.init_containers
                .iter()
                .flatten()
                .chain(&spec.containers)
                .find(|container| container.name == name)
        })
    };
    let containers = state
        .containers
        .iter()
        .filter_map(|container| {
            let exit = match &container.state {
                ContainerStatus::Running if state.alive => None,
                // Nobody saw how it ended.
                ContainerStatus::Running => return None,
                ContainerStatus::Exited(exit) => {
                    let known = spec_of(&container.name).map(|spec| (spec, container.attempt));
                    let mut exit = termination(rooms, pod, known, &container.id, exit);
                    exit.started_at = Some(at(container.started_at));
                    Some(exit)
                }
            };
            Some(ObservedContainer {
                id: container.id.clone(),
                name: container.name.clone(),
                attempt: container.attempt,
                started_at: at(container.started_at),
                exit,
            })
        })
        .collect();
    Observed {
        shim_pid: state
            .sandbox
            .filter(|_| state.alive)
            .map(|sandbox| sandbox.shim_pid),
        containers,
    }
}

/// The end of a run, with its last words.
pub(super) fn termination(
    rooms: &Rooms,
    pod: &Pod,
    container: Option<(&Container, u32)>,
    id: &str,
    exit: &Exit,
) -> Termination {
    let reason = if exit.oom_killed {
        "OOMKilled"
    } else if exit.code == 0 {
        "Completed"
    } else {
        "Error"
    };
    let message = container.and_then(|(spec, attempt)| {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let file = rooms.volumes.termination_log(uid, &spec.name, attempt);
        let from_file = read_head(&file, MESSAGE_LIMIT).filter(|text| !text.is_empty());
        let fall_back = spec.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
        if from_file.is_some() || !fall_back || exit.code == 0 {
            return from_file;
        }
        let log = log_dir(&rooms.logs_dir, pod)
            .join(&spec.name)
            .join(format!("{attempt}.log"));
        last_lines(&log)
    });
    Termination {
        id: id.to_owned(),
        exit_code: exit.code,
        signal: exit.signal,
        reason: reason.to_owned(),
        message,
        started_at: None,
        finished_at: at(exit.finished_at),
    }
}

fn read_head(path: &Path, limit: u64) -> Option<String> {
    let mut content = Vec::new();
    File::open(path)
        .ok()?
        .take(limit)
        .read_to_end(&mut content)
        .ok()?;
    Some(String::from_utf8_lossy(&content).into_owned())
}

/// The end of a CRI log, without its time stamps.
fn last_lines(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    // Time stamps and tags take room as well.
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_LIMIT * 4)))
        .ok()?;
    let mut content = Vec::new();
    file.read_to_end(&mut content).ok()?;
    let text = String::from_utf8_lossy(&content);
    let lines: Vec<&str> = text
        .lines()
        .filter_map(|line| line.splitn(4, ' ').nth(3))
        .collect();
    let mut message = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
    let limit = usize::try_from(LOG_LIMIT).unwrap_or(usize::MAX);
    while message.len() > limit {
        message.remove(0);
    }
    message.push('\n');
    Some(message)
}
