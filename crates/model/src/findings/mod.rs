//! What is wrong with attachments and may not resolve by itself: stuck ones, ones whose volume or node is gone, ones
//! that are left over.
//!
//! It is pure: observed records and the time go in, findings come out. [`findings()`] judges one VolumeAttachment; a
//! [`FindingsPass`] goes through all of a driver's, remembers in a [`FindingHistory`] since when each finding has been there, counts,
//! and picks out the new ones. Findings are reported by the scanner of the operator, and never acted on.
//!
//! A finding that can come and go while objects are made and removed in their order counts only after it has lasted for
//! the time that an attach or detach may take: a driver that is upgraded on its node is not reported, one that stays away is.

mod finding;
mod message;
mod note;
mod pass;

pub use finding::{FindingInput, FindingKind, age, findings};
pub use message::{DETACH_FOLLOWS, finding_message};
pub use note::FailureNote;
pub use pass::{FindingHistory, FindingState, FindingsPass, FindingsSummary, NewFinding, StuckAttachment};

#[cfg(test)]
mod tests;
