//! Reading and writing the Lease, each within a deadline.

use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ObjectMeta, PostParams};
use tokio::time::Instant;

use super::LeaderElector;
use crate::api::names::{FIELD_MANAGER, LEASE_HOLDER_ANNOTATION};
use crate::lease::config::LeaderElectionConfig;
use crate::lease::election::LeaseAction;
use crate::lease::record::LeaderElectionRecord;
use crate::lease::requests::{LeaseRequestError, bounded, read_lease};
use crate::lease::{Moment, Term};

impl LeaderElector {
    pub(super) async fn read(&mut self) -> Result<(), LeaseRequestError> {
        let limit = self.request_deadline();
        let lease = read_lease(&self.api, &self.name, limit).await;
        let lease = lease.map_err(|error| self.with_permission(error))?;
        self.write_unconfirmed = false;
        self.observe_lease(lease);
        Ok(())
    }

    pub(super) fn observe_lease(&mut self, lease: Option<Lease>) {
        self.seen = true;
        self.election
            .observe(lease.as_ref().map(LeaderElectionRecord::of), Instant::now());
        self.known = lease;
        let Some(holder) = self.other_holder() else { return };
        let LeaderElectionConfig {
            settings, shares, seen, ..
        } = &self.campaign;
        if holder.reports {
            shares.observe_other();
        }
        let duration = self.election.known_duration().unwrap_or_default();
        seen.insert(&self.name, &settings.namespace, duration);
    }

    pub(super) async fn write_next(&mut self, next: LeaseAction) -> Result<Moment, LeaseRequestError> {
        match next {
            LeaseAction::Create(record) | LeaseAction::Write(record) => self.write(record).await,
            LeaseAction::Wait { holder, .. } => Err(LeaseRequestError::HeldBy(holder)),
        }
    }

    /// Finds out, before the Lease is taken, whether somebody may work under a former one that is gone. A Lease that we made
    /// ourselves, and have not worked under since, says nothing about that, whenever it was made. True when it counts as made by the
    /// write that comes now: when it is answered, as a request that is under way for long may arrive late.
    fn look_for_former_holder(&mut self) -> bool {
        self.made = None;
        // Also when its holder has had its time: it may have made the Lease again meanwhile, and that one may be gone, too.
        let is_made = self.known.is_none() || self.election.is_unused();
        // It may, until the place was looked at.
        let unknown = is_made && self.campaign.record.is_some();
        self.former_holder.store(unknown, Ordering::Relaxed);
        is_made
    }

    /// Writes the Lease, or creates it; answers when the request was begun.
    pub(super) async fn write(&mut self, mut record: LeaderElectionRecord) -> Result<Moment, LeaseRequestError> {
        // A term that goes on has found out.
        let is_taken = !record.holder.is_empty() && !self.term.as_ref().is_some_and(Term::may_start);
        let is_made = is_taken && self.look_for_former_holder();
        if self.former_holder.load(Ordering::Relaxed) {
            record = record.unused();
        }
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let mut lease = self.known.clone().unwrap_or_default();
        record.write_to(&mut lease, &self.campaign.settings.labels);
        if self.campaign.settings.reports && !record.holder.is_empty() {
            let notes = lease.metadata.annotations.get_or_insert_default();
            notes.insert(LEASE_HOLDER_ANNOTATION.to_owned(), record.holder.clone());
        }
        let begun = self.campaign.clock.now();
        self.write_unconfirmed = true;
        self.election.attempts(&record);
        let stored = if self.known.is_some() {
            self.bounded(self.api.replace(&self.name, &params, &lease)).await?
        } else {
            let name = Some(self.name.clone());
            lease.metadata = ObjectMeta { name, ..lease.metadata };
            self.bounded(self.api.create(&params, &lease)).await?
        };
        if is_made {
            self.made = Some(Instant::now());
        }
        self.write_unconfirmed = false;
        self.seen = true;
        self.clear_permission_error();
        let record = LeaderElectionRecord::of(&stored);
        self.known = Some(stored);
        self.election.record_written(record, Instant::now());
        if self.election.is_ours() {
            let duration = self.campaign.settings.timing.lease_duration;
            self.display.health.renewed(duration, begun.monotonic);
        }
        Ok(begun)
    }

    /// How long a request may take. While the Lease is held, half of what is left until the renew deadline, so that there is
    /// always time for another one.
    fn request_deadline(&self) -> Duration {
        let usual = self.campaign.settings.timing.request_deadline();
        let left = self
            .term
            .as_ref()
            .map(Term::until_deadline)
            .filter(|left| !left.is_zero());
        left.map_or(usual, |left| usual.min(left / 2))
    }

    async fn bounded<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, LeaseRequestError> {
        let answer = bounded(self.request_deadline(), request).await?;
        answer.map_err(|error| self.with_permission(error.into()))
    }

    /// An error about a permission says which one is missing, and shows it.
    fn with_permission(&self, error: LeaseRequestError) -> LeaseRequestError {
        match error {
            LeaseRequestError::Forbidden(answer) => LeaseRequestError::Forbidden(self.set_permission_error(&answer)),
            error => error,
        }
    }

    /// Shows that the Lease may not be read or written, and which right is missing; the text for the log.
    fn set_permission_error(&self, answer: &str) -> String {
        let (namespace, name) = (&self.campaign.settings.namespace, &self.name);
        let text = format!(
            "the operator may not work with Lease {namespace}/{name}: {answer}; its ServiceAccount needs, by a Role in \
             namespace {namespace}, apiGroups [coordination.k8s.io], resources [leases], verbs [get, list, watch, create, \
             update]; the chart creates it for its own namespace and for each that leaderElection.namespace of an entry of \
             attacherConfigs, or of the config of one of drivers, names"
        );
        self.refusal.send_if_modified(|known| {
            let differs = known.as_deref() != Some(&*text);
            if differs {
                *known = Some(text.clone());
            }
            differs
        });
        text
    }

    /// The Lease was written, or is not ours to be written.
    pub(super) fn clear_permission_error(&self) {
        self.refusal.send_if_modified(|known| known.take().is_some());
    }
}
