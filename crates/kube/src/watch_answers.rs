//! Which watches the API server has accepted.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Of each collection, by its path, whether the API server has accepted its watch.
///
/// A list is no proof that the watch that follows it works: something on the way may swallow the request, or it may have to wait
/// for as long as `Retry-After` says. The API server sends the head of its answer as soon as the watch is set up. Until then what is
/// known of the collection may be of any age.
#[derive(Clone, Debug, Default)]
pub struct WatchAnswers(Arc<WatchAnswersInner>);

#[derive(Debug, Default)]
struct WatchAnswersInner {
    accepted: Mutex<HashMap<String, bool>>,
    /// Notified of each watch that is accepted.
    progress: Notify,
}

impl WatchAnswers {
    /// A watch is about to be asked for; one that stood before is over.
    pub fn asked(&self, path: &str) {
        self.0.accepted.lock().insert(path.to_owned(), false);
    }

    /// The API server has accepted the watch.
    pub fn accepted(&self, path: &str) {
        self.0.accepted.lock().insert(path.to_owned(), true);
        self.0.progress.notify_waiters();
    }

    /// Whether the API server has accepted the watch of the collection that was asked for last.
    pub fn is_accepted(&self, path: &str) -> bool {
        self.0.accepted.lock().get(path) == Some(&true)
    }

    /// Whether no watch of the collection waits for an answer. So it is of a collection that nobody watches over a connection that
    /// is followed.
    pub fn stands(&self, path: &str) -> bool {
        self.0.accepted.lock().get(path) != Some(&false)
    }

    /// Resolves when this is so, now or after a watch was accepted.
    pub(crate) async fn wait_until(&self, is_so: impl Fn() -> bool) {
        loop {
            let mut progress = std::pin::pin!(self.0.progress.notified());
            progress.as_mut().enable();
            if is_so() {
                return;
            }
            progress.await;
        }
    }
}
