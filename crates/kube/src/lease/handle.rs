//! A candidate for a Lease: a task that takes it when it is free, renews it, and shows its state.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::config::LeaderElectionConfig;
use super::group::LeaseGroup;
use super::state::{CandidateStatus, ElectorCommand, change};
use super::term::Term;
use crate::schedule;
use crate::telemetry::Metrics;

/// How long the last release may take. An API server that restarts is back by then, and who is not waited for ends its process in time.
const LAST_RELEASE: Duration = Duration::from_secs(5);

/// A candidate at work. Dropped, it neither renews nor releases: the Lease runs out.
#[derive(Debug)]
pub struct LeaderElectionHandle {
    lease: String,
    status: watch::Receiver<CandidateStatus>,
    commands: watch::Sender<ElectorCommand>,
    /// How long a release may take.
    release_timeout: Duration,
    task: AbortOnDropHandle<()>,
}

impl LeaderElectionHandle {
    /// Begins to compete for the Lease of this name.
    pub fn start(config: LeaderElectionConfig, lease: String, metrics: Metrics) -> Self {
        let handle = Self::observe(config, lease, metrics);
        handle.start_acquiring();
        handle
    }

    /// Begins to watch who holds the Lease of this name, without competing for it.
    pub fn observe(config: LeaderElectionConfig, lease: String, metrics: Metrics) -> Self {
        let (shown, status) = watch::channel(CandidateStatus::default());
        let (commands, commanded) = watch::channel(ElectorCommand::Observe);
        let release_timeout = config.timing.renew_deadline;
        let group = LeaseGroup::new(config, lease.clone(), metrics, shown);
        Self {
            lease,
            status,
            commands,
            release_timeout,
            task: AbortOnDropHandle::new(schedule::spawn(group.run(commanded))),
        }
    }

    /// Competes from now on, if it does not already.
    pub fn start_acquiring(&self) {
        change(&self.commands, |command| *command = ElectorCommand::Acquire);
    }

    /// Competes no more: releases the Lease if it is held, so that another may take it at once, and goes on watching who
    /// holds it. Returns when that is done or refused for good, or false when it cannot be done within the renew deadline; then the Lease
    /// runs out.
    pub async fn release(&self) -> bool {
        change(&self.commands, |command| *command = ElectorCommand::Observe);
        let mut status = self.status.clone();
        let released = status.wait_for(|status| !status.state.competes());
        is_released(&self.lease, self.release_timeout, released).await
    }

    /// As [`LeaderElectionHandle::release`], and ends, after 5 s at most: the end of the process may wait for it.
    pub async fn release_and_stop(self) {
        self.commands.send_replace(ElectorCommand::Stop);
        is_released(&self.lease, self.release_timeout.min(LAST_RELEASE), self.task).await;
    }

    /// What it shows, to be followed.
    pub fn subscribe(&self) -> watch::Receiver<CandidateStatus> {
        self.status.clone()
    }

    /// What it shows at this moment.
    pub fn status(&self) -> CandidateStatus {
        self.status.borrow().clone()
    }

    /// Name of the Lease, without its namespace.
    pub fn lease(&self) -> &str {
        &self.lease
    }

    /// The term in which it holds the Lease; none when it does not, or not surely.
    pub fn term(&self) -> Option<Term> {
        self.status.borrow().state.term().cloned()
    }

    /// Whether it has ended without being told to, as by a panic: what it shows does not change any more.
    pub fn has_ended(&self) -> bool {
        self.status.has_changed().is_err()
    }

    /// Resolves when it shows something else than `before`.
    pub async fn differs_from(&self, before: &CandidateStatus) {
        let mut status = self.status.clone();
        // The sender lives as long as the task; without it nothing will ever be held again.
        let _ended = status.wait_for(|status| status != before).await;
    }

    /// Resolves when the Lease is not held in this term any more, or not surely. That it is held again changes nothing.
    pub async fn loses(&self, term: &Term) {
        let mut status = self.status.clone();
        // Without the task that renews it, nothing is held for long.
        let _ended = status.wait_for(|status| status.state.term() != Some(term)).await;
    }
}

/// Waits for the end of a release; false when it takes longer than it may.
async fn is_released(lease: &str, release_timeout: Duration, released: impl Future) -> bool {
    let is_released = tokio::time::timeout(release_timeout, released).await.is_ok();
    if !is_released {
        tracing::warn!(lease, "could not release the Lease; it will expire");
    }
    is_released
}
