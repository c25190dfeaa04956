//! How the text of a value is read into its place.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::flags::{AlphaLogOption, Flags};
use crate::api::GoDuration;
use crate::cli::Format;

#[allow(clippy::unnecessary_wraps, reason = "all readers have one type")]
pub(super) fn text(target: &mut String, value: &str) -> Result<(), String> {
    value.clone_into(target);
    Ok(())
}

pub(super) fn number<T: FromStr<Err: ToString>>(target: &mut T, value: &str) -> Result<(), String> {
    *target = value.parse().map_err(|error: T::Err| error.to_string())?;
    Ok(())
}

pub(super) fn span(target: &mut Duration, value: &str) -> Result<(), String> {
    let parsed: GoDuration = value.parse().map_err(|error| format!("{error}"))?;
    *target = parsed.to_std().ok_or("must not be negative")?;
    Ok(())
}

pub(super) fn positive(target: &mut Duration, value: &str) -> Result<(), String> {
    span(target, value)?;
    if target.is_zero() {
        return Err("must be greater than zero".to_owned());
    }
    Ok(())
}

/// Go's `strconv.ParseBool`.
pub(super) fn boolean(target: &mut bool, value: &str) -> Result<(), String> {
    *target = match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
        "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
        _ => return Err("must be true or false".to_owned()),
    };
    Ok(())
}

pub(super) fn format(flags: &mut Flags, value: &str) -> Result<(), String> {
    flags.log_format = Some(match value {
        "text" => Format::Text,
        "json" => Format::Json,
        _ => return Err("must be text or json".to_owned()),
    });
    Ok(())
}

/// Several flags add up, as they do for the sidecar.
pub(super) fn labels(target: &mut BTreeMap<String, String>, value: &str) -> Result<(), String> {
    for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        match item.split_once(':') {
            Some((key, label)) if !label.contains(':') => {
                target.insert(key.trim().to_owned(), label.trim().to_owned());
            }
            _ => return Err(format!("{item:?} is not of the form key:value")),
        }
    }
    Ok(())
}

pub(super) fn gates(value: &str) -> Result<(), String> {
    for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let Some((_, setting)) = item.split_once('=') else {
            return Err(format!("missing bool value for {item}"));
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

pub(super) fn split_stream(flags: &mut Flags, option: AlphaLogOption, value: &str) -> Result<(), String> {
    let mut split = false;
    boolean(&mut split, value)?;
    alpha(flags, option, split);
    Ok(())
}

pub(super) fn buffer_size(flags: &mut Flags, option: AlphaLogOption, value: &str) -> Result<(), String> {
    alpha(flags, option, !is_zero(value)?);
    Ok(())
}

/// Whether a quantity of Kubernetes, such as `8Ki`, is zero. An error has the text of its parser.
fn is_zero(quantity: &str) -> Result<bool, String> {
    const FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
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
        return Err(FORM.to_owned());
    }
    let is_exponent = |rest: &str| {
        let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        !rest.is_empty() && digits(rest) == rest.len()
    };
    let known = SUFFIXES.contains(&suffix) || suffix.strip_prefix(['e', 'E']).is_some_and(is_exponent);
    if !known {
        return Err("unable to parse quantity's suffix".to_owned());
    }
    Ok(number.chars().all(|letter| "0.".contains(letter)))
}
