//! Compares what is attached with what the driver lists, again and again, and has the differences put right.
//!
//! A pass asks for every page, holds on to what concerns our attachments only, and ends without effect when a page
//! cannot be had: half a listing would look like volumes that are gone.

pub(super) mod list;
pub(super) mod span;
#[cfg(test)]
mod tests;
pub(super) mod turns;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::attempt::{events, policy};
use super::context::DriverContext;
use crate::api::validated::{DriverConfig, ReconcileSync};
use crate::cache::{AttacherKey, EnqueueCause, Snapshot, handles_of, observe};
use crate::clock;
use crate::decide::reconcile::{
    Comparison, DesiredState, Expectation, LastingUnclaimed, Listing, Mismatches, Repairs, Unclaimed,
    VolumesWithoutAttachment, awaited, contradiction, expectation, witness,
};
use crate::decide::{Observed, SecretState, shown_handle};
use crate::events::EventReason;
use crate::objects::{Attachment, InTreePlugin};
use crate::telemetry::metrics::ReconcileSyncCounts;
use csi_attacher_runtime::fence::CallFailure;
use csi_attacher_runtime::state::ReconcileSyncResult;
use list::{ListError, ListLimits, ListProgress, list};
use span::ReconcileSyncSpan;
use turns::{AT_ONCE, Witnesses};

/// Share of the interval that is added at random, so that drivers of one start do not stay in step.
const JITTER: f64 = 0.1;
/// The shortest interval that is used. A shorter one is a mistake, such as 1ms for 1m, and the driver would list for ever.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Longest pause between two repairs that change nothing in what the driver lists, if its interval is not longer.
const MAX_REPAIR_PAUSE: Duration = Duration::from_hours(1);
/// So many mismatches of each kind are told one by one in a pass, as lines of the log and as Events, and the others in one line: a backend
/// that lists nothing any more is one problem.
const MAX_TOLD: usize = 20;

/// A line of the log about a VolumeAttachment and what ListVolumes should show of it.
macro_rules! log_about {
    ($level:ident, $work:expr, $expected:expr, $($rest:tt)+) => {
        tracing::$level!(
            driver = &*$work.facts.name,
            VolumeAttachment = &*$expected.name,
            volumeHandle = &*$expected.handle,
            $($rest)+
        )
    };
}

/// What is kept from pass to pass.
#[derive(Default)]
struct ReconcileSyncState {
    passes: u64,
    mismatches: Mismatches,
    unclaimed: LastingUnclaimed,
    told_unclaimed: usize,
}

/// Makes passes until dropped. For drivers that can list where their volumes are.
pub(super) async fn run(work: Arc<DriverContext>) {
    let mut config = work.config.clone();
    let mut memory = ReconcileSyncState::default();
    work.context.metrics.init_reconcile_sync(&work.facts.name);
    // When the last pass ended, and how long the pause after it is as a share of the interval; none where the next pass is due at once.
    let mut last: Option<(Instant, f64)> = None;
    loop {
        let settings = settings_now(&mut config);
        if settings.enabled {
            show_interval(&work, &settings);
        } else {
            forget(&work, &mut memory);
            last = None;
        }
        // A change of the settings counts from the end of the last pass.
        let due = last.map_or_else(Instant::now, |(ended, share)| ended + settings.interval.mul_f64(share));
        tokio::select! {
            biased;
            changed = config.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = sleep_until(due), if settings.enabled => {}
        }
        let began = Instant::now();
        tokio::select! {
            outcome = run_pass(&work, &settings, &mut memory) => {
                report(&work, outcome, began.elapsed());
                last = Some((Instant::now(), 1.0 + JITTER * fastrand::f64()));
            }
            // A pass may be long; it is not to go on after it was switched off.
            () = switched_off(&work, config.clone()) => last = None,
        }
    }
}

/// What is set now, with an interval that spares the driver.
fn settings_now(config: &mut watch::Receiver<Arc<DriverConfig>>) -> ReconcileSync {
    let mut settings = config.borrow_and_update().reconcile_sync.clone();
    settings.interval = settings.interval.max(MIN_INTERVAL);
    settings
}

/// Shows the interval, whatever the loop waits for.
fn show_interval(work: &DriverContext, settings: &ReconcileSync) {
    let metrics = &work.context.metrics;
    metrics.reconcile_sync_interval(&work.facts.name, settings.interval);
}

