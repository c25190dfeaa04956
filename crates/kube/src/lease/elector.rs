//! What a candidate does: watches the Lease, takes it, keeps it, releases it.

mod acquire;
mod display;
mod renewal;
mod requests;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use display::Display;

use super::config::LeaderElectionConfig;
use super::election::{ElectionState, LeaseAction};
use super::shares::LeaseShareGuard;
use super::state::{ElectorCommand, LeaderState, LeaseHolder};
use super::term::Term;
use crate::api::names::LEASE_HOLDER_ANNOTATION;
use crate::clock;
use crate::error_chain::chain;
use crate::telemetry::Metrics;

/// One that is cut off, as when it could not release the Lease in time, is thought to hold nothing.
impl Drop for LeaderElector {
    fn drop(&mut self) {
        self.display.forget();
    }
}

/// Candidates that wait for the same moment come this much apart, in parts of the retry period.
const SPREAD: f64 = 0.2;

pub(super) struct LeaderElector {
    api: Api<Lease>,
    campaign: LeaderElectionConfig,
    name: String,
    metrics: Metrics,
    display: Display,
    election: ElectionState,
    /// The Lease as it was last read or written; its resource version makes a write fail that comes too late.
    known: Option<Lease>,
    /// Whether the Lease was seen at all, or seen not to be there.
    seen: bool,
    /// Whether a write was begun whose end is not known.
    write_unconfirmed: bool,
    /// When the Lease was made, if this process made it for the term that it is in.
    made: Option<Instant>,
    /// Whether who held the Lease that we made may still work.
    former_holder: Arc<AtomicBool>,
    /// Whether another process of our name has taken the Lease from us.
    namesake: bool,
    /// The Lease as one that is held or about to be taken.
    share: Option<LeaseShareGuard>,
    /// The last term in which the Lease was held.
    term: Option<Term>,
    /// Which right is missing, while there is one.
    refusal: watch::Sender<Option<String>>,
}

impl LeaderElector {
    pub fn new(
        campaign: LeaderElectionConfig,
        name: String,
        metrics: Metrics,
        standing: watch::Sender<LeaderState>,
        refusal: watch::Sender<Option<String>>,
    ) -> Self {
        let settings = &campaign.settings;
        let election = ElectionState::new(
            settings.identity.clone(),
            settings.timing.lease_duration,
            campaign.rules,
        );
        Self {
            api: Api::namespaced(campaign.client.clone(), &settings.namespace),
            display: Display {
                lease: name.clone(),
                health: Arc::new(campaign.health.candidate(&name)),
                metrics: metrics.clone(),
                elects: settings.enabled,
                standing,
            },
            campaign,
            name,
            metrics,
            election,
            known: None,
            seen: false,
            write_unconfirmed: false,
            made: None,
            former_holder: Arc::default(),
            namesake: false,
            share: None,
            term: None,
            refusal,
        }
    }

    /// Does as it is told until it is told to resign.
    pub async fn run(mut self, mut orders: watch::Receiver<ElectorCommand>) {
        loop {
            let order = *orders.borrow_and_update();
            match order {
                ElectorCommand::Stop => return,
                ElectorCommand::Observe => tokio::select! {
                    biased;
                    () = self.watch_holder() => {}
                    changed = orders.changed() => if changed.is_err() {
                        return;
                    }
                },
                ElectorCommand::Acquire => {
                    self.election.stand();
                    let told = tokio::select! {
                        biased;
                        () = self.acquire_and_renew() => true,
                        told = orders.wait_for(|order| *order != ElectorCommand::Acquire) => told.is_ok(),
                    };
                    if !told {
                        return;
                    }
                    self.release().await;
                    self.share = None;
                    self.election.withdraw();
                    self.display.forget();
                    let holder = self.other_holder();
                    self.show(LeaderState::Observing { holder });
                }
            }
        }
    }

    /// Competes until cut off.
    async fn acquire_and_renew(&mut self) {
        let holder = self.other_holder();
        self.show(LeaderState::Waiting { holder });
        if !self.campaign.settings.enabled {
            let term = Term::without_lease(self.campaign.clock.clone());
            self.term = Some(term.clone());
            return self.lead_when_over(term).await;
        }
        loop {
            let term = self.acquire().await;
            self.share();
            self.term = Some(term.clone());
            let leading = self.lead_when_over(term.clone());
            tokio::select! {
                biased;
                () = self.keep(&term) => {}
                () = leading => return,
            }
            self.share = None;
            self.namesake = self.election.is_of_namesake();
            if self.namesake {
                self.metrics.lease_identity_conflict(&self.name);
                error!(
                    lease = self.name,
                    identity = self.campaign.settings.identity,
                    "another process of the same name writes the Lease; each needs an identity of its own (a sidecar has \
                     the name of its host: do not run one in the same pod, or with hostNetwork on the same node)"
                );
            }
            warn!(lease = self.name, holder = self.election.holder(), "lost the Lease");
            let until = Instant::now() + term.until_end();
            self.show(LeaderState::Lost { until });
        }
    }

