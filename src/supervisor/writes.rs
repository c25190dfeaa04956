//! Writes of AttacherConfigs that are under way. The supervisor goes on meanwhile: an API server that is slow to take a write must
//! not keep it from a signal to stop, from a driver task that ended or from another AttacherConfig.

use std::collections::BTreeSet;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::warn;

use super::leaving::{report_left_finalizers, tell_of_failure, tell_of_success};
use super::writer::TrackedConfig;
use super::{Supervisor, record_status_event};
use crate::api::{AttacherConfigObject, AttacherConfigStatus};
use crate::apiserver::ApiError;

/// The writes under way, at most one for each AttacherConfig: two could be taken in in either order.
#[derive(Default)]
pub(super) struct RunningWrites {
    names: BTreeSet<String>,
    running: FuturesUnordered<BoxFuture<'static, FinishedWrite>>,
}

/// A write that was answered, or was not in time.
pub(super) struct FinishedWrite {
    /// The AttacherConfig.
    pub name: String,
    /// Its UID: another object of the same name has nothing to do with it.
    pub uid: Option<String>,
    /// What was written, and what came of it.
    pub what: WriteKind,
}

/// What a write is about.
pub(super) enum WriteKind {
    Status {
        change: Box<StatusChange>,
        /// The object that the API server made of it.
        answer: Result<AttacherConfigObject, ApiError>,
    },
    Metadata {
        /// The driver of an object that is let go of, if its name is known.
        released: Option<String>,
        /// The object that the API server made of it.
        answer: Result<AttacherConfigObject, ApiError>,
    },
}

pub(super) struct StatusChange {
    /// What was known to be there.
    pub before: AttacherConfigStatus,
    /// What is to be there.
    pub wanted: AttacherConfigStatus,
    /// The same without what depends on `before`.
    pub essence: AttacherConfigStatus,
}

impl RunningWrites {
    /// Whether there is one for this AttacherConfig.
    pub fn is_writing(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Begins a write.
    pub fn start(&mut self, name: &str, write: impl Future<Output = FinishedWrite> + Send + 'static) {
        self.names.insert(name.to_owned());
        self.running.push(Box::pin(write));
    }

    /// Waits for the end of one; for ever when there is none.
    pub async fn finished(&mut self) -> FinishedWrite {
        let Some(finished) = self.running.next().await else {
            return std::future::pending().await;
        };
        self.names.remove(&finished.name);
        finished
    }
}

impl Supervisor {
    /// Takes in how a write ended.
    pub(super) fn apply_write(&mut self, finished: FinishedWrite) {
        let FinishedWrite { name, uid, what } = finished;
        match what {
            WriteKind::Status {
                change,
                answer: Ok(answer),
            } => {
                self.numbers.wrote(&change.before, &change.wanted);
                record_status_event(&self.events, &name, uid.as_deref(), &change.before, &change.wanted);
                for entry in self.tracked(&name, uid.as_deref()) {
                    entry.wrote(change.wanted.clone(), &answer);
                    entry.voice.set_written(change.essence.clone());
                }
            }
            WriteKind::Status { answer: Err(error), .. } => {
                let pauses = self.tracked(&name, uid.as_deref()).map(TrackedConfig::failed);
                let Some(next) = pauses.max() else { return };
                warn!(
                    config = name,
                    %error,
                    next_try_seconds = next.as_secs(),
                    "cannot write the status of the AttacherConfig; retrying"
                );
            }
            WriteKind::Metadata {
                released,
                answer: Ok(answer),
            } => {
                if let Some(driver) = released {
                    report_left_finalizers(&self.events, &self.drivers, &name, uid.as_deref(), &driver);
                }
                let mut had_failed = false;
                for entry in self.tracked(&name, uid.as_deref()) {
                    entry.take_in(&answer);
                    had_failed |= entry.metadata_written();
                }
                if had_failed {
                    tell_of_success(&name);
                }
            }
            WriteKind::Metadata { answer: Err(error), .. } => {
                for entry in self.tracked(&name, uid.as_deref()) {
                    tell_of_failure(&name, entry, &error);
                }
            }
        }
    }

    /// What is known of an object, also in a list that is still coming in.
    fn tracked(&mut self, name: &str, uid: Option<&str>) -> impl Iterator<Item = &mut TrackedConfig> {
        let listed = self.listing.as_mut().and_then(|listing| listing.get_mut(name));
        let entries = self.objects.get_mut(name).into_iter().chain(listed);
        entries.filter(move |entry| entry.object.metadata.uid.as_deref() == uid)
    }
}
