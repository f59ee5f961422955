//! What processes hold and use, from /proc.

use std::path::Path;

use anyhow::{Context, Result};

/// Proportional set size of a process, in MiB (proc_pid_smaps_rollup in proc(5)).
pub(super) fn pss_mib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kib: f64 = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("{path} has no Pss line"))?;
    Ok(kib / 1024.0)
}

/// Resident set size of a process, in MiB (proc_pid_status in proc(5)).
pub(super) fn rss_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// The largest it has been since [`reset_peak_rss`].
pub(super) fn peak_rss_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmHWM:")
}

/// Counts the peak anew (proc_pid_clear_refs in proc(5)).
pub(super) fn reset_peak_rss(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    std::fs::write(&path, "5").with_context(|| format!("writing {path}"))
}

fn status_mib(pid: u32, field: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kib: f64 = text
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("{path} has no {field} line"))?;
    Ok(kib / 1024.0)
}

/// CPU time a process has used, in clock ticks (proc_pid_stat in proc(5)).
pub(super) fn cpu_ticks(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let rest = text.rsplit(") ").next().context("a stat line")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<u64>().ok())
    };
    // utime and stime are fields 14 and 15, counted from the one after the name as 3.
    Ok(ticks(11).context("utime")? + ticks(12).context("stime")?)
}

/// Processes whose command line has all these words.
pub(super) fn processes(words: &[&str]) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
            .unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if words.iter().all(|word| line.contains(word)) {
            found.push(pid);
        }
    }
    found
}
