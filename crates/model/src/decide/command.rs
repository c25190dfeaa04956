//! Commands in messages, which a person may paste into a shell. What a stranger named, such as a handle or a node ID, has anything in it,
//! and comes into a command by [`command_word`] alone.

/// Most bytes of a word in a command of a message. Node IDs and handles of drivers have up to 150, names of VolumeAttachments 68.
const MAX_COMMAND_WORD: usize = 160;

/// A word of a stranger in a command, if a shell takes it as it is and it is no flag; else the `placeholder`, as runbooks have it, such as
/// `ID`. So is one that is too long for a message.
pub fn command_word<'a>(word: &'a str, placeholder: &'a str) -> &'a str {
    if word.len() <= MAX_COMMAND_WORD && is_plain_word(word) && !word.starts_with('-') {
        word
    } else {
        placeholder
    }
}

/// Whether a shell takes each word of a whole command as it is, but for the quoted patch at its end, and no word is a flag but these: a
/// name with a blank in it may look like more words.
pub fn is_plain_command(command: &str, flags: &[&str]) -> bool {
    let (words, patch) = match command.split_once(" -p '") {
        Some((words, patch)) => (words, Some(patch)),
        None => (command, None),
    };
    let is_word = |word: &str| match word {
        "" => true,
        flag if flag.starts_with('-') => flags.contains(&flag),
        word => is_plain_word(word),
    };
    let is_json = |byte: u8| byte.is_ascii_alphanumeric() || b"{}[]\":,.- ".contains(&byte);
    let is_quoted = |patch: &str| patch.strip_suffix('\'').is_some_and(|json| json.bytes().all(is_json));
    words.split(' ').all(is_word) && patch.is_none_or(is_quoted)
}

/// Whether a word means nothing to a shell but itself.
fn is_plain_word(word: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/=@,-".contains(&byte);
    !word.is_empty() && word.bytes().all(is_plain)
}