/// Nothing stays of the passes, as no more are made.
fn forget(work: &DriverContext, memory: &mut ReconcileSyncState) {
    *memory = ReconcileSyncState::default();
    work.status.lasting_mismatches(None);
    work.status.reconcile_result(None);
    work.context.metrics.reset_reconcile_sync(&work.facts.name);
    forget_repairs(work, |_| true);
}

/// Resolves when the settings forbid passes; never when they do not change any more. Shows what else changes meanwhile.
async fn switched_off(work: &DriverContext, mut config: watch::Receiver<Arc<DriverConfig>>) {
    while config.changed().await.is_ok() {
        let settings = settings_now(&mut config);
        if !settings.enabled {
            return;
        }
        show_interval(work, &settings);
    }
    std::future::pending::<()>().await;
}

/// What a pass found that was made to its end.
struct Found {
    listed: ReconcileSyncCounts,
    without_attachment: Option<VolumesWithoutAttachment>,
}

async fn run_pass(
    work: &DriverContext,
    settings: &ReconcileSync,
    memory: &mut ReconcileSyncState,
) -> Result<Found, ListError> {
    // Looked at before the driver is asked: what is attached meanwhile is not expected in an older listing.
    let (expectations, pending) = expectations(work).await;
    let mut trace = ReconcileSyncSpan::begin(work, memory.passes, expectations.len(), pending.skipped);
    memory.passes += 1;
    let mut listing = Listing::about(expectations);
    // The handle of a migrated volume may be listed in more than one form.
    if InTreePlugin::of_word(&work.facts.name).is_none() {
        let nodes = work.context.store.node_ids(&work.facts.name);
        listing = listing.with_nodes(nodes).looking_for_unclaimed(pending.handles);
    }
    let mut listings = [listing, Listing::about(pending.awaited)];
    let mut limits = ListLimits::new(settings.max_entries, work.config.borrow().timeouts.list_volumes);
    // A pass may take as long as its interval.
    limits.whole = limits.whole.max(settings.interval);
    let page_call = || {
        let (client, deadline) = work.page_call();
        // A comparison ends with the engine, and is not what the Lease is kept for while the driver is away.
        (client.uncounted(), deadline)
    };
    match list(page_call, limits, &mut listings, &mut trace.progress).await {
        Ok(()) => {}
        Err(ListError::Call(CallFailure::Lease(lost))) => {
            // The driver did not fail, and this engine ends with its term of the Lease.
            debug!(driver = &*work.facts.name, %lost, "no comparison with ListVolumes");
            return std::future::pending().await;
        }
        Err(error) => {
            trace.failed(&error);
            return Err(error);
        }
    }
    let ListProgress { pages, volumes } = trace.progress;
    let [listing, of_awaited] = listings;
    retry_ended(work, &of_awaited.compare().agreed).await;
    // Whatever the driver lists of them by now, they are not compared.
    memory
        .mismatches
        .retain(|known| !pending.refused.contains(&*known.name));
    let mut compared = listing.compare();
    let mismatches = compared.contradicted.len();
    let is_to_attach = |expected: &&Expectation| expected.wanted == DesiredState::Published;
    let to_attach = compared.contradicted.iter().filter(is_to_attach).count();
    trace.compared(&compared);
    let without_attachment = note_unclaimed(work, std::mem::take(&mut compared.unclaimed), memory);
    apply_mismatches(work, compared, &mut memory.mismatches, longest_rest(settings.interval));
    let listed = ReconcileSyncCounts {
        pages,
        volumes,
        to_attach,
        to_detach: mismatches - to_attach,
        without_attachment: without_attachment.as_ref().map(|found| found.count),
    };
    Ok(Found {
        listed,
        without_attachment,
    })
}

/// How many passes may go by without a repair of what is not changed by repairs.
fn longest_rest(interval: Duration) -> u32 {
    let passes = MAX_REPAIR_PAUSE.as_nanos() / interval.as_nanos().max(1);
    u32::try_from(passes).unwrap_or(u32::MAX).saturating_sub(1)
}

