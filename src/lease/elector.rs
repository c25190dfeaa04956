//! What a candidate does: watches the Lease, takes it, keeps it, releases it.

mod requests;
mod sharing;

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use super::candidate::{Campaign, Holder, Order, Standing};
use super::election::{Election, Next};
use super::settings::Timing;
use crate::api::names::LEASE_HOLDER_ANNOTATION;
use crate::clock;
use crate::error_chain::chain;
use crate::telemetry::Metrics;

/// Longest pause after a renewal that failed: there is not much time left.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);
/// Candidates that wait for the same moment come this much apart, in parts of the retry period.
const SPREAD: f64 = 0.2;

/// A Lease that is held, and how long.
#[derive(Clone, Copy, Debug)]
struct Term {
    /// When the request was begun that renewed it last. Others count from when they see its answer, which is later.
    renewed: Instant,
    timing: Timing,
}

impl Term {
    fn deadline(&self) -> Instant {
        self.renewed + self.timing.renew_deadline
    }

    fn end(&self) -> Instant {
        self.renewed + self.timing.lease_duration
    }
}

/// How a try to renew ended.
enum Renewal {
    /// It is renewed by a request begun at this time.
    Done(Instant),
    /// Somebody else has it.
    Taken,
    /// Not known; to be tried again.
    Failed,
}

pub(super) struct Elector {
    api: Api<Lease>,
    campaign: Campaign,
    name: String,
    metrics: Metrics,
    standing: watch::Sender<Standing>,
    election: Election,
    /// The Lease as it was last read or written; its resource version makes a write fail that comes too late.
    known: Option<Lease>,
    /// Whether the Lease was seen at all, or seen not to be there.
    seen: bool,
    /// Whether a write was begun whose end is not known.
    in_doubt: bool,
    /// To whom the Lease is about to be handed over.
    giving: Option<String>,
    /// Whether we were the last to hold it, and handed it over.
    gave: bool,
    /// Tells to whom the Lease should be handed over.
    asked: watch::Sender<Option<String>>,
    /// Which right is missing, while there is one.
    refusal: watch::Sender<Option<String>>,
}

impl Elector {
    pub fn new(
        campaign: Campaign,
        name: String,
        metrics: Metrics,
        standing: watch::Sender<Standing>,
        asked: watch::Sender<Option<String>>,
        refusal: watch::Sender<Option<String>>,
    ) -> Self {
        let settings = &campaign.settings;
        let election = Election::new(settings.identity.clone(), settings.timing.lease_duration);
        Self {
            api: Api::namespaced(campaign.client.clone(), &settings.namespace),
            campaign,
            name,
            metrics,
            standing,
            election,
            known: None,
            seen: false,
            in_doubt: false,
            giving: None,
            gave: false,
            asked,
            refusal,
        }
    }

    /// Does as it is told until it is told to resign.
    pub async fn run(mut self, mut orders: watch::Receiver<Order>) {
        loop {
            let order = *orders.borrow_and_update();
            match order {
                Order::Resign => {
                    self.show_on_board(&Standing::Unknown);
                    return;
                }
                Order::Observe => tokio::select! {
                    biased;
                    () = self.observe() => {}
                    changed = orders.changed() => if changed.is_err() {
                        return;
                    }
                },
                Order::Compete => {
                    let told = tokio::select! {
                        biased;
                        () = self.compete() => true,
                        told = orders.wait_for(|order| *order != Order::Compete) => told.is_ok(),
                    };
                    if !told {
                        return;
                    }
                    self.release().await;
                    self.campaign.health.gone(&self.name);
                    self.metrics.forget_lease(&self.name);
                    let holder = self.other_holder();
                    self.show(Standing::Observing { holder });
                }
            }
        }
    }

    /// Competes until cut off.
    async fn compete(&mut self) {
        let holder = self.other_holder();
        self.show(Standing::Waiting { holder });
        loop {
            self.gave = self.giving.take().is_some();
            self.asked.send_replace(None);
            let term = self.acquire().await;
            self.gave = false;
            info!(lease = self.name, identity = self.campaign.settings.identity, "leading");
            self.show(Standing::Leading);
            let until = self.keep(term).await;
            warn!(lease = self.name, holder = self.election.holder(), "lost the Lease");
            self.show(Standing::Lost { until });
        }
    }

