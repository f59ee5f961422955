//! Lengths of time as people type and read them: `90s`, `30m`, `1h30m`, `7d`.

use std::time::Duration;

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Reads numbers with units.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no length of time such as 30m, 24h or 7d");
    let (mut rest, mut seconds) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .filter(|digits| *digits > 0)
            .ok_or_else(wrong)?;
        let (number, unit) = rest.split_at(digits);
        let mut unit = unit.chars();
        let factor = unit
            .next()
            .and_then(|name| UNITS.iter().find(|(unit, _)| *unit == name))
            .ok_or_else(wrong)?
            .1;
        seconds = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor))
            .and_then(|more| seconds.checked_add(more))
            .ok_or_else(wrong)?;
        rest = unit.as_str();
    }
    if text.is_empty() {
        return Err(wrong());
    }
    Ok(Duration::from_secs(seconds))
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
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
            assert_eq!(show(Duration::from_secs(seconds)), shown);
        }
        for bad in [
            "",
            "5",
            "h",
            "5x",
            "-5h",
            "5h ",
            "99999999999999999999d",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
