//! Whether the rooms a Ready node needs are up.
//!
//! Changed by the tasks that build and watch those rooms; watched by the heartbeat and by
//! whoever waits for the node.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// The rooms.
pub const ROOMS: [&str; 4] = ["runtime", "network", "data path", "dns"];

/// State of the rooms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// What is wrong, by room; a room that is fine has an empty text, one that is not built yet
    /// has none.
    pub rooms: BTreeMap<&'static str, String>,
    /// The control plane knows the node and heard that it is Ready.
    pub announced: bool,
}

impl HealthReport {
    /// What keeps the node from being Ready.
    pub fn problems(&self) -> Vec<String> {
        ROOMS
            .iter()
            .filter_map(|room| match self.rooms.get(room) {
                None => Some(format!("{room} is not ready yet")),
                Some(words) if words.is_empty() => None,
                Some(words) => Some(format!("{room}: {words}")),
            })
            .collect()
    }

    /// Whether pods can be connected.
    pub fn has_network(&self) -> bool {
        self.rooms.get("network").is_some_and(String::is_empty)
    }
}

/// The report, shared. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health(watch::Sender<HealthReport>);

impl Health {
    /// Notes how a room is; an empty text means well.
    pub fn set(&self, room: &'static str, problem: String) {
        self.0.send_if_modified(|report| {
            let changed = report.rooms.get(room) != Some(&problem);
            report.rooms.insert(room, problem);
            changed
        });
    }

    /// Notes whether the control plane shows the node as Ready.
    pub fn announce(&self, ready: bool) {
        self.0.send_if_modified(|report| {
            let changed = report.announced != ready;
            report.announced = ready;
            changed
        });
    }

    /// The report now, and when it changes.
    pub fn watch(&self) -> watch::Receiver<HealthReport> {
        self.0.subscribe()
    }

    /// The report now.
    pub fn now(&self) -> HealthReport {
        self.0.borrow().clone()
    }
}
