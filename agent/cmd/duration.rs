//! Lengths of time as people type and read them: `500ms`, `90s`, `30m`, `1h30m`, `7d`.

use std::time::Duration;

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Reads numbers with units; `ms` is one, though none of those that are shown.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| {
        format!("`{text}` is no length of time such as 500ms, 90s, 1m30s, 24h or 7d")
    })
}

fn read(text: &str) -> Option<Duration> {
    let mut total = (!text.is_empty()).then_some(Duration::ZERO)?;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, more) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let number: u64 = number.parse().ok()?;
        let unit = more
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(more.len());
        let (unit, more) = more.split_at(unit);
        let part = if unit == "ms" {
            Duration::from_millis(number)
        } else {
            let (_, factor) = UNITS.iter().find(|(name, _)| unit == name.to_string())?;
            Duration::from_secs(number.checked_mul(*factor)?)
        };
        total = total.checked_add(part)?;
        rest = more;
    }
    Some(total)
}

/// The biggest unit that counts something, and the next one if that does too.
pub(crate) fn show(duration: Duration) -> String {
    let mut seconds = duration.as_secs();
    let counts = UNITS.map(|(unit, factor)| {
        let count = seconds / factor;
        seconds %= factor;
        (count, unit)
    });
    let first = counts.iter().position(|(count, _)| *count > 0);
    let shown = first.map_or(&counts[3..], |first| {
        &counts[first..counts.len().min(first + 2)]
    });
    let parts: Vec<String> = shown
        .iter()
        .enumerate()
        .filter(|(at, (count, _))| *at == 0 || *count > 0)
        .map(|(_, (count, unit))| format!("{count}{unit}"))
        .collect();
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_and_shown() {
        for (text, seconds, shown) in [
            ("90s", 90, "1m30s"),
            ("24h", 86_400, "1d"),
            ("1h30m", 5_400, "1h30m"),
            ("7d", 604_800, "7d"),
            ("0s", 0, "0s"),
            ("1d1s", 86_401, "1d"),
            ("1s2000ms", 3, "3s"),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
            assert_eq!(show(Duration::from_secs(seconds)), shown);
        }
        assert_eq!(parse("1h2m3s4ms"), Ok(Duration::from_millis(3_723_004)));
        for bad in [
            "",
            "5",
            "h",
            "5x",
            "-5h",
            "5h ",
            "99999999999999999999d",
            "99999999999999999999s",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
