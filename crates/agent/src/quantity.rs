//! Kubernetes quantities (`100m`, `64Mi`, `1e3`) as numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The finest unit a quantity can have.
const NANO: i128 = 1_000_000_000;

/// The value in billionths, saturating.
fn nanos(text: &str) -> Result<i128, String> {
    let bad = || format!("{text:?} is not a quantity; write a number such as `500m`, `64Mi` or `2`");
    let text_trimmed = text.trim();
    let (negative, body) = match text_trimmed.as_bytes().first() {
        Some(b'-') => (true, &text_trimmed[1..]),
        Some(b'+') => (false, &text_trimmed[1..]),
        _ => (false, text_trimmed),
    };
    let end = body
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(body.len());
    let (number, suffix) = body.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(bad());
    }
    let (numerator, denominator) = scale(suffix).ok_or_else(bad)?;
    let mut value: i128 = 0;
    for digit in whole.bytes() {
        value = value
            .saturating_mul(10)
            .saturating_add(i128::from(digit - b'0') * NANO);
    }
    let mut unit = NANO / 10;
    for digit in fraction.bytes() {
        // What is finer than a billionth is rounded up, as Kubernetes does.
        value = value.saturating_add(if unit > 0 {
            i128::from(digit - b'0') * unit
        } else {
            i128::from(digit != b'0')
        });
        unit /= 10;
    }
    let scaled = value.saturating_mul(numerator);
    let scaled = scaled / denominator + i128::from(scaled % denominator != 0);
    Ok(if negative { -scaled } else { scaled })
}

/// A suffix as a fraction.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "n" => (1, NANO),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "" => (1, 1),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (NANO, 1),
        "T" => (NANO * 1_000, 1),
        "P" => (NANO * 1_000_000, 1),
        "E" => (NANO * NANO, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10i128.checked_pow(exponent.unsigned_abs()).filter(|p| *p <= NANO * NANO)?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

fn clamp(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap_or(u64::MAX)
}

/// Whole units, rounded up; negative counts as nothing.
pub(crate) fn value(quantity: &Quantity) -> Result<u64, String> {
    nanos(&quantity.0).map(|n| clamp(div_up(n, NANO)))
}

/// Thousandths, rounded up; negative counts as nothing.
pub(crate) fn milli_value(quantity: &Quantity) -> Result<u64, String> {
    nanos(&quantity.0).map(|n| clamp(div_up(n, NANO / 1_000)))
}

fn div_up(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + i128::from(value.rem_euclid(by) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_values() {
        let table: [(&str, Option<(u64, u64)>); 18] = [
            ("0", Some((0, 0))),
            ("1", Some((1, 1_000))),
            ("100m", Some((1, 100))),
            ("1500m", Some((2, 1_500))),
            ("0.1", Some((1, 100))),
            (".5", Some((1, 500))),
            ("64Mi", Some((67_108_864, 67_108_864_000))),
            ("1.5Gi", Some((1_610_612_736, 1_610_612_736_000))),
            ("1k", Some((1_000, 1_000_000))),
            ("2e3", Some((2_000, 2_000_000))),
            ("2E3", Some((2_000, 2_000_000))),
            ("5e-1", Some((1, 500))),
            ("1n", Some((1, 1))),
            ("-3", Some((0, 0))),
            ("16Ei", Some((u64::MAX, u64::MAX))),
            ("", None),
            ("1.2.3", None),
            ("12 apples", None),
        ];
        for (text, expected) in table {
            let quantity = Quantity(text.to_owned());
            let got = value(&quantity).ok().zip(milli_value(&quantity).ok());
            assert_eq!(got, expected, "{text}");
        }
    }
}
