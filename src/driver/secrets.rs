//! Waking what failed over a publish secret when that secret changes.
//!
//! Secrets are read live and never kept, so there is no cache that would tell. While an attachment that needs a Secret is
//! waiting to be tried again, that one Secret is asked for now and then: its metadata only, its contents stay with the API
//! server. One that may not be read is asked for too, so that a right that is granted ends the wait.

use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Weak};
use tokio_util::task::AbortOnDropHandle;

use super::rights;
use super::status::{Forbidden, Publisher};
use crate::kubernetes::{Requests, SecretEvent};
use crate::objects::{ResourceVersion, SecretReference};
use crate::queue::Queue;
use crate::schedule;
use crate::store::{AttacherKey, Cause};

/// The Secrets that attachments wait for.
#[derive(Default)]
pub(super) struct SecretWatches {
    all: Arc<Mutex<All>>,
    /// The attachments whose Secret may not be read. In an order, so that the first one is the same each time.
    forbidden: Mutex<BTreeMap<Arc<str>, SecretReference>>,
}

type All = HashMap<SecretReference, Waiting>;

struct Waiting {
    /// Who waits, with the newest version of the Secret that it was tried with or woken for. In an order, so that a
    /// simulation can be repeated.
    names: BTreeMap<Arc<str>, ResourceVersion>,
    /// The newest version that the watch has told of.
    known: ResourceVersion,
    _watch: AbortOnDropHandle<()>,
}

impl Waiting {
    /// Lets everything be tried at once that was not tried with the newest version; what the queue does not know any more
    /// is forgotten.
    fn wake(&mut self, queue: &Queue<AttacherKey>) {
        let known = self.known;
        self.names.retain(|name, tried| {
            *tried >= known || {
                *tried = known;
                queue.wake(&AttacherKey::Attachment(name.clone()), Cause::Update.into())
            }
        });
    }
}

impl SecretWatches {
    /// An attachment failed with this version of a Secret, or without it.
    pub fn wait(
        &self,
        requests: &Requests,
        queue: &Queue<AttacherKey>,
        reference: &SecretReference,
        name: &Arc<str>,
        tried: Option<ResourceVersion>,
    ) {
        let tried = tried.unwrap_or_default();
        let mut all = self.all.lock();
        let waiting = all.entry(reference.clone()).or_insert_with(|| {
            let watch = follow(
                Arc::downgrade(&self.all),
                requests.clone(),
                queue.clone(),
                reference.clone(),
            );
            Waiting {
                names: BTreeMap::new(),
                known: ResourceVersion::default(),
                _watch: AbortOnDropHandle::new(schedule::spawn(watch)),
            }
        });
        let newest = waiting.names.entry(name.clone()).or_default();
        *newest = tried.max(*newest);
        // The watch may have told of a mended Secret while the attempt was on its way.
        waiting.wake(queue);
    }

    /// An attachment is settled, or gone. The watch of a Secret ends with the last one that waits for it.
    pub fn end(&self, name: &str) {
        self.all.lock().retain(|_, waiting| {
            waiting.names.remove(name);
            !waiting.names.is_empty()
        });
    }

    /// Takes in whether an attempt at an attachment was refused its Secret, and publishes what there is to be told then.
    pub fn refused(&self, name: &str, secret: Option<&SecretReference>, publisher: &Publisher) {
        // Held while it is published: another attempt may know better a moment later.
        let mut forbidden = self.forbidden.lock();
        let before = match secret {
            Some(secret) => forbidden.insert(name.into(), secret.clone()),
            None => forbidden.remove(name),
        };
        if before.as_ref() == secret {
            return;
        }
        publisher.forbidden(forbidden.values().next().map(|first| Forbidden {
            message: rights::secret(first),
            attachments: forbidden.len(),
        }));
    }
}

/// The watches are held weakly: they hold this task, and must end with the engine.
async fn follow(watches: Weak<Mutex<All>>, requests: Requests, queue: Queue<AttacherKey>, reference: SecretReference) {
    let mut events = pin!(requests.follow_secret(&reference));
    while let Some(event) = events.next().await {
        match event {
            SecretEvent::State(version) => {
                let Some(watches) = watches.upgrade() else { return };
                if let Some(waiting) = watches.lock().get_mut(&reference) {
                    // The API server went back to an older state: nobody has tried with what the Secret is now.
                    if version < waiting.known {
                        waiting.names.values_mut().for_each(|tried| *tried = ResourceVersion::default());
                    }
                    waiting.known = version;
                    waiting.wake(&queue);
                }
            }
            // One that comes back has a newer version.
            SecretEvent::Gone | SecretEvent::Unknown => {}
            // Once it may be read again, it is to be tried whatever its version.
            SecretEvent::Forbidden => {
                let Some(watches) = watches.upgrade() else { return };
                if let Some(waiting) = watches.lock().get_mut(&reference) {
                    waiting.known = ResourceVersion::default();
                    waiting.names.values_mut().for_each(|tried| *tried = waiting.known);
                }
            }
        }
    }
}
