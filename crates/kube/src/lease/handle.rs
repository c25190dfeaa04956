//! A candidate for a Lease: a task that takes it when it is free, renews it, and shows its state.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::config::LeaderElectionConfig;
use super::group::LeaseGroup;
use super::state::{ElectorCommand, LeaderState};
use super::term::Term;
use crate::schedule;
use crate::telemetry::Metrics;

/// A candidate at work. Dropped, it neither renews nor releases: the Lease runs out.
#[derive(Debug)]
pub struct LeaderElectionHandle {
    lease: String,
    state: watch::Receiver<LeaderState>,
    commands: watch::Sender<ElectorCommand>,
    /// By the place of the Lease, the own one first.
    permission_errors: watch::Receiver<BTreeMap<usize, String>>,
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
        let (sender, state) = watch::channel(LeaderState::Unknown);
        let (commands, commanded) = watch::channel(ElectorCommand::Observe);
        let release_timeout = config.timing.renew_deadline;
        let (refusing, permission_errors) = watch::channel(BTreeMap::new());
        let group = LeaseGroup::new(config, lease.clone(), metrics, sender, &refusing);
        let task = schedule::spawn(group.run(commanded));
        Self {
            lease,
            state,
            commands,
            permission_errors,
            release_timeout,
            task: AbortOnDropHandle::new(task),
        }
    }

    fn change_command(&self, from: ElectorCommand, to: ElectorCommand) {
        self.commands
            .send_if_modified(|command| *command == from && std::mem::replace(command, to) != to);
    }

    /// Competes from now on, if it does not already.
    pub fn start_acquiring(&self) {
        self.change_command(ElectorCommand::Observe, ElectorCommand::Acquire);
    }

    /// Competes no more: releases the Lease if it is held, so that another may take it at once, and goes on watching who
    /// holds it. Returns when that is done, or false when it cannot be done in time; then the Lease runs out.
    pub async fn release(&self) -> bool {
        self.change_command(ElectorCommand::Acquire, ElectorCommand::Observe);
        let mut state = self.state.clone();
        let released = state.wait_for(|state| !state.competes());
        let is_released = tokio::time::timeout(self.release_timeout, released).await.is_ok();
        if !is_released {
            tracing::warn!(lease = self.lease, "could not release the Lease; it will expire");
        }
        is_released
    }

    /// Gives up: releases the Lease if it is held, so that another may take it at once. Returns when that is done, or
    /// cannot be done in time, in which case the Lease runs out.
    pub async fn release_and_stop(self) {
        self.commands.send_replace(ElectorCommand::Stop);
        if tokio::time::timeout(self.release_timeout, self.task).await.is_err() {
            tracing::warn!(lease = self.lease, "could not release the Lease; it will expire");
        }
    }

    /// Its state, to be followed.
    pub fn subscribe(&self) -> watch::Receiver<LeaderState> {
        self.state.clone()
    }

    /// Its state at this moment.
    pub fn state(&self) -> LeaderState {
        self.state.borrow().clone()
    }

    /// Name of the Lease, without its namespace.
    pub fn lease(&self) -> &str {
        &self.lease
    }

    /// The term in which it holds the Lease; none when it does not, or not surely.
    pub fn term(&self) -> Option<Term> {
        self.state.borrow().term().cloned()
    }

    /// Whether it has ended without being told to, as by a panic: its state does not change any more.
    pub fn has_ended(&self) -> bool {
        self.state.has_changed().is_err()
    }

    /// Whether it holds the Lease.
    pub fn is_leader(&self) -> bool {
        self.term().is_some()
    }

    /// Why a Lease may not be read or written, and which permission is missing; none when all may be, as far as known.
    pub fn permission_error(&self) -> Option<String> {
        self.permission_errors.borrow().values().next().cloned()
    }

    /// Resolves when [`LeaderElectionHandle::permission_error`] is something else than `before`.
    pub async fn permission_error_differs_from(&self, before: Option<&str>) {
        let mut known = self.permission_errors.clone();
        let differs = known.wait_for(|errors| errors.values().next().map(|error| &**error) != before);
        if differs.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when its state is another one than `before`.
    pub async fn differs_from(&self, before: &LeaderState) {
        let mut state = self.state.clone();
        // The sender lives as long as the task; without it nothing will ever be held again.
        let _ended = state.wait_for(|state| state != before).await;
    }

    /// Resolves when the Lease is not held in this term any more, or not surely. That it is held again changes nothing.
    pub async fn loses(&self, term: &Term) {
        let mut state = self.state.clone();
        // Without the task that renews it, nothing is held for long.
        let _ended = state.wait_for(|state| state.term() != Some(term)).await;
    }
}
