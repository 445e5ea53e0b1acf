//! Resource quantities in Go's canonical form (`k8s.io/apimachinery/pkg/api/resource`).

use std::{borrow::Cow, cmp::Ordering};

/// The notation in which a quantity was written and is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `k`, `M`, `m`, …
    DecimalSi,
    /// `Ki`, `Mi`, …
    BinarySi,
    /// `e3`
    DecimalExponent,
}

/// A quantity: sign × digits × 10^exponent, of any size and precision.
#[derive(Clone, Debug)]
pub(crate) struct Quantity<'t> {
    /// Zero is not negative.
    negative: bool,
    /// Decimal digits without zeros at either end, the most significant first; empty for zero.
    digits: Vec<u8>,
    exponent: i64,
    format: Format,
    /// The text itself, if Go considers it canonical and keeps it.
    text: Option<Cow<'t, str>>,
}

/// The form of a quantity, for error messages.
pub(crate) const EXPECTED: &str =
    "a quantity (a number with an optional suffix or exponent: 500m, 1.5Gi, 1e3)";

const NANO: i64 = -9;
const MILLI: i64 = -3;

/// The parts of a quantity's text.
struct Parts<'t> {
    negative: bool,
    /// The digits before the point, without leading zeros.
    whole: &'t str,
    fraction: &'t str,
    suffix: &'t str,
}

fn split(text: &str) -> Option<Parts<'_>> {
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start_matches('0');
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, mut rest) = unsigned.split_at(digits(unsigned));
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        (fraction, rest) = after.split_at(digits(after));
    }
    let suffix = rest;
    let rest = rest.trim_start_matches(['e', 'E', 'i', 'n', 'u', 'm', 'k', 'K', 'M', 'G', 'T', 'P']);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    (digits(rest) == rest.len()).then_some(Parts { negative, whole, fraction, suffix })
}

/// The decimal suffixes, from 10^-9 in steps of 10^3.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// The binary suffixes, from 2^10 in steps of 2^10.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// A suffix's format and exponent (of ten, or of two for a binary suffix).
fn interpret(suffix: &str) -> Option<(Format, i32)> {
    if let Some(exponent) = (-9..=18).step_by(3).zip(DECIMAL).find(|(_, known)| *known == suffix) {
        return Some((Format::DecimalSi, exponent.0));
    }
    if let Some(exponent) = (10..=60).step_by(10).zip(BINARY).find(|(_, known)| *known == suffix) {
        return Some((Format::BinarySi, exponent.0));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
    // Go truncates the exponent to 32 bits.
    #[allow(clippy::cast_possible_truncation, reason = "as Go does")]
    Some((Format::DecimalExponent, exponent as i32))
}

/// The suffix of 10^exponent. As in Go it is empty beyond `E`.
fn decimal_suffix(exponent: i64) -> &'static str {
    let index = usize::try_from((exponent - NANO) / 3).ok();
    index.and_then(|index| DECIMAL.get(index).copied()).unwrap_or_default()
}

impl<'t> Quantity<'t> {
    /// Parses a quantity.
    pub(crate) fn parse(text: &'t str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let parts = split(text)?;
        let (format, exponent) = interpret(parts.suffix)?;
        let is_small = is_small(&parts, format, exponent);
        // In Go a suffix alone is zero if it is a small one, otherwise an error.
        let number = &text[..text.len() - parts.suffix.len()];
        if !is_small && !number.bytes().any(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let mut digits: Vec<u8> =
            parts.whole.bytes().chain(parts.fraction.bytes()).skip_while(|digit| *digit == b'0').collect();
        for digit in &mut digits {
            *digit -= b'0';
        }
        let places = i64::try_from(parts.fraction.len()).ok()?;
        let mut quantity = Self {
            negative: parts.negative,
            digits,
            exponent: -places,
            format,
            text: (is_small && keeps_text(&parts, format, exponent)).then_some(Cow::Borrowed(text)),
        };
        if format == Format::BinarySi {
            quantity.digits = shifted(&quantity.digits, exponent);
        } else {
            quantity.exponent += i64::from(exponent);
        }
        quantity.normalize();
        quantity.bound();
        Some(quantity)
    }

    /// Drops the zeros at the end of the digits.
    fn normalize(&mut self) {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
            self.exponent += 1;
        }
        self.negative &= !self.is_zero();
    }

    /// Rounds up to a multiple of 10^-9. Limits a binary quantity to 2^63-1, and makes
    /// one below 1 a decimal quantity.
    fn bound(&mut self) {
        self.round_up(NANO);
        if self.format == Format::BinarySi {
            let largest = self.integer(i64::MAX.unsigned_abs());
            if compare_magnitude(self, &largest).is_gt() {
                *self = largest;
            }
            if !self.negative && compare_magnitude(self, &self.integer(1)).is_lt() {
                self.format = Format::DecimalSi;
            }
        }
    }

