//! Taking the Lease: at each change of it, when the holder's time is over, and after the pause before a free one.

use std::pin::pin;

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::{LeaderElector, SPREAD};
use crate::clock;
use crate::error_chain::chain;
use crate::lease::Term;
use crate::lease::config::LeaderElectionConfig;
use crate::lease::election::LeaseAction;
use crate::lease::shares::LeaseShareGuard;

/// What one that competes does next.
enum AcquireStep {
    /// Nothing until this time: another holds the Lease, or it is left to replicas that hold fewer.
    Wait(Instant),
    /// To take the Lease, by a write of this kind.
    Take(LeaseAction),
}

impl LeaderElector {
    /// Tries until the Lease is held: at each change of it, when the holder's time is over, and now and then.
    pub(super) async fn acquire(&mut self) -> Term {
        let watched = watcher::watch_object(self.api.clone(), &self.name).default_backoff();
        let mut watched = pin!(watched.fuse());
        // What the watch told, or was seen before a short pause, needs no look: a write over something newer fails by its
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
                    Some(event) = watched.next() => match event {
                        Ok(lease) => {
                            self.observe_lease(lease);
                            match self.step() {
                                AcquireStep::Wait(until) => next_try = next_try.min(until),
                                AcquireStep::Take(_) => {
                                    fresh = true;
                                    break;
                                }
                            }
                        }
                        // Not every sidecar may watch; looking now and then does as well, only later.
                        Err(error) => debug!(lease = self.name, error = chain(&error), "cannot watch the Lease"),
                    },
                }
            }
        }
    }

    /// When to try again if nothing is heard.
    fn next_retry(&mut self) -> Instant {
        let period = self.campaign.settings.timing.retry_period;
        let spread = period.mul_f64(SPREAD * fastrand::f64());
        let usual = Instant::now() + period;
        match self.step() {
            AcquireStep::Wait(until) if self.share.is_some() => until,
            AcquireStep::Wait(until) => until.min(usual) + spread,
            AcquireStep::Take(_) => usual + spread,
        }
    }

    /// What to do about the Lease by the rules of the election.
    pub(super) fn next(&self) -> LeaseAction {
        self.election.next(Instant::now(), clock::now())
    }

    /// What one that competes does about the Lease: the rules of the election, and the pause before a free Lease is taken.
    fn step(&mut self) -> AcquireStep {
        let next = self.next();
        if let LeaseAction::Wait { until, .. } = next {
            self.share = None;
            return AcquireStep::Wait(until);
        }
        // The drop-in mode, and one that has its own Lease back, do not pause.
        if !self.seen || !self.campaign.settings.reports || self.election.is_ours() {
            return AcquireStep::Take(next);
        }
        let pause_ends = self.share().pause_ends;
        if pause_ends > Instant::now() {
            AcquireStep::Wait(pause_ends)
        } else {
            AcquireStep::Take(next)
        }
    }

    /// Counts the Lease as one that is held or about to be taken.
    pub(super) fn share(&mut self) -> &LeaseShareGuard {
        let LeaderElectionConfig { shares, settings, .. } = &self.campaign;
        let acquire = || shares.acquire(settings.timing.retry_period, Instant::now());
        self.share.get_or_insert_with(acquire)
    }

    async fn try_acquire(&mut self, fresh: bool) -> Option<Term> {
        let step = fresh.then(|| self.step());
        let written = match step {
            Some(AcquireStep::Take(next)) => self.write_next(next).await.ok(),
            _ => None,
        };
        let taken = match written {
            Some(renewed) => Ok(renewed),
            None => match self.read().await {
                Ok(()) => match self.step() {
                    AcquireStep::Wait(_) => {
                        self.clear_permission_error();
                        self.wait_for();
                        return None;
                    }
                    AcquireStep::Take(next) => self.write_next(next).await,
                },
                Err(error) => Err(error),
            },
        };
        match taken {
            Ok(taken) => {
                let LeaderElectionConfig {
                    rules, clock, settings, ..
                } = &self.campaign;
                Some(Term::by_rules(*rules, clock.clone(), settings.timing, taken))
            }
            Err(error) => {
                warn!(lease = self.name, %error, "cannot take the Lease; retrying");
                self.wait_for();
                None
            }
        }
    }

    pub(super) fn wait_for(&self) {
        self.display.wait_for(self.other_holder());
    }
}
