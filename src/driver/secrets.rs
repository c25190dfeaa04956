//! Waking what failed over a publish secret when that secret changes.
//!
//! Secrets are read live and never kept, so there is no cache that would tell. While an attachment that needs a Secret is
//! waiting to be tried again, that one Secret is watched: its metadata only, its contents stay with the API server. Where
//! the operator may read the Secret but not watch it, the backoff alone decides.

use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

use crate::kubernetes::{Requests, SecretEvent};
use crate::objects::SecretReference;
use crate::queue::Queue;
use crate::store::AttacherKey;

/// The Secrets that attachments wait for.
#[derive(Clone, Default)]
pub(super) struct SecretWatches(Arc<Mutex<HashMap<SecretReference, Waiting>>>);

struct Waiting {
    names: HashSet<Arc<str>>,
    _watch: AbortOnDropHandle<()>,
}

impl SecretWatches {
    /// An attachment failed with this Secret, which was there or not.
    pub fn wait(
        &self,
        requests: &Requests,
        queue: &Queue<AttacherKey>,
        reference: &SecretReference,
        name: &Arc<str>,
        was_there: bool,
    ) {
        let mut all = self.0.lock();
        if let Some(waiting) = all.get_mut(reference) {
            waiting.names.insert(name.clone());
            return;
        }
        let watch = follow(
            self.clone(),
            requests.clone(),
            queue.clone(),
            reference.clone(),
            was_there,
        );
        let waiting = Waiting {
            names: HashSet::from([name.clone()]),
            _watch: AbortOnDropHandle::new(tokio::spawn(watch)),
        };
        all.insert(reference.clone(), waiting);
    }

    /// An attachment is settled, or gone. The watch of a Secret ends with the last one that waits for it.
    pub fn end(&self, name: &str) {
        self.0.lock().retain(|_, waiting| {
            waiting.names.remove(name);
            !waiting.names.is_empty()
        });
    }

    /// Lets everything that waits for this Secret be tried at once; what the queue does not know any more is forgotten.
    fn wake(&self, queue: &Queue<AttacherKey>, reference: &SecretReference) {
        if let Some(waiting) = self.0.lock().get_mut(reference) {
            waiting
                .names
                .retain(|name| queue.wake(&AttacherKey::Attachment(name.clone())));
        }
    }
}

async fn follow(
    watches: SecretWatches,
    requests: Requests,
    queue: Queue<AttacherKey>,
    reference: SecretReference,
    was_there: bool,
) {
    let mut events = pin!(requests.watch_secret(&reference));
    // The state that the first list shows is the one the attempt failed with, unless it failed for want of the Secret.
    let mut known = was_there.then(String::new);
    while let Some(event) = events.next().await {
        match event {
            SecretEvent::State(version) => {
                let first = known.as_ref().is_some_and(String::is_empty);
                if !first && known.as_ref() != Some(&version) {
                    watches.wake(&queue, &reference);
                }
                known = Some(version);
            }
            SecretEvent::Gone => known = None,
            SecretEvent::Forbidden => {
                let SecretReference { namespace, name } = &reference;
                tracing::debug!(
                    "cannot watch secret {namespace}/{name}; attachments that need it wait for their next try"
                );
                return;
            }
        }
    }
}
