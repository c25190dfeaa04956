//! One attempt at a PersistentVolume that is being deleted, or that another attacher is to serve: release it when nothing
//! is attached any more.

use std::borrow::Cow;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use super::attempt::{apply_response, apply_write_response, report};
use super::context::DriverContext;
use crate::apiserver::{ApiError, ApiErrorKind, Requests};
use crate::cache::AttacherKey;
use crate::clock;
use crate::decide::patch::{self, WriteTarget};
use crate::decide::{self, Write};
use crate::events::{EventReason, NewEvent, of_volume};
use crate::memory::{KeyMemory, LONGEST_LIST_REST};
use crate::objects::Volume;
use crate::queue::{Run, RunResult};
use crate::telemetry::names::{attr, span};
use crate::telemetry::{Span, SpanKind, SpanOptions, traced};
use crate::traces::set_volume_attributes;
use csi_attacher_runtime::LEASE_LOST_REST;

/// How long an attempt waits for a list of attachments before it makes room for others.
const LIST_WAIT: Duration = Duration::from_secs(1);

/// More writes from stale copies than this in a row mean that somebody keeps changing the volume under our hands.
const MAX_TRIES: usize = 4;

/// Runs one attempt. A write that was made from a stale copy is made anew from what the volume is now: no watch will tell
/// of a copy that is known already, so that waiting for one would be waiting for the next try.
pub(super) async fn run(work: &DriverContext, run: &Run<AttacherKey>, name: &str) -> RunResult {
    let mut verdict = RunResult::Done;
    for _ in 0..MAX_TRIES {
        match try_once(work, run, name).await {
            Break(verdict) => return verdict,
            Continue(tried) => verdict = tried,
        }
    }
    verdict
}

/// How one write went. It goes on when the write was made from a copy that is replaced by a newer one now: what it came to counts if there is
/// no other try.
type ReleaseResult = ControlFlow<RunResult, RunResult>;

async fn try_once(work: &DriverContext, run: &Run<AttacherKey>, name: &str) -> ReleaseResult {
    if !work.client().may_start() {
        // Whoever holds the Lease next looks at the volume again.
        return Break(RunResult::RequeueAfter(LEASE_LOST_REST));
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
        return Break(RunResult::Done);
    };
    if !volume.deleting && !is_live {
        // Another object by the same name.
        return Break(RunResult::Failed);
    }
    let write = match (work.context.rules.volume)(&volume, attachments, &work.facts) {
        Err(reason) => {
            tracing::debug!(
                driver = &*work.facts.name,
                PersistentVolume = name,
                ?reason,
                "volume kept"
            );
            return Break(RunResult::Done);
        }
        Ok(write) => write,
    };
    if store.knows_who_names_volumes() {
        return send(work, run, &volume, attachments, &write).await;
    }
    // The watch of PersistentVolumes broke, and may do so again and again: what counts is the volume as it was read, and a list of
    // attachments after that.
    let Some(read_at) = store.confirmed_at(name) else {
        return read_again(work, &volume, attachments, &write.target).await;
    };
    store
        .lists()
        .doubt("a PersistentVolume may be released, and the VolumeAttachments were listed before it");
    // Attaches may wait for the release of a live volume.
    let limit = if is_live { Duration::ZERO } else { LIST_WAIT };
    if store.attachments_listed_after(read_at, limit).await {
        // Meanwhile the volume may have changed, or the Lease may be lost.
        return confirmed(work, run, &volume).await;
    }
    let rest = work.queue.remember(&run.key, KeyMemory::list_rest);
    Break(RunResult::RequeueAfter(rest.unwrap_or(LONGEST_LIST_REST)))
}

/// Releases a volume that was read again and that nothing names, unless something has changed while that was found out.
async fn confirmed(work: &DriverContext, run: &Run<AttacherKey>, volume: &Arc<Volume>) -> ReleaseResult {
    let again = Break(RunResult::Requeue);
    let Some((known, attachments)) = work.context.store.volume(&volume.name) else {
        return Break(RunResult::Done);
    };
    if !work.client().may_start() || !Arc::ptr_eq(&known, volume) {
        return again;
    }
    match (work.context.rules.volume)(&known, attachments, &work.facts) {
        Err(_) => again,
        Ok(mut write) => {
            // That of a live volume has this condition anyway.
            if known.deleting {
                write = patch::if_known(known.resource_version, write);
            }
            send(work, run, &known, attachments, &write).await
        }
    }
}