/// Acts on what two passes in a row contradict, and lets go of what is right again.
fn apply_mismatches(work: &DriverContext, compared: Comparison, mismatches: &mut Mismatches, longest_rest: u32) {
    let names: HashSet<&str> = compared.contradicted.iter().map(|expected| &*expected.name).collect();
    forget_repairs(work, |name| !names.contains(name));
    for expected in &compared.contradicted {
        log_about!(
            debug,
            work,
            expected,
            found = expected.wanted == DesiredState::Unpublished,
            "ListVolumes contradicts the VolumeAttachment"
        );
    }
    // What is gone needs no word that it is right.
    let store = &work.context.store;
    mismatches.retain(|expected| {
        let known = store.attachment(&expected.name);
        known.is_some_and(|known| known.attachment.uid == expected.uid)
    });
    // The mark of an attachment goes when the driver has answered its repair.
    let is_repaired = |expected: &Expectation| {
        let key = AttacherKey::Attachment(expected.name.clone());
        let waits = work.queue.remember(&key, |memory| memory.forces(&expected.uid));
        waits != Some(true)
    };
    let repairs = mismatches.pass(compared.contradicted, &compared.agreed, is_repaired, longest_rest);
    tell(work, &repairs, mismatches);
    for expected in &repairs.due {
        force_sync(work, expected);
    }
    work.status.lasting_mismatches(repairs.lasting);
}

/// Tells what a pass found about mismatches.
fn tell(work: &DriverContext, repairs: &Repairs, mismatches: &Mismatches) {
    for_each_told(
        &repairs.repaired,
        |one| tell_repaired(work, one),
        |volumes, one| {
            log_about!(
                info,
                work,
                one,
                volumes,
                "ListVolumes agrees again with more VolumeAttachments than are told one by one; one of them is shown"
            );
        },
    );
    for_each_told(
        &repairs.found_lasting,
        |one| tell_lasting(work, one),
        |volumes, one| {
            log_about!(
                warn,
                work,
                one,
                nodeID = &*one.node_id,
                volumes,
                "ListVolumes contradicts more VolumeAttachments in spite of repairs than are told one by one; one of them is shown"
            );
        },
    );
    // That one lasts was told once.
    let is_news = |expected: &&Expectation| !mismatches.lasts(&expected.name);
    for_each_told(
        repairs.due.iter().filter(is_news),
        |one| tell_mismatch(work, one),
        |volumes, one| {
            log_about!(
                error,
                work,
                one,
                nodeID = &*one.node_id,
                volumes,
                "more volumes than are told one by one are not where their VolumeAttachments say; repairing them; one of them is shown"
            );
        },
    );
}

/// Tells of the first ones one by one, and of how many others there are with one of them.
fn for_each_told<'e>(
    found: impl IntoIterator<Item = &'e Expectation>,
    tell_one: impl Fn(&Expectation),
    tell_others: impl FnOnce(usize, &Expectation),
) {
    let mut found = found.into_iter();
    found.by_ref().take(MAX_TOLD).for_each(tell_one);
    if let Some(example) = found.next() {
        tell_others(1 + found.count(), example);
    }
}

/// The driver lists a volume as it should, after it did not.
fn tell_repaired(work: &DriverContext, expected: &Expectation) {
    log_about!(
        info,
        work,
        expected,
        "ListVolumes agrees with the VolumeAttachment again"
    );
    let (handle, node_id) = (shown_handle(&expected.handle), shown_handle(&expected.node_id));
    let note = match expected.wanted {
        DesiredState::Published => {
            format!("volume {handle}: the driver lists it at the node with ID {node_id} again")
        }
        DesiredState::Unpublished => {
            format!("volume {handle}: the driver does not list it at the node with ID {node_id} any more")
        }
    };
    event(work, expected, EventReason::AttachmentRepaired, note);
}

/// Repairs that the driver answered with OK did not change what it lists.
fn tell_lasting(work: &DriverContext, expected: &Expectation) {
    log_about!(
        warn,
        work,
        expected,
        nodeID = &*expected.node_id,
        attachedStatus = expected.wanted == DesiredState::Published,
        "the driver answers repairs with OK and its ListVolumes contradicts the VolumeAttachment still; repairing it more and more rarely"
    );
    let note = format!(
        "{}; it is repeated about once an hour, or in each comparison if these are rarer",
        contradiction(expected)
    );
    event(work, expected, EventReason::MismatchRepeating, note);
}

