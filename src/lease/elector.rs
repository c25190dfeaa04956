//! The effects of an election: reading, watching and writing the Lease.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::candidate::{Campaign, Standing};
use super::election::{Election, Next};
use super::record::Record;
use super::settings::Timing;
use crate::api::names::FIELD_MANAGER;
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
}

impl Elector {
    pub fn new(campaign: Campaign, name: String, metrics: Metrics, standing: watch::Sender<Standing>) -> Self {
        let settings = &campaign.settings;
        let election = Election::new(settings.identity.clone(), settings.timing.lease_duration);
        metrics.leading(&name, false);
        Self {
            api: Api::namespaced(campaign.client.clone(), &settings.namespace),
            campaign,
            name,
            metrics,
            standing,
            election,
            known: None,
        }
    }

    /// Competes until told to resign.
    pub async fn run(mut self, resign: CancellationToken) {
        loop {
            let term = tokio::select! {
                term = self.acquire() => term,
                () = resign.cancelled() => break,
            };
            info!(lease = self.name, identity = self.campaign.settings.identity, "leading");
            self.show(Standing::Leading);
            let until = tokio::select! {
                until = self.keep(term) => until,
                () = resign.cancelled() => break,
            };
            warn!(lease = self.name, holder = self.election.holder(), "lost the Lease");
            self.show(Standing::Lost { until });
        }
        // A write may have been cut off that did happen: the Lease is looked at whatever is thought of it.
        self.release().await;
        self.show(Standing::Waiting { holder: None });
        self.metrics.forget_lease(&self.name);
    }

    fn show(&self, standing: Standing) {
        let leads = standing == Standing::Leading;
        self.metrics.leading(&self.name, leads);
        if !leads {
            self.campaign.health.gone(&self.name);
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
        loop {
            if let Some(term) = self.try_to_take().await {
                return term;
            }
            let pause = sleep_until(self.next_try());
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    Some(event) = watched.next() => match event {
                        Ok(lease) => {
                            self.saw(lease);
                            if !matches!(self.next(), Next::Wait { .. }) {
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

    fn next(&self) -> Next {
        self.election.next(Instant::now(), clock::now())
    }

    async fn try_to_take(&mut self) -> Option<Term> {
        let taken = match self.read().await {
            Ok(()) => match self.next() {
                Next::Wait { holder, .. } => {
                    self.wait_for(Some(holder));
                    return None;
                }
                next => self.write_next(next).await,
            },
            Err(error) => Err(error),
        };
        match taken {
            Ok(renewed) => {
                let timing = self.campaign.settings.timing;
                Some(Term { renewed, timing })
            }
            Err(error) => {
                warn!(lease = self.name, error, "cannot take the Lease; trying again");
                let holder = self.election.holder().map(str::to_owned);
                self.wait_for(holder);
                None
            }
        }
    }

    /// Shows for whom we wait; a Lease that was lost stays shown as lost until its time is over.
    fn wait_for(&self, holder: Option<String>) {
        let still_lost = matches!(*self.standing.borrow(), Standing::Lost { until } if until > Instant::now());
        if !still_lost {
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
                next => self.write_next(next).await,
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
        for _ in 0..2 {
            if let Err(error) = self.read().await {
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

    async fn read(&mut self) -> Result<(), String> {
        let lease = self.bounded(self.api.get_opt(&self.name)).await?;
        self.saw(lease);
        Ok(())
    }

    fn saw(&mut self, lease: Option<Lease>) {
        self.election.observe(lease.as_ref().map(Record::of), Instant::now());
        self.known = lease;
    }

    async fn write_next(&mut self, next: Next) -> Result<Instant, String> {
        match next {
            Next::Create(record) | Next::Write(record) => self.write(record).await,
            Next::Wait { holder, .. } => Err(format!("it belongs to {holder}")),
        }
    }

    /// Writes the Lease, or creates it; answers when the request was begun.
    async fn write(&mut self, record: Record) -> Result<Instant, String> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let mut lease = self.known.clone().unwrap_or_default();
        record.write_to(&mut lease, &self.campaign.settings.labels);
        let begun = Instant::now();
        let stored = if self.known.is_some() {
            self.bounded(self.api.replace(&self.name, &params, &lease)).await?
        } else {
            let name = Some(self.name.clone());
            lease.metadata = ObjectMeta { name, ..lease.metadata };
            self.bounded(self.api.create(&params, &lease)).await?
        };
        let record = Record::of(&stored);
        self.known = Some(stored);
        self.election.written(record, Instant::now());
        if self.election.is_ours() {
            let duration = self.campaign.settings.timing.lease_duration;
            self.campaign.health.renewed(&self.name, duration, begun);
        }
        Ok(begun)
    }

    async fn bounded<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
        let limit = self.campaign.settings.timing.request_deadline();
        match timeout(limit, request).await {
            Ok(answer) => answer.map_err(|error| chain(&error)),
            Err(_) => Err(format!(
                "no answer from the API server within {} s",
                limit.as_secs_f64()
            )),
        }
    }
}
