//! Which watches the API server has accepted.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Of each collection, by its path, whether the API server has accepted its watch.
///
/// A list is no proof that the watch that follows it works: something on the way may swallow the request, or it may have to wait
/// for as long as `Retry-After` says. The API server sends the head of its answer as soon as the watch is set up. Until then what is
/// known of the collection may be of any age.
#[derive(Clone, Debug, Default)]
pub struct WatchAnswers(Arc<Mutex<HashMap<String, bool>>>);

impl WatchAnswers {
    /// A watch is about to be asked for; one that stood before is over.
    pub fn asked(&self, path: &str) {
        self.0.lock().insert(path.to_owned(), false);
    }

    /// The API server has accepted the watch.
    pub fn accepted(&self, path: &str) {
        self.0.lock().insert(path.to_owned(), true);
    }

    /// Whether no watch of the collection waits for an answer. So it is of a collection that nobody watches over a connection that
    /// is followed.
    pub fn stands(&self, path: &str) -> bool {
        self.0.lock().get(path) != Some(&false)
    }
}
