//! How answers are printed: as a tree, a table, JSON, YAML or names.

mod style;
mod table;
mod tree;

pub use style::Style;
pub use table::Table;
pub use tree::{headline, tree};

use jiff::Timestamp;
use serde::Serialize;
use std::time::Duration;

use crate::error::{PluginError, Result};

/// A value as JSON, with a newline.
pub fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| PluginError::Output(error.to_string()))?;
    Ok(format!("{text}\n"))
}

/// A value as YAML.
pub fn yaml(value: &impl Serialize) -> Result<String> {
    serde_yaml::to_string(value).map_err(|error| PluginError::Output(error.to_string()))
}

/// A time span as kubectl prints it: `45s`, `3m20s`, `2h5m`, `4d3h`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |large: u64, unit: char, small: u64, part: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{part}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => two(minutes, 'm', seconds % 60, 's'),
        (0, hours, minutes) => two(hours, 'h', minutes, 'm'),
        (days, hours, _) => two(days, 'd', hours, 'h'),
    }
}

/// How long ago something was; nothing is in the future.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    span(csi_attacher_model::findings::age(then, now))
}

#[cfg(test)]
mod tests {
    use super::span;
    use std::time::Duration;

    #[test]
    fn spans() {
        let rows = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (200, "3m20s"),
            (3_600, "1h"),
            (7_500, "2h5m"),
            (356_400, "4d3h"),
        ];
        for (seconds, text) in rows {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