/// Two listings in a row contradict an attachment; it is attached or detached once more.
fn tell_mismatch(work: &DriverContext, expected: &Expectation) {
    log_about!(
        error,
        work,
        expected,
        nodeID = &*expected.node_id,
        attachedStatus = expected.wanted == DesiredState::Published,
        found = expected.wanted == DesiredState::Unpublished,
        "the volume is not where the VolumeAttachment says; repairing it"
    );
    let (handle, node_id) = (shown_handle(&expected.handle), shown_handle(&expected.node_id));
    let note = match expected.wanted {
        DesiredState::Published => format!(
            "volume {handle}: the driver does not list it at the node with ID {node_id}, where it is attached; it is attached \
             again"
        ),
        DesiredState::Unpublished => format!(
            "volume {handle}: the driver still lists it at the node with ID {node_id}, from where it was detached; it is \
             detached again"
        ),
    };
    event(work, expected, EventReason::AttachmentMismatch, note);
}

fn event(work: &DriverContext, expected: &Expectation, reason: EventReason, note: String) {
    let known = work.context.store.attachment(&expected.name);
    if let Some(snapshot) = known.filter(|known| known.attachment.uid == expected.uid) {
        events::record(work, &snapshot, reason, note);
    }
}

/// Notes what two passes in a row found at nodes without an attachment, such as what was attached after the backup that the
/// API server was restored from, and tells of it in the log. It is not touched: the volume may be in use.
fn note_unclaimed(
    work: &DriverContext,
    found: BTreeSet<Unclaimed>,
    memory: &mut ReconcileSyncState,
) -> Option<VolumesWithoutAttachment> {
    let lasting = memory.unclaimed.pass(found)?;
    let (driver, count) = (&*work.facts.name, lasting.count);
    if count != memory.told_unclaimed {
        if let Some(first) = lasting.examples.first() {
            warn!(
                driver,
                volumes = count,
                volumeHandle = &*first.handle,
                nodeID = &*first.node_id,
                "the driver lists volumes at nodes of this cluster that no VolumeAttachment names; one of them is shown. They \
                 are left alone: a driver may list nodes where a volume is not published. Detach by hand those that are and that \
                 nobody uses"
            );
        } else {
            info!(
                driver,
                "the driver lists no volumes any more at nodes of this cluster that no VolumeAttachment names"
            );
        }
        memory.told_unclaimed = count;
    }
    Some(lasting)
}

/// Attachments of which nothing is expected: they are worked on anyway, or a repair would be refused.
#[derive(Default)]
struct PendingAttachments {
    skipped: usize,
    /// What is listed of those that are worked on, once that has come to its end.
    awaited: Vec<Expectation>,
    /// The handles that they name, and those that others name beside the one that is expected.
    handles: Vec<Box<str>>,
    /// Those of which a repair would be refused.
    refused: HashSet<Arc<str>>,
}

impl PendingAttachments {
    fn add(&mut self, snapshot: &Snapshot) {
        self.skipped += 1;
        let described = snapshot.volume.as_ref().and_then(|volume| volume.spec.csi());
        let described = described.map(|source| &*source.handle);
        let handles = handles_of(&snapshot.attachment).chain(described);
        self.handles.extend(handles.map(Box::from));
    }

    /// What a detach will ask for beside what is expected: a former volume may be at a node yet.
    fn add_former(&mut self, snapshot: &Snapshot, expected: &Expectation) {
        let former = handles_of(&snapshot.attachment).filter(|handle| **handle != *expected.handle);
        self.handles.extend(former.map(Box::from));
    }
}

/// What the driver should list about this driver's settled attachments, and the others.
async fn expectations(work: &DriverContext) -> (Vec<Expectation>, PendingAttachments) {
    let (mut expectations, mut pending) = (Vec::new(), PendingAttachments::default());
    look_at_all(work, |snapshot, observed| match expectation(observed) {
        Ok(Some(expected)) => {
            pending.add_former(snapshot, &expected);
            expectations.push(expected);
        }
        Ok(None) => {
            pending.add(snapshot);
            pending.awaited.extend(awaited(observed));
        }
        Err(reason) => {
            pending.add(snapshot);
            let (driver, name) = (&*work.facts.name, &snapshot.attachment.name);
            pending.refused.insert(name.clone());
            debug!(driver, VolumeAttachment = &**name, %reason, "cannot be compared with ListVolumes");
        }
    })
    .await;
    (expectations, pending)
}

