//! Where the Lease of a driver lives, and what follows from a change of that: nobody works under a new place before the
//! places that were in use are over. Pure.
//!
//! The place under which a driver is worked for is recorded in the status of its AttacherConfig, by a write that fails when
//! the object has changed since it was read. A replica that has got the Lease reads the object, then checks each former
//! place, then writes. A replica that goes by an older spec takes its Lease in vain: it reads, before it works, that the
//! place is another one by now. So of two replicas, one of which did not see a change yet, at most one works.

pub(super) mod change;
pub(super) mod record;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::election::{ElectionState, LeaseAction, ObservedRecord};
use super::record::LeaderElectionRecord;
use super::rules::LeaseRules;
use crate::api::LeaderElectionStatus;

/// So many replicas that work without a Lease are recorded, the latest ones.
const MAX_REPLICAS: usize = 8;

/// The place under which a replica wants to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Namespace of the Lease; none when there is no election.
    pub namespace: Option<String>,
    /// Name of the replica.
    pub identity: String,
    /// Other namespaces in which an attacher of the driver may hold a Lease.
    pub sidecar_namespaces: Vec<String>,
    /// How long the place counts as in use after it was last seen to be in use.
    pub runs_out_after: Duration,
}

/// A place that was in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FormerPlace {
    /// A Lease in this namespace, under which replicas worked.
    Lease(String),
    /// A Lease in this namespace, if there is one: that of a sidecar.
    Sidecar(String),
    /// Replicas that worked without a Lease.
    Replicas(Vec<String>),
}

impl Place {
    /// The places that must be over before work begins, and how long each counts as in use when nothing is heard of it: those
    /// of sidecars, and the recorded one. When nothing is recorded, as after the AttacherConfig was deleted and made again, those where this
    /// process saw another replica hold the Lease.
    pub fn former(
        &self,
        recorded: &LeaderElectionStatus,
        seen: &BTreeMap<String, Duration>,
    ) -> BTreeMap<FormerPlace, Duration> {
        let runs_out_after = recorded.runs_out_after().unwrap_or(self.runs_out_after);
        let mut former = BTreeMap::new();
        // A person may have written anything, and it becomes part of a path.
        let leases = recorded
            .namespace
            .iter()
            .filter(|name| is_namespace(name))
            .map(|namespace| (namespace, runs_out_after));
        let is_new = *recorded == LeaderElectionStatus::default();
        let seen = seen.iter().filter(|_| is_new);
        let leases = leases.chain(seen.map(|(namespace, duration)| (namespace, *duration)));
        for (namespace, duration) in leases.filter(|(namespace, _)| self.namespace.as_ref() != Some(*namespace)) {
            let known: &mut Duration = former.entry(FormerPlace::Lease(namespace.clone())).or_default();
            *known = duration.max(*known);
        }
        let mine = self.namespace.as_ref();
        for namespace in self.sidecar_namespaces.iter().filter(|name| mine != Some(*name)) {
            if !former.contains_key(&FormerPlace::Lease(namespace.clone())) {
                former.insert(FormerPlace::Sidecar(namespace.clone()), self.runs_out_after);
            }
        }
        // Without a Lease nothing keeps replicas apart, so that they need not wait for each other.
        if self.namespace.is_some() {
            let others = recorded
                .without_lease
                .iter()
                .filter(|replica| **replica != self.identity);
            let others: Vec<_> = others.cloned().collect();
            if !others.is_empty() {
                former.insert(FormerPlace::Replicas(others), runs_out_after.max(self.runs_out_after));
            }
        }
        former
    }

    /// How long the place itself counts as in use after this replica has made its Lease: somebody deleted the one under which
    /// a driver was worked for by what is recorded or, when nothing is, was seen; its holder may not know. None when nobody
    /// worked there.
    pub fn former_holder(
        &self,
        recorded: &LeaderElectionStatus,
        seen: &BTreeMap<String, Duration>,
    ) -> Option<Duration> {
        let namespace = self.namespace.as_ref()?;
        if *recorded == LeaderElectionStatus::default() {
            return seen.get(namespace).copied();
        }
        let is_former = recorded.namespace.as_ref() == Some(namespace);
        is_former.then(|| recorded.runs_out_after().unwrap_or(self.runs_out_after))
    }

    /// What is to be recorded before work begins.
    pub fn recorded(&self, known: &LeaderElectionStatus) -> LeaderElectionStatus {
        let mut without_lease = Vec::new();
        if self.namespace.is_none() {
            without_lease = self.left(known).without_lease;
            without_lease.push(self.identity.clone());
            let surplus = without_lease.len().saturating_sub(MAX_REPLICAS);
            without_lease.drain(..surplus);
        }
        LeaderElectionStatus {
            namespace: self.namespace.clone(),
            runs_out_after_seconds: i64::try_from(self.runs_out_after.as_millis().div_ceil(1000)).ok(),
            without_lease,
        }
    }

