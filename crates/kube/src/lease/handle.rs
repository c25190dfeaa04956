//! A candidate for a Lease: a task that takes it when it is free, renews it, and tells where it stands.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::config::LeaderElectionConfig;
use super::elector::LeaderElector;
use super::state::{ElectorCommand, LeaderState};
use super::term::Term;
use crate::schedule;
use crate::telemetry::Metrics;

/// A candidate at work. Dropped, it neither renews nor releases: the Lease runs out.
#[derive(Debug)]
pub struct LeaderElectionHandle {
    lease: String,
    standing: watch::Receiver<LeaderState>,
    orders: watch::Sender<ElectorCommand>,
    refusal: watch::Receiver<Option<String>>,
    elects: bool,
    patience: Duration,
    task: AbortOnDropHandle<()>,
}

impl LeaderElectionHandle {
    /// Begins to compete for the Lease of this name.
    pub fn start(campaign: LeaderElectionConfig, lease: String, metrics: Metrics) -> Self {
        Self::begin(ElectorCommand::Acquire, campaign, lease, metrics)
    }

    /// Begins to watch who holds the Lease of this name, without competing for it.
    pub fn observe(campaign: LeaderElectionConfig, lease: String, metrics: Metrics) -> Self {
        Self::begin(ElectorCommand::Observe, campaign, lease, metrics)
    }

    fn begin(order: ElectorCommand, campaign: LeaderElectionConfig, lease: String, metrics: Metrics) -> Self {
        let (sender, standing) = watch::channel(match order {
            ElectorCommand::Acquire => LeaderState::Waiting { holder: None },
            ElectorCommand::Observe | ElectorCommand::Stop => LeaderState::Unknown,
        });
        let (orders, ordered) = watch::channel(order);
        let (elects, patience) = (campaign.settings.enabled, campaign.settings.timing.renew_deadline);
        let (refusing, refusal) = watch::channel(None);
        let elector = LeaderElector::new(campaign, lease.clone(), metrics, sender, refusing);
        let task = AbortOnDropHandle::new(schedule::spawn(elector.run(ordered)));
        Self {
            lease,
            standing,
            orders,
            refusal,
            elects,
            patience,
            task,
        }
    }

    /// Competes from now on, if it does not already.
    pub fn start_acquiring(&self) {
        self.orders.send_if_modified(|order| {
            let differs = *order == ElectorCommand::Observe;
            if differs {
                *order = ElectorCommand::Acquire;
            }
            differs
        });
    }

    /// Competes no more: releases the Lease if it is held, so that another may take it at once, and goes on watching who
    /// holds it. Returns when that is done, or false when it cannot be done in time; then the Lease runs out.
    pub async fn release(&self) -> bool {
        self.orders.send_if_modified(|order| {
            let differs = *order == ElectorCommand::Acquire;
            if differs {
                *order = ElectorCommand::Observe;
            }
            differs
        });
        let mut standing = self.standing.clone();
        let rests =
            standing.wait_for(|standing| matches!(standing, LeaderState::Unknown | LeaderState::Observing { .. }));
        let rests = tokio::time::timeout(self.patience, rests).await;
        if rests.is_err() {
            tracing::warn!(lease = self.lease, "could not release the Lease; it will expire");
        }
        rests.is_ok()
    }

    /// Where it stands, to be followed.
    pub fn subscribe(&self) -> watch::Receiver<LeaderState> {
        self.standing.clone()
    }

    /// Name of the Lease.
    pub fn lease(&self) -> &str {
        &self.lease
    }

    /// Where it stands now.
    pub fn standing(&self) -> LeaderState {
        self.standing.borrow().clone()
    }

    /// Whether there is a Lease at all; without, it leads for as long as it competes.
    pub fn elects(&self) -> bool {
        self.elects
    }

    /// The term in which it holds the Lease; none when it does not, or not surely.
    pub fn term(&self) -> Option<Term> {
        self.standing.borrow().term().cloned()
    }

    /// Whether it holds the Lease.
    pub fn is_leader(&self) -> bool {
        self.term().is_some()
    }

    /// Why the Lease may not be read or written, and which right is missing; none when it may be, as far as known.
    pub fn permission_error(&self) -> Option<String> {
        self.refusal.borrow().clone()
    }

    /// Resolves when [`LeaderElectionHandle::refusal`] is something else than `before`.
    pub async fn refusal_differs_from(&self, before: Option<&str>) {
        let mut refusal = self.refusal.clone();
        if refusal.wait_for(|refusal| refusal.as_deref() != before).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when it stands somewhere else than `before`.
    pub async fn differs_from(&self, before: &LeaderState) {
        let mut standing = self.standing.clone();
        // The sender lives as long as the task; without it nothing will ever be held again.
        let _ended = standing.wait_for(|standing| standing != before).await;
    }

    /// Resolves when the Lease is not held in this term any more, or not surely. That it is held again changes nothing.
    pub async fn loses(&self, term: &Term) {
        let mut standing = self.standing.clone();
        let lost = standing.wait_for(|standing| !matches!(standing, LeaderState::Leading(now) if now == term));
        // Without the task that renews it, nothing is held for long.
        let _ended = lost.await;
    }

    /// Gives up: releases the Lease if it is held, so that another may take it at once. Returns when that is done, or
    /// cannot be done in time, in which case the Lease runs out.
    pub async fn release_and_stop(self) {
        self.orders.send_replace(ElectorCommand::Stop);
        if tokio::time::timeout(self.patience, self.task).await.is_err() {
            tracing::warn!(lease = self.lease, "could not release the Lease; it will expire");
        }
    }
}
