//! How the text of a value is read into its place.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::flags::AlphaLogOption;
use super::gates;
use super::table::Flags;
use crate::api::GoDuration;
use crate::apiserver::RequestDeadlines;
use crate::cli::{ValueError, parse_duration};
use crate::telemetry::logs::LogFormat;

/// A field that holds the value of a flag.
pub(super) trait FlagValue {
    /// The default in the usage text; empty where none is shown.
    fn shown(&self) -> String {
        String::new()
    }

    fn read(&mut self, text: &str) -> Result<(), ValueError>;
}

impl FlagValue for String {
    fn shown(&self) -> String {
        self.clone()
    }

    fn read(&mut self, text: &str) -> Result<(), ValueError> {
        text.clone_into(self);
        Ok(())
    }
}

/// Nothing when the text is empty.
impl<T: for<'a> From<&'a str>> FlagValue for Option<T> {
    fn read(&mut self, text: &str) -> Result<(), ValueError> {
        *self = (!text.is_empty()).then(|| T::from(text));
        Ok(())
    }
}

macro_rules! number {
    ($($type:ty: $shown:expr, $written:expr;)*) => {$(
        impl FlagValue for $type {
            fn shown(&self) -> String {
                let shown: fn(&Self) -> String = $shown;
                shown(self)
            }

            fn read(&mut self, text: &str) -> Result<(), ValueError> {
                let written: fn(&str) -> Result<Cow<'_, str>, ValueError> = $written;
                *self = written(text)?
                    .parse()
                    .map_err(|error: <Self as FromStr>::Err| ValueError::Unreadable(error.to_string()))?;
                Ok(())
            }
        }
    )*};
}

number! {
    i32: ToString::to_string, decimal;
    i64: ToString::to_string, decimal;
    u32: ToString::to_string, decimal;
    f32: |_| String::new(), |text| Ok(text.into());
}

/// An integer as Go's `strconv.ParseInt` reads it with base 0, written with base 10: a prefix is a base, a zero in front is that of
/// base 8, and `_` may be between digits. What is no integer of base 10 is left as it is.
fn decimal(text: &str) -> Result<Cow<'_, str>, ValueError> {
    let digits = text.trim_start_matches(['+', '-']);
    let sign = &text[..text.len() - digits.len()];
    let lower = digits.to_ascii_lowercase();
    let bases = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)];
    let prefixed = bases
        .iter()
        .find_map(|(prefix, radix)| Some((lower.strip_prefix(prefix)?, *radix)))
        .filter(|_| lower != "0");
    // After a prefix an underscore may be first.
    let (rest, radix) = prefixed.map_or((&*lower, 10), |(rest, radix)| {
        (rest.strip_prefix('_').unwrap_or(rest), radix)
    });
    let is_digit = |digit: char| digit.is_digit(radix);
    let is_number = sign.len() < 2
        && rest
            .split('_')
            .all(|part| !part.is_empty() && part.chars().all(is_digit));
    match i128::from_str_radix(&rest.replace('_', ""), radix) {
        Ok(value) if is_number => Ok(format!("{sign}{value}").into()),
        _ if radix != 10 => Err(ValueError::Unreadable(format!("no integer of base {radix}"))),
        _ => Ok(text.into()),
    }
}

impl FlagValue for Duration {
    fn shown(&self) -> String {
        GoDuration::from_nanos(i64::try_from(self.as_nanos()).unwrap_or(i64::MAX)).to_string()
    }

    fn read(&mut self, text: &str) -> Result<(), ValueError> {
        *self = ValueError::duration(text)?;
        Ok(())
    }
}

/// One duration for all requests.
impl FlagValue for RequestDeadlines {
    fn read(&mut self, text: &str) -> Result<(), ValueError> {
        *self = parse_duration(text)?.into();
        Ok(())
    }
}

/// Go's `strconv.ParseBool`.
impl FlagValue for bool {
    fn read(&mut self, text: &str) -> Result<(), ValueError> {
        *self = match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => return Err(ValueError::NoneOf("true or false")),
        };
        Ok(())
    }
}

