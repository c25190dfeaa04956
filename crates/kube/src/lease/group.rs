//! The candidates for the operator's own Lease and for those of sidecars, as one: it leads while all are held.
//!
//! They are acquired one after the other, the own one first, so that of several replicas one alone competes for the others. Those are in
//! the order of the spec, which is the same for everybody, so that no two wait for each other's. When a Lease is lost, those after it are
//! released as soon as no call can run any more.
//!
//! Others do not keep to that order: an operator in another namespace, which has another own Lease, and a former release. So who waits for
//! long for a Lease that such a replica holds gives the own one back until that is free, as that replica may wait for it.

use std::collections::BTreeMap;

use futures::future::{OptionFuture, join_all, select_all};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::config::LeaderElectionConfig;
use super::elector::LeaderElector;
use super::state::{ElectorCommand, LeaderState, Membership, PermissionErrors};
use super::term::Term;
use crate::schedule;
use crate::telemetry::Metrics;

/// A candidate at work.
struct Member {
    namespace: String,
    commands: watch::Sender<ElectorCommand>,
    state: watch::Receiver<LeaderState>,
    task: AbortOnDropHandle<()>,
}

/// The candidates for all Leases of one driver.
pub(super) struct LeaseGroup {
    own: Member,
    others: Vec<Member>,
    config: LeaderElectionConfig,
    lease: String,
    metrics: Metrics,
    state: watch::Sender<LeaderState>,
    /// The terms of the members and the time in which all last, while that was shown last.
    term: Option<(Vec<Term>, Term)>,
    /// From when on the own Lease is left to others, while a replica holds another one without it.
    yields_at: Option<Instant>,
    /// Whether it is left to others.
    yields: bool,
}

impl Member {
    fn command(&self, command: ElectorCommand) {
        self.commands
            .send_if_modified(|known| std::mem::replace(known, command) != command);
    }

    fn term(&self) -> Option<Term> {
        self.state.borrow().term().cloned()
    }

    fn competes(&self) -> bool {
        self.state.borrow().competes()
    }

    /// The replica that holds it, if another does.
    fn replica(&self) -> Option<String> {
        let state = self.state.borrow();
        let replica = state.holder().filter(|holder| holder.reports);
        replica.map(|holder| holder.identity.clone())
    }
}

