//! Characters that terminals and readers of lines act upon instead of showing them.

use std::fmt::Write as _;

/// Whether a character is a control one (C0, DEL and C1), ends a line or a paragraph (U+2028, U+2029), or turns the direction of the text
/// around it (the bidi controls of UAX #9).
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// JSON in which every one of them in a string is escaped. JSON itself asks that of those below U+0020 only.
pub fn escaped_json(json: &str) -> String {
    json.chars()
        .fold(String::with_capacity(json.len()), |mut text, character| {
            if is_unprintable(character) && character != '\n' {
                // All of them have four digits. Writing to a String cannot fail.
                let _written = write!(text, "\\u{:04x}", u32::from(character));
            } else {
                text.push(character);
            }
            text
        })
}
