//! Which watches the API server has accepted, and the versions of the lists that they follow.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

use crate::objects::ResourceVersion;

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
    /// The version of the last list of each collection.
    listed: Mutex<HashMap<String, ResourceVersion>>,
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

    /// A page of a list came in, or is about to be asked for; then its version is 0, as it is where it is no number.
    pub fn listed(&self, path: &str, version: ResourceVersion) {
        self.0.listed.lock().insert(path.to_owned(), version);
    }

    /// The version of the last list of the collection, from which its watch begins; 0 when that is not known.
    pub fn list_version(&self, path: &str) -> ResourceVersion {
        self.0.listed.lock().get(path).copied().unwrap_or_default()
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
        wait_until(&self.0.progress, is_so).await;
    }
}

/// Resolves when this is so, now or after `progress` has notified its waiters.
pub(crate) async fn wait_until(progress: &Notify, is_so: impl Fn() -> bool) {
    loop {
        let mut notified = std::pin::pin!(progress.notified());
        // A notification that comes after the question must not be missed.
        notified.as_mut().enable();
        if is_so() {
            return;
        }
        notified.await;
    }
}