impl FlagValue for LogFormat {
    fn shown(&self) -> String {
        "text".to_owned()
    }

    fn read(&mut self, text: &str) -> Result<(), ValueError> {
        *self = match text {
            "text" => Self::Text,
            "json" => Self::Json,
            _ => return Err(ValueError::NoneOf("text or json")),
        };
        Ok(())
    }
}

/// Several flags add up, as they do for the sidecar.
impl FlagValue for BTreeMap<String, String> {
    fn read(&mut self, text: &str) -> Result<(), ValueError> {
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match item.split_once(':') {
                Some((key, label)) if !label.contains(':') => {
                    self.insert(key.trim().to_owned(), label.trim().to_owned());
                }
                _ => return Err(ValueError::NotAPair(item.to_owned())),
            }
        }
        Ok(())
    }
}

pub(super) fn positive(target: &mut Duration, text: &str) -> Result<(), ValueError> {
    *target = parse_duration(text)?;
    Ok(())
}

/// A duration of which nothing depends, negative ones included, as Go reads it.
pub(super) fn any_duration(text: &str) -> Result<(), ValueError> {
    let read = text.parse::<GoDuration>().map(drop);
    read.map_err(|error| ValueError::Unreadable(error.to_string()))
}

/// A text that may be empty.
#[allow(clippy::unnecessary_wraps, reason = "all readers have one type")]
pub(super) fn any_text(target: &mut Option<String>, text: &str) -> Result<(), ValueError> {
    *target = Some(text.to_owned());
    Ok(())
}

/// Reads feature gates, and notes the names that the sidecar refuses.
pub(super) fn gates(flags: &mut Flags, value: &str) -> Result<(), ValueError> {
    for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let Some((name, setting)) = item.split_once('=') else {
            return Err(ValueError::GateWithoutValue(item.to_owned()));
        };
        false.read(setting.trim())?;
        let name = name.trim();
        if !gates::is_known(name) {
            flags.unknown_gates.insert(name.to_owned());
        }
    }
    Ok(())
}

/// Notes whether an alpha option has another value than its default. The last of several values counts.
fn alpha(flags: &mut Flags, option: AlphaLogOption, other: bool) {
    if other {
        flags.alpha_log_options.insert(option);
    } else {
        flags.alpha_log_options.remove(&option);
    }
}

pub(super) fn split_stream(flags: &mut Flags, option: AlphaLogOption, value: &str) -> Result<(), ValueError> {
    let mut split = false;
    split.read(value)?;
    alpha(flags, option, split);
    Ok(())
}

pub(super) fn buffer_size(flags: &mut Flags, option: AlphaLogOption, value: &str) -> Result<(), ValueError> {
    alpha(flags, option, !is_zero(value)?);
    Ok(())
}

/// Whether a quantity of Kubernetes, such as `8Ki`, is zero. An error has the text of its parser.
fn is_zero(quantity: &str) -> Result<bool, ValueError> {
    const SUFFIXES: [&str; 16] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    let unsigned = quantity.strip_prefix(['+', '-']).unwrap_or(quantity);
    let digits = |text: &str| text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let whole = digits(unsigned);
    let behind = unsigned[whole..].strip_prefix('.').map_or(0, |rest| 1 + digits(rest));
    let (number, suffix) = unsigned.split_at(whole + behind);
    let letters = suffix.trim_start_matches(|letter: char| "eEinumkKMGTP".contains(letter));
    let exponent = letters.strip_prefix(['+', '-']).unwrap_or(letters);
    if quantity.is_empty() || digits(exponent) < exponent.len() {
        return Err(ValueError::NotAQuantity);
    }
    let is_exponent = |rest: &str| {
        let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        !rest.is_empty() && digits(rest) == rest.len()
    };
    let known = SUFFIXES.contains(&suffix) || suffix.strip_prefix(['e', 'E']).is_some_and(is_exponent);
    if !known {
        return Err(ValueError::UnknownSuffix);
    }
    Ok(number.chars().all(|letter| "0.".contains(letter)))
}
