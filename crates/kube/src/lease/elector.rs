//! What a candidate does: watches the Lease, takes it, renews it, releases it. Each request has a deadline.

use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::config::{HolderNote, LeaderElectionConfig};
use super::election::{ElectionState, LeaseAction};
use super::health::LeaseHealthEntry;
use super::record::LeaderElectionRecord;
use super::shares::LeaseShareGuard;
use super::state::{ElectorCommand, LeaderState, LeaseHolder, Membership, PermissionErrors};
use super::{Moment, Term};
use crate::api::names::{LEASE_HOLDER_ANNOTATION, NEW_LEASE_HOLDER};
use crate::apiserver::{ApiError, Requests};
use crate::clock;
use crate::error_chain::chain;
use crate::kinds::LeaseWire;
use crate::telemetry::{Metrics, Span};

/// Candidates that wait for the same moment come this much apart, in parts of the retry period.
const SPREAD: f64 = 0.2;
/// Longest pause after a renewal that failed: there is not much time left.
const MAX_RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// What the API server says of a namespace in which nothing can be created any more.
const IS_TERMINATED: &str = "because it is being terminated";

/// How a try to renew ended.
enum RenewResult {
    /// It is renewed by a request begun at this time.
    Done(Moment),
    /// Somebody else has it, or may have had it.
    Taken,
    /// Not known; to be tried again.
    Failed,
}

pub(super) struct LeaderElector {
    config: LeaderElectionConfig,
    name: String,
    metrics: Metrics,
    health: LeaseHealthEntry,
    state: watch::Sender<LeaderState>,
    election: ElectionState,
    /// The Lease as it was last read or written; its resource version makes a write fail that comes too late.
    known: Option<Lease>,
    /// Whether a write was begun whose end is not known.
    write_unconfirmed: bool,
    /// Since when nobody can hold the Lease.
    useless_since: Option<Instant>,
    /// What it is among the candidates of one driver.
    member: Membership,
    /// Whether another process of our name renews the Lease.
    namesake: bool,
    /// The Lease as one that is held or about to be taken.
    share: Option<LeaseShareGuard>,
    /// The last term in which the Lease was held.
    term: Option<Term>,
    permissions: PermissionErrors,
}

impl LeaderElector {
    /// A candidate for the Lease in the namespace of `config`.
    pub fn new(
        config: LeaderElectionConfig,
        name: String,
        metrics: Metrics,
        member: Membership,
        state: watch::Sender<LeaderState>,
        permissions: PermissionErrors,
    ) -> Self {
        let shared = &config.shared;
        Self {
            election: ElectionState::new(shared.identity.clone(), config.timing.lease_duration, shared.rules),
            health: shared.health.candidate(&name),
            state,
            config,
            name,
            metrics,
            known: None,
            write_unconfirmed: false,
            useless_since: None,
            member,
            namesake: false,
            share: None,
            term: None,
            permissions,
        }
    }

    /// Carries out one command after the other, until the last one or until nobody can command any more.
    pub async fn run(mut self, mut commands: watch::Receiver<ElectorCommand>) {
        loop {
            let command = *commands.borrow_and_update();
            match command {
                ElectorCommand::Stop => return,
                ElectorCommand::Observe | ElectorCommand::Prepare => tokio::select! {
                    biased;
                    () = self.watch_holder(command == ElectorCommand::Prepare) => {}
                    changed = commands.changed() => if changed.is_err() {
                        return;
                    }
                },
                ElectorCommand::Acquire => {
                    self.election.stand();
                    let commanded = tokio::select! {
                        biased;
                        () = self.acquire_and_renew() => true,
                        next = commands.wait_for(|next| *next != ElectorCommand::Acquire) => next.is_ok(),
                    };
                    if !commanded {
                        return;
                    }
                    self.release().await;
                    self.share = None;
                    self.election.withdraw();
                    self.health.remove();
                    self.show_holder();
                }
            }
        }
    }

    /// Competes until cut off.
    async fn acquire_and_renew(&mut self) {
        self.show_waiting();
        loop {
            let term = self.acquire().await;
            self.namesake = false;
            if self.member == Membership::Own {
                self.share();
            }
            self.term = Some(term.clone());
            if term.may_start() {
                debug!(
                    lease = self.name,
                    namespace = self.config.namespace,
                    "holding the Lease"
                );
                self.show(LeaderState::Leading(term.clone()));
            }
            self.renew_until_lost(&term).await;
            self.share = None;
            let (namespace, holder) = (&self.config.namespace, self.election.holder());
            warn!(lease = self.name, namespace, holder, "lost the Lease");
            let until = Instant::now() + term.until_end();
            self.show(LeaderState::Lost { until });
        }
    }

