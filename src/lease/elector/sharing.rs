//! Handing a Lease over to a replica that leads less, by a note on the Lease; see [`Board`](crate::lease::Board).
//!
//! The one that asks writes its name on the Lease, which changes nothing about who holds it. The holder finds that at its next
//! renewal and takes the note off, or finishes and releases the Lease with the note on it. Then the one that is named takes it
//! at once, and replicas that know of this leave it a retry period to do so; a sidecar does not, which does no harm.

use kube::api::PostParams;
use tokio::time::Instant;
use tracing::{debug, info};

use super::Elector;
use crate::api::names::{FIELD_MANAGER, LEASE_HAND_OVER_ANNOTATION, LEASE_HOLDER_ANNOTATION};
use crate::lease::candidate::Standing;
use crate::lease::election::Next;
use crate::lease::record::Record;
use k8s_openapi::api::coordination::v1::Lease;

impl Elector {
    /// A note on the Lease as it is known.
    pub(super) fn note(&self, key: &str) -> Option<&str> {
        let notes = self.known.as_ref()?.metadata.annotations.as_ref()?;
        notes.get(key).map(String::as_str)
    }

    /// For whom else a Lease that is free was released, and until when it is left to that one.
    pub(super) fn reserved(&self) -> Option<(String, Instant)> {
        let to = self.note(LEASE_HAND_OVER_ANNOTATION)?;
        if !self.campaign.settings.reports || to == self.campaign.settings.identity || self.election.holder().is_some()
        {
            return None;
        }
        let period = self.campaign.settings.timing.retry_period;
        let courtesy = if self.gave { period * 2 } else { period };
        Some((to.to_owned(), self.election.since()? + courtesy))
    }

    /// Puts the notes on a Lease that is about to be written with this record.
    pub(super) fn write_notes(&self, record: &Record, lease: &mut Lease) {
        if !self.campaign.settings.reports {
            return;
        }
        let notes = lease.metadata.annotations.get_or_insert_default();
        if !record.holder.is_empty() {
            notes.insert(LEASE_HOLDER_ANNOTATION.to_owned(), record.holder.clone());
        }
        if self.giving.is_none() {
            notes.remove(LEASE_HAND_OVER_ANNOTATION);
        }
    }

    /// Finds out whether another replica asks for the Lease that we hold, and should have it.
    pub(super) fn consider_giving(&mut self) {
        let me = &self.campaign.settings.identity;
        let Some(to) = self.note(LEASE_HAND_OVER_ANNOTATION).filter(|to| to != me) else {
            return;
        };
        if self.giving.is_none() && self.campaign.board.should_give(&self.name, me, to) {
            info!(
                lease = self.name,
                to, "handing the driver over to a replica that leads fewer"
            );
            let to = to.to_owned();
            self.giving = Some(to.clone());
            self.asked.send_replace(Some(to));
        }
    }

    /// Asks the holder of the Lease for it, if that leads too much.
    pub(super) async fn consider_asking(&mut self) {
        let settings = &self.campaign.settings;
        let (board, me, period) = (&self.campaign.board, &settings.identity, settings.timing.retry_period);
        let reported = matches!(&*self.standing.borrow(), Standing::Waiting { holder: Some(holder) } if holder.reports);
        if !settings.reports
            || !reported
            || self.note(LEASE_HAND_OVER_ANNOTATION).is_some()
            || !board.should_ask(&self.name, me, period, Instant::now())
        {
            return;
        }
        let Some(mut lease) = self.known.clone() else { return };
        let notes = lease.metadata.annotations.get_or_insert_default();
        notes.insert(LEASE_HAND_OVER_ANNOTATION.to_owned(), me.clone());
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        match self.bounded(self.api.replace(&self.name, &params, &lease)).await {
            Ok(stored) => {
                info!(lease = self.name, "asked for a driver of a replica that leads more");
                self.saw(Some(stored));
            }
            Err(error) => {
                debug!(lease = self.name, error, "cannot ask for the Lease");
                self.campaign.board.failed(&self.name);
            }
        }
    }

    /// Takes note of what the Lease says of a request of ours.
    pub(super) fn consider_answer(&self) {
        let me = &self.campaign.settings.identity;
        let stands = self.note(LEASE_HAND_OVER_ANNOTATION).is_some_and(|to| to == me);
        if !stands && self.campaign.board.has_asked(&self.name) {
            self.campaign.board.refused(&self.name, Instant::now());
        }
    }

    /// Shows on the board who holds the Lease.
    pub(super) fn show_on_board(&self, standing: &Standing) {
        let settings = &self.campaign.settings;
        let holder = match standing {
            Standing::Leading => Some(settings.identity.as_str()),
            Standing::Observing { holder: Some(holder) } | Standing::Waiting { holder: Some(holder) } => {
                holder.reports.then_some(holder.identity.as_str())
            }
            // Another candidate of this process leads, and shows it.
            Standing::Observing { holder: None } if self.election.is_ours() => return,
            _ => None,
        };
        if settings.reports {
            self.campaign.board.shows(&self.name, holder);
        }
    }

    /// What to do about the Lease.
    pub(super) fn next(&self) -> Next {
        let now = Instant::now();
        match (self.election.next(now, crate::clock::now()), self.reserved()) {
            (Next::Write(_), Some((holder, until))) if until > now => Next::Wait { holder, until },
            (next, _) => next,
        }
    }
}
