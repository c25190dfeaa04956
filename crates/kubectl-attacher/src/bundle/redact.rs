//! Secrets out of objects and texts.
//!
//! Secrets themselves are never read. What drivers and users put elsewhere is: values that a driver chose (volume attributes, publish
//! context) are left out whatever they are, as are annotations of others, and texts lose what looks like a credential.

use serde_json::Value;

/// In the place of what is left out.
const REDACTED: &str = "<redacted>";
/// Annotations and labels whose values are kept: ours, and those that say which driver or plug-in is meant.
const KEPT_PREFIXES: [&str; 5] = [
    "attacher.csi.dev/",
    "csi.alpha.kubernetes.io/",
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volumes.kubernetes.io/",
];
/// Words before a value that is left out.
const NAMES: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "credentials",
    "apikey",
    "api_key",
    "access_key",
    "authorization",
];

/// Takes secrets out of an object, in place.
pub fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("managedFields");
            for (key, value) in fields.iter_mut() {
                match key.as_str() {
                    "volumeAttributes" | "attachmentMetadata" | "data" | "stringData" | "options" => blank(value),
                    "annotations" => annotations(value),
                    "env" | "envFrom" | "args" | "command" => *value = REDACTED.into(),
                    _ => redact(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::String(text) => *text = redact_text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Leaves keys, and no values.
fn blank(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| *value = REDACTED.into()),
        Value::Null => {}
        other => *other = REDACTED.into(),
    }
}

fn annotations(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    for (key, value) in fields.iter_mut() {
        if KEPT_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
            redact(value);
        } else {
            *value = REDACTED.into();
        }
    }
}

/// Takes out of a text what looks like a credential: a value after a name of one, a bearer token, a JSON web token, a key in PEM.
pub fn redact_text(text: &str) -> String {
    if text.contains("-----BEGIN") {
        return REDACTED.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Whether the next word is a value to leave out.
    let mut next_is_secret = false;
    while !rest.is_empty() {
        let end = rest.find(is_separator).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let lower = word.to_ascii_lowercase();
        if !word.is_empty() {
            let is_name = NAMES.iter().any(|name| lower.ends_with(name));
            let assigned = tail.trim_start_matches(['"', '\'', '\\']).starts_with(['=', ':']);
            if next_is_secret && !(lower == "bearer" || lower == "basic") {
                out.push_str(REDACTED);
                next_is_secret = false;
            } else if is_web_token(word) {
                out.push_str(REDACTED);
            } else {
                out.push_str(word);
                next_is_secret = next_is_secret || lower == "bearer" || (is_name && assigned);
            }
        }
        let separators = tail.find(|character| !is_separator(character)).unwrap_or(tail.len());
        out.push_str(&tail[..separators]);
        rest = &tail[separators..];
    }
    out
}

fn is_separator(character: char) -> bool {
    character.is_whitespace()
        || matches!(
            character,
            '=' | ':' | ',' | ';' | '"' | '\'' | '&' | '?' | '{' | '}' | '[' | ']' | '(' | ')' | '\\'
        )
}

fn is_web_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.len() > 20
}