    /// Shows who holds the Lease until cut off: at each change of it, and when the holder's time is over. Writes nothing, unless it is to
    /// create the Lease when there is none: its duration is waited for meanwhile.
    async fn watch_holder(&mut self, creates: bool) {
        let mut watched = pin!(self.watch());
        let mut next_check = Instant::now();
        loop {
            let mut done = tokio::select! {
                biased;
                () = sleep_until(next_check) => self.read().await,
                Some(lease) = watched.next() => {
                    self.observe_lease(lease);
                    Ok(())
                }
            };
            if creates
                && self.election.has_looked()
                && let LeaseAction::Create(record) = self.next()
                && record.holder == NEW_LEASE_HOLDER
            {
                done = self.write(record).await.map(drop);
            }
            if let Err(error) = self.unless_needless(done) {
                let namespace = &self.config.namespace;
                debug!(lease = self.name, namespace, %error, "cannot read or create the Lease; retrying");
            }
            next_check = self.next_check();
            if self.election.has_looked() {
                self.show_holder();
            }
        }
    }

    /// The Lease at each change of it. Not every sidecar may watch; reading now and then does as well, only later.
    fn watch(&self) -> impl Stream<Item = Option<Lease>> + Send + use<> {
        let name = self.name.clone();
        let api = Api::<LeaseWire>::namespaced(self.config.shared.client.clone(), &self.config.namespace);
        let watched = watcher::watch_object(api, &name).default_backoff();
        let leases = watched.filter_map(move |event| {
            let event = event.inspect_err(|error| debug!(lease = name, error = chain(error), "cannot watch the Lease"));
            std::future::ready(event.ok().map(|lease| lease.map(Lease::from)))
        });
        leases.fuse()
    }

    fn show(&self, state: LeaderState) {
        if matches!(state, LeaderState::Lost { .. }) {
            self.health.remove();
        }
        state.show_in(&self.state);
    }

    /// Shows who holds the Lease, for one that does not compete.
    fn show_holder(&self) {
        let ours = &self.config.shared.identity;
        let is_ours = self.election.current_holder(Instant::now()) == Some(ours) && self.noted_holder() == Some(ours);
        // That of a sidecar says nothing of the other AttacherConfigs.
        self.show(if is_ours && self.member == Membership::Own {
            LeaderState::HeldForAnother
        } else {
            let holder = self.other_holder();
            LeaderState::Observing { holder }
        });
    }

    /// Shows for whom it waits; a Lease that was lost stays shown as lost until its time is over.
    fn show_waiting(&self) {
        let still_lost = matches!(*self.state.borrow(), LeaderState::Lost { until } if until > Instant::now());
        if !still_lost {
            let holder = self.other_holder();
            self.show(LeaderState::Waiting { holder });
        }
    }

    fn warn(&self, error: &ApiError, message: &'static str) {
        let (lease, namespace) = (&self.name, &self.config.namespace);
        warn!(lease, namespace, %error, message);
    }

    /// Who else holds the Lease, as far as known.
    fn other_holder(&self) -> Option<LeaseHolder> {
        let LeaseAction::Wait { holder: identity, .. } = self.next() else {
            return None;
        };
        if identity == NEW_LEASE_HOLDER {
            return None;
        }
        // One of our own name may be a sidecar, which leaves our note on the Lease.
        let has_our_name = identity == self.config.shared.identity;
        let reports = self.noted_holder() == Some(&identity) && !has_our_name;
        Some(LeaseHolder {
            namesake: self.namesake && has_our_name,
            identity,
            namespace: self.config.namespace.clone(),
            reports,
        })
    }

    /// The replica that our note on the Lease names.
    fn noted_holder(&self) -> Option<&str> {
        let annotations = self.known.as_ref()?.annotations();
        annotations.get(LEASE_HOLDER_ANNOTATION).map(String::as_str)
    }

    /// When one that only watches reads the Lease: when the holder's time is over, or after a while without any change.
    fn next_check(&self) -> Instant {
        let timing = &self.config.timing;
        let usual = Instant::now() + timing.lease_duration;
        let wanted = match self.next() {
            LeaseAction::Wait { until, .. } => until.min(usual),
            _ if self.election.has_looked() => usual,
            _ => Instant::now() + timing.retry_period,
        };
        wanted + self.spread()
    }

    fn spread(&self) -> Duration {
        let period = self.config.timing.retry_period;
        period.mul_f64(SPREAD * fastrand::f64())
    }

