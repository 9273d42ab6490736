//! Kubernetes quantities, such as `100m`, `1.5`, `64Mi` and `2e3`. They are exact to a billionth, as in
//! Kubernetes.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Sub};

use thiserror::Error;

const NANO: i128 = 1_000_000_000;
/// The largest value of a quantity. As in Kubernetes, larger values are reduced to it.
const MAX: i128 = i64::MAX as i128 * NANO;

/// The notation of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// `1500m`, `2k`, `5G`
    #[default]
    DecimalSi,
    /// `64Mi`
    BinarySi,
    /// `5e9`
    Exponent,
}

/// An amount of cores, bytes, devices and so on. Amounts compare by value, in any notation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Amount {
    nano: i128,
    format: Format,
}

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// The text is empty.
    #[error("a quantity must not be empty; write for example `100m` or `64Mi`")]
    Empty,
    /// The text does not begin with a number.
    #[error("quantity `{0}` does not begin with a number; write for example `100m` or `64Mi`")]
    NoNumber(String),
    /// The unit is unknown.
    #[error(
        "quantity `{text}` ends in the unknown unit `{suffix}`; use one of n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as e3"
    )]
    Suffix {
        /// The whole text.
        text: String,
        /// The unknown suffix.
        suffix: String,
    },
}

/// Parses a quantity. As in Kubernetes, digits beyond a billionth are rounded up, and values beyond 2^63-1
/// are reduced to that.
pub fn parse_quantity(text: &str) -> Result<Amount, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Empty);
    }
    let (negative, unsigned) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(QuantityError::NoNumber(text.to_owned()));
    }
    let unit = Unit::read(suffix)
        .ok_or_else(|| QuantityError::Suffix { text: text.to_owned(), suffix: suffix.to_owned() })?;
    let magnitude = scale(whole, fraction, &unit);
    Ok(Amount { nano: if negative { -magnitude } else { magnitude }, format: unit.format })
}

struct Unit {
    format: Format,
    /// The power of ten to multiply with.
    ten: i32,
    /// The power of 1024 to multiply with.
    binary: u32,
}

impl Unit {
    fn read(suffix: &str) -> Option<Unit> {
        let decimal = |ten| Unit { format: Format::DecimalSi, ten, binary: 0 };
        let binary = |binary| Unit { format: Format::BinarySi, ten: 0, binary };
        Some(match suffix {
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            "Ki" => binary(1),
            "Mi" => binary(2),
            "Gi" => binary(3),
            "Ti" => binary(4),
            "Pi" => binary(5),
            "Ei" => binary(6),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                // If the exponent does not fit into a number, the value exceeds the maximum anyway.
                let ten: i32 = digits.parse().map_or(1_000, |n: i32| n.min(1_000));
                Unit {
                    format: Format::Exponent,
                    ten: if exponent.starts_with('-') { -ten } else { ten },
                    binary: 0,
                }
            }
        })
    }
}

/// `whole.fraction` times the unit, in billionths, rounded up and limited to the maximum.
fn scale(whole: &str, fraction: &str, unit: &Unit) -> i128 {
    let digits = whole.bytes().chain(fraction.bytes()).skip_while(|b| *b == b'0');
    let multiplier = 1024_i128.pow(unit.binary);
    // The value is digits * 10^(ten - fraction length) * 1024^binary. In billionths, that is nine more powers
    // of ten.
    let mut point = i64::from(unit.ten) + 9 - fraction.len() as i64;
    let mut value: i128 = 0;
    let mut dropped = false;
    // 38 digits fit into an i128, and the multiplier needs up to 18 of them. Digits after the first 19
    // significant ones only move the decimal point: at that size, everything is limited or rounded.
    let mut kept = 0;
    for b in digits {
        let digit = i128::from(b - b'0');
        if kept < 19 {
            value = value * 10 + digit;
            kept += 1;
        } else {
            point += 1;
            dropped |= digit != 0;
        }
    }
    if value == 0 {
        return 0;
    }
    value = value.saturating_mul(multiplier);
    while point > 0 {
        value = value.saturating_mul(10);
        if value > MAX {
            return MAX;
        }
        point -= 1;
    }
    while point < 0 {
        dropped |= value % 10 != 0;
        value /= 10;
        point += 1;
        if value == 0 {
            break;
        }
    }
    (value + i128::from(dropped)).min(MAX)
}

impl Amount {
    /// Zero.
    pub const ZERO: Amount = Amount { nano: 0, format: Format::DecimalSi };

    /// An amount that is a whole number, for example of bytes.
    pub fn whole(n: i64) -> Amount {
        Amount { nano: i128::from(n) * NANO, format: Format::DecimalSi }
    }

    /// An amount in thousandths, for example of a core.
    pub fn milli(n: i64) -> Amount {
        Amount { nano: i128::from(n) * (NANO / 1000), format: Format::DecimalSi }
    }

    /// The value in whole units, rounded away from zero.
    pub fn value(self) -> i64 {
        round_up(self.nano, NANO)
    }

    /// The value in thousandths, rounded away from zero.
    pub fn milli_value(self) -> i64 {
        round_up(self.nano, NANO / 1000)
    }

