//! The text of the Event about an attempt that failed. It is the only place where the number of the attempt and the time of the next
//! one are stored, so it can be read back.

use std::fmt;
use std::time::Duration;

use crate::objects::Operation;

/// What the Event says when the outcome of the call is not known.
const UNCERTAIN: &str = "; the call may still be in progress and the volume may be attached";

/// An attempt that failed, as its Event records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureNote<'a> {
    /// The volume's handle, if it is known.
    pub volume: Option<&'a str>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The operation that failed.
    pub operation: Operation,
    /// Name of the node, not its ID.
    pub node: &'a str,
    /// Whether the outcome of the call is not known.
    pub uncertain: bool,
    /// How long after the failure the next attempt is made; written to a tenth of a second.
    pub delay: Duration,
    /// The error, as it is on the attachment.
    pub message: &'a str,
}

impl fmt::Display for FailureNote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.volume {
            Some(handle) => write!(f, "volume {handle}")?,
            None => f.write_str("volume")?,
        }
        write!(
            f,
            ": attempt {} {} {} failed{}; retrying in {:.1} s: {}",
            self.attempt,
            direction(self.operation),
            self.node,
            if self.uncertain { UNCERTAIN } else { "" },
            self.delay.as_secs_f64(),
            self.message
        )
    }
}

const fn direction(operation: Operation) -> &'static str {
    match operation {
        Operation::Attach => "to attach it to node",
        Operation::Detach => "to detach it from node",
    }
}

impl<'a> FailureNote<'a> {
    /// Reads the text of an Event back; none when it is another text. A message that the Event cut short is read as it stands.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (head, rest) = text.split_once(": attempt ")?;
        let volume = head.strip_prefix("volume")?.strip_prefix(' ');
        let (attempt, rest) = rest.split_once(' ')?;
        let (operation, rest) = [Operation::Attach, Operation::Detach]
            .into_iter()
            .find_map(|operation| Some((operation, rest.strip_prefix(direction(operation))?)))?;
        let (node, rest) = rest.strip_prefix(' ')?.split_once(" failed")?;
        let (uncertain, rest) = match rest.strip_prefix(UNCERTAIN) {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (delay, message) = rest.strip_prefix("; retrying in ")?.split_once(" s: ")?;
        Some(Self {
            volume,
            attempt: attempt.parse().ok()?,
            operation,
            node,
            uncertain,
            delay: Duration::try_from_secs_f64(delay.parse().ok()?).ok()?,
            message,
        })
    }
}
