//! Who writes the status of an AttacherConfig when there are several replicas: the one that leads the driver. The others are
//! silent while it does. When nobody is known to lead, each says what it has to say once, and then leaves the word to
//! others: two replicas that see different things must not write over each other for ever. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::AttacherConfigStatus;
use crate::lease::Standing;

/// How long nobody must be known to lead after somebody did, or nothing be known at all: longer than a hand-over takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who leads a driver, as far as one replica knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// This replica, or there is no election.
    Ours,
    /// Another replica, which writes the status.
    Other,
    /// Nobody, or somebody who writes no status.
    Nobody,
    /// It is not known yet.
    Unknown,
}

impl From<&Standing> for Lead {
    fn from(standing: &Standing) -> Self {
        match standing {
            Standing::Leading(_) => Self::Ours,
            Standing::Unknown => Self::Unknown,
            Standing::Observing { holder: Some(holder) } | Standing::Waiting { holder: Some(holder) }
                if holder.reports =>
            {
                Self::Other
            }
            Standing::Observing { .. } | Standing::Waiting { .. } | Standing::Lost { .. } => Self::Nobody,
        }
    }
}

/// What a replica has to say, and whether it is in a state that is better not spoken of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    /// The status without what depends on the one before it.
    pub essence: &'a AttacherConfigStatus,
    /// It waits for the Lease, which is nothing to tell while it may have it at any moment.
    pub waits: bool,
    /// It ends, which only one that led has to tell.
    pub ends: bool,
}

/// What is remembered of one AttacherConfig.
#[derive(Clone, Debug, Default)]
pub(super) struct Voice {
    /// When another replica was last known to lead.
    succeeded: Option<Instant>,
    /// Since when it is not known who leads.
    unknown: Option<Instant>,
    /// Since when this replica waits for the Lease.
    waiting: Option<Instant>,
    /// Whether this replica was the last that is known to have led.
    led: bool,
    /// What was said last while nobody led.
    said: Option<AttacherConfigStatus>,
}

impl Voice {
    /// Whether this replica may write its status now.
    pub fn may_speak(&mut self, lead: Lead, word: Word<'_>, now: Instant) -> bool {
        self.waiting = word.waits.then(|| self.waiting.unwrap_or(now));
        self.unknown = (lead == Lead::Unknown).then(|| self.unknown.unwrap_or(now));
        match lead {
            Lead::Ours => {
                (self.led, self.said, self.succeeded) = (true, None, None);
                return !word.waits;
            }
            Lead::Other => {
                (self.led, self.said, self.succeeded) = (false, None, Some(now));
                return false;
            }
            Lead::Nobody | Lead::Unknown => {}
        }
        let rested = |since: Option<Instant>| since.is_none_or(|since| now.duration_since(since) >= PATIENCE);
        (!word.ends || self.led)
            && rested(self.waiting)
            && rested(self.unknown)
            && rested(self.succeeded)
            && self.said.as_ref() != Some(word.essence)
    }

    /// What was to be said was written, or found to be there already.
    pub fn spoke(&mut self, essence: AttacherConfigStatus) {
        self.said = Some(essence);
    }
}
