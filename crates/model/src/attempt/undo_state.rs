//! How far an attempt has come with a Publish whose VolumeAttachment may be gone.

use std::time::Duration;

use super::step::Verdict;

/// The pause before the second try of a read or a call.
pub(super) const INITIAL_BACKOFF: Duration = Duration::from_secs(1);

/// How a part of an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// Observe again.
    Observe,
    /// The attempt is over.
    Over(Verdict),
}

/// What is done about a Publish whose VolumeAttachment may be gone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Undo {
    /// How the attempt goes on.
    pub end: End,
    /// No answer to a write of what the call came to is missing. If one is, the VolumeAttachment may have ended without a word that has
    /// come in yet.
    pub is_known: bool,
    /// What the call came to is on record.
    pub is_on_record: bool,
    pub stage: Stage,
    /// Reads, and then calls, that were made.
    pub tries: u32,
    pub pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for the lists of the cache.
    Lists,
    /// The VolumeAttachment is being read.
    Read,
    /// It is read again after a pause.
    ReadAgain,
    /// The call that takes the volume back waits for its place, at once or after a pause.
    Place,
    /// The volume is being taken back.
    Call,
    /// It is taken back after a pause.
    CallAgain,
}

impl Undo {
    pub fn new(end: End, is_known: bool, is_on_record: bool, stage: Stage) -> Self {
        Self {
            end,
            is_known,
            is_on_record,
            stage,
            tries: 0,
            pause: INITIAL_BACKOFF,
        }
    }

    /// About a Publish that a former engine left.
    pub fn resumed() -> Self {
        Self::new(End::Over(Verdict::Done), false, false, Stage::Lists)
    }
}
