//! Colour, only where somebody sees it.

use std::io::IsTerminal;

use crate::cli::ColourWhen;
use crate::explain::StepState;
use csi_attacher_model::decide::plain;

/// Whether output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Without colour.
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

    /// What comes from the cluster may have escape sequences in it.
    fn paint(self, code: &str, text: &str) -> String {
        let text = &*plain(text);
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// What blocks.
    pub fn bad(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// What is as it should be.
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// What goes on by itself.
    pub fn busy(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// What is beside the point.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// A command.
    pub fn command(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// The mark of a step.
    pub fn mark(self, state: StepState) -> String {
        match state {
            StepState::Done => self.good("ok    "),
            StepState::Waiting => self.busy("waits "),
            StepState::Blocked => self.bad("BLOCKS"),
            StepState::Unknown => self.busy("?     "),
            StepState::Note => self.dim("note  "),
        }
    }
}
