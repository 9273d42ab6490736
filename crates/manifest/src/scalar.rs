//! Resolves the type of an unquoted scalar. Kubernetes uses a YAML 1.1 parser, so `yes` is a boolean and
//! `0644` is octal. With other rules, Outrigger would run a different pod than a cluster.

use std::sync::Arc;

use crate::span::Span;

/// A scalar whose type is not resolved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar {
    /// Its text, with escapes resolved.
    pub text: Arc<str>,
    /// Whether it is written without quotes, so that it may be a number, a boolean or null.
    pub plain: bool,
    /// The positions of the pieces of a text that line ends or `;` separate. Empty for very long texts, and
    /// for a single piece outside a block.
    pub pieces: Arc<[Span]>,
}

/// A scalar with its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Resolved {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// `.inf` and `.nan`, which JSON, and therefore Kubernetes, cannot represent.
    NotFinite,
    Str,
}

/// Resolves a scalar as sigs.k8s.io/yaml does.
pub(crate) fn resolve(scalar: &Scalar) -> Resolved {
    if scalar.plain { resolve_plain(&scalar.text) } else { Resolved::Str }
}

/// Whether a boolean is spelled as only YAML 1.1 allows.
pub(crate) fn is_yaml11_bool(text: &str) -> bool {
    !text.eq_ignore_ascii_case("true")
        && !text.eq_ignore_ascii_case("false")
        && matches!(resolve_plain(text), Resolved::Bool(_))
}

/// Resolves an unquoted scalar.
pub(crate) fn resolve_plain(text: &str) -> Resolved {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Resolved::Null,
        "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            return Resolved::Bool(true);
        }
        "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            return Resolved::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
        | "-.Inf" | "-.INF" => return Resolved::NotFinite,
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Resolved::Str;
    }
    let digits = text.replace('_', "");
    if let Some(int) = parse_int(&digits) {
        return Resolved::Int(int);
    }
    if is_float(&digits)
        && let Ok(float) = digits.parse::<f64>()
    {
        return if float.is_finite() { Resolved::Float(float) } else { Resolved::NotFinite };
    }
    Resolved::Str
}

/// An integer with an optional sign and base prefix, within 64 bits.
fn parse_int(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let prefix = digits.get(..2).unwrap_or_default();
    let (base, digits) = match prefix {
        "0x" | "0X" => (16, &digits[2..]),
        "0b" | "0B" => (2, &digits[2..]),
        "0o" | "0O" => (8, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(digits, base).ok()?);
    let value = if negative { -magnitude } else { magnitude };
    (value >= i128::from(i64::MIN)).then_some(value)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mantissa_ok = all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent_ok = exponent.is_none_or(|e| {
        let digits = e.strip_prefix(['-', '+']).unwrap_or(e);
        !digits.is_empty() && all_digits(digits)
    });
    mantissa_ok && exponent_ok
}

/// Whether a text is a Kubernetes quantity, such as `500m`, `1.5Gi` or `1e3`.
pub(crate) fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let number_ok =
        number.bytes().any(|b| b.is_ascii_digit()) && number.bytes().filter(|&b| b == b'.').count() <= 1;
    let suffix_ok = match suffix {
        "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi"
        | "Ei" => true,
        _ => suffix.strip_prefix(['e', 'E']).is_some_and(|exponent| exponent.parse::<i32>().is_ok()),
    };
    number_ok && suffix_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_resolve_as_kubernetes_reads_them() {
        use Resolved::{Bool, Float, Int, NotFinite, Null, Str};
        let table = [
            ("", Null),
            ("~", Null),
            ("null", Null),
            ("nUll", Str),
            ("yes", Bool(true)),
            ("off", Bool(false)),
            ("y", Bool(true)),
            ("N", Bool(false)),
            ("yEs", Str),
            ("0", Int(0)),
            ("12", Int(12)),
            ("-12", Int(-12)),
            ("+12", Int(12)),
            ("0644", Int(0o644)),
            ("0o644", Int(0o644)),
            ("0x1F", Int(31)),
            ("0b101", Int(5)),
            ("1_000", Int(1000)),
            ("08", Float(8.0)),
            ("1.5", Float(1.5)),
            ("1e3", Float(1000.0)),
            (".5", Float(0.5)),
            ("1.", Float(1.0)),
            ("18446744073709551615", Int(u64::MAX as i128)),
            ("18446744073709551616", Float(18446744073709551616.0)),
            ("1e999", NotFinite),
            (".inf", NotFinite),
            (".", Str),
            ("-", Str),
            ("1.2.3", Str),
            ("1:20", Str),
            ("2001-01-01", Str),
            ("100m", Str),
            ("0x", Str),
            ("--1", Str),
        ];
        for (text, expected) in table {
            assert_eq!(resolve_plain(text), expected, "{text:?}");
        }
    }

    #[test]
    fn quantities() {
        for good in ["1", "1.5", "500m", "1Ki", "1e3", "1E-3", "-1", "+.5", "5.", "1E", "10n"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "Mi", "1 Gi", "1gb", "1.2.3", "1mi", "e3", "1e", "--1", "."] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }
}
