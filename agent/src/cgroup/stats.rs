//! Reads usage from a cgroup's files.

use std::fs;
use std::path::Path;

/// Usage of one cgroup. A field is `None` when its controller is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupStats {
    /// CPU time used, in microseconds.
    pub cpu_usage_usec: Option<u64>,
    /// Periods in which the cgroup was throttled.
    pub cpu_throttled_periods: Option<u64>,
    /// Memory in use, in bytes.
    pub memory_current: Option<u64>,
    /// Memory that cannot be reclaimed easily: current less inactive file pages.
    pub memory_working_set: Option<u64>,
    /// Processes killed for memory.
    pub oom_kills: Option<u64>,
    /// Processes and threads.
    pub pids_current: Option<u64>,
}

pub(super) fn read(path: &Path) -> CgroupStats {
    let file = |name: &str| fs::read_to_string(path.join(name)).ok();
    let cpu = file("cpu.stat");
    let current = file("memory.current").and_then(|text| text.trim().parse().ok());
    let inactive = file("memory.stat").and_then(|text| keyed(&text, "inactive_file"));
    CgroupStats {
        cpu_usage_usec: cpu.as_deref().and_then(|text| keyed(text, "usage_usec")),
        cpu_throttled_periods: cpu.as_deref().and_then(|text| keyed(text, "nr_throttled")),
        memory_current: current,
        memory_working_set: current
            .map(|bytes: u64| bytes.saturating_sub(inactive.unwrap_or_default())),
        oom_kills: file("memory.events").and_then(|text| keyed(&text, "oom_kill")),
        pids_current: file("pids.current").and_then(|text| text.trim().parse().ok()),
    }
}

/// The value of `key` in a flat keyed file.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::keyed;

    #[test]
    fn keyed_finds_whole_names_only() {
        let text = "oom 1\noom_kill 3\noom_group_kill 0\n";
        assert_eq!(keyed(text, "oom_kill"), Some(3));
        assert_eq!(keyed(text, "kill"), None);
    }
}
