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

/// Runs one attempt.
pub(super) async fn run(work: &Work, run: &Run<AttacherKey>, name: &str) -> Verdict {
    let store = &work.context.store;
    let Some((volume, attachments)) = store.volume(name) else {
        return Verdict::Done;
    };
    let write = match (work.rules.volume)(&volume, attachments, &work.facts) {
        VolumeAction::Keep(reason) => {
            tracing::debug!(
                driver = &*work.facts.name,
                PersistentVolume = name,
                ?reason,
                "volume kept"
            );
            return Verdict::Done;
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
            Verdict::Done
        }
        Err(error) if error.kind == ApiErrorKind::NotFound => Verdict::Done,
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
            }
            span.fail("_OTHER", &error.message);
            tracing::warn!(
                driver = &*work.facts.name, PersistentVolume = name, attempt = run.attempt(), %error,
                next_try_seconds = run.retry_delay().as_secs_f64(), "cannot release the volume"
            );
            Verdict::FailedWith { fingerprint }
        }
    }
}
