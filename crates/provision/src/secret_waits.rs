//! Waking claims and PersistentVolumes that wait for a Secret when that Secret changes.
//!
//! Secrets are read live and never kept. While one of them waits for one, its metadata is asked for now and then; its contents stay with the
//! API server. One that may not be read is asked for too, and a permission that is granted ends the wait.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Weak};

use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use crate::apiserver::{Requests, SecretEvent};
use crate::key::{ClaimCause, WorkKey};
use crate::objects::SecretReference;
use crate::queue::Queue;
use crate::schedule;

/// Secrets of one driver that are asked for. What waits for others waits for the end of its backoff.
const MAX_SECRETS: usize = 64;

/// The Secrets that claims and PersistentVolumes of one driver wait for.
pub(crate) struct SecretWaits(Arc<SecretWaitsInner>);

struct SecretWaitsInner {
    queue: Queue<WorkKey>,
    waiting: Mutex<HashMap<SecretReference, Wait>>,
}

struct Wait {
    keys: BTreeSet<WorkKey>,
    _poll: AbortOnDropHandle<()>,
}

impl SecretWaits {
    pub fn new(queue: Queue<WorkKey>) -> Self {
        Self(Arc::new(SecretWaitsInner {
            queue,
            waiting: Mutex::default(),
        }))
    }

    /// Wakes a key when the Secret that it waits for is there or may be read. Each attempt says again which one that is, if any: so a key
    /// waits for one at most, and for none once it has left the queue.
    pub fn set(&self, requests: &Requests, key: &WorkKey, secret: Option<&SecretReference>) {
        let mut waiting = self.0.waiting.lock();
        leave(&mut waiting, key, secret);
        let Some(secret) = secret else { return };
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

/// A key waits for no Secret but this one any more. What nobody waits for is not asked for.
fn leave(waiting: &mut HashMap<SecretReference, Wait>, key: &WorkKey, except: Option<&SecretReference>) {
    waiting.retain(|secret, wait| {
        if Some(secret) != except {
            wait.keys.remove(key);
        }
        !wait.keys.is_empty()
    });
}

/// The last thing that a poll does: its own handle is dropped here.
fn wake(inner: &Weak<SecretWaitsInner>, secret: &SecretReference) {
    let Some(inner) = inner.upgrade() else { return };
    let ended = inner.waiting.lock().remove(secret);
    for key in ended.iter().flat_map(|wait| &wait.keys) {
        inner.queue.wake(key, ClaimCause::Secret.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ClaimKey;

    fn secret(name: &str) -> SecretReference {
        SecretReference {
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    fn key(uid: &str) -> WorkKey {
        WorkKey::Claim(ClaimKey {
            uid: uid.into(),
            name: "web/data".into(),
        })
    }

    /// Claims come and go by the thousand while a Secret is missing.
    #[tokio::test]
    async fn a_claim_waits_for_one_secret_and_ends_with_its_key() {
        let wait = |keys: &[&str]| Wait {
            keys: keys.iter().map(|uid| key(uid)).collect(),
            _poll: AbortOnDropHandle::new(schedule::spawn(std::future::pending())),
        };
        let mut waiting = HashMap::from([(secret("a"), wait(&["1", "2"])), (secret("b"), wait(&["1"]))]);
        leave(&mut waiting, &key("1"), Some(&secret("a")));
        assert!(waiting.len() == 1 && waiting[&secret("a")].keys.len() == 2);
        leave(&mut waiting, &key("1"), None);
        assert_eq!(waiting[&secret("a")].keys, BTreeSet::from([key("2")]));
        leave(&mut waiting, &key("2"), None);
        assert!(waiting.is_empty());
    }
}
