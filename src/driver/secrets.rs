//! Waking what failed over a publish secret when that secret changes.
//!
//! Secrets are read live and never kept, so there is no cache that would tell. While an attachment that needs a Secret is
//! waiting to be tried again, that one Secret is watched: its metadata only, its contents stay with the API server. Where
//! the operator may read the Secret but not watch it, the backoff alone decides.

use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Weak};
use tokio_util::task::AbortOnDropHandle;

use crate::kubernetes::{Requests, SecretEvent};
use crate::objects::SecretReference;
use crate::queue::Queue;
use crate::store::AttacherKey;

/// The Secrets that attachments wait for.
#[derive(Default)]
pub(super) struct SecretWatches(Arc<Mutex<All>>);

type All = HashMap<SecretReference, Waiting>;

struct Waiting {
    /// In an order, so that a simulation can be repeated.
    names: BTreeSet<Arc<str>>,
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
            Arc::downgrade(&self.0),
            requests.clone(),
            queue.clone(),
            reference.clone(),
            was_there,
        );
        let waiting = Waiting {
            names: BTreeSet::from([name.clone()]),
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
}

/// Lets everything that waits for this Secret be tried at once; what the queue does not know any more is forgotten.
fn wake(all: &Mutex<All>, queue: &Queue<AttacherKey>, reference: &SecretReference) {
    if let Some(waiting) = all.lock().get_mut(reference) {
        waiting
            .names
            .retain(|name| queue.wake(&AttacherKey::Attachment(name.clone())));
    }
}

/// The watches are held weakly: they hold this task, and must end with the engine.
async fn follow(
    watches: Weak<Mutex<All>>,
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
                    let Some(watches) = watches.upgrade() else { return };
                    wake(&watches, &queue, &reference);
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
