//! What is printed, line by line.

use std::fmt::Write as _;

use csi_attacher_model::decide::plain;

use super::Painted;
use crate::observed::Gap;

/// Lines to print. Newlines and colours are made here alone: other control characters are shown as blanks, as texts of drivers, nodes and
/// the API server are not to forge lines or to control the terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// One line.
    pub fn of(line: &str) -> Self {
        let mut text = Self::default();
        text.line(line);
        text
    }

    /// The lines of a serialised value.
    pub(super) fn of_lines(lines: &str) -> Self {
        let mut text = Self::default();
        for line in lines.lines() {
            text.line(line);
        }
        text
    }

    pub fn line(&mut self, line: &str) {
        self.0.push_str(&plain(line));
        self.0.push('\n');
    }

    /// Adds a line with a part that may be coloured.
    pub fn painted(&mut self, before: &str, painted: &Painted, after: &str) {
        self.0.push_str(&plain(before));
        let content = plain(&painted.text);
        // Writing to a String cannot fail.
        let _written = match painted.code {
            Some(code) => write!(self.0, "\x1b[{code}m{content}\x1b[0m"),
            None => write!(self.0, "{content}"),
        };
        self.line(after);
    }

    /// Adds what could not be read.
    pub fn not_seen(&mut self, gaps: &[Gap]) {
        for gap in gaps {
            self.line(&format!("not seen: {gap}"));
        }
    }

    pub fn append(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lines, each with a newline.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ColourWhen;
    use crate::output::Style;
    use crate::output::style::BAD;

    #[test]
    fn a_line_forges_no_line_and_no_colour() {
        let forged = "busy\n\u{1b}[31mFAKE\r\u{9b}0m";
        let shown = "busy  [31mFAKE  0m";
        let mut text = Text::of(forged);
        text.painted(forged, &Style::of(ColourWhen::Always).paint(BAD, forged), forged);
        text.painted("", &Style::PLAIN.paint(BAD, forged), "");
        let lines: Vec<&str> = text.as_str().lines().collect();
        let painted = format!("{shown}\u{1b}[1;31m{shown}\u{1b}[0m{shown}");
        assert_eq!(lines, [shown, painted.as_str(), shown]);
    }
}
