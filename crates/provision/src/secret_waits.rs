//! Waking claims and PersistentVolumes when the Secret changes that they wait for, or that the driver refused.
//!
//! Secrets are read live and never kept. While one of them waits for one, its metadata is asked for now and then; its contents stay with the
//! API server. One that may not be read is asked for too, and a permission that is granted ends the wait.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Weak};

use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use crate::apiserver::{ApiError, ApiErrorKind, Requests, SecretEvent};
use crate::key::{ClaimCause, WorkKey};
use crate::objects::{ResourceVersion, SecretReference};
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
    /// The version that each was tried with or woken for; zero without one.
    keys: BTreeMap<WorkKey, ResourceVersion>,
    /// The version that was seen last; none while it is not there, or may not be read.
    seen: Option<ResourceVersion>,
    /// Why there is none, as the last poll that said something had it.
    absent: Option<SecretEvent>,
    _poll: AbortOnDropHandle<()>,
}

impl Wait {
    /// Takes in how the Secret is now. Answers with whom that wakes: each once for each version.
    fn take_in(&mut self, event: SecretEvent) -> Vec<WorkKey> {
        if event == SecretEvent::Unknown {
            return Vec::new();
        }
        let SecretEvent::State(version) = event else {
            self.absent = Some(event);
            // Once it is there and may be read, it is to be tried whatever its version.
            self.seen = None;
            self.keys
                .values_mut()
                .for_each(|tried| *tried = ResourceVersion::default());
            return Vec::new();
        };
        (self.seen, self.absent) = (Some(version), None);
        // The API server may have gone back: nobody has tried with what the Secret is now.
        let outdated = self.keys.iter_mut().filter(|(_, tried)| **tried != version);
        let woken = outdated.map(|(key, tried)| {
            *tried = version;
            key.clone()
        });
        woken.collect()
    }

    /// One waits that was tried with this version. Whether it is to be woken: the Secret was seen to be another one meanwhile.
    fn join(&mut self, key: &WorkKey, tried: ResourceVersion) -> bool {
        let newer = self.seen.filter(|seen| tried < *seen);
        self.keys.insert(key.clone(), newer.unwrap_or(tried));
        newer.is_some()
    }
}

impl SecretWaits {
    pub fn new(queue: Queue<WorkKey>) -> Self {
        Self(Arc::new(SecretWaitsInner {
            queue,
            waiting: Mutex::default(),
        }))
    }

    /// Why a Secret cannot be had, where others wait for it already: it was asked for a moment ago, and who waits as well is woken with
    /// them. So thousands that wait for one Secret do not each read it.
    pub fn absent(&self, secret: &SecretReference) -> Option<ApiError> {
        let waiting = self.0.waiting.lock();
        let status = match waiting.get(secret)?.absent? {
            SecretEvent::Gone => 404,
            SecretEvent::Forbidden => 403,
            SecretEvent::State(_) | SecretEvent::Unknown => return None,
        };
        let kind = ApiErrorKind::of_status(status);
        Some(ApiError {
            status: Some(status),
            ..ApiError::without_answer(kind, "the Secret was asked for a moment ago")
        })
    }

    /// Wakes a key when the Secret that it waits for has another version than `tried`, which the attempt read; none where it read none,
    /// and an earlier one counts. Each attempt says again which Secret that is, if any: so a key waits for one at most, and for none once
    /// it has left the queue.
    pub fn set(
        &self,
        requests: &Requests,
        key: &WorkKey,
        secret: Option<&SecretReference>,
        tried: Option<ResourceVersion>,
    ) {
        let mut waiting = self.0.waiting.lock();
        let before = leave(&mut waiting, key, secret);
        let Some(secret) = secret else { return };
        let tried = tried.or(before).unwrap_or_default();
        if let Some(wait) = waiting.get_mut(secret) {
            if wait.join(key, tried) {
                self.0.queue.wake(key, ClaimCause::Secret.into());
            }
            return;
        }
        if waiting.len() >= MAX_SECRETS {
            return;
        }
        let (inner, requests, of) = (Arc::downgrade(&self.0), requests.for_polls(), secret.clone());
        let poll = schedule::spawn(async move {
            let mut events = pin!(SecretEvent::follow(requests, of.clone()));
            while let Some(event) = events.next().await {
                wake(&inner, &of, event);
            }
        });
        waiting.insert(
            secret.clone(),
            Wait {
                keys: [(key.clone(), tried)].into(),
                seen: None,
                absent: None,
                _poll: AbortOnDropHandle::new(poll),
            },
        );
    }
}

/// A key waits for no Secret but this one any more; the version that it was tried with of this one, if it waits. What nobody waits for is
/// not asked for.
fn leave(
    waiting: &mut HashMap<SecretReference, Wait>,
    key: &WorkKey,
    except: Option<&SecretReference>,
) -> Option<ResourceVersion> {
    waiting.retain(|secret, wait| {
        if Some(secret) != except {
            wait.keys.remove(key);
        }
        !wait.keys.is_empty()
    });
    waiting.get(except?)?.keys.get(key).copied()
}

fn wake(inner: &Weak<SecretWaitsInner>, secret: &SecretReference, event: SecretEvent) {
    let Some(inner) = inner.upgrade() else { return };
    let woken = inner.waiting.lock().get_mut(secret).map(|wait| wait.take_in(event));
    for key in woken.iter().flatten() {
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
            keys: keys.iter().map(|uid| (key(uid), ResourceVersion(3))).collect(),
            seen: None,
            absent: None,
            _poll: AbortOnDropHandle::new(schedule::spawn(std::future::pending())),
        };
        let mut waiting = HashMap::from([(secret("a"), wait(&["1", "2"])), (secret("b"), wait(&["1"]))]);
        let tried = leave(&mut waiting, &key("1"), Some(&secret("a")));
        assert_eq!(tried, Some(ResourceVersion(3)));
        assert!(waiting.len() == 1 && waiting[&secret("a")].keys.len() == 2);
        leave(&mut waiting, &key("1"), None);
        assert!(waiting[&secret("a")].keys.keys().eq([&key("2")]));
        leave(&mut waiting, &key("2"), None);
        assert!(waiting.is_empty());
    }

    /// Who was refused with a version is woken once for each other one.
    #[tokio::test]
    async fn each_change_of_a_secret_wakes_once() {
        let state = |version| SecretEvent::State(ResourceVersion(version));
        let mut wait = Wait {
            keys: [(key("1"), ResourceVersion(5))].into(),
            seen: None,
            absent: None,
            _poll: AbortOnDropHandle::new(schedule::spawn(std::future::pending())),
        };
        assert!(wait.take_in(state(5)).is_empty(), "it was tried with that");
        assert_eq!(wait.take_in(state(6)), [key("1")]);
        assert!(wait.take_in(state(6)).is_empty());
        assert!(!wait.join(&key("1"), ResourceVersion(6)), "and refused again");
        // Read just before the change that was seen.
        assert!(wait.join(&key("2"), ResourceVersion(5)));
        assert!(!wait.join(&key("2"), ResourceVersion(6)));
        // Not there, or not to be read: whatever version comes then counts.
        assert!(wait.take_in(SecretEvent::Gone).is_empty());
        assert_eq!(wait.absent, Some(SecretEvent::Gone));
        assert!(!wait.join(&key("3"), ResourceVersion::default()));
        assert_eq!(wait.take_in(state(6)), [key("1"), key("2"), key("3")]);
        assert_eq!(wait.absent, None);
        // An older state.
        assert_eq!(wait.take_in(state(4)).len(), 3);
    }
}
