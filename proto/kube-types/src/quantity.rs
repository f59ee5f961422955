//! Quantities of resources such as `100m`, `1.5Gi` or `2e3`.
//!
//! Pure. The scheduler and the agent add and compare them; the API writes them in canonical form.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanos in one unit: the smallest amount is a billionth.
const UNIT: i128 = 1_000_000_000;
/// Kubernetes' cap for binary quantities.
const MAX: i128 = (i64::MAX as i128) * UNIT;

/// Why a text is no quantity, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not of the general shape.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The number is none.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Which kind of suffix a quantity was written with; it is written back with the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Format {
    /// `e3`
    DecimalExponent,
    /// `Ki`, `Mi`, …
    BinarySi,
    /// `m`, `k`, `M`, …
    #[default]
    DecimalSi,
}

/// A fixed-point number with a suffix. Equal when the amount is; the suffix does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::DecimalSi,
    };

    /// Parses a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        text.parse()
    }

    /// Whole units.
    pub fn from_units(units: i64, format: Format) -> Self {
        Self {
            nanos: i128::from(units) * UNIT,
            format,
        }
    }

    /// Thousandths, as CPU is counted.
    pub fn from_milli(milli: i64) -> Self {
        Self {
            nanos: i128::from(milli) * (UNIT / 1000),
            format: Format::DecimalSi,
        }
    }

    /// Whole units, rounded up.
    pub fn value(&self) -> i64 {
        clamp(div_ceil(self.nanos, UNIT))
    }

    /// Thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        clamp(div_ceil(self.nanos, UNIT / 1000))
    }

    /// True for nothing.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// True for less than nothing.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// True where there is no fraction.
    pub fn is_integer(&self) -> bool {
        self.nanos % UNIT == 0
    }

    /// The kind of suffix.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The sum, with the suffix of the first that is not zero.
    #[must_use]
    pub fn add(&self, other: &Self) -> Self {
        Self {
            nanos: self.nanos.saturating_add(other.nanos),
            format: if self.is_zero() {
                other.format
            } else {
                self.format
            },
        }
    }

    /// The difference, with the suffix of the first that is not zero.
    #[must_use]
    pub fn sub(&self, other: &Self) -> Self {
        self.add(&Self {
            nanos: -other.nanos,
            format: other.format,
        })
    }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Division rounded away from zero.
fn div_ceil(value: i128, by: i128) -> i128 {
    value / by + (value % by).signum()
}

fn suffix_of(text: &str) -> Result<(Format, i128, i32), QuantityError> {
    // (format, binary multiplier, decimal exponent)
    let decimal = |exponent| Ok((Format::DecimalSi, 1, exponent));
    let binary = |shift: u32| Ok((Format::BinarySi, 1_i128 << shift, 0));
    match text {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = text
                .strip_prefix(['e', 'E'])
                .filter(|rest| !rest.is_empty())
                .and_then(|rest| rest.parse::<i32>().ok())
                .ok_or(QuantityError::Suffix)?;
            Ok((Format::DecimalExponent, 1, exponent))
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
            None => return Err(QuantityError::Format),
        };
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        if number.is_empty() {
            return Err(QuantityError::Format);
        }
        let exponent_start = suffix
            .find(|c: char| !"eEinumkKMGTP".contains(c))
            .unwrap_or(suffix.len());
        let (_, exponent_text) = suffix.split_at(exponent_start);
        let digits_only = exponent_text
            .strip_prefix(['-', '+'])
            .unwrap_or(exponent_text);
        if !digits_only.bytes().all(|b| b.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(QuantityError::Numeric);
        }
        let (mut format, multiplier, exponent) = suffix_of(suffix)?;
        let mut nanos = scale(whole, fraction, multiplier, exponent);
        if negative {
            nanos = -nanos;
        }
        if format == Format::BinarySi {
            nanos = nanos.min(MAX);
            if nanos > 0 && nanos < UNIT {
                format = Format::DecimalSi;
            }
        }
        Ok(Self { nanos, format })
    }
}

