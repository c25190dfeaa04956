//! The candidates for the operator's own Lease and for those of sidecars, as one: it leads while all are held.
//!
//! The own Lease is acquired first, so that of several replicas one alone competes for the others. When it is lost, the others are
//! released as soon as no call can run any more. Nobody takes them before the own one again; but each replica creates them when they
//! are not there, so that their first duration passes meanwhile.

use futures::future::{join_all, select_all};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::config::LeaderElectionConfig;
use super::display::Display;
use super::elector::LeaderElector;
use super::state::{ElectorCommand, LeaderState, Membership};
use super::term::Term;
use crate::schedule;
use crate::telemetry::Metrics;

/// A candidate at work.
struct Member {
    commands: watch::Sender<ElectorCommand>,
    state: watch::Receiver<LeaderState>,
    task: AbortOnDropHandle<()>,
}

/// The candidates for all Leases of one driver.
pub(super) struct LeaseGroup {
    own: Member,
    others: Vec<Member>,
    display: Display,
    /// The terms of the members and the time in which all last, while that was shown last.
    term: Option<(Vec<Term>, Term)>,
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
}

impl LeaseGroup {
    /// Candidates that watch. Each shows in one of `permission_errors` which permission is missing, the own one in the first.
    pub fn new(
        config: &LeaderElectionConfig,
        lease: &str,
        metrics: &Metrics,
        state: watch::Sender<LeaderState>,
        permission_errors: Vec<watch::Sender<Option<String>>>,
    ) -> Self {
        let display = Display {
            lease: lease.to_owned(),
            health: std::sync::Arc::new(config.shared.health.candidate(lease)),
            metrics: metrics.clone(),
            has_metrics: true,
            state,
        };
        let mut errors = permission_errors.into_iter();
        let mut member = |namespace: &str, membership| {
            let (state, seen) = watch::channel(LeaderState::Unknown);
            let (commands, commanded) = watch::channel(ElectorCommand::Observe);
            let error = errors.next().unwrap_or_else(|| watch::channel(None).0);
            let config = config.in_namespace(namespace);
            let elector = LeaderElector::new(config, lease.to_owned(), metrics.clone(), membership, state, error);
            Member {
                commands,
                state: seen,
                task: AbortOnDropHandle::new(schedule::spawn(elector.run(commanded))),
            }
        };
        Self {
            own: member(&config.namespace, Membership::Own),
            others: config
                .extras()
                .map(|(namespace, membership)| member(namespace, membership))
                .collect(),
            display,
            term: None,
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
            self.own.command(command);
            let over = self.command_others(command);
            self.show(command);
            let ended = async {
                match over {
                    Some(term) => term.over().await,
                    None => std::future::pending().await,
                }
            };
            let members = std::iter::once(&mut self.own).chain(&mut self.others);
            let changed = select_all(members.map(|member| Box::pin(member.state.changed())));
            tokio::select! {
                biased;
                changed = commands.changed() => if changed.is_err() {
                    break;
                },
                (alive, ..) = changed => if alive.is_err() {
                    break;
                },
                () = ended => {}
            }
        }
        self.stop().await;
    }

    /// Gives the candidates for the other Leases their commands. As long as a call may still run without the own Lease, they hold theirs:
    /// answers with the term after whose end they release them.
    fn command_others(&self, command: ElectorCommand) -> Option<Term> {
        let may_run = self.term.as_ref().map(|(_, term)| term).filter(|term| term.may_run());
        let next = match (command, may_run) {
            (ElectorCommand::Acquire, _) if self.own.term().is_some() => ElectorCommand::Acquire,
            (ElectorCommand::Acquire, Some(term)) => return Some(term.clone()),
            (ElectorCommand::Acquire, None) => ElectorCommand::Prepare,
            (command, _) => command,
        };
        for member in &self.others {
            member.command(next);
        }
        None
    }

    /// Shows the state of the first Lease that is not held; that of the own one when all are.
    fn show(&mut self, command: ElectorCommand) {
        if command != ElectorCommand::Acquire && self.members().any(Member::competes) {
            return;
        }
        let terms: Vec<Term> = self.members().filter_map(Member::term).collect();
        if terms.len() == 1 + self.others.len() {
            let known = self.term.take().filter(|(known, _)| *known == terms);
            let (terms, term) = known.unwrap_or_else(|| {
                let term = Term::of_all(&terms);
                (terms, term)
            });
            if !self.display.leads(&term) {
                info!(lease = self.display.lease, "leading");
            }
            self.term = Some((terms, term.clone()));
            return self.display.show(LeaderState::Leading(term));
        }
        let lacking = self.members().find(|member| member.term().is_none());
        let Some(state) = lacking.map(|member| member.state.borrow().clone()) else {
            return;
        };
        let state = match state {
            LeaderState::Observing { holder } if command == ElectorCommand::Acquire => LeaderState::Waiting { holder },
            LeaderState::Unknown if command == ElectorCommand::Acquire => LeaderState::Waiting { holder: None },
            state => state,
        };
        if command != ElectorCommand::Acquire {
            self.display.forget();
        }
        self.display.show(state);
    }

    /// Releases the Leases of sidecars, then the own one.
    async fn stop(&mut self) {
        for members in [self.others.iter_mut().collect::<Vec<_>>(), vec![&mut self.own]] {
            let ended = members.into_iter().map(|member| {
                member.command(ElectorCommand::Stop);
                &mut member.task
            });
            let _ended = join_all(ended).await;
        }
        self.display.forget();
    }
}

/// One that is cut off, as when it could not release the Leases in time, is thought to hold nothing.
impl Drop for LeaseGroup {
    fn drop(&mut self) {
        self.display.forget();
    }
}
