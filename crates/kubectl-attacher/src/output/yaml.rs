//! YAML that all readers take for the same. kubectl, helm and PyYAML read version 1.1, in which more words than in 1.2 are no texts: `on` is
//! true, `12:30` a number and `2026-10-09` a date. So what is not clearly a text has the quotation marks and escapes of JSON.

use csi_attacher_model::decide::escaped_json;
use serde::Serialize;
use serde_yaml::Value;

use super::Text;
use crate::error::{PluginError, Result};

/// What begins with a letter, and is no text in YAML 1.1, however it is written.
const WORDS: [&str; 9] = ["y", "yes", "on", "true", "n", "no", "off", "false", "null"];

pub fn yaml(value: &impl Serialize) -> Result<Text> {
    let value = serde_yaml::to_value(value).map_err(|error| PluginError::Output(error.to_string()))?;
    let mut text = String::new();
    put(&mut text, &value, 0, false)?;
    Ok(Text::of_lines(text.trim_start()))
}

/// Adds a value behind its key, or behind the dash of an item, on whose line it begins.
fn put(text: &mut String, value: &Value, indent: usize, is_item: bool) -> Result<()> {
    let begin = |text: &mut String, index: usize| {
        if is_item && index == 0 {
            text.push(' ');
        } else {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
        }
    };
    match value {
        Value::Mapping(entries) if !entries.is_empty() => {
            for (index, (key, value)) in entries.iter().enumerate() {
                begin(text, index);
                text.push_str(&scalar(key)?);
                text.push(':');
                // The dashes of a list stand below its key.
                let indent = if value.is_sequence() { indent } else { indent + 2 };
                put(text, value, indent, false)?;
            }
        }
        Value::Sequence(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                begin(text, index);
                text.push('-');
                put(text, item, indent + 2, true)?;
            }
        }
        _ => {
            text.push(' ');
            text.push_str(&scalar(value)?);
        }
    }
    Ok(())
}

fn scalar(value: &Value) -> Result<String> {
    match value {
        Value::String(text) if is_clear(text) => Ok(text.clone()),
        other => {
            let json = serde_json::to_string(other).map_err(|error| PluginError::Output(error.to_string()))?;
            Ok(escaped_json(&json))
        }
    }
}

/// Whether a text without quotation marks is that text to every reader.
fn is_clear(text: &str) -> bool {
    let is_word = |word: &&str| word.eq_ignore_ascii_case(text);
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && !text.ends_with(' ')
        && !WORDS.iter().any(is_word)
        && text
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || " -_./,()'=@+".contains(character))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_some_reader_takes_for_something_else_is_quoted() {
        let clear = ["node1", "csi-4ee2.x/y_z", "a b, c (d)", "nobody", "yes-1", "it's"];
        let quoted = [
            "on", "Off", "YES", "no", "y", "N", "true", "Null", "~", "", "1_000", "12:30", "1e3", "0x10", "012",
            ".inf", "=", "-a", "a: b", "a:", "a #b", "a ", " a", "[a]", "a\tb", "d\u{e9}", "\"a\"", "a\\b",
        ];
        for text in clear {
            assert_eq!(yaml(&text).unwrap().as_str(), format!("{text}\n"));
        }
        for text in quoted.into_iter().chain(["2026-10-09", "a\u{202e}b"]) {
            let shown = yaml(&text).unwrap();
            assert!(shown.as_str().starts_with('"'), "{text:?}");
            assert_eq!(serde_yaml::from_str::<String>(shown.as_str()).unwrap(), text);
        }
    }

    #[test]
    fn objects_and_lists_stand_as_kubectl_prints_them() {
        let value = json!({
            "kind": "Pod",
            "names": ["on", "b"],
            "rest": {"empty": {}, "none": []},
            "steps": [{"at": 1, "by": ["a"]}, {"at": null, "is": {"in": true}}],
        });
        let lines = [
            "kind: Pod",
            "names:",
            "- \"on\"",
            "- b",
            "rest:",
            "  empty: {}",
            "  none: []",
            "steps:",
            "- at: 1",
            "  by:",
            "  - a",
            "- at: null",
            "  is:",
            "    in: true",
        ];
        let shown = yaml(&value).unwrap();
        assert_eq!(shown.as_str(), lines.join("\n") + "\n");
        assert_eq!(
            serde_yaml::from_str::<serde_json::Value>(shown.as_str()).unwrap(),
            value
        );
    }
}