    /// An integer that does not end with a zero, with the sign and format of this quantity.
    fn integer(&self, value: u64) -> Self {
        let digits = value.to_string().bytes().map(|digit| digit - b'0').collect();
        Self { digits, exponent: 0, negative: self.negative, format: self.format, text: None }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// Rounds away from zero to a multiple of 10^exponent. Returns whether anything was lost.
    fn round_up(&mut self, exponent: i64) -> bool {
        let cut = usize::try_from(exponent - self.exponent).unwrap_or_default();
        if cut == 0 || self.is_zero() {
            return false;
        }
        // The last digit is not zero, so something is lost.
        self.digits.truncate(self.digits.len().saturating_sub(cut));
        self.digits = combine(&self.digits, &[1], 1);
        self.exponent = exponent;
        self.normalize();
        true
    }

    /// Rounds up to thousandths, as the API does with the resources of a container.
    pub(crate) fn to_milli(&self) -> Self {
        let mut rounded = self.clone();
        if self.exponent < MILLI {
            rounded.text = None;
            rounded.round_up(MILLI);
        }
        rounded
    }

    /// The sum, in the notation of `self` unless that is zero.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        // A sum such as 1e9999999 + 1 would need millions of digits for no effect.
        if self.exponent.abs_diff(other.exponent) > 10_000 {
            return if compare_magnitude(self, other).is_lt() { other } else { self }.clone();
        }
        let mut sum =
            if self.is_zero() { Self { format: other.format, ..self.clone() } } else { self.clone() };
        sum.text = None;
        let (a, b) = aligned(self, other);
        sum.exponent = self.exponent.min(other.exponent);
        (sum.negative, sum.digits) = if self.negative == other.negative {
            (self.negative, combine(&a, &b, 1))
        } else if compare_magnitude(self, other).is_lt() {
            (other.negative, combine(&b, &a, -1))
        } else {
            (self.negative, combine(&a, &b, -1))
        };
        sum.normalize();
        sum
    }

    /// Whether this quantity is greater than another.
    pub(crate) fn exceeds(&self, other: &Self) -> bool {
        match (self.negative, other.negative) {
            (false, false) => compare_magnitude(self, other).is_gt(),
            (true, true) => compare_magnitude(self, other).is_lt(),
            (is_negative, _) => !is_negative,
        }
    }

    /// Whether the quantity, rounded up to thousandths, is a whole number.
    pub(crate) fn is_whole(&self) -> bool {
        !self.to_milli().round_up(0)
    }

    /// The quantity rounded up to an integer; 0 if that is out of range, as in Go.
    pub(crate) fn to_i64_up(&self) -> i64 {
        let mut whole = self.clone();
        whole.round_up(0);
        let Ok(zeros) = usize::try_from(whole.exponent.max(0)) else { return 0 };
        if whole.digits.len().saturating_add(zeros) > 19 {
            return 0;
        }
        let digits = whole.digits.iter().copied().chain(std::iter::repeat_n(0, zeros));
        let magnitude = digits.fold(0_i128, |value, digit| value * 10 + i128::from(digit));
        i64::try_from(if self.negative { -magnitude } else { magnitude }).unwrap_or_default()
    }

    /// The thousandths of the quantity, rounded up to an integer; 0 if that is out of range, as in Go.
    pub(crate) fn to_milli_i64_up(&self) -> i64 {
        Self { exponent: self.exponent.saturating_sub(MILLI), ..self.clone() }.to_i64_up()
    }

    /// The quantity as Go writes it.
    pub(crate) fn canonical(&self) -> Cow<'t, str> {
        if let Some(text) = &self.text {
            return text.clone();
        }
        if self.is_zero() {
            return "0".into();
        }
        let (mut digits, mut exponent) = (self.digits.clone(), self.exponent);
        let binary = self.format == Format::BinarySi
            && exponent >= 0
            && compare_magnitude(self, &self.integer(1024)).is_ge();
        let suffix = if binary {
            digits.resize(digits.len() + usize::try_from(exponent).unwrap_or_default(), 0);
            let mut suffix = None;
            while let (quotient, 0) = divide(&digits, 1024) {
                digits = quotient;
                suffix = Some(suffix.map_or(0, |index| index + 1));
            }
            suffix.and_then(|index: usize| BINARY.get(index)).copied().unwrap_or_default().to_owned()
        } else {
            while exponent % 3 != 0 {
                digits.push(0);
                exponent -= 1;
            }
            match self.format {
                Format::DecimalExponent if exponent != 0 => format!("e{exponent}"),
                Format::DecimalExponent => String::new(),
                Format::DecimalSi | Format::BinarySi => decimal_suffix(exponent).to_owned(),
            }
        };
        let sign = if self.negative { "-" } else { "" };
        let digits: String = digits.iter().map(|digit| char::from(digit + b'0')).collect();
        format!("{sign}{digits}{suffix}").into()
    }
}

