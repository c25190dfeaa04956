//! Whether the AttacherConfigs are watched, as readiness shows it.

use kube::runtime::watcher::{self, Event};
use tracing::warn;

use crate::api::AttacherConfigObject;
use crate::health::CheckHandle;
use crate::reflect::{FailedWatch, explain};
use crate::watch_answers::WatchAnswers;

/// What the events and errors of the watch say for readiness.
pub(super) struct WatchReadiness {
    check: CheckHandle,
    /// Where the connection of the watch records whether the API server has accepted it.
    answers: WatchAnswers,
    /// Whether there was a complete list.
    listed: bool,
    /// Whether another one is asked for and not complete.
    listing: bool,
    /// How the watch failed last, unless it stands since.
    failed: Option<FailedWatch>,
}

impl WatchReadiness {
    pub(super) fn new(check: CheckHandle, answers: WatchAnswers) -> Self {
        Self {
            check,
            answers,
            listed: false,
            listing: false,
            failed: None,
        }
    }

    /// A list alone does not say that the watch after it stands: one that is refused is followed by a list each time
    /// (`store::from_lists`).
    pub(super) fn event<K>(&mut self, event: &Event<K>) {
        match event {
            Event::Init => {
                self.listing = true;
                return;
            }
            Event::InitApply(_) => return,
            Event::InitDone => (self.listed, self.listing) = (true, false),
            Event::Apply(_) | Event::Delete(_) => self.failed = None,
        }
        self.check.set_ready(true);
    }

    pub(super) fn error(&mut self, error: &watcher::Error) {
        let again = self.failed.replace(FailedWatch::new(error)).is_some();
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

    /// Counts a watch as recovered that the API server has accepted, or that has not failed again for some time. A list that does not come
    /// is no good sign.
    pub(super) fn check_recovery(&mut self) {
        let has_recovered = |failed: FailedWatch| failed.has_recovered::<AttacherConfigObject>(&self.answers);
        if self.listed && !self.listing && self.failed.is_some_and(has_recovered) {
            self.failed = None;
            self.check.set_ready(true);
        }
    }
}