    /// What to do about the Lease by the rules of the election.
    fn next(&self) -> LeaseAction {
        self.election.next(Instant::now(), clock::now(), self.holds())
    }

    /// Whether this process is in a term of the Lease, by the clocks at this moment.
    fn holds(&self) -> bool {
        self.term.as_ref().is_some_and(Term::may_start)
    }

    /// Tries until the Lease is held: at each change of it, when the holder's time is over, and now and then.
    async fn acquire(&mut self) -> Term {
        let mut watched = pin!(self.watch());
        // What the watch reported, or was seen before a short pause, need not be read: a write over something newer fails by its
        // resource version.
        let mut fresh = false;
        loop {
            if let Some(term) = self.try_acquire(fresh).await {
                return term;
            }
            let mut next_try = self.next_retry();
            loop {
                tokio::select! {
                    biased;
                    () = sleep_until(next_try) => {
                        fresh = self.share.is_some();
                        break;
                    }
                    Some(lease) = watched.next() => {
                        self.observe_lease(lease);
                        let Err(until) = self.step() else {
                            fresh = true;
                            break;
                        };
                        next_try = next_try.min(until);
                    }
                }
            }
        }
    }

    /// When to try again if the watch reports nothing.
    fn next_retry(&mut self) -> Instant {
        let (usual, spread) = (Instant::now() + self.config.timing.retry_period, self.spread());
        match self.step() {
            Err(until) if self.share.is_some() => until,
            Err(until) => until.min(usual) + spread,
            Ok(_) => usual + spread,
        }
    }

    /// What one that competes does about the Lease, by the rules of the election and the pause before a free Lease is taken: the record to
    /// take it with, or until when to wait.
    fn step(&mut self) -> Result<LeaderElectionRecord, Instant> {
        let record = match self.next() {
            LeaseAction::Wait { until, .. } => {
                self.share = None;
                return Err(until);
            }
            // Nobody has it by that.
            LeaseAction::Create(record) => return Ok(record),
            LeaseAction::Write(record) => record,
        };
        // The drop-in mode, and one that has its own Lease back, do not pause. Nor does the holder of the own Lease for another one.
        let spreads = self.election.has_looked()
            && self.config.shared.note == HolderNote::Reports
            && self.member == Membership::Own;
        if !spreads || self.election.is_ours(self.holds()) {
            return Ok(record);
        }
        let pause_ends = self.share().pause_ends;
        if pause_ends > Instant::now() {
            Err(pause_ends)
        } else {
            Ok(record)
        }
    }

    /// Counts the Lease as one that is held or about to be taken.
    fn share(&mut self) -> &LeaseShareGuard {
        let LeaderElectionConfig { shared, timing, .. } = &self.config;
        let acquire = || shared.shares.acquire(timing.retry_period, Instant::now());
        self.share.get_or_insert_with(acquire)
    }

    async fn try_acquire(&mut self, fresh: bool) -> Option<Term> {
        let written = match fresh.then(|| self.step()) {
            Some(Ok(record)) => self.write(record).await.ok(),
            _ => None,
        };
        let taken = match written {
            Some(begun) => Ok(begun),
            None => match self.read().await {
                Ok(()) => match self.step() {
                    Err(_) => {
                        self.permissions.clear();
                        self.show_waiting();
                        return None;
                    }
                    Ok(record) => self.write(record).await,
                },
                Err(error) => Err(error),
            },
        };
        let now = self.config.shared.clock.now();
        match self.unless_needless(taken.map(Some)) {
            Ok(_) if !self.election.is_ours(true) && self.useless_since.is_none() => {
                let (lease, namespace) = (&self.name, &self.config.namespace);
                info!(lease, namespace, "created the Lease; it is taken when it has run out");
                self.show_waiting();
                None
            }
            Ok(taken) => {
                let LeaderElectionConfig { shared, timing, .. } = &self.config;
                let taken = taken.unwrap_or(now);
                Some(Term::new(shared.rules, shared.clock.clone(), *timing, taken))
            }
            Err(error) => {
                self.warn(&error, "cannot take the Lease; retrying");
                self.show_waiting();
                None
            }
        }
    }

