//! Waking what failed over a Secret when that Secret changes (invariant 17 of ARCHITECTURE).
//!
//! Secrets are read live and never kept, so no cache has them. While something waits for a Secret, its metadata is asked for now and then,
//! by one task for all of them, which leaves the limits of requests to the work. One that may not be read is asked for too: a permission
//! that is granted ends the wait.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::apiserver::{ApiError, ApiErrorKind, MAX_PAUSE, Requests, SecretEvent, pause_after};
use crate::objects::{ResourceVersion, SecretReference};
use crate::queue::{CauseCode, Key, Queue};
use crate::schedule;

/// Secrets of one driver that are asked for. What waits for others waits for the end of its backoff.
const MAX_SECRETS: usize = 256;
/// For how long a read that says that a Secret cannot be had is believed: twice the longest pause between two reads. Reads come later where
/// many Secrets are waited for, or the limits of requests leave no room for them.
const BELIEVED_FOR: Duration = MAX_PAUSE.saturating_mul(2);
/// The shortest time from one read to the next, of any Secret.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What may wait for a Secret: for one at most, which is remembered with the key.
pub trait AwaitsSecret: Key + Ord {
    /// The Secret that a key waits for.
    fn awaited(memory: &mut Self::Memory) -> &mut Option<AwaitedSecret>;
}

/// The Secrets that the keys of one queue wait for.
pub struct SecretWaits<K: AwaitsSecret> {
    awaited: Arc<AwaitedSecrets<K>>,
    poller: OnceLock<AbortOnDropHandle<()>>,
}

/// A Secret that is waited for. It is remembered with the key alone and not copied: as many as there are wait.
#[derive(Debug)]
pub struct AwaitedSecret {
    /// Shared with what is known of the Secret, so that what leaves the queue, however it does, waits no more.
    reference: Arc<SecretReference>,
    /// The newest version that was tried with or woken for.
    tried: ResourceVersion,
}

/// What the task that asks for Secrets shares with those who wait.
struct AwaitedSecrets<K: AwaitsSecret> {
    queue: Queue<K>,
    cause: CauseCode,
    /// Held while it is changed who waits for them: a read that comes in meanwhile must see both.
    known: Mutex<BTreeMap<Arc<SecretReference>, KnownSecret>>,
    /// Notified of each change of who waits for what.
    changed: Notify,
}

/// What is known of a Secret that is waited for.
struct KnownSecret {
    version: ResourceVersion,
    /// The last event that changed something.
    last_change: Option<SecretEvent>,
    answered: Option<Instant>,
    /// The pause before the next read, which is due then.
    pause: Option<Duration>,
    due: Instant,
}

impl KnownSecret {
    fn new() -> Self {
        Self {
            version: ResourceVersion::default(),
            last_change: None,
            answered: None,
            pause: None,
            due: Instant::now(),
        }
    }

    /// Takes in what a read says. Answers with the version from which on nothing need be tried again, and whether the Secret
    /// is another one than what was tried before, whatever its version; nothing when nothing changed.
    fn take_in(&mut self, event: SecretEvent) -> Option<(ResourceVersion, bool)> {
        let is_change = event.is_news_after(self.last_change);
        let pause = pause_after(is_change, self.pause);
        self.pause = Some(pause);
        let now = Instant::now();
        self.due = now + pause;
        if event != SecretEvent::Unknown {
            self.answered = Some(now);
        }
        if !is_change {
            return None;
        }
        self.last_change = Some(event);
        match event {
            SecretEvent::State(version) => {
                // The API server went back to an older state: nobody has tried with what the Secret is now.
                let is_another = version < self.version;
                self.version = version;
                Some((version, is_another))
            }
            SecretEvent::Unknown => None,
            // Once it is there and may be read, it is to be tried whatever its version.
            SecretEvent::Gone | SecretEvent::Forbidden => {
                self.version = ResourceVersion::default();
                Some((self.version, true))
            }
        }
    }
}

