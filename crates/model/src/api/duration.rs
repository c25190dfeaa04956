//! [`GoDuration`]: a duration written the way Go programs write it (`1m30s`), as users of Kubernetes expect.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest text the API server accepts for a duration. Go's own longest form of a positive value has 24 characters.
pub const MAX_TEXT_LENGTH: u32 = 32;

/// The syntax of Go's `time.ParseDuration` as a regular expression that RE2 (API server) and browsers both read.
pub const PATTERN: &str = "^[-+]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";

const NANOS_PER_MICRO: u64 = 1_000;
const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MINUTE: u64 = 60 * NANOS_PER_SECOND;
const NANOS_PER_HOUR: u64 = 60 * NANOS_PER_MINUTE;

/// Absolute value of the most negative duration, which is one more than the greatest positive one.
const MAGNITUDE_LIMIT: u64 = i64::MIN.unsigned_abs();

/// How much of a refused text an error repeats: enough to recognise it, too little to flood a status message.
const QUOTED_CHARS: usize = 40;

/// A span of time with nanosecond resolution in the range of Go's `time.Duration` (about ±292 years).
///
/// It parses and prints exactly as Go does, so `kubectl` users can write what they write elsewhere: a sequence of
/// decimal numbers, each with an optional fraction and a unit (`ns`, `us` or `µs`, `ms`, `s`, `m`, `h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a text is not a duration. The message quotes the start of the text and says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum DurationError {
    #[error("an empty text is not a duration; write a number with a unit, such as 30s or 1m30s")]
    Empty,
    #[error("{0:?} is not a duration: a number is missing; write a number with a unit, such as 30s or 1m30s")]
    MissingNumber(String),
    #[error("{0:?} is not a duration: a number has no unit; add one of ns, us, ms, s, m, h, such as 30s")]
    MissingUnit(String),
    #[error("{text:?} is not a duration: unknown unit {unit:?}; use ns, us, ms, s, m or h")]
    UnknownUnit { text: String, unit: String },
    #[error("{0:?} is too long for a duration; the limit is about 292 years (2562047h47m16s)")]
    OutOfRange(String),
}

impl GoDuration {
    /// A duration of whole seconds.
    pub const fn from_secs(seconds: u32) -> Self {
        // The widest u32 of seconds is 4.3e18 ns, below the limit of 9.2e18.
        Self(seconds as i64 * 1_000_000_000)
    }

    /// A duration of whole nanoseconds, which may be negative.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The same span as a standard duration, or `None` when it is negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        // Zero is the only number that needs no unit.
        if unsigned == "0" {
            return Ok(Self(0));
        }
        if unsigned.is_empty() {
            return Err(DurationError::Empty);
        }
        let mut magnitude = 0_u64;
        let mut rest = unsigned;
        while !rest.is_empty() {
            let (term, tail) = parse_term(text, rest)?;
            magnitude = magnitude.checked_add(term).ok_or_else(|| out_of_range(text))?;
            rest = tail;
        }
        let nanos = if negative {
            0_i64.checked_sub_unsigned(magnitude)
        } else {
            0_i64.checked_add_unsigned(magnitude)
        };
        nanos.map(Self).ok_or_else(|| out_of_range(text))
    }
}

/// Reads one number with its unit from the start of `rest`; returns its nanoseconds and what follows it.
fn parse_term<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let (whole, rest) = split_digits(rest);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after_point) => split_digits(after_point),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::MissingNumber(shorten(text)));
    }
    let unit_end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    if unit.is_empty() {
        return Err(DurationError::MissingUnit(shorten(text)));
    }
    let unit_nanos = nanos_per(unit).ok_or_else(|| DurationError::UnknownUnit {
        text: shorten(text),
        unit: shorten(unit),
    })?;
    // No digits before the point mean 0.
    let whole = if whole.is_empty() { "0" } else { whole };
    let nanos = whole
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(unit_nanos))
        .and_then(|nanos| nanos.checked_add(fraction_nanos(fraction, unit_nanos)))
        .filter(|nanos| *nanos <= MAGNITUDE_LIMIT)
        .ok_or_else(|| out_of_range(text))?;
    Ok((nanos, rest))
}

/// Splits the leading decimal digits off.
fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn nanos_per(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign U+00B5 and the Greek letter mu U+03BC look alike, and keyboards produce either.
        "us" | "\u{b5}s" | "\u{3bc}s" => NANOS_PER_MICRO,
        "ms" => NANOS_PER_MILLI,
        "s" => NANOS_PER_SECOND,
        "m" => NANOS_PER_MINUTE,
        "h" => NANOS_PER_HOUR,
        _ => return None,
    })
}

/// The nanoseconds in `0.<digits>` of a unit, rounded towards zero.
///
/// Go computes this in floating point and ignores digits that no longer fit 63 bits; the same is done here because
/// users see the result (`0.3333333333333333333h` is 20 minutes in Go).
fn fraction_nanos(digits: &str, unit_nanos: u64) -> u64 {
    const KEEP_BELOW: u64 = i64::MAX.unsigned_abs() / 10;
    let mut value = 0_u64;
    let mut scale = 1_f64;
    for digit in digits.bytes() {
        if value > KEEP_BELOW {
            break;
        }
        let next = value * 10 + u64::from(digit - b'0');
        if next > MAGNITUDE_LIMIT {
            break;
        }
        value = next;
        scale *= 10.0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the product is positive and less than one hour of nanoseconds; truncation is the wanted rounding"
    )]
    let nanos = (value as f64 * (unit_nanos as f64 / scale)) as u64;
    nanos
}

fn out_of_range(text: &str) -> DurationError {
    DurationError::OutOfRange(shorten(text))
}

fn shorten(text: &str) -> String {
    text.chars().take(QUOTED_CHARS).collect()
}

/// Go's form: the largest units first, no leading zero units, sub-second values in one unit (`1.5ms`).
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            1..NANOS_PER_MICRO => write!(f, "{nanos}ns"),
            NANOS_PER_MICRO..NANOS_PER_MILLI => decimal(f, nanos, NANOS_PER_MICRO, "\u{b5}s"),
            NANOS_PER_MILLI..NANOS_PER_SECOND => decimal(f, nanos, NANOS_PER_MILLI, "ms"),
            _ => {
                let (hours, minutes) = (nanos / NANOS_PER_HOUR, nanos / NANOS_PER_MINUTE % 60);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                decimal(f, nanos % NANOS_PER_MINUTE, NANOS_PER_SECOND, "s")
            }
        }
    }
}

/// Writes nanoseconds in a decimal unit, without trailing zeros.
fn decimal(f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", nanos / unit)?;
    let mut remainder = nanos % unit;
    if remainder > 0 {
        f.write_str(".")?;
    }
    let mut place = unit / 10;
    while remainder > 0 {
        write!(f, "{}", remainder / place)?;
        remainder %= place;
        place /= 10;
    }
    f.write_str(name)
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DurationVisitor;

        impl Visitor<'_> for DurationVisitor {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"30s\" or \"1m30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(DurationVisitor)
    }
}

impl JsonSchema for GoDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "GoDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": MAX_TEXT_LENGTH, "pattern": PATTERN })
    }
}