    /// Renews until that fails for too long, or comes too late by either clock: a process that stood still has lost the Lease
    /// even when nobody took it, as what it knows of the objects may be of before.
    async fn renew_until_lost(&mut self, term: &Term) {
        let period = self.config.timing.retry_period;
        loop {
            sleep(term.until_renewal().min(term.until_deadline())).await;
            loop {
                // Not left to the timers below: they are late when the process stood still.
                if !term.may_start() {
                    return;
                }
                let renewal = timeout(term.until_deadline(), self.renew(term)).await;
                match renewal.unwrap_or(RenewResult::Failed) {
                    // It is not enough that the Lease is ours.
                    RenewResult::Done(begun) if term.extend(begun) => break,
                    RenewResult::Done(_) => return,
                    RenewResult::Taken => {
                        term.end();
                        return;
                    }
                    RenewResult::Failed => {
                        // Those of other Leases of the process may have failed at the same moment.
                        let pause = period.min(MAX_RENEWAL_PAUSE).mul_f64(1.0 - SPREAD * fastrand::f64());
                        sleep(pause.min(term.until_deadline())).await;
                    }
                }
            }
        }
    }

    async fn renew(&mut self, term: &Term) -> RenewResult {
        // A Lease that is ours need not be read: a write that came too late fails by its resource version.
        if let Some(record) = self.election.renewed_record(Instant::now(), clock::now(), self.holds()) {
            match self.write(record).await {
                Ok(begun) => return RenewResult::Done(begun),
                Err(error) => debug!(lease = self.name, %error, "looking at the Lease before it is renewed"),
            }
        }
        if !term.may_start() {
            return RenewResult::Failed;
        }
        self.metrics.lease_read_before_renewal(&self.name);
        let now = self.config.shared.clock.now();
        // One that nobody can hold was never ours, and is still to be held by nobody else.
        let may_be_ours = self.useless_since.is_none();
        let renewed = match self.read().await {
            Ok(()) if may_be_ours && self.known.is_some() && !self.election.is_ours(self.holds()) => {
                return RenewResult::Taken;
            }
            Ok(()) => match self.next() {
                LeaseAction::Create(record) | LeaseAction::Write(record) if record.holder != NEW_LEASE_HOLDER => {
                    self.write(record).await
                }
                _ => return RenewResult::Taken,
            },
            Err(error) => Err(error),
        };
        match self.unless_needless(renewed.map(Some)) {
            Ok(begun) => RenewResult::Done(begun.unwrap_or(now)),
            Err(error) => {
                self.warn(&error, "cannot renew the Lease; retrying");
                RenewResult::Failed
            }
        }
    }

    /// Leaves the Lease to others, if it is ours. It is read again at once when somebody else has changed it meanwhile.
    async fn release(&mut self) {
        let held = self.holds();
        if let Some(term) = self.term.take() {
            term.end();
        }
        // A write may have been cut off that did happen: then the Lease is read whatever is thought of it.
        let mut sure = !self.write_unconfirmed;
        for _ in 0..3 {
            if !std::mem::take(&mut sure)
                && let Err(error) = self.read().await
            {
                self.warn(&error, "cannot release the Lease");
                continue;
            }
            let Some(record) = self.election.release_record(clock::now(), held) else {
                return;
            };
            match self.write(record).await {
                Ok(_) => {
                    let (lease, namespace) = (&self.name, &self.config.namespace);
                    return info!(lease, namespace, "released the Lease");
                }
                Err(error) => self.warn(&error, "cannot release the Lease"),
            }
        }
    }

    async fn read(&mut self) -> Result<(), ApiError> {
        let name = (&*self.config.namespace, &*self.name);
        let lease = self.requests().find::<LeaseWire>(name).await;
        let lease = lease.map_err(|error| self.with_permission(error))?;
        self.write_unconfirmed = false;
        self.observe_lease(lease.map(Lease::from));
        Ok(())
    }

    fn observe_lease(&mut self, lease: Option<Lease>) {
        let record = lease.as_ref().map(LeaderElectionRecord::of);
        let known = self.election.known().map(|known| &known.record);
        if record.is_some() && record.as_ref() != known {
            // Somebody can hold it.
            self.useless_since = None;
        }
        let before = self.election.renewed_in_our_name();
        self.election.observe(record, Instant::now());
        self.known = lease;
        if let Some((before, renewed)) = before.zip(self.election.renewed_in_our_name())
            && before != renewed
        {
            self.tell_namesake();
        }
        if self.other_holder().is_some_and(|holder| holder.reports) {
            self.config.shared.shares.observe_other();
        }
    }

    /// Tells, once until the Lease is ours again, that another process of our name renews it.
    fn tell_namesake(&mut self) {
        if std::mem::replace(&mut self.namesake, true) {
            return;
        }
        self.metrics.lease_identity_conflict(&self.name);
        error!(
            lease = self.name,
            identity = self.config.shared.identity,
            "another process of the same name writes the Lease; each needs an identity of its own (a sidecar has the \
             name of its host: do not run one in the same pod, or with hostNetwork on the same node)"
        );
    }

