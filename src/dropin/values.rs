//! How the text of a value is read into its place.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::flags::Flags;
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