    /// Leads as soon as the former places of the Lease are over, and never returns. The AttacherConfig says who may have worked
    /// before, and that may have been read late: that nobody has taken the Lease since is seen by a renewal begun afterwards.
    fn lead_when_over(&self, term: Term) -> impl Future<Output = ()> + use<> {
        let made = self.made.map(|made| (made, self.former_holder.clone()));
        let change = self.campaign.place_change(&self.name, made);
        let display = self.display.clone();
        let elects = self.campaign.settings.enabled;
        let (lease, identity) = (self.name.clone(), self.campaign.settings.identity.clone());
        async move {
            if let Some(change) = change {
                change.wait(|holder| display.wait_for(holder)).await;
                if elects {
                    term.confirmed().await;
                }
            }
            info!(lease, identity, "leading");
            display.show(LeaderState::Leading(term));
            std::future::pending::<()>().await;
        }
    }

    /// Shows who holds the Lease until cut off: at each change of it, and when the holder's time is over. Writes nothing.
    async fn watch_holder(&mut self) {
        if !self.campaign.settings.enabled {
            self.show(LeaderState::Observing { holder: None });
            return std::future::pending().await;
        }
        let watched = watcher::watch_object(self.api.clone(), &self.name).default_backoff();
        let mut watched = pin!(watched.fuse());
        let mut next_look = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = sleep_until(next_look) => {
                    if let Err(error) = self.read().await {
                        debug!(lease = self.name, %error, "cannot read the Lease; retrying");
                    }
                }
                Some(event) = watched.next() => match event {
                    Ok(lease) => self.observe_lease(lease),
                    Err(error) => {
                        debug!(lease = self.name, error = chain(&error), "cannot watch the Lease");
                        continue;
                    }
                }
            }
            next_look = self.next_check();
            if self.seen {
                let holder = self.other_holder();
                self.show(LeaderState::Observing { holder });
            }
        }
    }

    /// Who else holds the Lease, as far as known.
    fn other_holder(&self) -> Option<LeaseHolder> {
        let LeaseAction::Wait { holder: identity, .. } = self.next() else {
            return None;
        };
        let notes = self
            .known
            .as_ref()
            .and_then(|lease| lease.metadata.annotations.as_ref());
        // One of our own name may be a sidecar, which leaves our note on the Lease.
        let has_our_name = identity == self.campaign.settings.identity;
        let reports = notes.and_then(|notes| notes.get(LEASE_HOLDER_ANNOTATION)) == Some(&identity) && !has_our_name;
        Some(LeaseHolder {
            namesake: self.namesake && has_our_name,
            identity,
            reports,
        })
    }

    /// When one that only watches looks for itself: when the holder's time is over, or after a while without any news.
    fn next_check(&self) -> Instant {
        let timing = &self.campaign.settings.timing;
        let spread = timing.retry_period.mul_f64(SPREAD * fastrand::f64());
        let usual = Instant::now() + timing.lease_duration;
        let wanted = match self.next() {
            LeaseAction::Wait { until, .. } => until.min(usual),
            _ if self.seen => usual,
            _ => Instant::now() + timing.retry_period,
        };
        wanted + spread
    }

    fn show(&self, standing: LeaderState) {
        self.display.show(standing);
    }

    /// Leaves the Lease to others, if it is ours. A change by somebody else meanwhile is looked at once.
    async fn release(&mut self) {
        if let Some(term) = self.term.take() {
            term.end();
        }
        if !self.campaign.settings.enabled {
            if let Some(change) = self.campaign.place_change(&self.name, None) {
                change.leave().await;
            }
            return;
        }
        // One that was made while its former holder may work is given to nobody: it runs out, as that holder's does.
        if self.former_holder.load(Ordering::Relaxed) {
            return;
        }
        // A write may have been cut off that did happen: then the Lease is looked at whatever is thought of it.
        let mut sure = !self.write_unconfirmed;
        for _ in 0..3 {
            if !std::mem::take(&mut sure)
                && let Err(error) = self.read().await
            {
                warn!(lease = self.name, %error, "cannot release the Lease");
                continue;
            }
            // A former life of ours may have made it, and this one did not come to look; or it was made again since the last renewal.
            if self.campaign.record.is_some() && self.election.is_unused() {
                return;
            }
            let Some(record) = self.election.release_record(clock::now()) else {
                return;
            };
            match self.write(record).await {
                Ok(_) => {
                    info!(lease = self.name, "released the Lease");
                    return;
                }
                Err(error) => warn!(lease = self.name, %error, "cannot release the Lease"),
            }
        }
    }
}
