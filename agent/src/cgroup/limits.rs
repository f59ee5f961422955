//! Turns limits into the files and values of cgroup v2. Pure.

use pintle_shim::spec::Resources;

/// One value to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) controller: &'static str,
    pub(super) file: &'static str,
    pub(super) value: String,
    /// The file may be missing (swap accounting off).
    pub(super) optional: bool,
}

/// The settings for a cgroup, in the order they are written.
pub(super) fn plan(resources: &Resources) -> Vec<Setting> {
    let mut plan = Vec::with_capacity(5);
    let mut push = |controller, file, value, optional| {
        plan.push(Setting {
            controller,
            file,
            value,
            optional,
        });
    };
    if let Some(shares) = resources.cpu_shares {
        push(
            "cpu",
            "cpu.weight",
            weight_from_shares(shares).to_string(),
            false,
        );
    }
    let period = resources.cpu_period.unwrap_or(100_000);
    match resources.cpu_quota {
        Some(quota) if quota > 0 => push("cpu", "cpu.max", format!("{quota} {period}"), false),
        _ => push("cpu", "cpu.max", format!("max {period}"), false),
    }
    let memory = resources
        .memory_max
        .map_or_else(|| "max".to_owned(), |m| m.to_string());
    if resources.memory_max.is_some() {
        push("memory", "memory.swap.max", "0".to_owned(), true);
    }
    push("memory", "memory.max", memory, false);
    let pids = resources
        .pids_max
        .map_or_else(|| "max".to_owned(), |p| p.to_string());
    push("pids", "pids.max", pids, false);
    plan
}

/// Maps cgroup v1 shares [2, 262144] to a v2 weight [1, 10000] the way the
/// OCI runtimes do: a curve through (2, 1), (1024, 100) and (262144, 10000)
/// (<https://github.com/opencontainers/cgroups/pull/20>).
fn weight_from_shares(shares: u64) -> u64 {
    if shares <= 2 {
        return 1;
    }
    if shares >= 262_144 {
        return 10_000;
    }
    #[expect(clippy::cast_precision_loss, reason = "shares are far below 2^52")]
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the curve stays within [1, 10000] for shares in (2, 262144)"
    )]
    let weight = 10_f64.powf(exponent).ceil() as u64;
    weight.clamp(1, 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_the_curve_of_oci_runtimes() {
        assert_eq!(weight_from_shares(0), 1);
        assert_eq!(weight_from_shares(2), 1);
        assert_eq!(weight_from_shares(1024), 100);
        assert_eq!(weight_from_shares(262_144), 10_000);
        assert!(weight_from_shares(102) < weight_from_shares(512));
    }

    #[test]
    fn limits_become_files() {
        let plan = plan(&Resources {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: None,
            memory_max: Some(1 << 20),
            pids_max: Some(64),
        });
        let text: Vec<String> = plan
            .iter()
            .map(|s| format!("{}={}", s.file, s.value))
            .collect();
        assert_eq!(
            text,
            [
                "cpu.weight=100",
                "cpu.max=50000 100000",
                "memory.swap.max=0",
                "memory.max=1048576",
                "pids.max=64"
            ]
        );
    }

    #[test]
    fn no_limits_reset_to_max() {
        let plan = plan(&Resources::default());
        assert!(plan.iter().all(|s| s.value.starts_with("max")));
    }
}
