//! Compares what is attached with what the driver lists, again and again, and has the differences put right.
//!
//! A pass asks for every page, holds on to what concerns our attachments only, and ends without effect when a page
//! cannot be had: half a listing would look like volumes that are gone.

use jiff::Timestamp;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use super::calls::Calls;
use super::engine::Work;
use super::status::LastReconcile;
use crate::api::validated::ReconcileSync;
use crate::clock;
use crate::decide::reconcile::{Expectation, Incomparable, Listing, Suspects, Wanted, expectation};
use crate::decide::{Credentials, Policy};
use crate::store::observe;
use crate::telemetry::names::{attr, span};
use crate::telemetry::{Span, SpanKind};

/// More pages than any backend has; a driver that never comes to an end must not keep us for ever.
pub(super) const MAX_PAGES: usize = 10_000;
/// Share of the interval that is added at random, so that drivers of one start do not stay in step.
const JITTER: f64 = 0.1;

/// Limits of one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most entries; 0 lets the driver choose.
    pub max_entries: i32,
    /// How long it may take.
    pub deadline: Duration,
}

/// What a pass that came to its end found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    volumes: usize,
    mismatches: usize,
}

/// Makes passes until dropped. For drivers that can list where their volumes are.
pub(super) async fn run(work: Arc<Work>) {
    let mut config = work.config.clone();
    let mut suspects = Suspects::default();
    loop {
        let settings = config.borrow_and_update().reconcile_sync.clone();
        if settings.enabled {
            let outcome = pass(&work, &settings, &mut suspects).await;
            report(&work, outcome);
        } else {
            forget(&work, &mut suspects);
        }
        let ended = Instant::now();
        let share = 1.0 + JITTER * fastrand::f64();
        loop {
            let settings = config.borrow_and_update().reconcile_sync.clone();
            let next = ended + settings.interval.mul_f64(share);
            tokio::select! {
                () = sleep_until(next), if settings.enabled => break,
                // A change of the settings counts from the end of the last pass.
                changed = config.changed() => match changed {
                    Ok(()) => {
                        let now = config.borrow().reconcile_sync.enabled;
                        if now != settings.enabled {
                            break;
                        }
                    }
                    Err(_) => return,
                },
            }
        }
    }
}

async fn pass(work: &Work, settings: &ReconcileSync, suspects: &mut Suspects) -> Result<Found, String> {
    // Looked at before the driver is asked: what is attached meanwhile is not expected in an older listing.
    let expectations = expectations(work);
    let mut span = work.tracer().root(span::RECONCILE_SYNC, SpanKind::Internal, &[]);
    span.set(attr::CSI_PLUGIN_NAME, &*work.facts.name);
    span.set(attr::SYNC_ATTACHMENTS, count(expectations.len()));
    let mut listing = Listing::about(&expectations);
    let limits = Limits {
        max_entries: settings.max_entries,
        deadline: work.config.borrow().timeouts.list_volumes,
    };
    // Asked for anew for each page: the driver may have been connected again since the last one.
    let volumes = match list(|| work.client(), limits, &mut listing, &span).await {
        Ok(volumes) => volumes,
        Err(error) => {
            span.fail("_OTHER", &error);
            return Err(error);
        }
    };
    let mut found = expectations;
    found.retain(|expected| listing.contradicts(expected));
    let mismatches = found.len();
    span.set(attr::SYNC_VOLUMES, count(volumes));
    span.set(attr::SYNC_MISMATCHES, count(mismatches));
    let names: HashSet<Arc<str>> = found.iter().map(|expected| expected.name.clone()).collect();
    work.forced.keep(|name| names.contains(name));
    for expected in &found {
        debug!(
            driver = &*work.facts.name,
            VolumeAttachment = &*expected.name,
            volumeHandle = &*expected.handle,
            found = expected.wanted == Wanted::Gone,
            "the driver lists a volume otherwise than expected"
        );
    }
    for expected in suspects.pass(found) {
        force(work, &expected);
    }
    span.end();
    Ok(Found { volumes, mismatches })
}

/// What the driver should list about this driver's settled attachments.
fn expectations(work: &Work) -> Vec<Expectation> {
    let store = &work.context.store;
    let policy = Policy::default();
    let names = store.attachments_of(&work.facts.name).into_iter();
    let found = names.filter_map(|name| {
        let snapshot = store.attachment(&name)?;
        let observed = observe(&snapshot, &work.facts, &policy, Credentials::NotLoaded);
        expectation(&observed).unwrap_or_else(|reason: Incomparable| {
            let driver = &*work.facts.name;
            debug!(driver, VolumeAttachment = &*name, %reason, "cannot be compared with what the driver lists");
            None
        })
    });
    found.collect()
}

/// Asks for all pages; answers how many volumes they had.
pub(super) async fn list(
    client: impl Fn() -> Arc<dyn Calls>,
    limits: Limits,
    listing: &mut Listing,
    span: &Span,
) -> Result<usize, String> {
    let Limits { max_entries, deadline } = limits;
    // Tokens are the driver's choice and may be long; a hash tells as well that one was there before.
    let (hasher, mut tokens) = (RandomState::new(), HashSet::new());
    let (mut token, mut volumes) = (String::new(), 0);
    for _ in 0..MAX_PAGES {
        let page = client().list_volumes(max_entries, &token, deadline, span).await;
        let page = page.map_err(|error| format!("ListVolumes: {error}"))?;
        volumes += page.volumes.len();
        for volume in page.volumes {
            listing.add(&volume.handle, volume.nodes);
        }
        if page.next_token.is_empty() {
            return Ok(volumes);
        }
        if !tokens.insert(hasher.hash_one(&page.next_token)) {
            return Err("ListVolumes: the driver answered the same next_token twice".to_owned());
        }
        token = page.next_token;
    }
    Err(format!("ListVolumes: no end after {MAX_PAGES} pages"))
}

/// Has an attachment worked on though it looks settled, until that succeeds or it is not seen to be wrong any more.
fn force(work: &Work, expected: &Expectation) {
    error!(
        driver = &*work.facts.name,
        VolumeAttachment = &*expected.name,
        volumeHandle = &*expected.handle,
        nodeID = &*expected.node_id,
        attachedStatus = expected.wanted == Wanted::Here,
        found = expected.wanted == Wanted::Gone,
        "the volume is not where the VolumeAttachment says; putting it right"
    );
    work.forced.mark(&expected.name, &expected.uid);
    work.context.store.look_at(&expected.name);
}

fn forget(work: &Work, suspects: &mut Suspects) {
    suspects.pass(Vec::new());
    work.forced.keep(|_| false);
}

fn report(work: &Work, outcome: Result<Found, String>) {
    let (driver, metrics) = (&*work.facts.name, &work.context.metrics);
    let finished_at = whole_seconds(clock::now());
    let failed_before = work.publisher.reconcile_failed();
    let last = match outcome {
        Ok(Found { volumes, mismatches }) => {
            metrics.reconcile_sync(driver, "succeeded", Some(mismatches));
            if failed_before {
                info!(driver, "the comparison with ListVolumes works again");
            }
            LastReconcile {
                finished_at,
                volumes,
                mismatches,
                error: None,
            }
        }
        Err(error) => {
            metrics.reconcile_sync(driver, "failed", None);
            if failed_before {
                debug!(driver, error, "cannot compare with ListVolumes");
            } else {
                warn!(
                    driver,
                    error, "cannot compare the attachments with ListVolumes; trying again"
                );
            }
            LastReconcile {
                finished_at,
                volumes: 0,
                mismatches: 0,
                error: Some(error),
            }
        }
    };
    work.publisher.reconciled(last);
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
