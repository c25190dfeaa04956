//! What a candidate does: watches the Lease, takes it, renews it, releases it. Each request has a deadline.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::config::LeaderElectionConfig;
use super::election::{ElectionState, LeaseAction};
use super::health::LeaseHealthEntry;
use super::record::LeaderElectionRecord;
use super::shares::LeaseShareGuard;
use super::state::{CandidateStatus, ElectorCommand, LeaderState, LeaseHolder, Membership, NewLease, change};
use super::{Moment, Term};
use crate::api::names::{LEASE_DROP_IN_ANNOTATION, LEASE_HOLDER_ANNOTATION, NEW_LEASE_HOLDER};
use crate::apiserver::{ApiError, Requests};
use crate::clock;
use crate::error_chain::chain;
use crate::kinds::LeaseWire;
use crate::telemetry::{Metrics, Span};
use crate::told_errors::ToldErrors;

/// Candidates that wait for the same moment come this much apart, in parts of the retry period.
const SPREAD: f64 = 0.2;
/// Longest pause after a renewal or a release that failed: there is not much time left.
const MAX_URGENT_PAUSE: Duration = Duration::from_secs(1);

/// How often the log says of a namespace that it does not exist.
const WARNING_INTERVAL: Duration = Duration::from_mins(10);

/// What the API server says of a namespace in which nothing can be created any more.
const IS_TERMINATED: &str = "because it is being terminated";

pub(super) struct LeaderElector {
    config: LeaderElectionConfig,
    namespace: String,
    /// What it is among the candidates of one driver.
    member: Membership,
    name: String,
    metrics: Metrics,
    health: Arc<LeaseHealthEntry>,
    shown: watch::Sender<CandidateStatus>,
    election: ElectionState,
    /// The Lease as it was last read or written; its resource version makes a write fail that comes too late.
    known: Option<Lease>,
    /// Whether a write was begun whose end is not known.
    write_unconfirmed: bool,
    /// Since when nobody can hold the Lease.
    needless_since: Option<Instant>,
    /// When the log said last that the namespace does not exist.
    warned_at: Option<Instant>,
    /// Whether another process of our name renews the Lease.
    namesake: bool,
    /// The Lease as one that is held or about to be taken.
    share: Option<LeaseShareGuard>,
    /// The last term in which the Lease was held.
    term: Option<Term>,
    /// What the log has since the Lease was last written, seen to be somebody else's or needless, or begun to be waited for.
    told: ToldErrors,
}

impl LeaderElector {
    /// A candidate for the Lease of this name in one namespace of `config`.
    pub fn new(
        config: LeaderElectionConfig,
        (namespace, member): (String, Membership),
        name: String,
        metrics: Metrics,
        shown: watch::Sender<CandidateStatus>,
    ) -> Self {
        let shared = &config.shared;
        Self {
            election: ElectionState::new(shared.identity.clone(), config.timing.lease_duration, shared.rules),
            health: shared.health.candidate(&name),
            config,
            namespace,
            member,
            name,
            metrics,
            shown,
            known: None,
            write_unconfirmed: false,
            needless_since: None,
            warned_at: None,
            namesake: false,
            share: None,
            term: None,
            told: ToldErrors::default(),
        }
    }

    /// Carries out one command after the other, until the last one or until nobody can command any more.
    pub async fn run(mut self, mut commands: watch::Receiver<ElectorCommand>) {
        loop {
            let command = *commands.borrow_and_update();
            let work = async {
                match command {
                    ElectorCommand::Observe => self.watch_holder(false).await,
                    ElectorCommand::Prepare => self.watch_holder(true).await,
                    ElectorCommand::Acquire => self.acquire_and_renew().await,
                    ElectorCommand::Stop => {}
                }
            };
            let is_commanded = tokio::select! {
                biased;
                () = work => false,
                next = commands.wait_for(|next| *next != command) => next.is_ok(),
            };
            if !is_commanded {
                return;
            }
            if command == ElectorCommand::Acquire {
                self.release().await;
                self.share = None;
                self.election.competes = false;
                self.health.remove();
                self.show_holder();
            }
        }
    }

