//! Waits until all former places are over, and records the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::record::{Live, PlaceRecord};
use super::{FormerLease, FormerPlace, Place, SeenPlaces};
use crate::api::names::LEASE_HOLDER_ANNOTATION;
use crate::apiserver::{ApiError, ApiErrorKind, Requests};
use crate::lease::record::LeaderElectionRecord;
use crate::lease::rules::LeaseRules;
use crate::lease::state::LeaseHolder;

/// What is needed to change the place of one Lease.
#[derive(Clone)]
pub(in crate::lease) struct PlaceChange {
    pub client: Client,
    pub lease: String,
    pub place: Place,
    pub record: PlaceRecord,
    pub seen: SeenPlaces,
    pub rules: LeaseRules,
    /// When this replica made the Lease, and where to show that the holder of a former one may still work; none when the Lease was
    /// there.
    pub made: Option<(Instant, Arc<AtomicBool>)>,
    pub retry_period: Duration,
    pub request_deadline: Duration,
}

/// What follows from one check of the former places.
enum CheckResult {
    /// The place is ours, and recorded.
    Ours,
    /// Another check makes sense at once.
    Again,
    /// A former place is still in use.
    InUse {
        holder: Option<LeaseHolder>,
        until: Instant,
    },
    /// The place cannot be recorded for now.
    Refused,
    /// The AttacherConfig is gone, or its spec names another place by now: this replica is about to hear of it.
    Outdated,
}

/// What was seen so far of the former places.
#[derive(Default)]
struct HandOverProgress {
    leases: BTreeMap<String, FormerLease>,
    watched: BTreeSet<String>,
    watches: SelectAll<BoxStream<'static, ()>>,
    replicas: Option<Instant>,
    /// Whether a write of the record was refused.
    refused: bool,
}

impl PlaceChange {
    /// Returns when this replica may work under its place. Until then it reports who is in the way, if that is known.
    pub async fn wait(&self, mut waits_for: impl FnMut(Option<LeaseHolder>)) {
        if !self.rules.waits_for_former_places {
            return;
        }
        let mut progress = HandOverProgress::default();
        let mut logged = false;
        loop {
            let (holder, until) = match self.check(&mut progress).await {
                Ok(CheckResult::Ours) => return,
                Ok(CheckResult::Again) => continue,
                Ok(CheckResult::Outdated | CheckResult::Refused) => (None, None),
                Ok(CheckResult::InUse { holder, until }) => {
                    if !std::mem::replace(&mut logged, true) {
                        let holder = holder.as_ref().map(|holder| &*holder.identity);
                        info!(
                            lease = self.lease,
                            holder, "waiting until the former place of the Lease is not in use any more"
                        );
                    }
                    (holder, Some(until))
                }
                Err(error) => {
                    warn!(
                        lease = self.lease,
                        %error,
                        "cannot find out whether a former place of the Lease is in use; retrying"
                    );
                    (None, None)
                }
            };
            waits_for(holder);
            let usual = Instant::now() + self.retry_period;
            tokio::select! {
                biased;
                () = sleep_until(until.map_or(usual, |until| until.min(usual))) => {}
                Some(()) = progress.watches.next() => {
                    // Several changes at once are one.
                    while progress.watches.next().now_or_never().flatten().is_some() {}
                }
            }
        }
    }

