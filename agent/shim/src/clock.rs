//! Wall-clock time for the shim, and its text in log lines. No state.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since the epoch.
pub(crate) fn now_nanos() -> i64 {
    let elapsed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX)
}

/// Appends RFC 3339 with nanoseconds in UTC, as CRI log lines begin.
pub(crate) fn write_rfc3339(out: &mut String, nanos: i64) {
    let seconds = nanos.div_euclid(1_000_000_000);
    let fraction = nanos.rem_euclid(1_000_000_000);
    let days = seconds.div_euclid(86_400);
    let of_day = seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    // Writing to a String cannot fail.
    let _infallible = write!(
        out,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z"
    );
}

/// Days since the epoch to year, month, day (Howard Hinnant's algorithm).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::write_rfc3339;

    #[test]
    fn dates_around_leap_days() {
        let text = |seconds: i64| {
            let mut out = String::new();
            write_rfc3339(&mut out, seconds * 1_000_000_000 + 5);
            out
        };
        assert_eq!(text(0), "1970-01-01T00:00:00.000000005Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(text(1_709_251_199), "2024-02-29T23:59:59.000000005Z");
        assert_eq!(text(1_709_251_200), "2024-03-01T00:00:00.000000005Z");
    }
}
