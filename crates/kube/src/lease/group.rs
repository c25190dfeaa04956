//! The candidates for the operator's own Lease and for those of sidecars, as one: it leads while all are held.
//!
//! They are acquired one after the other, the own one first, so that of several replicas one alone competes for the others. Those are in
//! the order of the spec, which is the same for everybody, so that no two wait for each other's. When a Lease is lost, those after it are
//! released as soon as no call can run any more.
//!
//! Others do not keep to that order: an operator in another namespace, which has another own Lease, and a former release. So who waits for
//! long for a Lease that such a replica holds gives the own one back until that is free, as that replica may wait for it.

use futures::future::{OptionFuture, join_all, select_all};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::config::LeaderElectionConfig;
use super::elector::LeaderElector;
use super::state::{CandidateStatus, ElectorCommand, LeaderState, Membership, change};
use super::term::Term;
use crate::schedule;
use crate::telemetry::Metrics;

/// The place of the own Lease among all.
const OWN: usize = 0;

/// A candidate at work.
struct Member {
    namespace: String,
    commands: watch::Sender<ElectorCommand>,
    status: watch::Receiver<CandidateStatus>,
    task: AbortOnDropHandle<()>,
}

/// The candidates for all Leases of one driver.
pub(super) struct LeaseGroup {
    /// In the order in which Leases are acquired.
    members: Vec<Member>,
    config: LeaderElectionConfig,
    lease: String,
    metrics: Metrics,
    shown: watch::Sender<CandidateStatus>,
    /// The last time in which all Leases were held.
    term: Option<Term>,
    /// From when on the own Lease is left to others, while a replica holds another one without it.
    yields_at: Option<Instant>,
}

impl Member {
    fn command(&self, command: ElectorCommand) {
        change(&self.commands, |known| *known = command);
    }
}

impl LeaseGroup {
    /// Candidates that watch.
    pub fn new(
        config: LeaderElectionConfig,
        lease: String,
        metrics: Metrics,
        shown: watch::Sender<CandidateStatus>,
    ) -> Self {
        let member = |(namespace, membership): (&String, Membership)| {
            let (shown, status) = watch::channel(CandidateStatus::default());
            let (commands, commanded) = watch::channel(ElectorCommand::Observe);
            let place = (namespace.clone(), membership);
            let elector = LeaderElector::new(config.clone(), place, lease.clone(), metrics.clone(), shown);
            Member {
                namespace: namespace.clone(),
                commands,
                status,
                task: AbortOnDropHandle::new(schedule::spawn(elector.run(commanded))),
            }
        };
        let others = config.others.iter().map(|(other, membership)| (other, *membership));
        let all = std::iter::once((&config.namespace, Membership::Own)).chain(others);
        Self {
            members: all.map(member).collect(),
            config,
            lease,
            metrics,
            shown,
            term: None,
            yields_at: None,
        }
    }

    /// Carries out one command after the other, until the last one or until nobody can command any more.
    pub async fn run(mut self, mut commands: watch::Receiver<ElectorCommand>) {
        loop {
            let command = *commands.borrow_and_update();
            if command == ElectorCommand::Stop {
                break;
            }
            // One look at each: what changes later is looked at with the others again.
            let status = |member: &Member| member.status.borrow().clone();
            let seen: Vec<_> = self.members.iter().map(status).collect();
            let over = self.command_members(command, &seen);
            self.show(command, &seen);
            let ended = OptionFuture::from(over.as_ref().map(Term::over));
            let yielded = *self.members[OWN].commands.borrow() != ElectorCommand::Acquire;
            let yields = OptionFuture::from(self.yields_at.filter(|_| !yielded).map(sleep_until));
            let changed = self.members.iter_mut().map(|member| Box::pin(member.status.changed()));
            tokio::select! {
                biased;
                changed = commands.changed() => if changed.is_err() {
                    return;
                },
                (alive, ..) = select_all(changed) => if alive.is_err() {
                    return;
                },
                Some(()) = ended => {}
                Some(()) = yields => {}
            }
        }
        // No call runs any more.
        let ended = self.members.iter_mut().map(|member| {
            member.command(ElectorCommand::Stop);
            &mut member.task
        });
        let _ended = join_all(ended).await;
    }

