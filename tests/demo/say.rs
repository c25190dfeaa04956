//! What the user reads. Colour goes to terminals only, and not where `NO_COLOR` is set.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _, stdout};
use std::time::Instant;

/// Writes to standard output. That nobody reads it any more is no reason to fail: then nobody misses it.
#[derive(Clone, Copy, Debug)]
pub struct Say {
    colour: bool,
    started: Instant,
}

impl Say {
    /// Starts the clock that the headings show.
    pub fn new() -> Self {
        Self {
            colour: stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            started: Instant::now(),
        }
    }

    /// A heading, with the seconds since the start.
    pub fn step(&self, text: impl Display) {
        let seconds = self.started.elapsed().as_secs_f64();
        let (bold, plain) = if self.colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        write(&format!("\n{bold}==> {text}{plain}  [{seconds:.1} s]"));
    }

    /// One or more lines below a heading; an empty text is an empty line.
    #[allow(clippy::unused_self, reason = "whoever may speak was given a Say")]
    pub fn line(&self, text: impl Display) {
        let text = text.to_string();
        for line in text.trim_end().split('\n') {
            write(format!("    {line}").trim_end());
        }
    }

    /// A command that is run now, the way the user would type it.
    pub fn command(&self, text: impl Display) {
        let (dim, plain) = if self.colour { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
        write(&format!("    {dim}$ {text}{plain}"));
    }
}

fn write(line: &str) {
    let mut out = stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}
