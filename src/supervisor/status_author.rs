//! Which replica writes the status of an AttacherConfig: the one that leads the driver. When no replica is known to lead, each
//! writes a status once and not again: two replicas that see different things must not overwrite each other for ever. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::AttacherConfigStatus;
use crate::lease::LeaderState;

/// How long no replica must be known to lead before others write: longer than a handover takes.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Who leads a driver, as far as one replica knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverLeader {
    /// This replica, or there is no election.
    Ours,
    /// Another replica, which writes the status.
    Other,
    /// No replica, or a sidecar, which writes no status.
    Nobody,
    /// It is not known yet.
    Unknown,
}

impl From<&LeaderState> for DriverLeader {
    fn from(state: &LeaderState) -> Self {
        match state {
            LeaderState::Leading(_) => Self::Ours,
            LeaderState::Unknown => Self::Unknown,
            LeaderState::Observing { holder: Some(holder) } | LeaderState::Waiting { holder: Some(holder) }
                if holder.reports =>
            {
                Self::Other
            }
            LeaderState::Observing { .. } | LeaderState::Waiting { .. } | LeaderState::Lost { .. } => Self::Nobody,
        }
    }
}

/// Whether the state of this replica is one that only a leader reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusProposal {
    /// It waits for the Lease, which it may have at any moment.
    pub waits: bool,
    /// It ends, which only a replica that led reports.
    pub ends: bool,
}

/// What is remembered of one AttacherConfig.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusAuthor {
    /// When another replica was last known to lead.
    other_led_at: Option<Instant>,
    /// Since when it is not known who leads.
    unknown: Option<Instant>,
    /// Since when this replica waits for the Lease.
    waiting: Option<Instant>,
    /// Whether this replica was the last that is known to have led.
    led: bool,
    /// What was written last while no replica led.
    last_written: Option<AttacherConfigStatus>,
}

impl StatusAuthor {
    /// Whether this replica may write its status now, unless that is [`StatusAuthor::has_written`].
    pub fn may_write(&mut self, lead: DriverLeader, proposal: StatusProposal, now: Instant) -> bool {
        self.waiting = proposal.waits.then(|| self.waiting.unwrap_or(now));
        self.unknown = (lead == DriverLeader::Unknown).then(|| self.unknown.unwrap_or(now));
        match lead {
            DriverLeader::Ours => {
                (self.led, self.last_written, self.other_led_at) = (true, None, None);
                return !proposal.waits;
            }
            DriverLeader::Other => {
                (self.led, self.last_written, self.other_led_at) = (false, None, Some(now));
                return false;
            }
            DriverLeader::Nobody | DriverLeader::Unknown => {}
        }
        let long_enough_ago =
            |since: Option<Instant>| since.is_none_or(|since| now.duration_since(since) >= HANDOVER_TIMEOUT);
        (!proposal.ends || self.led)
            && long_enough_ago(self.waiting)
            && long_enough_ago(self.unknown)
            && long_enough_ago(self.other_led_at)
    }

    /// Whether this is what was written last while no replica led. `essence` is the status without what depends on the one before it.
    pub fn has_written(&self, essence: &AttacherConfigStatus) -> bool {
        self.last_written.as_ref() == Some(essence)
    }

    /// The status was written, or found to be there already.
    pub fn set_written(&mut self, essence: AttacherConfigStatus) {
        self.last_written = Some(essence);
    }
}
