//! How answers are printed: as a tree, a table, JSON, YAML or names.

mod style;
mod table;
mod text;
mod tree;
mod yaml;

pub use style::{Painted, Style};
pub use table::Table;
pub use text::Text;
pub use tree::tree;
pub use yaml::yaml;

use csi_attacher_model::decide::escaped_json;
use jiff::Timestamp;
use serde::Serialize;
use std::time::Duration;

use crate::error::{PluginError, Result};

pub fn json(value: &impl Serialize) -> Result<Text> {
    let json = serde_json::to_string_pretty(value).map_err(|error| PluginError::Output(error.to_string()))?;
    Ok(Text::of_lines(&escaped_json(&json)))
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
    use super::{json, span, yaml};
    use csi_attacher_model::decide::is_unprintable;
    use std::time::Duration;

    /// Programs get a text as it is, and a terminal none of its control characters.
    #[test]
    fn serialised_texts_are_whole() {
        let value = serde_json::json!({"message": "busy\n\u{1b}[31mFAKE\u{9b}0m\u{7f}\u{202e}"});
        let (json, yaml) = (json(&value).unwrap(), yaml(&value).unwrap());
        for text in [&json, &yaml] {
            let text = text.as_str();
            assert!(text.ends_with('\n'), "{text:?}");
            assert!(text.lines().all(|line| !line.contains(is_unprintable)), "{text:?}");
        }
        assert_eq!(serde_json::from_str::<serde_json::Value>(json.as_str()).unwrap(), value);
        assert_eq!(serde_yaml::from_str::<serde_json::Value>(yaml.as_str()).unwrap(), value);
    }

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
