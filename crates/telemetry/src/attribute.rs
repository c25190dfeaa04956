//! Attribute values of spans and the cleaning every string goes through before it may leave the process.
//!
//! Values borrow from the caller, so that a disabled or unsampled span costs no allocation. This module must not decide
//! what is secret: callers hand over only what may be seen.

use std::borrow::Cow;

use csi_attacher_model::decide::is_unprintable;
use opentelemetry::{Array, StringValue, Value};

/// Bytes a string value may have when the environment sets no limit.
pub const DEFAULT_VALUE_LENGTH_LIMIT: usize = 4096;

/// Value of one span attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttrValue<'a> {
    /// Text; cleaned and cut when recorded.
    Str(Cow<'a, str>),
    /// Whole number.
    I64(i64),
    /// A floating point number; durations are in seconds.
    F64(f64),
    /// Truth value.
    Bool(bool),
    /// Array of text; each element is cleaned and cut when recorded.
    StrArray(Cow<'a, [String]>),
}

/// One attribute: key from [`crate::names::attr`] and value.
pub type Attribute<'a> = (&'static str, AttrValue<'a>);

macro_rules! from {
    ($($type:ty: $value:ident => $attribute:expr;)*) => {$(
        impl<'a> From<$type> for AttrValue<'a> {
            fn from($value: $type) -> Self {
                $attribute
            }
        }
    )*};
}

// A duration is recorded in seconds.
from! {
    &'a str: text => Self::Str(Cow::Borrowed(text));
    &'a String: text => Self::Str(Cow::Borrowed(text));
    String: text => Self::Str(Cow::Owned(text));
    Cow<'a, str>: text => Self::Str(text);
    i64: number => Self::I64(number);
    u32: number => Self::I64(i64::from(number));
    usize: number => Self::I64(i64::try_from(number).unwrap_or(i64::MAX));
    f64: number => Self::F64(number);
    std::time::Duration: time => Self::F64(time.as_secs_f64());
    bool: truth => Self::Bool(truth);
    &'a [String]: texts => Self::StrArray(Cow::Borrowed(texts));
    Vec<String>: texts => Self::StrArray(Cow::Owned(texts));
}

impl AttrValue<'_> {
    /// The value the SDK stores: strings cleaned by [`clean`].
    pub(super) fn into_otel(self, limit: usize) -> Value {
        match self {
            Self::Str(text) => Value::String(clean_owned(text, limit).into()),
            Self::I64(number) => Value::I64(number),
            Self::F64(number) => Value::F64(number),
            Self::Bool(truth) => Value::Bool(truth),
            Self::StrArray(texts) => {
                let cleaned = texts
                    .iter()
                    .map(|text| StringValue::from(clean(text, limit).into_owned()));
                Value::Array(Array::String(cleaned.collect()))
            }
        }
    }
}

fn clean_owned(text: Cow<'_, str>, limit: usize) -> String {
    if text.len() <= limit && !text.contains(is_unprintable) {
        return text.into_owned();
    }
    clean(&text, limit).into_owned()
}

/// Strips [what terminals act upon](is_unprintable) and cuts the rest to at most `limit` bytes on a character boundary.
///
/// The OpenTelemetry limit counts characters; counting bytes is stricter for text outside ASCII and bounds memory.
pub fn clean(text: &str, limit: usize) -> Cow<'_, str> {
    if text.contains(is_unprintable) {
        let mut cleaned = String::with_capacity(text.len().min(limit));
        for character in text.chars().filter(|character| !is_unprintable(*character)) {
            if cleaned.len() + character.len_utf8() > limit {
                break;
            }
            cleaned.push(character);
        }
        return Cow::Owned(cleaned);
    }
    Cow::Borrowed(&text[..text.floor_char_boundary(limit)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn clean_keeps_the_longest_printable_prefix(text in ".{0,64}|[a-z\u{0}-\u{20}é\u{1F600}]{0,64}", limit in 0usize..80) {
            let cleaned = clean(&text, limit);
            let printable: String = text.chars().filter(|c| !is_unprintable(*c)).collect();
            prop_assert!(cleaned.len() <= limit);
            prop_assert!(printable.starts_with(cleaned.as_ref()));
            // Nothing more would have fitted: the next character would cross the limit.
            if let Some(next) = printable[cleaned.len()..].chars().next() {
                prop_assert!(cleaned.len() + next.len_utf8() > limit);
            }
            prop_assert_eq!(clean_owned(Cow::Borrowed(&text), limit), cleaned.into_owned());
        }
    }

    #[test]
    fn arrays_are_cleaned_element_by_element() {
        let value = AttrValue::from(vec!["a\nb".to_owned(), "éé".to_owned()]).into_otel(3);
        assert_eq!(value, Value::Array(Array::String(vec!["ab".into(), "é".into()])));
    }

    #[test]
    fn numbers_and_durations_keep_their_type() {
        assert_eq!(AttrValue::from(7usize).into_otel(1), Value::I64(7));
        assert_eq!(
            AttrValue::from(std::time::Duration::from_millis(250)).into_otel(1),
            Value::F64(0.25)
        );
        assert_eq!(AttrValue::from(true).into_otel(1), Value::Bool(true));
    }
}