    /// Shows who holds the Lease until cut off: at each change of it, and when the holder's time is over. Writes nothing.
    async fn observe(&mut self) {
        let watched = watcher::watch_object(self.api.clone(), &self.name).default_backoff();
        let mut watched = pin!(watched.fuse());
        let mut next_look = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = sleep_until(next_look) => {
                    if let Err(error) = self.read().await {
                        debug!(lease = self.name, error, "cannot look at the Lease; trying again");
                    }
                }
                Some(event) = watched.next() => match event {
                    Ok(lease) => self.saw(lease),
                    Err(error) => {
                        debug!(lease = self.name, error = chain(&error), "cannot watch the Lease");
                        continue;
                    }
                }
            }
            next_look = self.next_look();
            if self.seen {
                let holder = self.other_holder();
                self.show(Standing::Observing { holder });
            }
        }
    }

    /// Who else holds the Lease, as far as known.
    fn other_holder(&self) -> Option<Holder> {
        let Next::Wait { holder: identity, .. } = self.next() else {
            return None;
        };
        let reports = self.note(LEASE_HOLDER_ANNOTATION) == Some(&identity);
        Some(Holder { identity, reports })
    }

    /// When one that only watches looks for itself: when the holder's time is over, or after a while without any news.
    fn next_look(&self) -> Instant {
        let timing = &self.campaign.settings.timing;
        let spread = timing.retry_period.mul_f64(SPREAD * fastrand::f64());
        let usual = Instant::now() + timing.lease_duration;
        let wanted = match self.next() {
            Next::Wait { until, .. } => until.min(usual),
            _ if self.seen => usual,
            _ => Instant::now() + timing.retry_period,
        };
        wanted + spread
    }

    fn show(&self, standing: Standing) {
        self.show_on_board(&standing);
        // Another candidate of this process may compete while this one only watches.
        if !matches!(standing, Standing::Unknown | Standing::Observing { .. }) {
            let leads = standing == Standing::Leading;
            self.metrics.leading(&self.name, leads);
            if !leads {
                self.campaign.health.gone(&self.name);
            }
        }
        self.standing.send_if_modified(|known| {
            let differs = *known != standing;
            *known = standing;
            differs
        });
    }

    /// Tries until the Lease is held: at each change of it, when the holder's time is over, and now and then.
    async fn acquire(&mut self) -> Term {
        let watched = watcher::watch_object(self.api.clone(), &self.name).default_backoff();
        let mut watched = pin!(watched.fuse());
        // What the watch has just told needs no look: a write over something newer fails by its resource version.
        let mut fresh = false;
        loop {
            if let Some(term) = self.try_to_take(fresh).await {
                return term;
            }
            fresh = false;
            self.consider_asking().await;
            let pause = sleep_until(self.next_try());
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    biased;
                    () = &mut pause => break,
                    Some(event) = watched.next() => match event {
                        Ok(lease) => {
                            self.saw(lease);
                            if !matches!(self.next(), Next::Wait { .. }) {
                                fresh = true;
                                break;
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
    fn next_try(&self) -> Instant {
        let period = self.campaign.settings.timing.retry_period;
        let spread = period.mul_f64(SPREAD * fastrand::f64());
        let usual = Instant::now() + period;
        let wanted = match self.next() {
            Next::Wait { until, .. } => until.min(usual),
            _ => usual,
        };
        wanted + spread
    }

    async fn try_to_take(&mut self, fresh: bool) -> Option<Term> {
        let written = if fresh {
            self.write_next(self.next()).await.ok()
        } else {
            None
        };
        let taken = match written {
            Some(renewed) => Ok(renewed),
            None => match self.read().await {
                Ok(()) => match self.next() {
                    Next::Wait { .. } => {
                        self.allowed();
                        self.wait_for();
                        return None;
                    }
                    next => self.write_next(next).await,
                },
                Err(error) => Err(error),
            },
        };
        match taken {
            Ok(renewed) => {
                let timing = self.campaign.settings.timing;
                Some(Term { renewed, timing })
            }
            Err(error) => {
                warn!(lease = self.name, error, "cannot take the Lease; trying again");
                self.wait_for();
                None
            }
        }
    }

    /// Shows for whom we wait; a Lease that was lost stays shown as lost until its time is over.
    fn wait_for(&self) {
        let still_lost = matches!(*self.standing.borrow(), Standing::Lost { until } if until > Instant::now());
        if !still_lost {
            let holder = self.other_holder();
            self.show(Standing::Waiting { holder });
        }
    }

    /// Renews until that fails for too long; answers when others may take the Lease.
    async fn keep(&mut self, mut term: Term) -> Instant {
        let period = term.timing.retry_period;
        loop {
            sleep_until((term.renewed + period).min(term.deadline())).await;
            loop {
                let renewal = timeout_at(term.deadline(), self.renew()).await;
                match renewal.unwrap_or(Renewal::Failed) {
                    Renewal::Done(renewed) => {
                        term.renewed = renewed;
                        if self.giving.is_none() {
                            self.show_on_board(&Standing::Leading);
                        }
                        break;
                    }
                    Renewal::Taken => return Instant::now(),
                    Renewal::Failed if Instant::now() >= term.deadline() => return term.end(),
                    Renewal::Failed => {
                        let rest = term.deadline().duration_since(Instant::now());
                        sleep(period.min(RENEWAL_PAUSE).min(rest)).await;
                    }
                }
            }
        }
    }

    async fn renew(&mut self) -> Renewal {
        // A Lease that is ours needs no look: a write that came too late fails by its resource version.
        if let Some(record) = self.election.renewal(Instant::now(), clock::now()) {
            match self.write(record).await {
                Ok(renewed) => return Renewal::Done(renewed),
                Err(error) => debug!(lease = self.name, error, "looking at the Lease before it is renewed"),
            }
        }
        self.metrics.lease_read_before_renewal(&self.name);
        let renewed = match self.read().await {
            Ok(()) if self.known.is_some() && !self.election.is_ours() => return Renewal::Taken,
            Ok(()) => match self.next() {
                Next::Wait { .. } => return Renewal::Taken,
                next => {
                    self.consider_giving();
                    self.write_next(next).await
                }
            },
            Err(error) => Err(error),
        };
        match renewed {
            Ok(renewed) => Renewal::Done(renewed),
            Err(error) => {
                warn!(lease = self.name, error, "cannot renew the Lease; trying again");
                Renewal::Failed
            }
        }
    }

    /// Leaves the Lease to others, if it is ours. A change by somebody else meanwhile is looked at once.
    async fn release(&mut self) {
        // A write may have been cut off that did happen: then the Lease is looked at whatever is thought of it.
        let mut sure = !self.in_doubt;
        for _ in 0..3 {
            if !std::mem::take(&mut sure)
                && let Err(error) = self.read().await
            {
                warn!(lease = self.name, error, "cannot release the Lease");
                continue;
            }
            let Some(record) = self.election.resignation(clock::now()) else {
                return;
            };
            match self.write(record).await {
                Ok(_) => {
                    info!(lease = self.name, "released the Lease");
                    return;
                }
                Err(error) => warn!(lease = self.name, error, "cannot release the Lease"),
            }
        }
    }
}
