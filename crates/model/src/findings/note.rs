//! The text of the Event about an attempt that failed. It is the only place where the number of the attempt and the time of the next
//! one are stored, so it can be read back.

use std::fmt;
use std::time::Duration;

use crate::decide::{MAX_ERROR_BYTES, MAX_WHOLE_ERROR, shown_within};
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

/// Volume and node are shortened to what the message leaves of an Event, up to [`MAX_WHOLE_ERROR`] of it: a handle may be longer than any
/// Event, and at the end of the message is the command that helps.
impl fmt::Display for FailureNote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempt = format!(": attempt {} {} ", self.attempt, direction(self.operation));
        let uncertain = if self.uncertain { UNCERTAIN } else { "" };
        let failed = format!(" failed{uncertain}; retrying in {:.1} s: ", self.delay.as_secs_f64());
        let words = "volume ".len() + attempt.len() + failed.len() + self.message.len().min(MAX_WHOLE_ERROR);
        let names = [self.volume.unwrap_or_default(), self.node];
        let [volume, node] = shown_within(names, MAX_ERROR_BYTES.saturating_sub(words));
        f.write_str("volume")?;
        if self.volume.is_some() {
            write!(f, " {volume}")?;
        }
        write!(f, "{attempt}{node}{failed}{}", self.message)
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