/// Reads a volume whose watch broke, and notes that it is as it is known.
async fn read_again(work: &DriverContext, volume: &Volume, attachments: usize, target: &WriteTarget) -> ReleaseResult {
    let store = &work.context.store;
    let requests = requests_about(work, volume);
    let read = requests.read(target, None, &Span::disabled()).await;
    match apply_response(store, target, &volume.uid, Some(volume.resource_version), read) {
        Ok(_) => {}
        Err(error) if error.kind == ApiErrorKind::NotFound => return Break(RunResult::Done),
        Err(error) => {
            tracing::debug!(driver = &*work.facts.name, PersistentVolume = &*volume.name, %error, "could not read the volume again");
            let fingerprint = decide::volume_fingerprint(volume, attachments, &work.facts);
            return Break(RunResult::Waits { fingerprint });
        }
    }
    store.confirm_volume(volume);
    Continue(RunResult::Requeue)
}

/// What sends the requests about a volume. Nobody waits for the release of one that is being deleted, and attaches may for that of a live one.
pub(super) fn requests_about<'w>(work: &'w DriverContext, volume: &Volume) -> Cow<'w, Requests> {
    let requests = &work.context.requests;
    if volume.deleting {
        Cow::Owned(requests.for_upkeep())
    } else {
        Cow::Borrowed(requests)
    }
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
    let outcome = requests_about(work, volume).write(write, None, &span).await;
    let (store, version) = (&work.context.store, Some(volume.resource_version));
    let held = Some(&*work.facts.finalizer);
    let result = match apply_write_response(store, write, &volume.uid, version, held, outcome) {
        Ok(_) => {
            span.set(attr::FINALIZER_ACTION, "removed");
            traced!(
                info,
                span,
                driver = &*work.facts.name,
                PersistentVolume = name,
                "volume released"
            );
            Break(RunResult::Done)
        }
        Err(error) if error.kind == ApiErrorKind::NotFound => Break(RunResult::Done),
        Err(error) if error.kind == ApiErrorKind::Stale && is_outdated(work, volume, &write.target, &span).await => {
            Continue(RunResult::Waits { fingerprint })
        }
        Err(error) => {
            span.set(attr::RETRY_DELAY, run.wait_delay);
            span.fail(&error.error_type(), &error.message);
            traced!(
                warn, span, driver = &*work.facts.name, PersistentVolume = name, attempt = run.attempt(), %error,
                next_try_seconds = run.wait_delay.as_secs_f64(), "cannot release the volume"
            );
            record_failure(work, volume, &error, span.traceparent());
            Break(RunResult::Waits { fingerprint })
        }
    };
    span.end();
    result
}

/// Says on the volume why it does not go.
fn record_failure(work: &DriverContext, volume: &Volume, error: &ApiError, traceparent: Option<String>) {
    let finalizer = &work.facts.finalizer;
    work.context.events.record(NewEvent {
        driver: work.facts.name.clone(),
        reason: EventReason::FinalizerNotRemoved.as_str(),
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
        .and_then(|source| work.lifecycles.last_detach(&source.handle));
    let links: Vec<_> = detach.into_iter().collect();
    let mut span = work.lifecycles.tracer_of(volume).open(SpanOptions {
        links: &links,
        ..SpanOptions::new(span::VOLUME_RELEASE, SpanKind::Consumer)
    });
    span.set(attr::CSI_PLUGIN_NAME, &*work.facts.name);
    set_volume_attributes(&mut span, volume);
    span.set(attr::FINALIZER_ACTION, "present");
    report::set_run_attributes(&mut span, work, run, run.attempt());
    span.must_end()
}

/// Reads the volume again, and tells whether it is another one now than the copy that a write was made from.
async fn is_outdated(work: &DriverContext, volume: &Volume, target: &WriteTarget, span: &Span) -> bool {
    let store = &work.context.store;
    let read = requests_about(work, volume).read(target, None, span).await;
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
