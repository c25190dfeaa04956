//! Colour, only where somebody sees it.

use std::io::IsTerminal;

use crate::cli::ColourWhen;
use crate::explain::StepState;

/// What blocks.
pub const BAD: &str = "1;31";
/// What is as it should be.
pub const GOOD: &str = "32";
/// What goes on by itself.
pub const BUSY: &str = "33";
/// What is beside the point.
const DIM: &str = "2";
pub const COMMAND: &str = "1";

/// Whether output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

/// A text and its colour; [`Text`](super::Text) puts them together.
#[derive(Clone, Debug)]
pub struct Painted {
    pub(super) code: Option<&'static str>,
    pub(super) text: String,
}

impl Style {
    /// Without colour.
    #[cfg(test)]
    pub const PLAIN: Self = Self { colour: false };

    /// As asked for; on a terminal when nothing was asked for.
    pub fn of(when: ColourWhen) -> Self {
        let colour = match when {
            ColourWhen::Always => true,
            ColourWhen::Never => false,
            ColourWhen::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        };
        Self { colour }
    }

    /// A text in one of the colours above.
    pub fn paint(self, colour: &'static str, text: &str) -> Painted {
        Painted {
            code: self.colour.then_some(colour),
            text: text.to_owned(),
        }
    }

    pub fn mark(self, state: StepState) -> Painted {
        let (colour, text) = match state {
            StepState::Done => (GOOD, "ok    "),
            StepState::Waiting => (BUSY, "waits "),
            StepState::Blocked => (BAD, "BLOCKS"),
            StepState::Unknown => (BUSY, "?     "),
            StepState::Note => (DIM, "note  "),
        };
        self.paint(colour, text)
    }
}