/// A size in bytes as Kubernetes writes it: `64Mi`, `1500000`.
#[cfg(feature = "agent")]
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let quantity = Quantity::parse(text);
    // `2000m` would be 2.
    if let Some(number) = text.strip_suffix('m').filter(|_| quantity.is_some()) {
        return Err(format!(
            "{text:?} is not a number of bytes (m is a thousandth): write it like {number}M or {number}Mi"
        ));
    }
    let number = quantity.filter(Quantity::is_whole).and_then(|quantity| {
        let number = u64::try_from(quantity.to_i64_up()).ok()?;
        // One that is too large counts as 0.
        (number > 0 || quantity.is_zero()).then_some(number)
    });
    number.ok_or_else(|| format!("{text:?} is not a number of bytes: write it like 64Mi"))
}

/// Whether Go holds the quantity as an `i64` and a power of ten, by its own estimate.
fn is_small(parts: &Parts<'_>, format: Format, exponent: i32) -> bool {
    let count = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX / 4);
    let (whole, places) = (count(parts.whole).max(1), count(parts.fraction));
    if format == Format::BinarySi {
        // `exponent × 3 / 10` is roughly the number of decimal digits of the suffix.
        places == 0 && 15 - whole - i64::from(exponent) * 3 / 10 > 0
    } else {
        whole + places <= 18 && i64::from(exponent) - places >= NANO
    }
}

/// Whether Go keeps the text of a small quantity because it considers it canonical. Go
/// is sometimes wrong (`+5` and `1.500` are kept); its pods hold the kept text.
fn keeps_text(parts: &Parts<'_>, format: Format, exponent: i32) -> bool {
    let whole = if parts.whole.is_empty() { "0" } else { parts.whole };
    let shifted = format!("{whole}{}", parts.fraction);
    if format == Format::BinarySi {
        return shifted.parse::<i64>().is_ok_and(|value| value & 7 != 0);
    }
    let places = i64::try_from(parts.fraction.len()).unwrap_or_default();
    (i64::from(exponent) - places) % 3 == 0 && !shifted.ends_with("000") && !shifted.starts_with('0')
}

/// The digits of two quantities at the smaller of their exponents.
fn aligned(a: &Quantity<'_>, b: &Quantity<'_>) -> (Vec<u8>, Vec<u8>) {
    let exponent = a.exponent.min(b.exponent);
    let pad = |quantity: &Quantity<'_>| {
        let mut digits = quantity.digits.clone();
        if !digits.is_empty() {
            digits
                .resize(digits.len() + usize::try_from(quantity.exponent - exponent).unwrap_or_default(), 0);
        }
        digits
    };
    (pad(a), pad(b))
}

fn compare_magnitude(a: &Quantity<'_>, b: &Quantity<'_>) -> Ordering {
    let end = |quantity: &Quantity<'_>| {
        if quantity.is_zero() {
            i64::MIN
        } else {
            i64::try_from(quantity.digits.len()).unwrap_or_default() + quantity.exponent
        }
    };
    end(a).cmp(&end(b)).then_with(|| a.digits.cmp(&b.digits))
}

/// The digit at a place, counted from the least significant one.
fn digit_at(digits: &[u8], place: usize) -> u8 {
    digits.len().checked_sub(place + 1).map_or(0, |index| digits[index])
}

/// Reverses digits that have the least significant first, and drops leading zeros.
fn reversed(mut digits: Vec<u8>) -> Vec<u8> {
    while digits.last() == Some(&0) {
        digits.pop();
    }
    digits.reverse();
    digits
}

/// `a + b`, or for the sign -1 `a - b`, where `a` must not be smaller than `b`.
fn combine(a: &[u8], b: &[u8], sign: i8) -> Vec<u8> {
    let mut carry = 0;
    let digits = (0..=a.len().max(b.len())).map(|place| {
        let value = digit_at(a, place).cast_signed() + sign * digit_at(b, place).cast_signed() + carry;
        carry = value.div_euclid(10);
        value.rem_euclid(10).cast_unsigned()
    });
    reversed(digits.collect())
}

/// `digits` × 2^exponent, for an exponent of at most 60.
fn shifted(digits: &[u8], exponent: i32) -> Vec<u8> {
    let mut carry = 0_u128;
    // 2^60 has 19 digits.
    let digits = (0..digits.len() + 19).map(|place| {
        let value = (u128::from(digit_at(digits, place)) << exponent) + carry;
        carry = value / 10;
        u8::try_from(value % 10).unwrap_or_default()
    });
    reversed(digits.collect())
}

fn divide(digits: &[u8], divisor: u32) -> (Vec<u8>, u32) {
    let mut remainder = 0;
    let quotient = digits.iter().map(|digit| {
        let value = remainder * 10 + u32::from(*digit);
        remainder = value % divisor;
        u8::try_from(value / divisor).unwrap_or_default()
    });
    (quotient.skip_while(|digit| *digit == 0).collect(), remainder)
}