impl<K: AwaitsSecret> SecretWaits<K> {
    /// For the keys of this queue, which are woken for this cause.
    pub fn new(queue: Queue<K>, cause: impl Into<CauseCode>) -> Self {
        let awaited = AwaitedSecrets {
            queue,
            cause: cause.into(),
            known: Mutex::default(),
            changed: Notify::new(),
        };
        Self {
            awaited: Arc::new(awaited),
            poller: OnceLock::new(),
        }
    }

    /// Why a Secret cannot be had, where others wait for it already: it was asked for a moment ago, and who waits as well is woken with
    /// them. So thousands that wait for one Secret do not each read it.
    pub fn absent(&self, secret: &SecretReference) -> Option<ApiError> {
        let known = self.awaited.known.lock();
        let known = known.get(secret)?;
        if known.answered?.elapsed() > BELIEVED_FOR {
            return None;
        }
        let status = match known.last_change? {
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

    /// As [`Self::wait`]; a key waits for nothing where no Secret is named.
    pub fn set(&self, requests: &Requests, key: &K, secret: Option<&SecretReference>, tried: Option<ResourceVersion>) {
        match secret {
            Some(secret) => self.wait(requests, secret, key, tried),
            None => self.keep(key, None),
        }
    }

    /// A key failed with this version of a Secret, or without it; an earlier version counts as well. It waits for no other one any more.
    pub fn wait(&self, requests: &Requests, reference: &SecretReference, key: &K, tried: Option<ResourceVersion>) {
        // The Secret may have been seen to be fixed while the attempt was on its way.
        if self.awaited.join(reference, key, tried) {
            self.awaited.queue.wake(key, self.awaited.cause);
        }
        self.awaited.changed.notify_one();
        self.poller.get_or_init(|| {
            let polling = poll(self.awaited.clone(), requests.for_polls());
            AbortOnDropHandle::new(schedule::spawn(polling))
        });
    }

    /// Ends the wait for Secrets that the driver may not be given any more. Who waits for one is to be tried again.
    pub fn keep_allowed(&self, is_allowed: impl Fn(&SecretReference) -> bool) {
        self.awaited.queue.remember_all(|_, memory| {
            K::awaited(memory).take_if(|awaited| !is_allowed(&awaited.reference));
        });
        self.awaited.changed.notify_one();
    }

    /// A key waits for no other Secret than this one any more.
    pub fn keep(&self, key: &K, secret: Option<&SecretReference>) {
        let ended = self.awaited.queue.remember(key, |memory| {
            let ended = K::awaited(memory).take_if(|awaited| Some(&*awaited.reference) != secret);
            ended.is_some()
        });
        if ended == Some(true) {
            self.ended();
        }
    }

    /// A key that waited for a Secret has left the queue.
    pub fn ended(&self) {
        self.awaited.changed.notify_one();
    }
}

impl<K: AwaitsSecret> AwaitedSecrets<K> {
    /// A key waits for a Secret from now on. Whether a newer version than what was tried was seen.
    fn join(&self, reference: &SecretReference, key: &K, tried: Option<ResourceVersion>) -> bool {
        let mut known = self.known.lock();
        let kept = known.get_key_value(reference).map(|(kept, _)| kept.clone());
        let shared = kept.or_else(|| has_room(&mut known).then(|| Arc::new(reference.clone())));
        let shared = shared.map(|shared| {
            let version = known.entry(shared.clone()).or_insert_with(KnownSecret::new).version;
            (shared, version)
        });
        let is_newer = self.queue.remember(key, |memory| {
            let awaited = K::awaited(memory);
            let before = awaited.take().filter(|known| *known.reference == *reference);
            let Some((shared, version)) = shared else { return false };
            let tried = tried
                .unwrap_or_default()
                .max(before.map(|known| known.tried).unwrap_or_default());
            *awaited = Some(AwaitedSecret {
                reference: shared,
                tried: tried.max(version),
            });
            tried < version
        });
        is_newer == Some(true)
    }

    /// The Secret that is to be read next, and when.
    fn next(&self) -> Option<(Instant, SecretReference)> {
        let known = self.known.lock();
        let (reference, next) = known.iter().min_by_key(|(_, secret)| secret.due)?;
        // A copy: who polls does not wait.
        Some((next.due, SecretReference::clone(reference)))
    }

    /// Whether anything waits for a Secret. One that nobody waits for is forgotten.
    fn is_awaited(&self, reference: &SecretReference) -> bool {
        let mut known = self.known.lock();
        let kept = known.get_key_value(reference);
        let is_awaited = kept.is_some_and(|(kept, _)| has_waiters(kept));
        if !is_awaited {
            known.remove(reference);
        }
        is_awaited
    }

    /// Resolves when nobody waits for this Secret any more.
    async fn ended(&self, reference: &SecretReference) {
        while self.is_awaited(reference) {
            self.changed.notified().await;
        }
    }

    /// Takes in how a Secret is. Answers with what is to be tried at once, as it was not tried with the newest version.
    fn take_in(&self, reference: &SecretReference, event: SecretEvent) -> Vec<K> {
        let mut outdated = Vec::new();
        {
            let mut known = self.known.lock();
            let change = known.get_mut(reference).and_then(|known| known.take_in(event));
            let Some((version, is_another)) = change else {
                return outdated;
            };
            self.queue.remember_all(|key, memory| {
                let awaited = K::awaited(memory).as_mut();
                let Some(awaited) = awaited.filter(|awaited| *awaited.reference == *reference) else {
                    return;
                };
                if is_another {
                    awaited.tried = ResourceVersion::default();
                }
                if awaited.tried < version {
                    awaited.tried = version;
                    outdated.push(key.clone());
                }
            });
        }
        // In an order, so that a simulation can be repeated.
        outdated.sort();
        outdated
    }
}

/// Whether anything but what is known of a Secret has its reference.
fn has_waiters(kept: &Arc<SecretReference>) -> bool {
    Arc::strong_count(kept) > 1
}

/// Whether one more Secret can be asked for, when those that nobody waits for any more are forgotten. Thousands may find that there is no
/// room: none of them goes through the queue for it.
fn has_room(known: &mut BTreeMap<Arc<SecretReference>, KnownSecret>) -> bool {
    if known.len() >= MAX_SECRETS {
        known.retain(|reference, _| has_waiters(reference));
    }
    known.len() < MAX_SECRETS
}

/// Reads the metadata of one Secret after the other while anything waits for any.
async fn poll<K: AwaitsSecret>(awaited: Arc<AwaitedSecrets<K>>, requests: Requests) {
    let mut not_before = Instant::now();
    loop {
        let Some((due, reference)) = awaited.next() else {
            awaited.changed.notified().await;
            continue;
        };
        let at = due.max(not_before);
        if at > Instant::now() {
            tokio::select! {
                biased;
                () = awaited.changed.notified() => {}
                () = sleep_until(at) => {}
            }
            continue;
        }
        tokio::select! {
            biased;
            () = awaited.ended(&reference) => continue,
            event = SecretEvent::poll(&requests, &reference) => {
                for key in awaited.take_in(&reference, event) {
                    awaited.queue.wake(&key, awaited.cause);
                }
            }
        }
        not_before = Instant::now() + POLL_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Backoff, Item, Lane, Remembered, Ticket};
    use futures::FutureExt as _;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    struct Waiting(&'static str);

    impl Remembered for Waiting {
        type Memory = Option<AwaitedSecret>;
    }

    impl AwaitsSecret for Waiting {
        fn awaited(memory: &mut Self::Memory) -> &mut Option<AwaitedSecret> {
            memory
        }
    }

    fn secret(name: &str) -> SecretReference {
        SecretReference {
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    /// With keys that are being worked on.
    fn waits(keys: &[&'static str]) -> (SecretWaits<Waiting>, Vec<Ticket<Waiting>>) {
        let queue = Queue::new(Backoff::default());
        for key in keys {
            queue.add(Item::new(Waiting(key), Lane::new(0), 0));
        }
        let next = || tokio::task::unconstrained(queue.next()).now_or_never().flatten();
        let running = std::iter::from_fn(next).collect();
        (SecretWaits::new(queue, CauseCode::default()), running)
    }

    /// Claims come and go by the thousand while a Secret is missing.
    #[tokio::test]
    async fn a_key_waits_for_one_secret_and_ends_with_its_key() {
        let (waits, mut running) = waits(&["1", "2"]);
        let is_awaited = |name| waits.awaited.is_awaited(&secret(name));
        let tried = Some(ResourceVersion(3));
        waits.awaited.join(&secret("b"), &Waiting("1"), tried);
        for key in ["1", "2"] {
            waits.awaited.join(&secret("a"), &Waiting(key), tried);
        }
        assert!(is_awaited("a") && !is_awaited("b"));
        waits.keep(&Waiting("1"), None);
        assert!(is_awaited("a"));
        let settled = running.pop().unwrap();
        assert_eq!(settled.key, Waiting("2"));
        settled.finish(crate::queue::RunResult::Done);
        assert!(!is_awaited("a"));
        assert!(waits.awaited.next().is_none(), "what nobody waits for is not asked for");
    }

    /// Nobody says how a key leaves the queue, and what it waited for must not take the place of another Secret.
    #[tokio::test]
    async fn there_is_room_again_when_a_key_has_left_the_queue() {
        let names: Vec<&'static str> = (0..=MAX_SECRETS).map(|number| &*number.to_string().leak()).collect();
        let (waits, mut running) = waits(&names);
        for name in &names {
            waits.awaited.join(&secret(name), &Waiting(name), None);
        }
        let last = names[MAX_SECRETS];
        let known = || {
            let known = waits.awaited.known.lock();
            (known.len(), known.contains_key(&secret(last)))
        };
        assert_eq!(known(), (MAX_SECRETS, false));
        running.swap_remove(0).finish(crate::queue::RunResult::Done);
        waits.awaited.join(&secret(last), &Waiting(last), None);
        assert_eq!(known(), (MAX_SECRETS, true));
        assert!(!waits.awaited.is_awaited(&secret(names[0])));
    }

    /// Reads come late, or without an answer: then each attempt looks for itself.
    #[tokio::test(start_paused = true)]
    async fn that_a_secret_is_absent_is_believed_for_a_moment() {
        let (waits, _running) = waits(&["1"]);
        let of = secret("a");
        let absent = || waits.absent(&of).and_then(|error| error.status);
        let take_in = |event| waits.awaited.take_in(&of, event);
        waits.awaited.join(&of, &Waiting("1"), None);
        assert_eq!(absent(), None, "it was not asked for yet");
        take_in(SecretEvent::Gone);
        assert_eq!(absent(), Some(404));
        tokio::time::advance(BELIEVED_FOR).await;
        take_in(SecretEvent::Unknown);
        assert_eq!(absent(), Some(404));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(absent(), None);
        take_in(SecretEvent::Forbidden);
        assert_eq!(absent(), Some(403));
        take_in(SecretEvent::State(ResourceVersion(3)));
        assert_eq!(absent(), None);
    }

    /// Who was refused with a version is woken once for each other one.
    #[tokio::test]
    async fn each_change_of_a_secret_wakes_once() {
        let (waits, _running) = waits(&["1", "2", "3"]);
        let of = secret("a");
        let take_in = |event| waits.awaited.take_in(&of, event);
        let state = |version| take_in(SecretEvent::State(ResourceVersion(version)));
        let join = |key, tried| waits.awaited.join(&of, &Waiting(key), tried);
        assert!(!join("1", Some(ResourceVersion(5))));
        assert!(state(5).is_empty(), "it was tried with that");
        assert_eq!(state(6), [Waiting("1")]);
        assert!(state(6).is_empty());
        assert!(!join("1", Some(ResourceVersion(6))), "and refused again");
        assert!(!join("1", None), "what was read before counts");
        // Read just before the change that was seen.
        assert!(join("2", Some(ResourceVersion(5))));
        assert!(!join("2", Some(ResourceVersion(6))));
        // Not there, or not to be read: whatever version comes then counts.
        assert!(take_in(SecretEvent::Gone).is_empty());
        assert!(!join("3", None));
        assert_eq!(state(6), ["1", "2", "3"].map(Waiting));
        // An older state.
        assert_eq!(state(4).len(), 3);
    }
}
