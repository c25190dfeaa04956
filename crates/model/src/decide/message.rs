//! Texts of others on their way to users: free of control characters, and not too long.

use std::borrow::Cow;

use super::unprintable::is_unprintable;

/// The API server's limit on `VolumeError.message`, in bytes.
pub const MAX_ERROR_BYTES: usize = 1024;

/// Replaces control characters and their like by blanks, so that a text stays on its line and in its order.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_unprintable) {
        Cow::Owned(
            text.chars()
                .map(|character| if is_unprintable(character) { ' ' } else { character })
                .collect(),
        )
    } else {
        Cow::Borrowed(text)
    }
}

/// A text as the error on a VolumeAttachment: on one line, and no longer than the API server takes. It may name a handle, or be what a
/// driver answered, and these have anything in them.
pub fn shown_error(text: &str) -> Cow<'_, str> {
    plain(cut(text, MAX_ERROR_BYTES))
}

/// Most bytes of a handle in a text that goes on with what to do: that must not be what is cut off.
pub(super) const MAX_SHOWN_HANDLE: usize = 256;

/// A handle in such a text.
pub fn shown_handle(handle: &str) -> Box<str> {
    match cut(handle, MAX_SHOWN_HANDLE) {
        beginning if beginning.len() < handle.len() => format!("{beginning}...").into(),
        whole => whole.into(),
    }
}

/// Cuts a text to at most `limit` bytes, on a character boundary.
pub fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
