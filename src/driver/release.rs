//! One attempt at a PersistentVolume that is being deleted, or that another attacher is to serve: release it when nothing
//! is attached any more.

use super::attempt::report;
use super::attempt::state::{LEASE_LOST_REST, LIST_REST};
use super::attempt::writes::{apply_response, apply_write_response};
use super::context::DriverContext;
use crate::apiserver::{ApiError, ApiErrorKind};
use crate::cache::{AttacherKey, Snapshot};
use crate::clock;
use crate::decide::patch::WriteTarget;
use crate::decide::{self, VolumeAction, Write};
use crate::events::{EventReason, NewEvent, of_volume};
use crate::objects::Volume;
use crate::queue::{Run, RunResult};
use crate::telemetry::names::{attr, span};
use crate::telemetry::{Span, SpanKind, SpanOptions};
use crate::traces::attributes;

/// More writes from stale copies than this in a row mean that somebody keeps changing the volume under our hands.
const MAX_TRIES: usize = 4;

/// Whether the volume of an attachment was released after it was looked at. Only one whose in-tree plug-in is not migrated
/// (any more) is released while it lives; from now on the attachment, which is in the cache, keeps it from being released.
pub(super) async fn was_released_meanwhile(work: &DriverContext, snapshot: &Snapshot) -> bool {
    let volume = snapshot.volume.as_ref();
    if !volume.is_some_and(|volume| volume.is_in_tree_without(&work.facts.name)) {
        return false;
    }
    drop(work.live_release.lock().await);
    let known = work.context.store.attachment(&snapshot.attachment.name);
    let known = known.and_then(|known| known.volume);
    known.map(|volume| volume.resource_version) != volume.map(|volume| volume.resource_version)
}

/// Runs one attempt. A write that was made from a stale copy is made anew from what the volume is now: no watch will tell
/// of a copy that is known already, so that waiting for one would be waiting for the next try.
pub(super) async fn run(work: &DriverContext, run: &Run<AttacherKey>, name: &str) -> RunResult {
    let mut verdict = RunResult::Done;
    for _ in 0..MAX_TRIES {
        let tried = try_once(work, run, name).await;
        verdict = tried.verdict;
        if !tried.outdated {
            break;
        }
    }
    verdict
}

/// How one write went.
struct ReleaseResult {
    verdict: RunResult,
    /// It was made from a copy that is replaced by a newer one now.
    outdated: bool,
}

impl From<RunResult> for ReleaseResult {
    fn from(verdict: RunResult) -> Self {
        Self {
            verdict,
            outdated: false,
        }
    }
}

async fn try_once(work: &DriverContext, run: &Run<AttacherKey>, name: &str) -> ReleaseResult {
    if !work.client().may_start() {
        // Whoever holds the Lease next looks at the volume again.
        return RunResult::RequeueAfter(LEASE_LOST_REST).into();
    }
    let store = &work.context.store;
    // Taken before looking, so that an attempt that finds it free is seen here, or sees here what was released.
    let is_live = store.volume(name).is_some_and(|(volume, _)| !volume.deleting);
    let _alone = if is_live {
        Some(work.live_release.lock().await)
    } else {
        None
    };
    let Some((volume, attachments)) = store.volume(name) else {
        return RunResult::Done.into();
    };
    if !volume.deleting && !is_live {
        // Another object by the same name.
        return RunResult::Failed.into();
    }
    let write = match (work.rules.volume)(&volume, attachments, &work.facts) {
        VolumeAction::Keep(reason) => {
            tracing::debug!(
                driver = &*work.facts.name,
                PersistentVolume = name,
                ?reason,
                "volume kept"
            );
            return RunResult::Done.into();
        }
        VolumeAction::Release(write) => write,
    };
    if !store.knows_who_names_volumes() {
        store.doubt("a PersistentVolume may be released, and the VolumeAttachments were listed before it");
        return RunResult::RequeueAfter(LIST_REST).into();
    }
    send(work, run, &volume, attachments, &write).await
}

/// Sends the write that releases a volume, and takes in what it comes to.
async fn send(
    work: &DriverContext,
    run: &Run<AttacherKey>,
    volume: &Volume,
    attachments: usize,
    write: &Write,
) -> ReleaseResult {
    let name = &*volume.name;
    let fingerprint = decide::volume_fingerprint(volume, attachments, &work.facts);
    let mut span = open_span(work, run, volume);
    let outcome = work.context.requests.patch(write, None, &span).await;
    let (store, version) = (&work.context.store, Some(volume.resource_version));
    match apply_write_response(store, write, &volume.uid, version, outcome) {
        Ok(_) => {
            span.set(attr::FINALIZER_ACTION, "removed");
            traced!(
                info,
                span,
                driver = &*work.facts.name,
                PersistentVolume = name,
                "volume released"
            );
            RunResult::Done.into()
        }
        Err(error) if error.kind == ApiErrorKind::NotFound => RunResult::Done.into(),
        Err(error) => {
            if error.kind == ApiErrorKind::Stale && is_outdated(work, volume, &write.target, &span).await {
                return ReleaseResult {
                    verdict: RunResult::FailedWith { fingerprint },
                    outdated: true,
                };
            }
            span.set(attr::RETRY_DELAY, run.retry_delay());
            span.fail(&error.error_type(), &error.message);
            traced!(
                warn, span, driver = &*work.facts.name, PersistentVolume = name, attempt = run.attempt(), %error,
                next_try_seconds = run.retry_delay().as_secs_f64(), "cannot release the volume"
            );
            record_failure(work, volume, &error, span.traceparent());
            RunResult::FailedWith { fingerprint }.into()
        }
    }
}

/// Says on the volume why it does not go.
fn record_failure(work: &DriverContext, volume: &Volume, error: &ApiError, traceparent: Option<String>) {
    let finalizer = &work.facts.finalizer;
    work.context.events.record(NewEvent {
        driver: work.facts.name.clone(),
        reason: EventReason::FinalizerNotRemoved,
        level: EventReason::FinalizerNotRemoved.level(),
        cause: error.error_type().into(),
        note: format!("nothing is attached any more, but finalizer {finalizer} cannot be removed: {error}; retrying"),
        traceparent,
        at: clock::now(),
        subjects: of_volume(volume),
    });
}

/// The span of an attempt, linked to the last detach of the volume.
fn open_span(work: &DriverContext, run: &Run<AttacherKey>, volume: &Volume) -> Span {
    let detach = volume
        .spec
        .csi()
        .and_then(|source| work.lives.last_detach(&source.handle));
    let links: Vec<_> = detach.into_iter().collect();
    let mut span = work.lives.tracer_of(volume).open(SpanOptions {
        links: &links,
        ..SpanOptions::new(span::VOLUME_RELEASE, SpanKind::Consumer)
    });
    span.set(attr::CSI_PLUGIN_NAME, &*work.facts.name);
    attributes::set_volume_attributes(&mut span, volume);
    span.set(attr::FINALIZER_ACTION, "present");
    report::set_run_attributes(&mut span, work, run);
    span
}

/// Reads the volume again, and tells whether it is another one now than the copy that a write was made from.
async fn is_outdated(work: &DriverContext, volume: &Volume, target: &WriteTarget, span: &Span) -> bool {
    let store = &work.context.store;
    let read = work.context.requests.get(target, span).await;
    if apply_response(store, target, &volume.uid, Some(volume.resource_version), read).is_err() {
        traced!(
            debug,
            span,
            driver = &*work.facts.name,
            PersistentVolume = &*volume.name,
            "could not read the volume again"
        );
    }
    store.version(target) != Some(volume.resource_version)
}
