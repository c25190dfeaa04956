//! What is wrong with attachments and does not right itself: stuck ones, ones whose volume or node is gone, ones that
//! nobody will ever ask to detach.
//!
//! It is pure: observed records and the time go in, findings come out. [`findings`] looks at one VolumeAttachment;
//! a [`FindingsPass`] goes through all of a driver's, remembers in a [`FindingHistory`] since when each finding has been there, counts,
//! and picks out what is news. What it finds is only told (the inspector of the operator), never acted on.
//!
//! A finding that can come and go while objects are made and removed in their order counts only after it has lasted for
//! [`FindingThresholds::stuck_after`]: a driver that is upgraded on its node is no news, one that stays away is.

mod finding;
mod ledger;
mod note;
mod survey;
mod words;

pub use finding::{
    FindingInput, FindingKind, FindingKinds, FindingThresholds, age, findings, is_for_one_node, is_pending,
};
pub use ledger::{FindingHistory, FindingState};
pub use note::FailureNote;
pub use survey::{FindingsPass, FindingsSummary, NewFinding, StuckAttachment};
pub use words::finding_message;

#[cfg(test)]
mod tests;