impl LeaseGroup {
    /// Candidates that watch.
    pub fn new(
        config: LeaderElectionConfig,
        lease: String,
        metrics: Metrics,
        state: watch::Sender<LeaderState>,
        permission_errors: &watch::Sender<BTreeMap<usize, String>>,
    ) -> Self {
        let mut numbers = 0..;
        let mut member = |namespace: &str, membership| {
            let (state, seen) = watch::channel(LeaderState::Unknown);
            let (commands, commanded) = watch::channel(ElectorCommand::Observe);
            let permissions = PermissionErrors {
                number: numbers.next().unwrap_or_default(),
                errors: permission_errors.clone(),
            };
            let config = config.in_namespace(namespace);
            let elector = LeaderElector::new(config, lease.clone(), metrics.clone(), membership, state, permissions);
            Member {
                namespace: namespace.to_owned(),
                commands,
                state: seen,
                task: AbortOnDropHandle::new(schedule::spawn(elector.run(commanded))),
            }
        };
        let own = member(&config.namespace, Membership::Own);
        let others = config.others.iter();
        let others = others.map(|(namespace, membership)| member(namespace, *membership));
        Self {
            own,
            others: others.collect(),
            config,
            lease,
            metrics,
            state,
            term: None,
            yields_at: None,
            yields: false,
        }
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.own).chain(&self.others)
    }

    /// Carries out one command after the other, until the last one or until nobody can command any more.
    pub async fn run(mut self, mut commands: watch::Receiver<ElectorCommand>) {
        loop {
            let command = *commands.borrow_and_update();
            if command == ElectorCommand::Stop {
                break;
            }
            let over = self.command_members(command);
            self.show(command);
            let ended = OptionFuture::from(over.as_ref().map(Term::over));
            let yields = OptionFuture::from(self.yields_at.filter(|_| !self.yields).map(sleep_until));
            let members = std::iter::once(&mut self.own).chain(&mut self.others);
            let changed = select_all(members.map(|member| Box::pin(member.state.changed())));
            tokio::select! {
                biased;
                changed = commands.changed() => if changed.is_err() {
                    return;
                },
                (alive, ..) = changed => if alive.is_err() {
                    return;
                },
                Some(()) = ended => {}
                Some(()) = yields => {}
            }
        }
        // No call runs any more.
        let ended = std::iter::once(&mut self.own).chain(&mut self.others).map(|member| {
            member.command(ElectorCommand::Stop);
            &mut member.task
        });
        let _ended = join_all(ended).await;
    }

    /// Gives the candidates their commands. As long as a call may still run without one of the Leases, they keep the others: answers with
    /// the term after whose end they release them.
    fn command_members(&mut self, command: ElectorCommand) -> Option<Term> {
        if command != ElectorCommand::Acquire {
            (self.yields_at, self.yields) = (None, false);
            self.members().for_each(|member| member.command(command));
            return None;
        }
        let may_run = self.term.as_ref().map(|(_, term)| term).filter(|term| term.may_run());
        if let Some(term) = may_run
            && self.members().any(|member| member.term().is_none())
        {
            return Some(term.clone());
        }
        self.look_for_rivals();
        self.own
            .command(if self.yields { ElectorCommand::Observe } else { command });
        let mut next = if !self.yields && self.own.term().is_some() {
            command
        } else {
            ElectorCommand::Observe
        };
        for member in &self.others {
            member.command(next);
            if next == ElectorCommand::Acquire && member.term().is_none() {
                // Those after it are created meanwhile, so that their first duration passes.
                next = ElectorCommand::Prepare;
            }
        }
        None
    }

    /// Leaves the own Lease to others when a replica that does not hold it has held another one for one to two durations. For longer than
    /// one, as a replica that has ended is seen to hold what it did not release; and not always for the same time, as two may yield to each
    /// other.
    fn look_for_rivals(&mut self) {
        let leader = self.own.replica();
        let is_rival = |member: &&Member| {
            member
                .replica()
                .is_some_and(|replica| leader.as_ref() != Some(&replica))
        };
        let Some(rival) = self.others.iter().find(is_rival) else {
            (self.yields_at, self.yields) = (None, false);
            return;
        };
        let (now, duration) = (Instant::now(), self.config.timing.lease_duration);
        let yields_at = || now + duration.mul_f64(1.0 + fastrand::f64());
        let yields = *self.yields_at.get_or_insert_with(yields_at) <= now;
        if yields && !self.yields {
            let (lease, namespace) = (&self.lease, &rival.namespace);
            info!(
                lease,
                namespace, "another replica holds this Lease and may wait for ours, which is left to it"
            );
        }
        self.yields = yields;
    }

    /// Shows the state of the Lease that is in the way: that of another replica, which leads or may do so, else the first one that is not
    /// held.
    fn show(&mut self, command: ElectorCommand) {
        if command != ElectorCommand::Acquire && self.members().any(Member::competes) {
            return;
        }
        let terms: Vec<Term> = self.members().filter_map(Member::term).collect();
        if terms.len() == 1 + self.others.len() {
            let known = self.term.take().filter(|(known, _)| *known == terms);
            let (terms, term) = known.unwrap_or_else(|| {
                let (lease, identity) = (&self.lease, &self.config.shared.identity);
                info!(lease, identity, "leading");
                let term = Term::of_all(&terms);
                (terms, term)
            });
            self.term = Some((terms, term.clone()));
            return self.show_state(LeaderState::Leading(term));
        }
        let of_replica = self.members().find(|member| member.replica().is_some());
        let lacking = of_replica.or_else(|| self.members().find(|member| member.term().is_none()));
        let Some(lacking) = lacking else { return };
        let state = lacking.state.borrow().clone();
        let waits = !matches!(
            state,
            LeaderState::OwnHeld { .. } | LeaderState::Leading(_) | LeaderState::Lost { .. }
        );
        let (holder, namespace) = (state.holder().cloned(), lacking.namespace.clone());
        let state = match command == ElectorCommand::Acquire && waits {
            false => state,
            true if self.own.term().is_some() => LeaderState::OwnHeld { namespace, holder },
            true => LeaderState::Waiting { holder },
        };
        if command != ElectorCommand::Acquire {
            self.forget();
        }
        self.show_state(state);
    }

    fn show_state(&self, state: LeaderState) {
        // Another candidate of this process may compete while this one only watches.
        if state.competes() {
            self.metrics.leading(&self.lease, state.term().is_some());
        }
        state.show_in(&self.state);
    }

    /// It does not compete any more, and had shown that it did.
    fn forget(&self) {
        if self.state.borrow().competes() {
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
