//! A candidate for a Lease: a task that takes it when it is free, renews it, and tells where it stands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::elector::Elector;
use super::place::change::PlaceChange;
use super::settings::{self, Timing};
use super::{Clock, ElectionSettings, LeaseHealth, LeaseShares, Place, PlaceRecord, SeenPlaces, Term};
use crate::schedule;
use crate::telemetry::Metrics;

/// What all elections of a process share.
#[derive(Clone)]
pub struct Office {
    /// The client; of its own, so that no burst of other requests makes a renewal late.
    pub client: Client,
    /// Name of this process in all Leases; see [`ElectionSettings::identity`].
    pub identity: String,
    /// Labels to put on the Leases.
    pub labels: BTreeMap<String, String>,
    /// As [`ElectionSettings::reports`].
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

impl Office {
    /// The same, of a process that writes the status of AttacherConfigs.
    #[must_use]
    pub fn reporting(self) -> Self {
        Self { reports: true, ..self }
    }

    /// An election in this namespace; empty means that of the pod.
    pub fn campaign(&self, namespace: &str, timing: Timing) -> Campaign {
        Campaign {
            client: self.client.clone(),
            settings: ElectionSettings {
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
        }
    }
}

/// What is needed to stand for election, whatever the Lease.
#[derive(Clone)]
pub struct Campaign {
    /// The client; of its own, so that no burst of other requests makes a renewal late.
    pub client: Client,
    /// The settings.
    pub settings: ElectionSettings,
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
}

impl Campaign {
    /// The same, whose place is recorded.
    #[must_use]
    pub fn recorded(self, record: PlaceRecord) -> Self {
        Self {
            record: Some(record),
            ..self
        }
    }

    /// The same without a Lease, for replicas whose calls last so long at most.
    #[must_use]
    pub fn without_lease(self, longest_call: Duration) -> Self {
        Self {
            longest_call,
            settings: ElectionSettings {
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
pub struct Holder {
    /// Its name.
    pub identity: String,
    /// Whether it is a replica that writes the status of the AttacherConfig.
    pub reports: bool,
    /// Whether it is another process of our own name, which has taken the Lease from us.
    pub namesake: bool,
}

/// Where a candidate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does not compete, and has not seen the Lease yet.
    Unknown,
    /// It does not compete; another holds the Lease, or nobody, or this process for another candidate.
    Observing {
        /// Who else holds it.
        holder: Option<Holder>,
    },
    /// It competes and does not hold the Lease; another does, if known.
    Waiting {
        /// Who holds it.
        holder: Option<Holder>,
    },
    /// It holds the Lease, in this term.
    Leading(Term),
    /// It did hold the Lease and can no longer be sure of it. Nobody else takes it before `until`.
    Lost {
        /// When others may take it.
        until: Instant,
    },
}

impl Standing {
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
pub(super) enum Order {
    /// To watch who holds the Lease, and write nothing.
    Observe,
    /// To take the Lease and keep it.
    Compete,
    /// To end.
    Resign,
}

/// A candidate at work. Dropped, it neither renews nor releases: the Lease runs out.
#[derive(Debug)]
pub struct Candidate {
    lease: String,
    standing: watch::Receiver<Standing>,
    orders: watch::Sender<Order>,
    refusal: watch::Receiver<Option<String>>,
    elects: bool,
    patience: Duration,
    task: AbortOnDropHandle<()>,
}

impl Candidate {
    /// Begins to compete for the Lease of this name.
    pub fn start(campaign: Campaign, lease: String, metrics: Metrics) -> Self {
        Self::begin(Order::Compete, campaign, lease, metrics)
    }

    /// Begins to watch who holds the Lease of this name, without competing for it.
    pub fn observe(campaign: Campaign, lease: String, metrics: Metrics) -> Self {
        Self::begin(Order::Observe, campaign, lease, metrics)
    }

    fn begin(order: Order, campaign: Campaign, lease: String, metrics: Metrics) -> Self {
        let (sender, standing) = watch::channel(match order {
            Order::Compete => Standing::Waiting { holder: None },
            Order::Observe | Order::Resign => Standing::Unknown,
        });
        let (orders, ordered) = watch::channel(order);
        let (elects, patience) = (campaign.settings.enabled, campaign.settings.timing.renew_deadline);
        let (refusing, refusal) = watch::channel(None);
        let elector = Elector::new(campaign, lease.clone(), metrics, sender, refusing);
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
    pub fn compete(&self) {
        self.orders.send_if_modified(|order| {
            let differs = *order == Order::Observe;
            if differs {
                *order = Order::Compete;
            }
            differs
        });
    }

    /// Competes no more: releases the Lease if it is held, so that another may take it at once, and goes on watching who
    /// holds it. Returns when that is done, or false when it cannot be done in time; then the Lease runs out.
    pub async fn stand_down(&self) -> bool {
        self.orders.send_if_modified(|order| {
            let differs = *order == Order::Compete;
            if differs {
                *order = Order::Observe;
            }
            differs
        });
        let mut standing = self.standing.clone();
        let rests = standing.wait_for(|standing| matches!(standing, Standing::Unknown | Standing::Observing { .. }));
        let rests = tokio::time::timeout(self.patience, rests).await;
        if rests.is_err() {
            tracing::warn!(lease = self.lease, "could not release the Lease; it will expire");
        }
        rests.is_ok()
    }

    /// Where it stands, to be followed.
    pub fn follow(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Name of the Lease.
    pub fn lease(&self) -> &str {
        &self.lease
    }

    /// Where it stands now.
    pub fn standing(&self) -> Standing {
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
    pub fn leads(&self) -> bool {
        self.term().is_some()
    }

    /// Why the Lease may not be read or written, and which right is missing; none when it may be, as far as known.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.borrow().clone()
    }

    /// Resolves when [`Candidate::refusal`] is something else than `before`.
    pub async fn refusal_differs_from(&self, before: Option<&str>) {
        let mut refusal = self.refusal.clone();
        if refusal.wait_for(|refusal| refusal.as_deref() != before).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when it stands somewhere else than `before`.
    pub async fn differs_from(&self, before: &Standing) {
        let mut standing = self.standing.clone();
        // The sender lives as long as the task; without it nothing will ever be held again.
        let _ended = standing.wait_for(|standing| standing != before).await;
    }

    /// Resolves when the Lease is not held in this term any more, or not surely. That it is held again changes nothing.
    pub async fn loses(&self, term: &Term) {
        let mut standing = self.standing.clone();
        let lost = standing.wait_for(|standing| !matches!(standing, Standing::Leading(now) if now == term));
        // Without the task that renews it, nothing is held for long.
        let _ended = lost.await;
    }

    /// Gives up: releases the Lease if it is held, so that another may take it at once. Returns when that is done, or
    /// cannot be done in time, in which case the Lease runs out.
    pub async fn resign(self) {
        self.orders.send_replace(Order::Resign);
        if tokio::time::timeout(self.patience, self.task).await.is_err() {
            tracing::warn!(lease = self.lease, "could not release the Lease; it will expire");
        }
    }
}
