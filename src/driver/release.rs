//! One attempt at a PersistentVolume that is being deleted: release it when nothing is attached any more.

use super::attempt::take_in;
use super::engine::Work;
use super::report;
use crate::decide::patch::Target;
use crate::decide::{self, VolumeAction};
use crate::kubernetes::ApiErrorKind;
use crate::queue::{Run, Verdict};
use crate::store::AttacherKey;
use crate::telemetry::SpanKind;
use crate::telemetry::names::{attr, span};

/// More writes from stale copies than this in a row mean that somebody keeps changing the volume under our hands.
const MAX_TRIES: usize = 4;

/// Runs one attempt. A write that was made from a stale copy is made anew from what the volume is now: no watch will tell
/// of a copy that is known already, so that waiting for one would be waiting for the next try.
pub(super) async fn run(work: &Work, run: &Run<AttacherKey>, name: &str) -> Verdict {
    let mut verdict = Verdict::Done;
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
struct Tried {
    verdict: Verdict,
    /// It was made from a copy that is replaced by a newer one now.
    outdated: bool,
}

impl From<Verdict> for Tried {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            outdated: false,
        }
    }
}

async fn try_once(work: &Work, run: &Run<AttacherKey>, name: &str) -> Tried {
    let store = &work.context.store;
    let Some((volume, attachments)) = store.volume(name) else {
        return Verdict::Done.into();
    };
    let write = match (work.rules.volume)(&volume, attachments, &work.facts) {
        VolumeAction::Keep(reason) => {
            tracing::debug!(
                driver = &*work.facts.name,
                PersistentVolume = name,
                ?reason,
                "volume kept"
            );
            return Verdict::Done.into();
        }
        VolumeAction::Release(write) => write,
    };
    let fingerprint = decide::volume_fingerprint(&volume, attachments, &work.facts);
    let mut span = work.context.tracer.root(span::VOLUME_RELEASE, SpanKind::Consumer, &[]);
    span.set(attr::CSI_PLUGIN_NAME, &*work.facts.name);
    span.set(attr::PERSISTENT_VOLUME_NAME, name);
    report::describe_run(&mut span, run);
    let outcome = work.context.requests.write(&write, &span).await;
    match take_in(store, &write.target, &volume.uid, outcome) {
        Ok(_) => {
            span.set(attr::FINALIZER_ACTION, "removed");
            tracing::info!(driver = &*work.facts.name, PersistentVolume = name, "volume released");
            Verdict::Done.into()
        }
        Err(error) if error.kind == ApiErrorKind::NotFound => Verdict::Done.into(),
        Err(error) => {
            if error.kind == ApiErrorKind::Stale {
                let read = work
                    .context
                    .requests
                    .read(&Target::Volume(volume.name.clone()), &span)
                    .await;
                if take_in(store, &write.target, &volume.uid, read).is_err() {
                    tracing::debug!(PersistentVolume = name, "could not read the volume again");
                }
                if store.version(&write.target) != Some(volume.resource_version) {
                    return Tried {
                        verdict: Verdict::FailedWith { fingerprint },
                        outdated: true,
                    };
                }
            }
            span.fail("_OTHER", &error.message);
            tracing::warn!(
                driver = &*work.facts.name, PersistentVolume = name, attempt = run.attempt(), %error,
                next_try_seconds = run.retry_delay().as_secs_f64(), "cannot release the volume"
            );
            Verdict::FailedWith { fingerprint }.into()
        }
    }
}
