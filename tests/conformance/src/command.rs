//! The command of an attacher, with places to fill in.

use std::fmt;

/// Flags that the suite adds stand for this word, or come last when the command lacks it.
const FLAGS: &str = "{flags}";

/// A command as words, some with placeholders such as `{socket}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    words: Vec<String>,
}

/// A command line that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// There is no word in it.
    Empty,
    /// A quote is opened and never closed.
    Unclosed(char),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the command is empty"),
            Self::Unclosed(quote) => write!(f, "the quote {quote} is never closed"),
        }
    }
}

impl Template {
    /// A command that is in words already.
    pub fn of(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            words: words.into_iter().map(Into::into).collect(),
        }
    }

    /// Splits a command line as a shell does: blanks part words, quotes and backslashes keep them together. Nothing is
    /// expanded.
    pub fn parse(line: &str) -> Result<Self, TemplateError> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quote = None;
        let mut characters = line.chars();
        while let Some(character) = characters.next() {
            match (quote, character) {
                (Some(open), _) if open == character => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(character);
                    word.get_or_insert_default();
                }
                (None | Some('"'), '\\') => word.get_or_insert_default().extend(characters.next()),
                (None, blank) if blank.is_whitespace() => words.extend(word.take()),
                _ => word.get_or_insert_default().push(character),
            }
        }
        if let Some(open) = quote {
            return Err(TemplateError::Unclosed(open));
        }
        words.extend(word);
        if words.is_empty() {
            return Err(TemplateError::Empty);
        }
        Ok(Self { words })
    }

    /// The words with every placeholder replaced by its value, and the flags in their place.
    pub fn fill(&self, values: &[(&str, String)], flags: &[String]) -> Vec<String> {
        let mut filled = Vec::new();
        for word in &self.words {
            if word == FLAGS {
                filled.extend_from_slice(flags);
                continue;
            }
            let replace = |word: String, (name, value): &(&str, String)| word.replace(name, value);
            filled.push(values.iter().fold(word.clone(), replace));
        }
        if !self.words.iter().any(|word| word == FLAGS) {
            filled.extend_from_slice(flags);
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_as_by_a_shell() {
        for (line, words) in [
            ("a b  c", vec!["a", "b", "c"]),
            ("'a b' \"c 'd'\"", vec!["a b", "c 'd'"]),
            (r#"a\ b "c\"d" 'e\f'"#, vec!["a b", "c\"d", r"e\f"]),
            ("--x='' y", vec!["--x=", "y"]),
            ("$HOME *", vec!["$HOME", "*"]),
        ] {
            assert_eq!(Template::parse(line).unwrap(), Template::of(words), "{line}");
        }
        assert_eq!(Template::parse("  "), Err(TemplateError::Empty));
        assert_eq!(Template::parse("a 'b"), Err(TemplateError::Unclosed('\'')));
        assert!(TemplateError::Unclosed('"').to_string().contains('"'));
    }

    #[test]
    fn placeholders_are_filled_and_flags_come_last_or_where_they_are_wanted() {
        let values = [("{socket}", "/s s".to_owned()), ("{kubeconfig}", "/k".to_owned())];
        let flags = ["--a=1".to_owned(), "--b".to_owned()];
        let fill = |line: &str| Template::parse(line).unwrap().fill(&values, &flags);
        let wanted = ["x", "--csi-address=/s s", "--a=1", "--b"];
        assert_eq!(fill("x --csi-address={socket}"), wanted);
        assert_eq!(fill("x {flags} {kubeconfig}"), ["x", "--a=1", "--b", "/k"]);
    }
}
