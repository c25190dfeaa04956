//! When a watch that failed works again.

use kube::Resource;
use kube::runtime::watcher;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

use super::watch_backoff::breaks;
use crate::watch_answers::WatchAnswers;

/// A watch that is resumed reports nothing until an object changes, which may take days. So one that has not failed again for so long
/// works again, unless it still waits for an answer: after a pause of up to 30 s it waits for as long as `Retry-After` says, which may be
/// 5 minutes, and then for the API server.
pub const RECOVERED: Duration = Duration::from_mins(1);

/// A watch that failed, and has reported nothing since.
#[derive(Clone, Copy, Debug)]
pub struct FailedWatch {
    at: Instant,
    /// Whether it goes on from where it was: then no list follows.
    is_resumed: bool,
}

impl FailedWatch {
    /// It failed now, by this error.
    pub fn new(error: &watcher::Error) -> Self {
        Self {
            at: Instant::now(),
            is_resumed: !breaks(error),
        }
    }

    /// Whether the watch of this kind works again, though it reports nothing. That it was accepted counts at once where it was refused
    /// before: then an older answer is forgotten since it was asked for.
    pub fn has_recovered<K: Resource<DynamicType = ()>>(&self, answers: &WatchAnswers) -> bool {
        let path = K::url_path(&(), None);
        if self.at.elapsed() >= RECOVERED {
            answers.stands(&path)
        } else {
            self.is_resumed && answers.is_accepted(&path)
        }
    }

    /// Resolves when it has.
    pub(super) async fn recovered<K: Resource<DynamicType = ()>>(&self, answers: &WatchAnswers) {
        let has_recovered = || self.has_recovered::<K>(answers);
        tokio::select! {
            biased;
            () = answers.wait_until(has_recovered) => return,
            () = sleep_until(self.at + RECOVERED) => {}
        }
        answers.wait_until(has_recovered).await;
    }
}
