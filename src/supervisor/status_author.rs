//! Which replica writes the status of an AttacherConfig: the one that leads the driver. For a driver that no replica is known to lead it
//! is the holder of one Lease of the whole process ([`crate::api::names::STATUS_LEASE`]): two replicas that see different things must not
//! overwrite each other for ever. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::lease::LeaderState;
use crate::runtime::DriverPhase;

/// How long no replica must be known to lead before the holder of the Lease for that writes: longer than a handover takes.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Who leads a driver, as far as one replica knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverLeader {
    /// This replica, or there is no election.
    Ours,
    /// Another replica, which writes the status.
    Other,
    /// No replica: this one holds the own Lease, so that no other one here competes, and waits for that of a sidecar, or works with the
    /// Lease for another AttacherConfig.
    Next,
    /// No replica, or a sidecar, which writes no status.
    Nobody,
    /// It is not known yet.
    Unknown,
}

impl DriverLeader {
    /// Whether another replica may lead.
    pub fn may_be_other(self) -> bool {
        matches!(self, Self::Other | Self::Unknown)
    }
}

impl From<&LeaderState> for DriverLeader {
    fn from(state: &LeaderState) -> Self {
        match state {
            LeaderState::Leading(_) => Self::Ours,
            LeaderState::Unknown => Self::Unknown,
            _ if state.replica().is_some() => Self::Other,
            LeaderState::OwnHeld(..) | LeaderState::HeldForAnother => Self::Next,
            LeaderState::Observing(_) | LeaderState::Waiting(_) | LeaderState::Lost => Self::Nobody,
        }
    }
}

/// What is remembered of one AttacherConfig.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusAuthor {
    /// Whether this replica was the last that is known to have led, and when that one last led.
    last: Option<(bool, Instant)>,
    /// Since when it is not known who leads, or this replica waits for the Lease.
    open_since: Option<Instant>,
}

impl StatusAuthor {
    /// Whether this replica may write its status now: that of a driver which is at `phase` here. `for_nobody` says whether it writes for
    /// drivers that no replica leads; others take the one that holds the own Lease for the leader, so that it writes, whatever it waits for.
    /// The last leader goes on for a moment: it knows best how the work ended.
    pub fn may_write(
        &mut self,
        lead: DriverLeader,
        phase: Option<&DriverPhase>,
        for_nobody: bool,
        now: Instant,
    ) -> bool {
        // It may have the Lease at any moment.
        let waits = matches!(phase, Some(DriverPhase::Standby { .. }));
        let is_open = waits || lead == DriverLeader::Unknown;
        self.open_since = is_open.then(|| self.open_since.unwrap_or(now));
        if matches!(lead, DriverLeader::Ours | DriverLeader::Other) {
            let is_ours = lead == DriverLeader::Ours;
            self.last = Some((is_ours, now));
            return is_ours && !waits;
        }
        let is_recent = |since: Instant| now < since + HANDOVER_TIMEOUT;
        let has_led = self.last.is_some_and(|(is_ours, _)| is_ours);
        let one_has_just_led = self.last.is_some_and(|(_, at)| is_recent(at));
        let is_author = if phase == Some(&DriverPhase::Stopped) {
            // Only a replica that led reports that it ends.
            has_led
        } else {
            for_nobody || (has_led && one_has_just_led) || lead == DriverLeader::Next
        };
        is_author && !self.open_since.is_some_and(is_recent) && (has_led || !one_has_just_led)
    }
}