    /// What is to be recorded when a replica that works without a Lease has ended.
    pub fn left(&self, known: &LeaderElectionStatus) -> LeaderElectionStatus {
        let mut left = known.clone();
        left.without_lease.retain(|replica| *replica != self.identity);
        left
    }
}

fn is_namespace(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(plain)
}

/// What is known of a former place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FormerLease {
    election: ElectionState,
    /// Since when it may not be read, or is not there.
    out_of_sight: Option<(Unseen, Instant)>,
    runs_out_after: Duration,
    /// Whether it need not be there, as a sidecar may have none: then one that is absent has no holder.
    may_be_absent: bool,
    rules: LeaseRules,
}

/// Why nothing is seen of a former Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unseen {
    Forbidden,
    Gone,
}

impl FormerLease {
    /// One of which nothing is known but how long it counts as in use. It is watched under no name: that it names us does not
    /// say that nobody else works under it, as we may have made it after somebody deleted the one of another.
    pub fn new(runs_out_after: Duration, rules: LeaseRules) -> Self {
        Self {
            election: ElectionState::new(String::new(), runs_out_after, rules),
            out_of_sight: None,
            runs_out_after,
            may_be_absent: false,
            rules,
        }
    }

    /// As [`FormerLease::new`], that of a sidecar, which may have none.
    pub fn of_sidecar(runs_out_after: Duration, rules: LeaseRules) -> Self {
        Self {
            may_be_absent: true,
            ..Self::new(runs_out_after, rules)
        }
    }

    /// Takes in what was read. Who gives a Lease up leaves it without a holder: one that is not there was deleted by somebody
    /// at some moment before this, and its holder may not know.
    pub fn observe(&mut self, seen: Option<LeaderElectionRecord>, now: Instant) {
        let seen = seen.or_else(|| self.may_be_absent.then(LeaderElectionRecord::default));
        match seen {
            Some(_) => {
                self.out_of_sight = None;
                self.election.observe(seen, now);
            }
            None if !self.rules.gone_may_be_held => self.election.observe(None, now),
            None => self.lose_sight(Unseen::Gone, now),
        }
    }

    /// Takes in that it may not be read. Its holder may not renew it either, from some moment before this. True when that is
    /// new about the Lease of a sidecar, which may well be able to.
    pub fn unreadable(&mut self, now: Instant) -> bool {
        let is_news = self.may_be_absent && self.out_of_sight.is_none();
        self.lose_sight(Unseen::Forbidden, now);
        is_news
    }

    fn lose_sight(&mut self, why: Unseen, now: Instant) {
        // What may be read again, and is gone, may have been renewed meanwhile.
        self.out_of_sight.take_if(|(known, _)| *known != why);
        self.out_of_sight.get_or_insert((why, now));
    }

    /// What was seen of it last.
    pub fn known(&self) -> Option<&ObservedRecord> {
        self.election.known()
    }

    /// Since when nothing is seen of it.
    pub fn out_of_sight_since(&self) -> Option<Instant> {
        self.out_of_sight.map(|(_, since)| since)
    }

    /// Until when it counts as in use, at least; none when it is over.
    pub fn in_use_until(&self, now: Instant) -> Option<Instant> {
        let until = match self.out_of_sight {
            Some((_, since)) => {
                since
                    + self
                        .runs_out_after
                        .max(self.election.known_duration().unwrap_or_default())
            }
            None => match self.election.next(now, crate::clock::now(), false) {
                LeaseAction::Wait { until, .. } => until,
                LeaseAction::Create(_) | LeaseAction::Write(_) => return None,
            },
        };
        (until > now).then_some(until)
    }

    /// Who holds it, as far as known.
    pub fn holder(&self) -> Option<&str> {
        self.election.holder()
    }
}

/// Where this process saw other replicas hold Leases, by the name of the Lease and the namespace, and how long each counts
/// as in use. It outlives the AttacherConfig, which may be deleted and made again. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SeenPlaces(Arc<Mutex<BTreeMap<String, BTreeMap<String, Duration>>>>);

impl SeenPlaces {
    /// Another replica holds the Lease here.
    pub(super) fn insert(&self, lease: &str, namespace: &str, duration: Duration) {
        let mut places = self.0.lock();
        if let Some(known) = places.get_mut(lease).and_then(|places| places.get_mut(namespace)) {
            *known = duration;
            return;
        }
        let of_lease = places.entry(lease.to_owned()).or_default();
        of_lease.insert(namespace.to_owned(), duration);
    }

    fn of(&self, lease: &str) -> BTreeMap<String, Duration> {
        self.0.lock().get(lease).cloned().unwrap_or_default()
    }

    /// All former places are over.
    fn clear(&self, lease: &str) {
        self.0.lock().remove(lease);
    }
}