    /// Competes until cut off.
    async fn acquire_and_renew(&mut self) {
        self.election.competes = true;
        self.show_waiting();
        loop {
            self.told.end();
            let term = self.acquire().await;
            self.namesake = false;
            if self.member == Membership::Own {
                self.share();
            }
            self.term = Some(term.clone());
            if term.may_start() {
                self.show(LeaderState::Leading(term.clone()));
            }
            self.renew_until_lost(&term).await;
            self.share = None;
            self.health.remove();
            let (namespace, holder) = (&self.namespace, self.election.holder());
            warn!(lease = self.name, namespace, holder, "lost the Lease");
            self.show(LeaderState::Lost);
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
            if let Err(error) = done
                && !self.is_needless(&error)
            {
                let namespace = &self.namespace;
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
        let api = Api::<LeaseWire>::namespaced(self.config.shared.client.clone(), &self.namespace);
        let watched = watcher::watch_object(api, &name).default_backoff();
        let leases = watched.filter_map(move |event| {
            let event = event.inspect_err(|error| debug!(lease = name, error = chain(error), "cannot watch the Lease"));
            std::future::ready(event.ok().map(|lease| lease.map(Lease::from)))
        });
        leases.fuse()
    }

    fn show(&self, state: LeaderState) {
        let new_lease = self.new_lease();
        change(&self.shown, |shown| {
            shown.state = state;
            shown.new_lease = new_lease;
        });
    }

    /// The Lease while it is new and waited for.
    fn new_lease(&self) -> Option<NewLease> {
        let known = self.election.known()?;
        let is_waited_for = known.record.holder == NEW_LEASE_HOLDER && matches!(self.next(), LeaseAction::Wait(_));
        is_waited_for.then(|| NewLease {
            namespace: self.namespace.clone(),
            since: known.since,
            duration: known.record.duration(),
        })
    }

    /// Shows why the Lease may not be read or written; nothing when it was written, or is not ours to be written.
    fn show_permission_error(&self, error: Option<String>) {
        change(&self.shown, |shown| shown.permission_error = error);
    }

    /// Shows who holds the Lease, for one that does not compete.
    fn show_holder(&self) {
        let ours = &self.config.shared.identity;
        let held = self.election.known().filter(|known| known.until() > Instant::now());
        let is_ours = held.is_some_and(|known| known.record.holder == *ours) && self.noted_holder() == Some(ours);
        // That of a sidecar says nothing of the other AttacherConfigs.
        self.show(if is_ours && self.member == Membership::Own {
            LeaderState::HeldForAnother
        } else {
            LeaderState::Observing(self.other_holder())
        });
    }

    /// Shows for whom it waits; a Lease that was lost stays shown as lost until its time is over.
    fn show_waiting(&self) {
        let may_run = self.term.as_ref().is_some_and(Term::may_run);
        if !may_run || self.shown.borrow().state != LeaderState::Lost {
            self.show(LeaderState::Waiting(self.other_holder()));
        }
    }

    /// Tells of an error, once while each retry meets it.
    fn warn(&mut self, error: &ApiError, message: &'static str) {
        let (lease, namespace) = (&self.name, &self.namespace);
        if self.told.is_news(&format_args!("{message}: {error}")) {
            warn!(lease, namespace, %error, message);
        } else {
            debug!(lease, namespace, %error, message);
        }
    }

    /// The Lease was written, or is not ours to be written.
    fn works(&mut self) {
        self.show_permission_error(None);
        if self.told.end() {
            let (lease, namespace) = (&self.name, &self.namespace);
            info!(lease, namespace, "can work with the Lease again");
        }
    }

    /// Who else holds the Lease, as far as known.
    fn other_holder(&self) -> Option<LeaseHolder> {
        let identity = self.election.holder()?.to_owned();
        if identity == NEW_LEASE_HOLDER || !matches!(self.next(), LeaseAction::Wait(_)) {
            return None;
        }
        // One of our own name may be a sidecar, which leaves our note on the Lease.
        let has_our_name = identity == self.config.shared.identity;
        let reports = self.noted_holder() == Some(&identity) && !has_our_name;
        Some(LeaseHolder {
            namesake: self.namesake && has_our_name,
            identity,
            namespace: self.namespace.clone(),
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
            LeaseAction::Wait(until) => until.min(usual),
            _ if self.election.has_looked() => usual,
            _ => Instant::now() + timing.retry_period,
        };
        wanted + self.spread()
    }

    fn spread(&self) -> Duration {
        let period = self.config.timing.retry_period;
        period.mul_f64(SPREAD * fastrand::f64())
    }

    /// The pause before something is tried again for which there is not much time left. What is done about other Leases of the process may have
    /// failed at the same moment.
    fn urgent_pause(&self) -> Duration {
        let longest = self.config.timing.retry_period.min(MAX_URGENT_PAUSE);
        longest.mul_f64(1.0 - SPREAD * fastrand::f64())
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
            fresh = loop {
                tokio::select! {
                    biased;
                    () = sleep_until(next_try) => break self.share.is_some(),
                    Some(lease) = watched.next() => {
                        self.observe_lease(lease);
                        match self.step() {
                            Ok(_) => break true,
                            Err(until) => next_try = next_try.min(until),
                        }
                    }
                }
            };
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
            LeaseAction::Wait(until) => {
                self.share = None;
                return Err(until);
            }
            // Nobody has it by that.
            LeaseAction::Create(record) => return Ok(record),
            LeaseAction::Write(record) => record,
        };
        // The drop-in mode, and one that has its own Lease back, do not pause. Nor does the holder of the own Lease for another one.
        let spreads = self.config.shared.reports && self.member == Membership::Own;
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

    /// Takes the Lease if that may be now; without a look at it first when what is known of it is `fresh`.
    async fn try_acquire(&mut self, fresh: bool) -> Option<Term> {
        let unread = match fresh.then(|| self.step()) {
            Some(Ok(record)) => self.write(record).await.ok(),
            _ => None,
        };
        let taken = match unread {
            Some(begun) => Ok(Some(begun)),
            None => self.read_and_take().await,
        };
        let now = self.config.shared.clock.now();
        let taken = match taken {
            Ok(Some(_)) if !self.election.is_ours(true) => {
                let (lease, namespace) = (&self.name, &self.namespace);
                info!(lease, namespace, "created the Lease; it is taken when it has run out");
                None
            }
            Ok(taken) => taken,
            Err(error) if self.is_needless(&error) => Some(now),
            Err(error) => {
                self.warn(&error, "cannot take the Lease; retrying");
                None
            }
        };
        if taken.is_none() {
            self.show_waiting();
        }
        let LeaderElectionConfig { shared, timing, .. } = &self.config;
        taken.map(|taken| Term::new(shared.rules, shared.clock.clone(), *timing, taken))
    }

    /// Answers when the request was begun that took the Lease; none when it is waited for.
    async fn read_and_take(&mut self) -> Result<Option<Moment>, ApiError> {
        self.read().await?;
        let Ok(record) = self.step() else {
            self.works();
            return Ok(None);
        };
        self.write(record).await.map(Some)
    }

    /// Renews until that fails for too long, or comes too late by either clock: a process that stood still has lost the Lease
    /// even when nobody took it, as what it knows of the objects may be of before.
    async fn renew_until_lost(&mut self, term: &Term) {
        let mut pause = term.until_renewal();
        loop {
            sleep(pause.min(term.until_deadline())).await;
            // Not left to the timers: they are late when the process stood still.
            if !term.may_start() {
                return;
            }
            let renewal = timeout(term.until_deadline(), self.renew(term)).await;
            pause = match renewal.ok().flatten() {
                // It is not enough that the Lease is ours.
                Some(begun) if term.extend(begun) => term.until_renewal(),
                None if term.may_run() => self.urgent_pause(),
                _ => return,
            };
        }
    }

    /// Answers when the request was begun that renewed the Lease. Without an answer it is to be renewed again while the term lasts, which
    /// ends when somebody else has the Lease, or may have had it.
    async fn renew(&mut self, term: &Term) -> Option<Moment> {
        // A Lease that is ours need not be read: a write that came too late fails by its resource version.
        if let Some(record) = self.election.renewed_record(Instant::now(), clock::now(), self.holds()) {
            match self.write(record).await {
                Ok(begun) => return Some(begun),
                Err(error) => debug!(lease = self.name, %error, "looking at the Lease before it is renewed"),
            }
        }
        if !term.may_start() {
            return None;
        }
        self.metrics.lease_read_before_renewal(&self.name);
        let now = self.config.shared.clock.now();
        // One that nobody can hold was never ours, and is still to be held by nobody else.
        let may_be_ours = self.needless_since.is_none();
        let read = self.read().await;
        let is_lost = may_be_ours && self.known.is_some() && !self.election.is_ours(self.holds());
        let renewed = match (read, self.next()) {
            (Err(error), _) => Err(error),
            (Ok(()), LeaseAction::Create(record) | LeaseAction::Write(record))
                if !is_lost && record.holder != NEW_LEASE_HOLDER =>
            {
                self.write(record).await
            }
            _ => {
                term.end();
                return None;
            }
        };
        match renewed {
            Ok(begun) => Some(begun),
            Err(error) if self.is_needless(&error) => Some(now),
            Err(error) => {
                self.warn(&error, "cannot renew the Lease; retrying");
                None
            }
        }
    }

    /// Leaves the Lease to others, if it is ours. What fails is tried again: once at once, as somebody else may have changed the Lease meanwhile
    /// or the connection was an old one, and then after pauses, as long as the API server is out of order. That ends when the Lease has run
    /// out; who has less time than that cuts it off.
    async fn release(&mut self) {
        let held = self.holds();
        if let Some(term) = self.term.take() {
            term.end();
        }
        // It is not renewed any more.
        let runs_out = Instant::now() + self.config.timing.lease_duration;
        // A write may have been cut off that did happen: then the Lease is read whatever is thought of it.
        let mut sure = !self.write_unconfirmed;
        let mut at_once = true;
        while let Err(error) = self.try_release(std::mem::take(&mut sure), held).await {
            if error.is_refused() || Instant::now() >= runs_out {
                self.warn(&error, "could not release the Lease; it will expire");
                return;
            }
            self.warn(&error, "cannot release the Lease; retrying");
            if !std::mem::take(&mut at_once) {
                sleep(self.urgent_pause()).await;
            }
        }
    }

    /// Leaves the Lease to others, if it is ours; without a look at it first when that is `sure`.
    async fn try_release(&mut self, sure: bool, held: bool) -> Result<(), ApiError> {
        if !sure {
            self.read().await?;
        }
        if let Some(record) = self.election.release_record(clock::now(), held) {
            self.write(record).await?;
            let (lease, namespace) = (&self.name, &self.namespace);
            info!(lease, namespace, "released the Lease");
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), ApiError> {
        let name = (&*self.namespace, &*self.name);
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
            self.found();
        }
        let before = self.election.renewed_in_our_name();
        self.election.observe(record, Instant::now());
        self.known = lease;
        let after = self.election.renewed_in_our_name();
        if before != after && before.is_some() && after.is_some() {
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
        let (shared, namespace) = (&self.config.shared, &self.namespace);
        let mut lease = self.known.clone().unwrap_or_default();
        record.write_to(&mut lease, &shared.labels);
        let notes = lease.annotations_mut();
        let note = if shared.reports {
            LEASE_HOLDER_ANNOTATION
        } else {
            LEASE_DROP_IN_ANNOTATION
        };
        if record.holder == shared.identity {
            notes.insert(note.to_owned(), record.holder.clone());
        } else if !shared.reports {
            // A sidecar may come back under the same name.
            notes.remove(note);
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
        self.found();
        self.write_unconfirmed = false;
        self.works();
        let record = LeaderElectionRecord::of(&stored);
        self.election.record_written(record, Instant::now());
        self.known = Some(stored);
        if self.election.is_ours(self.holds()) {
            self.health.renewed(self.config.timing.lease_duration, begun.monotonic);
        }
        Ok(begun)
    }

    /// Whether an error is about a Lease that nobody can hold: its namespace is gone, and who held it went with it; or a former
    /// release, which has this process's permissions, is refused as well. That is so at once for who holds the Lease, and after
    /// one duration for who does not: the longest one that is known.
    fn is_needless(&mut self, error: &ApiError) -> bool {
        let of_namespace = format!("namespaces \"{}\" not found", self.namespace);
        let is_missing = error.message.contains(&of_namespace);
        if is_missing && self.member == Membership::Extra {
            self.warn_of_missing_namespace();
        }
        let is_gone = is_missing || error.message.contains(IS_TERMINATED);
        let can_be_held = match self.member {
            Membership::Own => true,
            Membership::Extra => !is_gone,
            Membership::Former => !is_gone && !error.is_denied(),
        };
        if can_be_held {
            self.needless_since = None;
            return false;
        }
        let since = *self.needless_since.get_or_insert_with(Instant::now);
        let known = self.election.known().map(|known| known.record.duration());
        let duration = self.config.timing.lease_duration.max(known.unwrap_or_default());
        let is_over = self.holds() || since.elapsed() >= duration;
        if is_over {
            // There is nothing to renew, and nothing that a permission would be needed for.
            self.health.remove();
            self.show_permission_error(None);
            self.told.end();
        }
        is_over
    }

    /// Tells, as long as that is so, that the namespace does not exist: where its name is misspelt, a sidecar is at work elsewhere.
    fn warn_of_missing_namespace(&mut self) {
        let warning = format!(
            "namespace {} of spec.leaderElection does not exist: remove it from sidecarNamespaces or namespace, or correct it; a \
             sidecar in another namespace is not kept from working beside the operator",
            self.namespace
        );
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            self.warned_at = Some(Instant::now());
            warn!(lease = self.name, "{warning}");
        }
        change(&self.shown, |shown| shown.warning = Some(warning));
    }

    /// The Lease is there, and so is its namespace: somebody can hold it.
    fn found(&mut self) {
        (self.needless_since, self.warned_at) = (None, None);
        change(&self.shown, |shown| shown.warning = None);
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
        let (namespace, name) = (&self.namespace, &self.name);
        let message = if error.is_of_admission() {
            format!("the API server does not let the operator work with Lease {namespace}/{name}: {error}")
        } else {
            let gone = format!("; if namespace {namespace} was deleted, remove it from spec.leaderElection");
            let mend = if self.member == Membership::Extra { &*gone } else { "" };
            format!(
                "the operator may not work with Lease {namespace}/{name}: {error}; its ServiceAccount needs, by a Role in \
                 namespace {namespace}, apiGroups [coordination.k8s.io], resources [leases], verbs [get, list, watch, create, \
                 update]; the chart creates it for its own namespace and for each that leaderElection.namespace or \
                 leaderElection.sidecarNamespaces of an entry of attacherConfigs, or of the config of one of drivers, \
                 names{mend}"
            )
        };
        self.show_permission_error(Some(message.clone()));
        ApiError { message, ..error }
    }
}
