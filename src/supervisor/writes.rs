//! Writes of AttacherConfigs that are under way. The supervisor goes on meanwhile: an API server that is slow to take a write must
//! not keep it from a signal to stop, from a driver task that ended or from another AttacherConfig.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::{debug, info, warn};

use super::deletion::MetadataChange;
use super::writer::StatusPart;
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
    pub name: String,
    /// Its UID: another object of the same name has nothing to do with it.
    pub uid: Option<String>,
    pub what: WriteKind,
    /// The object that the API server made of it.
    pub answer: Result<AttacherConfigObject, ApiError>,
}

pub(super) enum WriteKind {
    Status(Box<StatusChange>),
    Metadata {
        /// What is done to it.
        change: MetadataChange,
        /// The driver of an object that is let go of, if its name is known.
        released: Option<String>,
    },
}

impl WriteKind {
    /// What is written, as the log calls it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::Metadata { .. } => "metadata",
        }
    }
}

pub(super) struct StatusChange {
    /// What was known to be there.
    pub before: AttacherConfigStatus,
    /// What is to be there.
    pub wanted: AttacherConfigStatus,
    /// What of it this replica says.
    pub part: StatusPart,
    /// What of that is sent.
    pub sent: StatusPart,
}

impl RunningWrites {
    pub fn is_writing(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

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

/// Says in the log that a part of an AttacherConfig is not written, and how long the next write waits where people are to know.
pub(super) fn log_failure(name: &str, what: &str, error: &ApiError, next: Option<Duration>) {
    let Some(next) = next else {
        return debug!(config = name, %error, "the {what} of the AttacherConfig is not written; retrying");
    };
    warn!(
        config = name,
        %error,
        next_try_seconds = next.as_secs_f64(),
        "cannot write the {what} of the AttacherConfig; retrying"
    );
}

/// The same is written again.
pub(super) fn log_success(name: &str, what: &str) {
    info!(config = name, "the {what} of the AttacherConfig is written");
}
