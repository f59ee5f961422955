//! `metav1.Time` and `metav1.MicroTime` as text. No clock: the time is handed in.
//!
//! The API stamps objects with it; controllers compare what they read.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// `2024-05-06T07:08:09Z`: how `metav1.Time` is written.
pub fn format_time(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

/// `2024-05-06T07:08:09.123456Z`: how `metav1.MicroTime` is written.
pub fn format_micro_time(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

/// Parses RFC 3339 as Go does: date, `T`, time, optional fraction, and an offset or `Z`.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if bytes.len() < 20 || bytes.get(10) != Some(&b'T') || bytes.get(4) != Some(&b'-') {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let time = parse_time("2024-05-06T07:08:09.123456Z").expect("parses");
        assert_eq!(format_time(time), "2024-05-06T07:08:09Z");
        assert_eq!(format_micro_time(time), "2024-05-06T07:08:09.123456Z");
        let shifted = parse_time("2024-05-06T09:08:09+02:00").expect("parses");
        assert_eq!(format_time(shifted), "2024-05-06T07:08:09Z");
        for bad in [
            "",
            "yesterday",
            "2024-05-06",
            "2024-05-06 07:08:09Z",
            "2024-05-06T07:08:09",
        ] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }
}
