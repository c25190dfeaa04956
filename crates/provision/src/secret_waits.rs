//! Waking claims that wait for a Secret when that Secret changes.
//!
//! Secrets are read live and never kept. While a claim waits for one, its metadata is asked for now and then; its contents stay with the
//! API server. One that may not be read is asked for too, and a permission that is granted ends the wait.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Weak};

use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use crate::apiserver::{Requests, SecretEvent};
use crate::key::{ClaimCause, ClaimKey};
use crate::objects::SecretReference;
use crate::queue::Queue;
use crate::schedule;

/// Secrets of one driver that are asked for. What waits for others waits for the end of its backoff.
const MAX_SECRETS: usize = 64;

/// The Secrets that claims of one driver wait for.
pub(crate) struct SecretWaits(Arc<SecretWaitsInner>);

struct SecretWaitsInner {
    queue: Queue<ClaimKey>,
    waiting: Mutex<HashMap<SecretReference, Wait>>,
}

struct Wait {
    keys: BTreeSet<ClaimKey>,
    _poll: AbortOnDropHandle<()>,
}

impl SecretWaits {
    pub fn new(queue: Queue<ClaimKey>) -> Self {
        Self(Arc::new(SecretWaitsInner {
            queue,
            waiting: Mutex::default(),
        }))
    }

    /// Wakes a claim when a Secret is there that is not there now, or may be read.
    pub fn wait(&self, requests: &Requests, secret: &SecretReference, key: &ClaimKey) {
        let mut waiting = self.0.waiting.lock();
        if let Some(wait) = waiting.get_mut(secret) {
            wait.keys.insert(key.clone());
            return;
        }
        if waiting.len() >= MAX_SECRETS {
            return;
        }
        let (inner, requests, of) = (Arc::downgrade(&self.0), requests.for_polls(), secret.clone());
        let poll = schedule::spawn(async move {
            let mut events = pin!(SecretEvent::follow(requests, of.clone()));
            while let Some(event) = events.next().await {
                if matches!(event, SecretEvent::State(_)) {
                    break;
                }
            }
            wake(&inner, &of);
        });
        waiting.insert(
            secret.clone(),
            Wait {
                keys: [key.clone()].into(),
                _poll: AbortOnDropHandle::new(poll),
            },
        );
    }
}

/// The last thing that a poll does: its own handle is dropped here.
fn wake(inner: &Weak<SecretWaitsInner>, secret: &SecretReference) {
    let Some(inner) = inner.upgrade() else { return };
    let ended = inner.waiting.lock().remove(secret);
    for key in ended.iter().flat_map(|wait| &wait.keys) {
        inner.queue.wake(key, ClaimCause::Secret.into());
    }
}