    /// Whether the value is a whole number.
    pub fn is_whole(self) -> bool {
        self.nano % NANO == 0
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// Whether it is negative.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// The notation it was written in.
    pub fn format(self) -> Format {
        self.format
    }

    fn with(self, other: Amount, nano: i128) -> Amount {
        Amount {
            nano: nano.clamp(-MAX, MAX),
            format: if self.is_zero() { other.format } else { self.format },
        }
    }
}

fn round_up(nano: i128, unit: i128) -> i64 {
    let rounded = nano / unit + (nano % unit).signum();
    i64::try_from(rounded).unwrap_or(if nano < 0 { i64::MIN } else { i64::MAX })
}

impl Add for Amount {
    type Output = Amount;
    fn add(self, other: Amount) -> Amount {
        self.with(other, self.nano + other.nano)
    }
}

impl Sub for Amount {
    type Output = Amount;
    fn sub(self, other: Amount) -> Amount {
        self.with(other, self.nano - other.nano)
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Amount) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Amount {}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Amount) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Amount) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl std::str::FromStr for Amount {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Amount, QuantityError> {
        parse_quantity(text)
    }
}

/// Writes the canonical text: without a fraction, with the largest possible unit, in the original notation.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        // Small numbers and fractions are not written with binary units, because that would lose precision.
        let binary = self.format == Format::BinarySi && self.is_whole() && self.nano.abs() >= 1024 * NANO;
        if binary {
            let (n, power) = reduce(self.nano / NANO, 1024, 6);
            return write!(f, "{n}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let (n, power) = reduce(self.nano, 1000, 9);
        if self.format == Format::Exponent {
            return match power as i32 * 3 - 9 {
                0 => write!(f, "{n}"),
                ten => write!(f, "{n}e{ten}"),
            };
        }
        write!(f, "{n}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][power])
    }
}

/// Divides by `base` while the result is exact, at most `most` times.
fn reduce(mut n: i128, base: i128, most: usize) -> (i128, usize) {
    let mut power = 0;
    while power < most && n % base == 0 {
        n /= base;
        power += 1;
    }
    (n, power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        let table = [
            ("0", "0"),
            ("-0", "0"),
            ("0Ki", "0"),
            ("1", "1"),
            ("+1", "1"),
            ("-1", "-1"),
            ("1.", "1"),
            (".5", "500m"),
            ("0.5", "500m"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("0.001", "1m"),
            ("0.0001", "100u"),
            ("1n", "1n"),
            ("0.5n", "1n"),
            ("-0.5n", "-1n"),
            ("1.0000000001", "1000000001n"),
            ("10u", "10u"),
            ("1k", "1k"),
            ("1000", "1k"),
            ("1500k", "1500k"),
            ("1000k", "1M"),
            ("2G", "2G"),
            ("1T", "1T"),
            ("1P", "1P"),
            ("1E", "1E"),
            ("1Ki", "1Ki"),
            ("1024Ki", "1Mi"),
            ("1024", "1024"),
            ("512Mi", "512Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("0.5Mi", "512Ki"),
            ("1000Ki", "1000Ki"),
            ("1025Mi", "1025Mi"),
            ("0.0001Ki", "102400u"),
            ("1Ei", "1Ei"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1e0", "1"),
            ("12e6", "12e6"),
            ("1e-3", "1e-3"),
            ("1500e-3", "1500e-3"),
            ("1.5e3", "1500"),
            ("100e3", "100e3"),
            ("1e2", "100"),
            ("1e-12", "1e-9"),
            ("0e999999999999", "0"),
            ("1e999999999999", "9223372036854775807"),
            ("9999999999999999999", "9223372036854775807"),
            ("99999Ei", "9223372036854775807"),
            ("-1e999", "-9223372036854775807"),
            ("0000000000000000000000000000000000000000000001", "1"),
        ];
        for (text, canonical) in table {
            let amount = parse_quantity(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(amount.to_string(), canonical, "{text}");
            let again = parse_quantity(canonical).unwrap();
            assert_eq!(amount, again, "{text}: {canonical} is another amount");
        }
    }

    #[test]
    fn bad_texts_are_refused() {
        for text in [
            "", "-", "+", "m", "Ki", "1K", "1ki", "1mi", "1KiB", "1GB", "1 Gi", " 1", "1 ", "1e", "1E+",
            "1e1.5", "1.2.3", "--1", "1-", "0x10", "one", "1,5", "½", "1µ", "1i", ".", "1e3Ki",
        ] {
            let error = parse_quantity(text).expect_err(text).to_string();
            assert!(text.is_empty() || error.contains(text), "{error} does not name {text}");
        }
    }

    #[test]
    fn values_round_away_from_zero() {
        let at = |s: &str| parse_quantity(s).unwrap();
        assert_eq!(at("100m").value(), 1);
        assert_eq!(at("-100m").value(), -1);
        assert_eq!(at("100u").milli_value(), 1);
        assert_eq!(at("1.5").milli_value(), 1500);
        assert_eq!(at("1Gi").value(), 1 << 30);
        assert_eq!(Amount::milli(250) + Amount::whole(2), at("2250m"));
        assert_eq!((at("1Gi") - at("1Mi")).to_string(), "1023Mi");
        assert!(at("1Ki") > at("1k"));
        assert_eq!(at("1e3"), at("1k"));
    }
}
