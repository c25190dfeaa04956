//! Whether the AttacherConfigs are watched, as readiness shows it.

use kube::runtime::watcher::{self, Event};
use tokio::time::Instant;
use tracing::warn;

use crate::api::AttacherConfigObject;
use crate::health::CheckHandle;
use crate::reflect::{RECOVERED, explain};

/// What the events and errors of the watch say for readiness.
pub(super) struct Watched {
    check: CheckHandle,
    /// Whether there was a complete list.
    listed: bool,
    /// When the watch failed last, unless it stands since.
    broken: Option<Instant>,
}

impl Watched {
    pub(super) fn new(check: CheckHandle) -> Self {
        Self {
            check,
            listed: false,
            broken: None,
        }
    }

    /// A list alone does not say that the watch after it stands: one that is refused is followed by a list each time
    /// (`store::from_lists`).
    pub(super) fn event<K>(&mut self, event: &Event<K>) {
        match event {
            Event::Init | Event::InitApply(_) => return,
            Event::InitDone => self.listed = true,
            Event::Apply(_) | Event::Delete(_) => self.broken = None,
        }
        self.check.set_ready(true);
    }

    pub(super) fn error(&mut self, error: &watcher::Error) {
        let again = self.broken.replace(Instant::now()).is_some();
        let meanwhile = if self.listed {
            "until then changes of AttacherConfigs are seen late or not at all"
        } else {
            "until then no driver is served"
        };
        let error = explain::<AttacherConfigObject>(error, meanwhile);
        if !again {
            warn!(error, "cannot watch attacherconfigs; retrying");
        }
        // An API server makes the storage of a custom resource when it is first asked for one. It may answer the first list
        // and refuse the watch after it (429, "storage is (re)initializing"); the next try, a second later, succeeds, but sends
        // nothing while there are no objects.
        if again || !self.listed {
            self.check.set_failing(format!("cannot watch attacherconfigs: {error}"));
        }
    }

    /// Counts a watch as recovered that has not failed again for some time.
    pub(super) fn check_recovery(&mut self) {
        if self.listed && self.broken.is_some_and(|at| at.elapsed() >= RECOVERED) {
            self.broken = None;
            self.check.set_ready(true);
        }
    }
}
