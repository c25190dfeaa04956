//! What a candidate for a Lease shows, and its commands.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::term::Term;

/// Who holds a Lease, as far as that can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// Its name, as the Lease has it.
    pub identity: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Whether it is a replica that writes the status of the AttacherConfig.
    pub reports: bool,
    /// Whether it is another process of our own name, which was seen to renew the Lease.
    pub namesake: bool,
}

/// A Lease that was created in nobody's name ([`crate::api::names::NEW_LEASE_HOLDER`]), and that everybody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLease {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Since when it was seen as it is.
    pub since: Instant,
    /// For how long after that nobody takes it: what the Lease says, which its creator had from the settings of that time.
    pub duration: Duration,
}

/// The state of a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LeaderState {
    /// It does not compete, and has not seen the Lease yet.
    #[default]
    Unknown,
    /// It does not compete; who holds the Lease, if anybody else does.
    Observing(Option<LeaseHolder>),
    /// It does not compete, and another candidate of this process holds the Lease, or did so before the process started again.
    HeldForAnother,
    /// It competes and does not hold the Lease; who does, if known.
    Waiting(Option<LeaseHolder>),
    /// It holds the own Lease, so that no other replica here competes, and waits for the one in this namespace; who holds that, if known.
    OwnHeld(String, Option<LeaseHolder>),
    /// It holds the Lease, in this term.
    Leading(Term),
    /// It did hold the Lease, and can no longer be sure of it or knows that another one has it.
    Lost,
}

impl LeaderState {
    /// Whether the candidate competes for the Lease, or holds it.
    pub(super) fn competes(&self) -> bool {
        !matches!(self, Self::Unknown | Self::Observing(_) | Self::HeldForAnother)
    }

    /// Who holds the Lease that is watched or waited for, if another does.
    pub fn holder(&self) -> Option<&LeaseHolder> {
        match self {
            Self::Observing(holder) | Self::Waiting(holder) | Self::OwnHeld(_, holder) => holder.as_ref(),
            Self::Unknown | Self::HeldForAnother | Self::Leading(_) | Self::Lost => None,
        }
    }

    /// The same, if it is a replica that writes the status of the AttacherConfig.
    pub fn replica(&self) -> Option<&str> {
        let replica = self.holder().filter(|holder| holder.reports)?;
        Some(&replica.identity)
    }

    /// Namespace of the Lease that is waited for, if that is known.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::OwnHeld(namespace, _) => Some(namespace),
            _ => self.holder().map(|holder| &*holder.namespace),
        }
    }

    /// The term in which the Lease is held; none when it is not, or not surely.
    pub fn term(&self) -> Option<&Term> {
        match self {
            Self::Leading(term) => Some(term),
            _ => None,
        }
    }
}

/// What a candidate shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CandidateStatus {
    /// Its state.
    pub state: LeaderState,
    /// Why a Lease may not be read or written, and which permission is missing; none when all may be, as far as known.
    pub permission_error: Option<String>,
    /// The Lease that is waited for because it is new.
    pub new_lease: Option<NewLease>,
    /// What is wrong with the namespaces of the spec, though it stands in nobody's way.
    pub warning: Option<String>,
}

/// What a candidate is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElectorCommand {
    /// To watch who holds the Lease, and write nothing.
    Observe,
    /// To create the Lease when there is none, and watch who holds it.
    Prepare,
    /// To take the Lease and keep it.
    Acquire,
    Stop,
}

/// Changes a status or a command. Whoever follows it hears of that only if it differs then.
pub(super) fn change<T: Clone + PartialEq>(followed: &watch::Sender<T>, edit: impl FnOnce(&mut T)) {
    followed.send_if_modified(|known| {
        let before = known.clone();
        edit(known);
        *known != before
    });
}

/// What a candidate is among those of one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// That for the operator's own Lease. It alone competes with the other replicas: whoever holds it acquires the others.
    Own,
    /// One for the Lease of a sidecar.
    Extra,
    /// One for the Lease of a former release, which has the operator's own permissions.
    Former,
}