    /// Gives the candidates their commands. As long as a call may still run without one of the Leases, they keep the others: answers with
    /// the term after whose end they release them.
    fn command_members(&mut self, command: ElectorCommand, seen: &[CandidateStatus]) -> Option<Term> {
        use ElectorCommand::{Acquire, Observe, Prepare};
        if command != Acquire {
            self.yields_at = None;
            for member in &self.members {
                member.command(command);
            }
            return None;
        }
        let lacks_one = seen.iter().any(|shown| shown.state.term().is_none());
        if let Some(term) = self.term.as_ref().filter(|term| lacks_one && term.may_run()) {
            return Some(term.clone());
        }
        let mut next = if self.yields(seen) { Observe } else { Acquire };
        for (place, (member, shown)) in self.members.iter().zip(seen).enumerate() {
            member.command(next);
            if next == Acquire && shown.state.term().is_none() {
                // Who holds the own one creates those after another one meanwhile, so that their first duration passes.
                next = if place == OWN { Observe } else { Prepare };
            }
        }
        None
    }

    /// Whether the own Lease is left to others: when a replica that does not hold it has held another one for one to two durations. For
    /// longer than one, as a replica that has ended is seen to hold what it did not release; and not always for the same time, as two may
    /// yield to each other.
    fn yields(&mut self, seen: &[CandidateStatus]) -> bool {
        let leader = seen[OWN].state.replica();
        let mut replicas = seen.iter().map(|shown| shown.state.replica());
        let Some(rival) = replicas.position(|replica| replica.is_some() && replica != leader) else {
            self.yields_at = None;
            return false;
        };
        let (now, duration) = (Instant::now(), self.config.timing.lease_duration);
        let yields_at = || now + duration.mul_f64(1.0 + fastrand::f64());
        let yields = *self.yields_at.get_or_insert_with(yields_at) <= now;
        if yields && *self.members[OWN].commands.borrow() == ElectorCommand::Acquire {
            let (lease, namespace) = (&self.lease, &self.members[rival].namespace);
            info!(
                lease,
                namespace, "another replica holds this Lease and may wait for ours, which is left to it"
            );
        }
        yields
    }

    fn show(&mut self, command: ElectorCommand, seen: &[CandidateStatus]) {
        let competes = command == ElectorCommand::Acquire;
        if !competes && seen.iter().any(|shown| shown.state.competes()) {
            return;
        }
        let state = self.state(competes, seen);
        // Another candidate of this process may compete while this one only watches.
        if competes {
            self.metrics.leading(&self.lease, state.term().is_some());
        } else {
            self.forget();
        }
        // Who only watches creates nothing, and does not hear when a namespace is there.
        let mut warned = seen.iter().filter(|_| competes);
        let status = CandidateStatus {
            state,
            permission_error: seen.iter().find_map(|shown| shown.permission_error.clone()),
            new_lease: seen.iter().find_map(|shown| shown.new_lease.clone()),
            warning: warned.find_map(|shown| shown.warning.clone()),
        };
        change(&self.shown, |shown| *shown = status);
    }

    /// The state of the Lease that is in the way: that of another replica, which leads or may do so, else the first one that is not held.
    fn state(&mut self, competes: bool, seen: &[CandidateStatus]) -> LeaderState {
        let mut states = seen.iter().map(|shown| &shown.state);
        let terms: Option<Vec<&Term>> = states.clone().map(LeaderState::term).collect();
        if let Some(terms) = terms {
            let term = Term::of_all(terms);
            if self.term.replace(term.clone()).as_ref() != Some(&term) {
                let (lease, identity) = (&self.lease, &self.config.shared.identity);
                info!(lease, identity, "leading");
            }
            return LeaderState::Leading(term);
        }
        let of_replica = states.clone().position(|state| state.replica().is_some());
        let lacking = of_replica.or_else(|| states.position(|state| state.term().is_none()));
        let lacking = lacking.unwrap_or(OWN);
        let (state, namespace) = (&seen[lacking].state, &self.members[lacking].namespace);
        let holder = state.holder().cloned();
        match state {
            LeaderState::Lost => LeaderState::Lost,
            state if !competes => state.clone(),
            _ if seen[OWN].state.term().is_none() => LeaderState::Waiting(holder),
            _ => LeaderState::OwnHeld(namespace.clone(), holder),
        }
    }

    /// It does not compete any more, and may have shown that it did.
    fn forget(&self) {
        if self.shown.borrow().state.competes() {
            self.metrics.forget_lease(&self.lease);
        }
    }
}

/// One that is cut off, as when it could not release the Leases in time, is thought to hold nothing.
impl Drop for LeaseGroup {
    fn drop(&mut self) {
        self.forget();
    }
}
