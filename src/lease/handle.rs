//! A candidate for a Lease: a task that takes it when it is free, renews it, and tells where it stands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::elector::LeaderElector;
use super::place::change::PlaceChange;
use super::settings::{self, LeaseTimings};
use super::{Clock, LeaseHealth, LeaseSettings, LeaseShares, Place, PlaceRecord, SeenPlaces, Term};
use crate::schedule;
use crate::telemetry::Metrics;

/// What all elections of a process share.
#[derive(Clone)]
pub struct LeaderElections {
    /// The client; of its own, so that no burst of other requests makes a renewal late.
    pub client: Client,
    /// Name of this process in all Leases; see [`LeaseSettings::identity`].
    pub identity: String,
    /// Labels to put on the Leases.
    pub labels: BTreeMap<String, String>,
    /// As [`LeaseSettings::reports`].
    pub reports: bool,
    /// Where held Leases are shown.
    pub health: LeaseHealth,
    /// How free Leases spread over the replicas.
    pub shares: LeaseShares,
    /// By which the time of held Leases is measured.
    pub clock: Clock,
    /// Where other replicas were seen to hold Leases.
    pub seen: SeenPlaces,
}

impl LeaderElections {
    /// The same, of a process that writes the status of AttacherConfigs.
    #[must_use]
    pub fn with_status_writer(self) -> Self {
        Self { reports: true, ..self }
    }

    /// An election in this namespace; empty means that of the pod.
    pub fn config_for(&self, namespace: &str, timing: LeaseTimings) -> LeaderElectionConfig {
        LeaderElectionConfig {
            client: self.client.clone(),
            settings: LeaseSettings {
                enabled: true,
                namespace: settings::namespace(namespace),
                identity: self.identity.clone(),
                labels: self.labels.clone(),
                reports: self.reports,
                timing,
            },
            health: self.health.clone(),
            shares: self.shares.clone(),
            clock: self.clock.clone(),
            seen: self.seen.clone(),
            record: None,
            longest_call: Duration::ZERO,
            sidecar_namespaces: Vec::new(),
        }
    }
}

/// What is needed to stand for election, whatever the Lease.
#[derive(Clone)]
pub struct LeaderElectionConfig {
    /// The client; of its own, so that no burst of other requests makes a renewal late.
    pub client: Client,
    /// The settings.
    pub settings: LeaseSettings,
    /// Where held Leases are shown.
    pub health: LeaseHealth,
    /// How free Leases spread over the replicas.
    pub shares: LeaseShares,
    /// By which the time of held Leases is measured.
    pub clock: Clock,
    /// Where other replicas were seen to hold Leases.
    pub seen: SeenPlaces,
    /// Where the place of the Lease is recorded; nowhere in the drop-in mode.
    pub record: Option<PlaceRecord>,
    /// How long a call may run that was begun without a Lease.
    pub longest_call: Duration,
    /// Other namespaces in which an attacher of the driver may hold a Lease.
    pub sidecar_namespaces: Vec<String>,
}

impl LeaderElectionConfig {
    /// The same, whose place is recorded.
    #[must_use]
    pub fn recorded(self, record: PlaceRecord) -> Self {
        Self {
            record: Some(record),
            ..self
        }
    }

    /// The same, beside attachers that may hold Leases in these namespaces.
    #[must_use]
    pub fn beside(self, sidecar_namespaces: Vec<String>) -> Self {
        Self {
            sidecar_namespaces,
            ..self
        }
    }

    /// The same without a Lease, for replicas whose calls last so long at most.
    #[must_use]
    pub fn without_lease(self, longest_call: Duration) -> Self {
        Self {
            longest_call,
            settings: LeaseSettings {
                enabled: false,
                ..self.settings
            },
            ..self
        }
    }

    /// How the candidate for this Lease gets to its place; none when that is not recorded. `made` as in [`PlaceChange::made`].
    pub(super) fn place_change(&self, lease: &str, made: Option<(Instant, Arc<AtomicBool>)>) -> Option<PlaceChange> {
        let settings = &self.settings;
        Some(PlaceChange {
            client: self.client.clone(),
            lease: lease.to_owned(),
            place: Place {
                namespace: settings.enabled.then(|| settings.namespace.clone()),
                identity: settings.identity.clone(),
                sidecar_namespaces: self.sidecar_namespaces.clone(),
                runs_out_after: settings.timing.lease_duration.max(self.longest_call),
            },
            record: self.record.clone()?,
            seen: self.seen.clone(),
            made,
            retry_period: settings.timing.retry_period,
            request_deadline: settings.timing.request_deadline(),
        })
    }
}

/// Who holds a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// Its name.
    pub identity: String,
    /// Whether it is a replica that writes the status of the AttacherConfig.
    pub reports: bool,
    /// Whether it is another process of our own name, which has taken the Lease from us.
    pub namesake: bool,
}

/// Where a candidate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderState {
    /// It does not compete, and has not seen the Lease yet.
    Unknown,
    /// It does not compete; another holds the Lease, or nobody, or this process for another candidate.
    Observing {
        /// Who else holds it.
        holder: Option<LeaseHolder>,
    },
    /// It competes and does not hold the Lease; another does, if known.
    Waiting {
        /// Who holds it.
        holder: Option<LeaseHolder>,
    },
    /// It holds the Lease, in this term.
    Leading(Term),
    /// It did hold the Lease and can no longer be sure of it. Nobody else takes it before `until`.
    Lost {
        /// When others may take it.
        until: Instant,
    },
}

impl LeaderState {
    /// The term in which the Lease is held; none when it is not, or not surely.
    pub fn term(&self) -> Option<&Term> {
        match self {
            Self::Leading(term) => Some(term),
            _ => None,
        }
    }
}

/// What a candidate is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElectorCommand {
    /// To watch who holds the Lease, and write nothing.
    Observe,
    /// To take the Lease and keep it.
    Acquire,
    /// To end.
    Stop,
}

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