/// Looks at all attachments of the driver, in parts, so that others get their turn: there may be tens of thousands.
async fn look_at_all(work: &DriverContext, mut look: impl FnMut(&Snapshot, &Observed<'_>)) {
    let store = &work.context.store;
    // What an attempt would refuse is not to be repaired.
    let policy = policy(work, &work.config.borrow());
    for names in store.attachments_of(&work.facts.name).chunks(AT_ONCE) {
        for name in names {
            if let Some(snapshot) = store.attachment(name) {
                let observed = observe(&snapshot, &work.facts, &policy, SecretState::NotLoaded);
                look(&snapshot, &observed);
            }
        }
        tokio::task::yield_now().await;
    }
}

impl Witnesses for DriverContext {
    async fn expectations(&self) -> Vec<Expectation> {
        let mut expectations = Vec::new();
        look_at_all(self, |_, observed| expectations.extend(witness(observed))).await;
        expectations
    }

    fn is_expected(&self, expected: &Expectation) -> bool {
        is_still(self, expected, witness)
    }
}

/// Whether the same is to be expected of an attachment as it is now.
fn is_still(work: &DriverContext, expected: &Expectation, of: fn(&Observed<'_>) -> Option<Expectation>) -> bool {
    let Some(snapshot) = work.context.store.attachment(&expected.name) else {
        return false;
    };
    let policy = policy(work, &work.config.borrow());
    let observed = observe(&snapshot, &work.facts, &policy, SecretState::NotLoaded);
    of(&observed).as_ref() == Some(expected)
}

/// Ends the backoffs of what a listing shows to have come to its end. The attempt decides everything again, and waits again for whatever
/// else it waited for. Once in a pass: a list that is wrong costs a call in each.
async fn retry_ended(work: &DriverContext, ended: &[Expectation]) {
    for part in ended.chunks(AT_ONCE) {
        for expected in part {
            let key = AttacherKey::Attachment(expected.name.clone());
            // What runs is not held up.
            let is_held = work.queue.is_held(&key) && is_still(work, expected, awaited);
            if is_held && work.queue.wake(&key, EnqueueCause::Retry.into()) {
                log_about!(
                    debug,
                    work,
                    expected,
                    found = expected.wanted == DesiredState::Published,
                    "ListVolumes shows the volume where it is to be; retrying at once"
                );
            }
        }
        tokio::task::yield_now().await;
    }
}

/// No attachment with such a name is worked on only because it is to be repaired.
fn forget_repairs(work: &DriverContext, is_over: impl Fn(&str) -> bool) {
    work.queue.remember_all(|key, memory| match key {
        AttacherKey::Attachment(name) if is_over(name) => memory.forced = None,
        _ => {}
    });
}

/// Has an attachment worked on though it looks settled, until that succeeds or it is not seen to be wrong any more.
fn force_sync(work: &DriverContext, expected: &Expectation) {
    let direction = match expected.wanted {
        DesiredState::Published => "attach",
        DesiredState::Unpublished => "detach",
    };
    let driver = &*work.facts.name;
    debug!(driver, VolumeAttachment = &*expected.name, direction, "repairing it");
    work.context.metrics.reconcile_sync_forced(driver, direction);
    let is_expected = |found: &Attachment| found.uid == expected.uid;
    work.context
        .store
        .enqueue_if(&expected.name, EnqueueCause::ForceSync, is_expected);
}

fn report(work: &DriverContext, outcome: Result<Found, ListError>, took: Duration) {
    let (driver, metrics) = (&*work.facts.name, &work.context.metrics);
    let ended = ReconcileSyncResult {
        finished_at: clock::now(),
        volumes: 0,
        mismatches: 0,
        without_attachment: None,
        error: None,
    };
    let failed_before = work.status.reconcile_failed();
    let last = match outcome {
        Ok(Found {
            listed,
            without_attachment,
        }) => {
            metrics.reconcile_sync_succeeded(driver, took, listed);
            if failed_before {
                info!(driver, "the comparison with ListVolumes works again");
            }
            ReconcileSyncResult {
                volumes: listed.volumes,
                mismatches: listed.to_attach + listed.to_detach,
                without_attachment,
                ..ended
            }
        }
        Err(error) => {
            metrics.reconcile_sync_failed(driver, took, error.code());
            let error = error.to_string();
            if failed_before {
                debug!(driver, error, "cannot compare with ListVolumes");
            } else {
                warn!(
                    driver,
                    error, "cannot compare the attachments with ListVolumes; retrying"
                );
            }
            ReconcileSyncResult {
                error: Some(error),
                ..ended
            }
        }
    };
    work.status.reconcile_result(Some(last));
}
