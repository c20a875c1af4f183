//! Kubernetes quantities (`500m`, `1.5Gi`, `12e6`), parsed exactly enough for comparison.
//!
//! The grammar is that of apimachinery's `pkg/api/resource/quantity.go`. As there, the smallest unit is 1n, and smaller
//! amounts are rounded up.

use std::fmt;

/// An amount in units of 10^-9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

const NANO: i128 = 1_000_000_000;
const NANO_DIGITS: i32 = 9;

impl Amount {
    /// Creates an amount of whole units.
    pub fn whole(units: i32) -> Self {
        Self(i128::from(units) * NANO)
    }

    /// Parses a quantity; `None` if `text` is malformed or out of range.
    pub fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        if integer.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let mantissa: i128 = format!("{integer}{fraction}").parse().ok()?;
        let (factor, exponent) = scale(suffix)?;
        let shift = NANO_DIGITS.checked_add(exponent)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let product = mantissa.checked_mul(factor)?;
        let nanos = match (u32::try_from(shift), 10_i128.checked_pow(shift.unsigned_abs())) {
            (Ok(_), Some(power)) => product.checked_mul(power)?,
            (Ok(_), None) => return None,
            (Err(_), Some(power)) => product / power + i128::from(product % power != 0),
            (Err(_), None) => i128::from(product != 0),
        };
        Some(Self(if text.starts_with('-') { -nanos } else { nanos }))
    }

    /// Whole units, rounded down.
    pub fn floor(self) -> i128 {
        self.0.div_euclid(NANO)
    }

    /// Whether it is a number of whole units.
    pub fn is_whole(self) -> bool {
        self.0 % NANO == 0
    }

    /// Whether it is below zero.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Sum of both amounts, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The amount multiplied by `times`, saturating.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self(self.0.saturating_mul(times.into()))
    }
}

/// Without a unit if the amount is whole, else in the largest unit of `m`, `u` and `n` that divides it.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(NANO, ""), (1_000_000, "m"), (1_000, "u"), (1, "n")];
        let (size, unit) = units.into_iter().find(|(size, _)| self.0 % size == 0).unwrap_or((1, "n"));
        write!(f, "{}{unit}", self.0 / size)
    }
}

/// Parses a suffix into a factor and a power of ten.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 0));
    let decimal = |exponent| Some((1, exponent));
    match suffix {
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
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_amounts_may_be_written_differently() {
        for (one, other) in [
            ("1", "1000m"),
            ("0.1", "100m"),
            (".5", "500m"),
            ("5.", "5"),
            ("1Ki", "1024"),
            ("1.5Gi", "1536Mi"),
            ("1k", "1e3"),
            ("1Ei", "1024Pi"),
            ("1Pi", "1024Ti"),
            ("1Ti", "1024Gi"),
            ("1E", "1000P"),
            ("1P", "1000T"),
            ("1T", "1000G"),
            ("1u", "1000n"),
            ("2E", "2e18"),
            ("12E6", "12M"),
            ("+3", "3"),
            ("1e-3", "1m"),
            ("0.1n", "1n"),
            ("1e-60", "1n"),
            ("0e-60", "0"),
        ] {
            assert_eq!(Amount::parse(one).unwrap(), Amount::parse(other).unwrap(), "{one} {other}");
        }
        assert!(Amount::parse("1Gi") > Amount::parse("1G"));
        assert!(Amount::parse("-1").unwrap().is_negative());
    }

    #[test]
    fn invalid_quantities_are_rejected() {
        for text in
            ["", "-", ".", "1.2.3", "4 cores", "1KB", "1gi", "Gi", "1e", "1e+", "0x10", "NaN", "1_000", "٣", "1e99"]
        {
            assert_eq!(Amount::parse(text), None, "{text}");
        }
    }

    #[test]
    fn amount_parses_back_from_its_text() {
        for (text, written) in
            [("4", "4"), ("1.5", "1500m"), ("16Gi", "17179869184"), ("2u", "2u"), ("0.1n", "1n"), ("0", "0")]
        {
            let amount = Amount::parse(text).unwrap();
            assert_eq!(amount.to_string(), written);
            assert_eq!(Amount::parse(written), Some(amount));
        }
        let half = Amount::parse("500m").unwrap();
        assert_eq!((half.times(3).to_string(), half.plus(half).to_string()), ("1500m".to_owned(), "1".to_owned()));
    }

    #[test]
    fn amount_rounds_down_to_whole_units() {
        assert_eq!(Amount::parse("3500m").unwrap().floor(), 3);
        assert!(!Amount::parse("3500m").unwrap().is_whole());
        assert_eq!(Amount::parse("4").unwrap(), Amount::whole(4));
    }
}
