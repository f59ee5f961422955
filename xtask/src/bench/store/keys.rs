//! Many keys: what they cost in memory, how long a restart takes then, and a snapshot.
//!
//! One server after the other is filled, measured and stopped, so that neither's pages push out
//! the other's. The restart follows a `kill -9`; a server serves when a linearizable read answers.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::memory::{peak_rss_mib, reset_peak_rss, rss_mib};
use super::{Figure, Server, measure, plain};
use crate::command::quiet;

/// Longest restart.
const RESTART: f64 = 3.0;
/// Memory that a snapshot may take while it is sent, MiB.
const SNAPSHOT_MEMORY: f64 = 64.0;
/// What a server still does behind its answers, such as a checkpoint, ends in this time.
const SETTLE: Duration = Duration::from_secs(2);

/// What many keys cost one server.
struct Cost {
    fill: f64,
    memory: f64,
    snapshot: f64,
    snapshot_rate: f64,
    snapshot_memory: f64,
    restart: f64,
    restarted: f64,
}

/// Fills both with `keys` keys and measures.
pub(super) fn measure_keys(
    load: &Path,
    keys: u64,
    servers: &mut [Server; 2],
    dir: &Path,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    for server in &*servers {
        server.wait(load)?;
    }
    let [ours, theirs] = servers;
    let (ours, theirs) = (cost(load, keys, ours, dir)?, cost(load, keys, theirs, dir)?);
    let mut row = |what: &str, unit: &'static str, of: fn(&Cost) -> f64, must: [Option<f64>; 2]| {
        let name = |end: &str| format!("{keys} keys: {what}, {end}");
        let [own, ratio] = must;
        figures.push(Figure {
            aim: own,
            must: own,
            ..plain(&name("Pintle"), unit, vec![of(&ours)])
        });
        figures.push(plain(&name("etcd"), unit, vec![of(&theirs)]));
        if ratio.is_some() {
            figures.push(Figure {
                aim: ratio,
                must: ratio,
                ..plain(&name("Pintle by etcd"), "×", vec![of(&ours) / of(&theirs)])
            });
        }
    };
    row("puts", "1/s", |it| it.fill, [None, None]);
    row("memory (RSS)", "MiB", |it| it.memory, [None, Some(0.5)]);
    row("snapshot save", "s", |it| it.snapshot, [None, None]);
    row(
        "snapshot rate",
        "MiB/s",
        |it| it.snapshot_rate,
        [None, None],
    );
    let must = [Some(SNAPSHOT_MEMORY), None];
    row(
        "memory more in a snapshot",
        "MiB",
        |it| it.snapshot_memory,
        must,
    );
    row("restart", "s", |it| it.restart, [Some(RESTART), None]);
    row(
        "memory then (RSS)",
        "MiB",
        |it| it.restarted,
        [None, Some(0.5)],
    );
    Ok(())
}

fn cost(load: &Path, keys: u64, server: &mut Server, dir: &Path) -> Result<Cost> {
    let filled = measure(load, server.url, "fill", "256", "16", &format!("x{keys}"))?;
    let fill = filled.get("per_second").and_then(serde_json::Value::as_f64);
    std::thread::sleep(SETTLE);
    let pid = server.child.id();
    let memory = rss_mib(pid)?;
    let file = dir.join("snapshot.db");
    reset_peak_rss(pid)?;
    let started = Instant::now();
    let mut etcdctl = Command::new("etcdctl");
    etcdctl.env("ETCDCTL_API", "3");
    etcdctl.args(["--endpoints", server.url, "snapshot", "save"]);
    quiet(etcdctl.arg(&file))?;
    let snapshot = started.elapsed().as_secs_f64();
    let snapshot_memory = (peak_rss_mib(pid)? - memory).max(0.0);
    let bytes = file.metadata().context("looking at the snapshot")?.len();
    std::fs::remove_file(&file)?;
    let restart = server.restart(load)?.as_secs_f64();
    let restarted = rss_mib(server.child.id())?;
    // The other must not share the memory with its pages.
    server.child.kill()?;
    server.child.wait()?;
    Ok(Cost {
        fill: fill.unwrap_or(f64::NAN),
        memory,
        snapshot,
        snapshot_rate: bytes as f64 / 1_048_576.0 / snapshot,
        snapshot_memory,
        restart,
        restarted,
    })
}
