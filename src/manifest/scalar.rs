//! The values of YAML scalars by the rules of go-yaml v2, which the kubelet uses (YAML 1.1 with exceptions).

use std::borrow::Cow;

use base64::{
    Engine as _, alphabet,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};

use super::tree::{Data, lossy};

/// The value of a scalar. The kind of a number decides how it is written as a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar<'t> {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above the range of `i64`.
    Uint(u64),
    Float(f64),
    Text(Cow<'t, str>),
}

impl<'t> Scalar<'t> {
    /// Converts the scalar to a value of the tree. Infinities and `NaN`, which JSON does not have, are errors.
    pub(super) fn into_data(self) -> Result<Data<'t>, String> {
        Ok(match self {
            Self::Null => Data::Null,
            Self::Bool(value) => Data::Bool(value),
            Self::Int(value) => Data::Number(value.to_string().into()),
            Self::Uint(value) => Data::Number(value.to_string().into()),
            Self::Float(value) if value.is_finite() => Data::Number(json_float(value).into()),
            Self::Float(value) => {
                return Err(format!("{value} cannot be written as JSON: put it in quotes if it is a string"));
            }
            Self::Text(text) => Data::Text(text),
        })
    }

    /// Converts the scalar to the key of a map, which is always a string.
    pub(super) fn into_key(self) -> Result<Cow<'t, str>, String> {
        Ok(match self {
            Self::Text(text) => text,
            Self::Bool(value) => value.to_string().into(),
            Self::Int(value) => value.to_string().into(),
            Self::Float(value) => key_float(value).into(),
            Self::Null => return Err("null cannot be a key".to_owned()),
            Self::Uint(_) => return Err("the number is too large for a key: put it in quotes".to_owned()),
        })
    }
}

/// The value of a plain scalar without a tag (go-yaml v2 `resolve.go`).
pub(super) fn plain(text: Cow<'_, str>) -> Scalar<'_> {
    let number = match text.as_bytes().first() {
        None => return Scalar::Null,
        Some(b'+' | b'-' | b'0'..=b'9' | b'.') => number(&text),
        Some(b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~') => word(&text),
        Some(_) => None,
    };
    number.unwrap_or(Scalar::Text(text))
}

fn word<'t>(text: &str) -> Option<Scalar<'t>> {
    match text {
        "~" | "null" | "Null" | "NULL" => Some(Scalar::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Some(Scalar::Bool(true))
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Some(Scalar::Bool(false))
        }
        _ => None,
    }
}

fn number<'t>(text: &str) -> Option<Scalar<'t>> {
    match text {
        ".nan" | ".NaN" | ".NAN" => return Some(Scalar::Float(f64::NAN)),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Some(Scalar::Float(f64::INFINITY)),
        "-.inf" | "-.Inf" | "-.INF" => return Some(Scalar::Float(f64::NEG_INFINITY)),
        _ => {}
    }
    let digits: Cow<'_, str> = if text.contains('_') { text.replace('_', "").into() } else { text.into() };
    if text.starts_with('.') {
        // Go's own rule for underscores applies here: one at a time, between digits.
        let is_valid = text.split('_').skip(1).all(|part| part.starts_with(|c: char| c.is_ascii_digit()))
            && text.rsplit('_').skip(1).all(|part| part.ends_with(|c: char| c.is_ascii_digit()));
        return if is_valid { float(&digits) } else { None };
    }
    integer(&digits).or_else(|| float(&digits)).or_else(|| odd_binary(&digits))
}

/// Parses an integer with Go's base prefixes: `0x1F`, `0o17`, `0b11`; `017` is octal.
fn integer<'t>(text: &str) -> Option<Scalar<'t>> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &unsigned[2..]),
        [b'0', b'o' | b'O', ..] => (8, &unsigned[2..]),
        [b'0', b'b' | b'B', ..] => (2, &unsigned[2..]),
        [b'0', _, ..] => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    // Rust's parser would accept a second sign.
    let value = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))?;
    match i64::try_from(if negative { -i128::from(value) } else { i128::from(value) }) {
        Ok(value) => Some(Scalar::Int(value)),
        Err(_) if text == unsigned => Some(Scalar::Uint(value)),
        Err(_) => None,
    }
}

/// Parses what follows `0b` as a signed number: in go-yaml `0b-1` is -1.
fn odd_binary<'t>(text: &str) -> Option<Scalar<'t>> {
    let digits = text.strip_prefix("0b")?;
    i64::from_str_radix(digits, 2).ok().map(Scalar::Int)
}

/// Parses a decimal float: digits with an optional point and exponent. A float outside the
/// range of `f64` is not a number.
fn float<'t>(text: &str) -> Option<Scalar<'t>> {
    // Rust's parser would accept `inf` and `nan`.
    let is_decimal = !text.contains(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E'));
    text.parse().ok().filter(|value: &f64| is_decimal && value.is_finite()).map(Scalar::Float)
}

/// The value of a scalar with an explicit tag, or why it has none.
pub(super) fn tagged<'t>(tag: &str, text: Cow<'t, str>) -> Result<Scalar<'t>, String> {
    match tag {
        "bool" | "int" | "float" | "null" | "timestamp" => {}
        "binary" => return base64(&text).map(|text| Scalar::Text(text.into())),
        // `!!str`, and every tag that go-yaml does not know.
        _ => return Ok(Scalar::Text(text)),
    }
    let value = plain(text.clone());
    match (tag, value) {
        ("null", Scalar::Null) => Ok(Scalar::Null),
        ("bool", value @ Scalar::Bool(_))
        | ("int", value @ (Scalar::Int(_) | Scalar::Uint(_)))
        | ("float", value @ Scalar::Float(_)) => Ok(value),
        #[allow(clippy::cast_precision_loss, reason = "the author asked for a float")]
        ("float", Scalar::Int(value)) => Ok(Scalar::Float(value as f64)),
        ("timestamp", Scalar::Text(text)) if super::time::is_yaml_timestamp(&text) => Ok(Scalar::Text(text)),
        _ => Err(format!("the value is not a !!{tag}")),
    }
}

/// The value of a `!!binary`. As in Go, line breaks and the spare bits of the last digit are ignored.
fn base64(text: &str) -> Result<String, String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
    );
    let bytes = LENIENT.decode(text.replace(['\r', '\n'], ""));
    bytes.map(|bytes| lossy(&bytes).into_owned()).map_err(|_| "a !!binary must be base64".to_owned())
}

/// A float as Go's `encoding/json` writes it.
fn json_float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format!("{value:e}");
        match text.split_once('e') {
            Some((mantissa, exponent)) if !exponent.starts_with('-') => format!("{mantissa}e+{exponent}"),
            _ => text,
        }
    } else {
        value.to_string()
    }
}

/// A float as sigs.k8s.io/yaml writes a key: Go's `%g` of its single precision.
fn key_float(value: f64) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "the kubelet's reader does so")]
    let single = value as f32;
    if single.is_nan() {
        return ".nan".to_owned();
    }
    if single.is_infinite() {
        return if single > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let text = format!("{single:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        exponent @ -4..=5 if single == 0.0 || exponent < 6 => single.to_string(),
        exponent => format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}