/// `whole.fraction × multiplier × 10^exponent` in nanos, rounded up, saturating.
fn scale(whole: &str, fraction: &str, multiplier: i128, exponent: i32) -> i128 {
    const CAP: i128 = i128::MAX / 4;
    // The digits as one number, then a shift by powers of ten.
    let fraction = fraction.trim_end_matches('0');
    let mut digits: i128 = 0;
    let mut dropped = false;
    let mut shift = i64::from(exponent) + 9;
    for (i, byte) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let is_fraction = i >= whole.len();
        if digits > CAP / (10 * multiplier.max(1)) {
            // More digits than fit: whole digits only shift, fractional ones only round.
            dropped |= byte != b'0';
            if !is_fraction {
                shift += 1;
            }
            continue;
        }
        digits = digits * 10 + i128::from(byte - b'0');
        if is_fraction {
            shift -= 1;
        }
    }
    let mut value = digits.saturating_mul(multiplier);
    if value == 0 {
        return i128::from(dropped);
    }
    while shift > 0 {
        if value > CAP / 10 {
            return CAP;
        }
        value *= 10;
        shift -= 1;
    }
    while shift < 0 {
        dropped |= value % 10 != 0;
        value /= 10;
        shift += 1;
        if value == 0 {
            break;
        }
    }
    value.saturating_add(i128::from(dropped))
}

impl fmt::Display for Quantity {
    /// The canonical form: no precision lost, no fraction, the largest suffix that allows both.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::BinarySi && self.nanos.abs() >= 1024 * UNIT {
            let mut value = div_ceil(self.nanos, UNIT);
            let mut power = 0;
            while power < 6 && value % 1024 == 0 {
                value /= 1024;
                power += 1;
            }
            let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power];
            return write!(f, "{value}{suffix}");
        }
        let mut value = self.nanos;
        let mut exponent = -9;
        while exponent < 18 && value % 1000 == 0 {
            value /= 1000;
            exponent += 3;
        }
        if self.format == Format::DecimalExponent {
            if exponent == 0 {
                return write!(f, "{value}");
            }
            return write!(f, "{value}e{exponent}");
        }
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            0 => "",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            _ => "E",
        };
        write!(f, "{value}{suffix}")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl TryFrom<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> for Quantity {
    type Error = QuantityError;
    fn try_from(
        value: &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    ) -> Result<Self, QuantityError> {
        value.0.parse()
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(value: Quantity) -> Self {
        Self(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> String {
        Quantity::parse(text).expect(text).to_string()
    }

    #[test]
    fn canonical_forms() {
        for (text, want) in [
            ("0", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1024", "1024"),
            ("1Ki", "1Ki"),
            ("1000", "1k"),
            ("100000", "100k"),
            ("1500", "1500"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1E", "1E"),
            ("1Ei", "1Ei"),
            ("0.1m", "100u"),
            ("0.1n", "1n"),
            ("-1.5", "-1500m"),
            ("+1", "1"),
            ("0.5Ki", "512"),
            ("0.0005Ki", "512m"),
            (".5", "500m"),
            ("5.", "5"),
            ("9Ei", "9223372036854775807"),
            ("100Ei", "9223372036854775807"),
        ] {
            assert_eq!(canonical(text), want, "{text}");
        }
    }

    #[test]
    fn refuses_what_kubernetes_refuses() {
        for (text, error) in [
            ("", QuantityError::Format),
            ("m", QuantityError::Format),
            ("1 Gi", QuantityError::Format),
            ("1gb", QuantityError::Format),
            ("1.2.3", QuantityError::Numeric),
            (".", QuantityError::Numeric),
            ("1KK", QuantityError::Suffix),
            ("1Kie", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("-", QuantityError::Format),
        ] {
            assert_eq!(Quantity::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn values_round_up() {
        let q = Quantity::parse("1500m").expect("parses");
        assert_eq!((q.value(), q.milli_value()), (2, 1500));
        let sum = q.add(&Quantity::parse("1Gi").expect("parses"));
        assert_eq!(sum.value(), 1_073_741_826);
        assert_eq!(
            Quantity::parse("1Gi")
                .expect("parses")
                .sub(&Quantity::parse("512Mi").expect("parses"))
                .to_string(),
            "512Mi"
        );
        assert!(Quantity::parse("100m").expect("parses") < Quantity::parse("1").expect("parses"));
    }

    proptest! {
        #[test]
        fn canonical_form_keeps_the_amount(
            number in "-?[0-9]{1,6}(\\.[0-9]{1,4})?",
            suffix in proptest::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-2"]),
        ) {
            let text = format!("{number}{suffix}");
            let q = Quantity::parse(&text).expect("parses");
            let again = Quantity::parse(&q.to_string()).expect("canonical form parses");
            // Binary quantities are whole numbers when written.
            if q.format() == Format::BinarySi && !q.is_integer() {
                prop_assert_eq!(again.value(), q.value());
            } else {
                prop_assert_eq!(again, q);
            }
            prop_assert_eq!(again.to_string(), q.to_string());
        }

        #[test]
        fn never_panics(text in "\\PC{0,24}") {
            if let Ok(q) = Quantity::parse(&text) {
                let _ = (q.value(), q.milli_value(), q.to_string());
            }
        }
    }
}
