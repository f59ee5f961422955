//! Startup, liveness and readiness probes.
//!
//! Watches one container each: asks it at its own period, with its own timer. Changes
//! nothing; a probe that crosses a threshold tells the pod's machine, which changes readiness
//! or restarts the container. Each failed attempt is announced as `Unhealthy`.
//!
//! - [`threshold`]: attempts → verdicts (pure).
//! - [`check`]: one attempt: exec, HTTP, TCP or gRPC.

pub mod check;
pub mod http;
pub mod threshold;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::jiff::Timestamp;

use crate::clock::Clock;
use crate::pod::backoff;
use crate::pod::machine::ProbeKind;

pub use check::{Attempt, Target};
pub use threshold::Threshold;

/// What a prober says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A threshold was crossed.
    Verdict {
        /// To which side.
        healthy: bool,
    },
    /// An attempt failed.
    Unhealthy {
        /// The words of the Event.
        message: String,
    },
}

/// Probes a container until dropped.
pub async fn run(
    probe: Probe,
    kind: ProbeKind,
    target: Arc<Target>,
    started_at: Timestamp,
    clock: Clock,
    mut report: impl FnMut(Report) + Send,
) {
    let seconds = |value: Option<i32>, default: u64| {
        let value = value.and_then(|value| u64::try_from(value).ok());
        Duration::from_secs(value.filter(|value| *value > 0).unwrap_or(default))
    };
    let period = seconds(probe.period_seconds, 10);
    let timeout = seconds(probe.timeout_seconds, 1);
    let initial = probe
        .initial_delay_seconds
        .and_then(|value| u64::try_from(value).ok())
        .map_or(Duration::ZERO, Duration::from_secs);
    let mut threshold = Threshold::new(probe.success_threshold, probe.failure_threshold);
    tokio::time::sleep(clock.until(backoff::add(started_at, initial))).await;
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let attempt = check::attempt(&probe, &target, timeout).await;
        if let Some(message) = attempt.message(kind) {
            report(Report::Unhealthy { message });
        }
        // An attempt that could not be made says nothing about the container.
        let Some(healthy) = attempt.healthy() else {
            continue;
        };
        if let Some(healthy) = threshold.record(healthy) {
            report(Report::Verdict { healthy });
        }
    }
}
