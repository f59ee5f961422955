//! Attempts become verdicts, as in the kubelet's prober worker. Pure.

/// Counts attempts of one kind in a row.
#[derive(Clone, Debug)]
pub struct Threshold {
    needed: [u32; 2],
    last: Option<bool>,
    run: u32,
    reported: Option<bool>,
}

impl Threshold {
    /// Thresholds of a probe; 1 success and 3 failures where it names none.
    pub fn new(successes: Option<i32>, failures: Option<i32>) -> Self {
        let count = |value: Option<i32>, default| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .filter(|value| *value > 0)
                .unwrap_or(default)
        };
        Self {
            needed: [count(failures, 3), count(successes, 1)],
            last: None,
            run: 0,
            reported: None,
        }
    }

    /// Takes an attempt; a verdict when it crosses a threshold.
    pub fn record(&mut self, healthy: bool) -> Option<bool> {
        if self.last == Some(healthy) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(healthy);
            self.run = 1;
        }
        if self.run < self.needed[usize::from(healthy)] || self.reported == Some(healthy) {
            return None;
        }
        self.reported = Some(healthy);
        Some(healthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crossings() {
        let (y, n) = (true, false);
        for (success, failure, attempts, verdicts) in [
            (1, 3, vec![y, y], vec![Some(y), None]),
            (
                1,
                3,
                vec![y, n, n, y, n, n, n, n],
                vec![Some(y), None, None, None, None, None, Some(n), None],
            ),
            (
                2,
                1,
                vec![n, y, y, n],
                vec![Some(n), None, Some(y), Some(n)],
            ),
        ] {
            let mut threshold = Threshold::new(Some(success), Some(failure));
            let seen: Vec<_> = attempts
                .iter()
                .map(|healthy| threshold.record(*healthy))
                .collect();
            assert_eq!(seen, verdicts);
        }
    }
}
