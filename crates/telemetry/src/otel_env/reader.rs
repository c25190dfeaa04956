//! Reads single variables: what counts as set, and what costs a warning.

use std::time::Duration;

use super::Environment;
use super::variables::VARIABLES;

/// Longest time a variable may ask for; anything longer is a mistake in the unit.
const MAX_MILLISECONDS: u64 = 24 * 60 * 60 * 1000;
const MAX_QUEUE_SIZE: usize = 1 << 20;

/// An environment that is being read, and what was wrong with it so far.
pub(super) struct EnvironmentReader<'a> {
    environment: &'a Environment,
    pub warnings: Vec<String>,
}

impl<'a> EnvironmentReader<'a> {
    pub fn new(environment: &'a Environment) -> Self {
        Self {
            environment,
            warnings: Vec::new(),
        }
    }

    /// The trimmed value; empty counts as unset.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        debug_assert!(VARIABLES.contains(&name), "{name} is not in the list");
        self.environment
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    pub fn warn(&mut self, name: &str, reason: impl std::fmt::Display) {
        self.warnings.push(format!("{name} is ignored: {reason}"));
    }

    /// The first of `names` that is set and that `read` accepts; each that it refuses costs a warning.
    pub fn first<T>(&mut self, names: &[&str], expected: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        for name in names {
            let Some(value) = self.text(name) else { continue };
            match read(value) {
                Some(read) => return Some(read),
                None => self.warn(name, format_args!("expected {expected}")),
            }
        }
        None
    }

    pub fn boolean(&mut self, names: &[&str]) -> bool {
        let read = |value: &str| match value.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        self.first(names, "true or false", read).unwrap_or(false)
    }

    pub fn milliseconds(&mut self, names: &[&str], default: u64) -> Duration {
        let read = |value: &str| {
            value
                .parse()
                .ok()
                .filter(|number| (1..=MAX_MILLISECONDS).contains(number))
        };
        Duration::from_millis(
            self.first(names, "milliseconds from 1 to one day", read)
                .unwrap_or(default),
        )
    }

    pub fn count(&mut self, names: &[&str], default: u32) -> u32 {
        self.first(names, "a whole number from 0", |value| value.parse().ok())
            .unwrap_or(default)
    }

    pub fn size(&mut self, name: &str, default: usize) -> usize {
        let read = |value: &str| {
            value
                .parse()
                .ok()
                .filter(|number| (1..=MAX_QUEUE_SIZE).contains(number))
        };
        self.first(&[name], "a whole number from 1 to 1048576", read)
            .unwrap_or(default)
    }

    pub fn list(&self, name: &str) -> Option<Vec<String>> {
        let entries = self
            .text(name)?
            .split(',')
            .map(|entry| entry.trim().to_ascii_lowercase());
        Some(entries.filter(|entry| !entry.is_empty()).collect())
    }
}

/// W3C baggage syntax without properties: `key=value` pairs separated by commas, values percent-encoded. One pair that
/// cannot be read makes the whole text unusable, as the specification asks.
pub(super) fn key_values(text: &str) -> Option<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (key, value) = entry.split_once('=')?;
        let key = percent_decode(key.trim())?;
        if key.is_empty() {
            return None;
        }
        pairs.push((key, percent_decode(value.trim())?));
    }
    Some(pairs)
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let high = char::from(digits[0]).to_digit(16)?;
        let low = char::from(digits[1]).to_digit(16)?;
        bytes.push(u8::try_from(high * 16 + low).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}
