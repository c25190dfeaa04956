//! What is wrong with attachments and does not right itself: stuck ones, ones whose volume or node is gone, ones that
//! nobody will ever ask to detach.
//!
//! It is pure: observed records and the time go in, findings come out. [`findings`] looks at one VolumeAttachment;
//! a [`Survey`] goes through all of a driver's, remembers in a [`Ledger`] since when each finding has been there, counts,
//! and picks out what is news. What it finds is only told (the inspector of the operator), never acted on.
//!
//! A finding that can come and go while objects are made and removed in their order counts only after it has lasted for
//! [`Rules::stuck_after`]: a driver that is upgraded on its node is no news, one that stays away is.

mod finding;
mod ledger;
mod survey;
mod words;

pub use finding::{Kind, Kinds, Looked, Rules, age, findings, is_pending};
pub use ledger::{Ledger, Standing};
pub use survey::{News, Stuck, Summary, Survey};
pub use words::words;

#[cfg(test)]
mod tests;