    async fn check(&self, progress: &mut HandOverProgress) -> Result<CheckResult, ApiError> {
        // In this order: what is read of the former places is newer than the object, and the write fails if that changed.
        let Some(live) = self.record.read(self.request_deadline).await? else {
            return Ok(CheckResult::Outdated);
        };
        // Also for who goes by an older spec: it gives the Lease up next.
        let seen = self.seen.of(&self.lease);
        let mut in_use = None;
        if let Some((made, former_holder)) = &self.made {
            let runs_out_after = self.place.former_holder(&live.recorded, &seen);
            let runs_out_after = runs_out_after.filter(|_| self.rules.gone_may_be_held);
            let until = *made + runs_out_after.unwrap_or_default();
            let may_work = until > Instant::now();
            former_holder.store(may_work, Ordering::Relaxed);
            in_use = may_work.then_some((None, until));
        }
        if live
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.0 != self.place.namespace)
        {
            return Ok(CheckResult::Outdated);
        }
        let former = self.place.former(&live.recorded, &seen);
        for (former, runs_out_after) in &former {
            let found = match former {
                FormerPlace::Lease(namespace) => {
                    let unseen = FormerLease::new(*runs_out_after, self.rules);
                    self.lease_in_use(progress, namespace, unseen, in_use.is_none()).await?
                }
                FormerPlace::Sidecar(namespace) => {
                    let unseen = FormerLease::of_sidecar(*runs_out_after, self.rules);
                    self.lease_in_use(progress, namespace, unseen, in_use.is_none()).await?
                }
                FormerPlace::Replicas(names) => {
                    let since = *progress.replicas.get_or_insert_with(Instant::now);
                    let until = since + live.longest_call.max(*runs_out_after);
                    let identity = names.join(", ");
                    let holder = Some(LeaseHolder {
                        identity,
                        reports: true,
                        namesake: false,
                    });
                    Some((holder, until))
                }
            };
            // All are checked: they run out at the same time.
            in_use = in_use.into_iter().chain(found).max_by_key(|(_, until)| *until);
        }
        match in_use {
            Some((holder, until)) if until > Instant::now() => Ok(CheckResult::InUse { holder, until }),
            _ => self.write(progress, &live).await,
        }
    }

    async fn write(&self, progress: &mut HandOverProgress, live: &Live) -> Result<CheckResult, ApiError> {
        let record = self.place.recorded(&live.recorded);
        if record != live.recorded {
            match self.record.write(live, &record, self.request_deadline).await {
                Ok(()) => {}
                Err(error) if error.status == Some(409) => return Ok(CheckResult::Again),
                // An API server that does not know all permissions yet refuses for a moment.
                Err(error) if is_refused(&error) && !std::mem::replace(&mut progress.refused, true) => {
                    warn!(
                        lease = self.lease,
                        %error,
                        "cannot record where the Lease is in status.leaderElection of the AttacherConfig; retrying once"
                    );
                    return Ok(CheckResult::Refused);
                }
                Err(error) if is_refused(&error) || error.kind == ApiErrorKind::NotKept => warn!(
                    lease = self.lease,
                    %error,
                    "cannot record where the Lease is in status.leaderElection of the AttacherConfig; a replica that \
                     starts after a change of spec.leaderElection does not know the former place"
                ),
                Err(error) => return Err(error),
            }
        }
        self.seen.clear(&self.lease);
        Ok(CheckResult::Ours)
    }

    /// Who holds a former Lease, and until when at least; none when it is over. At the first check it is as `unseen`.
    async fn lease_in_use(
        &self,
        progress: &mut HandOverProgress,
        namespace: &str,
        unseen: FormerLease,
        watch: bool,
    ) -> Result<Option<(Option<LeaseHolder>, Instant)>, ApiError> {
        // The others are checked each time when something happens at one, and now and then.
        if watch && progress.watched.insert(namespace.to_owned()) {
            let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
            let watched = watcher::watch_object(api, &self.lease).default_backoff();
            let changes = watched.filter_map(|event| std::future::ready(event.ok().map(drop)));
            progress.watches.push(changes.boxed());
        }
        let former = progress.leases.entry(namespace.to_owned()).or_insert(unseen);
        let requests = Requests::immediate(self.client.clone(), self.request_deadline);
        let read = requests.find::<Lease>((namespace, &*self.lease)).await;
        let now = Instant::now();
        let mut notes = None;
        match read {
            Ok(lease) => {
                former.observe(lease.as_ref().map(LeaderElectionRecord::of), now);
                notes = lease.and_then(|lease| lease.metadata.annotations);
            }
            Err(error) if error.is_forbidden() => {
                if former.unreadable(now) {
                    warn!(
                        lease = self.lease,
                        namespace,
                        answer = error.message,
                        "may not read the Lease in a namespace of leaderElection.sidecarNamespaces, and goes on without it after \
                         its duration; the operator's ServiceAccount needs, by a Role in that namespace, get, list and watch \
                         on leases"
                    );
                }
            }
            Err(error) => return Err(error),
        }
        Ok(former.in_use_until(now).map(|until| {
            let other = former.holder().filter(|holder| *holder != self.place.identity);
            let holder = other.map(|identity| LeaseHolder {
                identity: identity.to_owned(),
                namesake: false,
                reports: notes.is_some_and(|notes| {
                    notes
                        .get(LEASE_HOLDER_ANNOTATION)
                        .is_some_and(|holder| holder == identity)
                }),
            });
            (holder, until)
        }))
    }

    /// Records that this replica, which worked without a Lease, does not any more.
    pub async fn leave(&self) {
        for _ in 0..3 {
            let left = async {
                let Some(live) = self.record.read(self.request_deadline).await? else {
                    return Ok(());
                };
                let record = self.place.left(&live.recorded);
                if record == live.recorded {
                    return Ok(());
                }
                self.record.write(&live, &record, self.request_deadline).await
            };
            match left.await {
                Err(error) if error.status == Some(409) => {}
                Err(error) if !is_refused(&error) && error.kind != ApiErrorKind::NotKept => {
                    warn!(
                        lease = self.lease,
                        %error,
                        "cannot record that the work without a Lease has ended"
                    );
                    sleep(self.retry_period.min(Duration::from_secs(1))).await;
                }
                _ => return,
            }
        }
    }
}

/// Whether a write of the record is refused, which waiting seldom changes.
fn is_refused(error: &ApiError) -> bool {
    matches!(error.status, Some(400 | 403 | 405 | 422))
}
