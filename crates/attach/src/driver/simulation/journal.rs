//! What happened in a history, for people to read, and the first thing that must not have.

use std::fmt;
use std::time::Duration;
use tokio::time::Instant;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant, in words that stay the same.
    pub invariant: &'static str,
    /// Whom it concerns.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.invariant, self.detail)
    }
}

/// Steps of one history; kept only when somebody will read them.
pub struct Journal {
    start: Instant,
    lines: Option<Vec<String>>,
    pub violation: Option<Violation>,
}

impl Journal {
    pub fn new(kept: bool) -> Self {
        Self {
            start: Instant::now(),
            lines: kept.then(Vec::new),
            violation: None,
        }
    }

    /// Time since the history began.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn note(&mut self, who: &str, what: impl FnOnce() -> String) {
        let now = self.now();
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>9.3} s  {who:<10} {}", now.as_secs_f64(), what()));
        }
    }

    /// Notes a violation; the first one is what a history is judged by.
    pub fn violated(&mut self, invariant: &'static str, detail: impl FnOnce() -> String) {
        let violation = Violation {
            invariant,
            detail: detail(),
        };
        self.note("VIOLATION", || violation.to_string());
        self.violation.get_or_insert(violation);
    }

    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
