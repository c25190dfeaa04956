//! Texts of others on their way to users: free of secrets, of control characters, and not too long.

use std::borrow::Cow;

/// The API server's limit on `VolumeError.message`, in bytes.
pub const MAX_ERROR_BYTES: usize = 1024;

/// Values shorter than this are left alone: scrubbing "1" from a message would destroy it and hide nothing.
const SHORTEST_SECRET: usize = 4;

const STRIPPED: &str = "***stripped***";

/// Replaces each of the secret values of a call in a text of the driver.
///
/// Longer values go first, so that one that contains another leaves no rest behind. Blanks and line ends around a value
/// do not count: a secret made from a file often ends in one, which the driver trims. Of a secret of several lines, such as
/// a key in PEM form, each line is looked for as well.
pub fn scrub<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let whole_and_lines = |secret: &'a str| std::iter::once(secret).chain(secret.lines());
    let mut values: Vec<&str> = secrets
        .into_iter()
        .flat_map(whole_and_lines)
        .map(str::trim)
        .filter(|value| value.len() >= SHORTEST_SECRET)
        .collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values
        .into_iter()
        .fold(text.to_owned(), |text, value| text.replace(value, STRIPPED))
}

/// Replaces control characters by blanks, so that a text stays on its line.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        Cow::Owned(
            text.chars()
                .map(|character| if character.is_control() { ' ' } else { character })
                .collect(),
        )
    } else {
        Cow::Borrowed(text)
    }
}

/// Cuts a text to at most `limit` bytes, on a character boundary.
pub fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
