//! How the text of a value is read into its place.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::flags::{AlphaLogOption, Flags};
use crate::cli::{Format, ValueError};

#[allow(clippy::unnecessary_wraps, reason = "all readers have one type")]
pub(super) fn text(target: &mut String, value: &str) -> Result<(), ValueError> {
    value.clone_into(target);
    Ok(())
}

pub(super) fn number<T: FromStr<Err: ToString>>(target: &mut T, value: &str) -> Result<(), ValueError> {
    *target = value
        .parse()
        .map_err(|error: T::Err| ValueError::Unreadable(error.to_string()))?;
    Ok(())
}

pub(super) fn span(target: &mut Duration, value: &str) -> Result<(), ValueError> {
    *target = ValueError::duration(value)?;
    Ok(())
}

pub(super) fn positive(target: &mut Duration, value: &str) -> Result<(), ValueError> {
    span(target, value)?;
    if target.is_zero() {
        return Err(ValueError::Zero);
    }
    Ok(())
}

/// Go's `strconv.ParseBool`.
pub(super) fn boolean(target: &mut bool, value: &str) -> Result<(), ValueError> {
    *target = match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
        "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
        _ => return Err(ValueError::NoneOf("true or false")),
    };
    Ok(())
}

pub(super) fn format(flags: &mut Flags, value: &str) -> Result<(), ValueError> {
    flags.log_format = Some(match value {
        "text" => Format::Text,
        "json" => Format::Json,
        _ => return Err(ValueError::NoneOf("text or json")),
    });
    Ok(())
}

/// Several flags add up, as they do for the sidecar.
pub(super) fn labels(target: &mut BTreeMap<String, String>, value: &str) -> Result<(), ValueError> {
    for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        match item.split_once(':') {
            Some((key, label)) if !label.contains(':') => {
                target.insert(key.trim().to_owned(), label.trim().to_owned());
            }
            _ => return Err(ValueError::NotAPair(item.to_owned())),
        }
    }
    Ok(())
}

pub(super) fn gates(value: &str) -> Result<(), ValueError> {
    for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let Some((_, setting)) = item.split_once('=') else {
            return Err(ValueError::GateWithoutValue(item.to_owned()));
        };
        boolean(&mut false, setting.trim())?;
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
    boolean(&mut split, value)?;
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
