//! Texts of others on their way to users: free of control characters, and not too long.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The API server's limit on `VolumeError.message`, in bytes.
pub const MAX_ERROR_BYTES: usize = 1024;

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

/// Replaces control characters and their like by blanks, so that a text stays on its line and in its order.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(is_unprintable) {
        Cow::Owned(text.replace(is_unprintable, " "))
    } else {
        Cow::Borrowed(text)
    }
}

/// A text as the error on a VolumeAttachment: on one line, and no longer than the API server takes. It may name a handle, or be what a
/// driver answered, and these have anything in them.
pub fn shown_error(text: &str) -> Cow<'_, str> {
    plain(cut(text, MAX_ERROR_BYTES))
}

/// Most bytes of an error that ends with a command, and of any error that an Event shows whole. The rest of [`MAX_ERROR_BYTES`] is for who
/// writes it: the ID of a trace behind it on the attachment, the attempt, the volume and the node before it in the Event.
pub const MAX_WHOLE_ERROR: usize = 768;

/// Most bytes of a handle in a text that goes on with what to do: that must not be what is cut off.
const MAX_SHOWN_HANDLE: usize = 256;

/// At how many bytes a name may be cut. Few, so that who hides names finds what is left of one that was cut.
const SHOWN_LENGTHS: [usize; 11] = [MAX_SHOWN_HANDLE, 192, 128, 96, 64, 48, 32, 24, 16, 12, 0];

/// What follows the beginning of a name that is not shown whole.
const MORE: &str = "...";

/// A handle, or another name that a stranger chose, in such a text.
pub fn shown_handle(handle: &str) -> Box<str> {
    shown(handle, MAX_SHOWN_HANDLE)
}

/// Names in a text that has `room` bytes for all of them: whole where they fit, else each that is longer than the others can do without is
/// cut, all of these at the same length.
pub fn shown_within<const N: usize>(names: [&str; N], room: usize) -> [Box<str>; N] {
    let size = |name: &str, most: usize| match name.len() {
        whole if whole <= most => whole,
        _ => most + MORE.len(),
    };
    let fits = |most: &usize| names.iter().map(|name| size(name, *most)).sum::<usize>() <= room;
    let most = SHOWN_LENGTHS.into_iter().find(fits).unwrap_or_default();
    names.map(|name| shown(name, most))
}

/// What texts may show of a name that is cut in them, longest first.
pub fn cut_forms(name: &str) -> impl Iterator<Item = Box<str>> {
    let lengths = SHOWN_LENGTHS.into_iter().filter(|most| *most > 0 && *most < name.len());
    lengths.map(|most| shown(name, most))
}

/// A text of at most [`MAX_WHOLE_ERROR`] bytes that ends with a command: the names in it are shortened to what the rest of it leaves, as
/// a command that is cut could be pasted as it stands.
pub(super) fn with_names<const N: usize>(names: [&str; N], text: impl Fn([&str; N]) -> String) -> String {
    let room = MAX_WHOLE_ERROR.saturating_sub(text([""; N]).len());
    let shown = shown_within(names, room);
    text(shown.each_ref().map(|name| &**name))
}

fn shown(name: &str, most: usize) -> Box<str> {
    match cut(name, most) {
        beginning if beginning.len() < name.len() => format!("{beginning}{MORE}").into(),
        whole => whole.into(),
    }
}

/// Cuts a text to at most `limit` bytes, on a character boundary.
pub fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