    /// Writes the Lease, or creates it; answers when the request was begun.
    async fn write(&mut self, record: LeaderElectionRecord) -> Result<Moment, ApiError> {
        let LeaderElectionConfig { shared, namespace, .. } = &self.config;
        let mut lease = self.known.clone().unwrap_or_default();
        record.write_to(&mut lease, &shared.labels);
        if let Some(note) = shared.note.annotation() {
            let notes = lease.annotations_mut();
            if record.holder == shared.identity {
                notes.insert(note.to_owned(), record.holder.clone());
            } else if shared.note == HolderNote::DropIn {
                // A sidecar may come back under the same name.
                notes.remove(note);
            }
        }
        let begun = shared.clock.now();
        self.write_unconfirmed = true;
        self.election.attempts(&record);
        let requests = self.requests();
        let stored = if self.known.is_some() {
            requests.replace((&**namespace, &*self.name), &lease).await
        } else {
            lease.metadata.name = Some(self.name.clone());
            requests.create(Some(namespace), &lease, &Span::disabled()).await
        };
        let stored: LeaseWire = stored.map_err(|error| self.with_permission(error))?;
        let stored = Lease::from(stored);
        self.useless_since = None;
        self.write_unconfirmed = false;
        self.permissions.clear();
        let record = LeaderElectionRecord::of(&stored);
        self.known = Some(stored);
        self.election.record_written(record, Instant::now());
        if self.election.is_ours(self.holds()) {
            let duration = self.config.timing.lease_duration;
            self.health.renewed(duration, begun.monotonic);
        }
        Ok(begun)
    }

    /// Takes back the error about a Lease that nobody can hold: its namespace is gone, and who held it went with it; or a former
    /// release, which has this process's permissions, is refused as well. That is so at once for who holds the Lease, and after
    /// one duration for who does not: the longest one that is known.
    fn unless_needless<T: Default>(&mut self, asked: Result<T, ApiError>) -> Result<T, ApiError> {
        let Err(error) = &asked else { return asked };
        let of_namespace = format!("namespaces \"{}\" not found", self.config.namespace);
        let is_gone = error.message.contains(&of_namespace) || error.message.contains(IS_TERMINATED);
        let is_needless = match self.member {
            Membership::Own => false,
            Membership::Extra => is_gone,
            Membership::Former => is_gone || error.is_denied(),
        };
        if !is_needless {
            self.useless_since = None;
            return asked;
        }
        let since = *self.useless_since.get_or_insert_with(Instant::now);
        let known = self.election.known().map(|known| known.record.duration());
        let duration = self.config.timing.lease_duration.max(known.unwrap_or_default());
        if !self.holds() && since.elapsed() < duration {
            return asked;
        }
        // There is nothing to renew, and nothing that a permission would be needed for.
        self.health.remove();
        self.permissions.clear();
        Ok(T::default())
    }

    /// What the next request is sent by. It may take half of the renew deadline, or of what is left until then while the Lease is held, so
    /// that there is always time for another one.
    fn requests(&self) -> Requests {
        let usual = self.config.timing.renew_deadline / 2;
        let left = self.term.as_ref().map(Term::until_deadline);
        let left = left.filter(|left| !left.is_zero());
        let deadline = left.map_or(usual, |left| usual.min(left / 2));
        Requests::immediate(self.config.shared.client.clone(), deadline)
    }

    /// A refusal is shown. That of the authorizer says which permission is missing. None is for what a webhook, a policy or a
    /// quota refuses.
    fn with_permission(&self, error: ApiError) -> ApiError {
        if !error.is_denied() || self.member == Membership::Former || error.message.contains(IS_TERMINATED) {
            return error;
        }
        let (namespace, name) = (&self.config.namespace, &self.name);
        if error.is_of_admission() {
            let message =
                format!("the API server does not let the operator work with Lease {namespace}/{name}: {error}");
            self.permissions.set(&message);
            return ApiError { message, ..error };
        }
        let mut message = format!(
            "the operator may not work with Lease {namespace}/{name}: {error}; its ServiceAccount needs, by a Role in \
             namespace {namespace}, apiGroups [coordination.k8s.io], resources [leases], verbs [get, list, watch, create, \
             update]; the chart creates it for its own namespace and for each that leaderElection.namespace or \
             leaderElection.sidecarNamespaces of an entry of attacherConfigs, or of the config of one of drivers, names"
        );
        if self.member == Membership::Extra {
            let mend = format!("; if namespace {namespace} was deleted, remove it from spec.leaderElection");
            message.push_str(&mend);
        }
        self.permissions.set(&message);
        ApiError { message, ..error }
    }
}
