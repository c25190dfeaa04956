//! Colour, only where somebody sees it.

use std::io::IsTerminal;

use crate::cli::ColourWhen;
use crate::explain::StepState;

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

    fn paint(self, code: &'static str, text: &str) -> Painted {
        Painted {
            code: self.colour.then_some(code),
            text: text.to_owned(),
        }
    }

    /// What blocks.
    pub fn bad(self, text: &str) -> Painted {
        self.paint("1;31", text)
    }

    /// What is as it should be.
    pub fn good(self, text: &str) -> Painted {
        self.paint("32", text)
    }

    /// What goes on by itself.
    pub fn busy(self, text: &str) -> Painted {
        self.paint("33", text)
    }

    /// What is beside the point.
    pub fn dim(self, text: &str) -> Painted {
        self.paint("2", text)
    }

    pub fn command(self, text: &str) -> Painted {
        self.paint("1", text)
    }

    pub fn mark(self, state: StepState) -> Painted {
        match state {
            StepState::Done => self.good("ok    "),
            StepState::Waiting => self.busy("waits "),
            StepState::Blocked => self.bad("BLOCKS"),
            StepState::Unknown => self.busy("?     "),
            StepState::Note => self.dim("note  "),
        }
    }
}
