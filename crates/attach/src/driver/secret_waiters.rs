//! Waking what failed over a publish secret when that secret changes.
//!
//! Secrets are read live and never kept, so no cache has them. While an attachment that needs a Secret is
//! waiting to be tried again, that one Secret is asked for now and then: its metadata only, its contents stay with the API
//! server. One that may not be read is asked for too, and a permission that is granted ends the wait.
//!
//! However many Secrets are missing, one task asks for one after the other, and leaves the limits of requests to the work.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::KeyMemory;
use crate::api::condition::ConditionReason;
use crate::api::permissions;
use crate::apiserver::{Requests, SecretEvent, pause_after};
use crate::cache::{AttacherKey, EnqueueCause};
use crate::decide::Refusal;
use crate::objects::{ResourceVersion, SecretReference};
use crate::queue::Queue;
use crate::schedule;
use csi_attacher_model::attempt::DeniedSecret;
use csi_attacher_runtime::state::{DriverStateSender, WithheldSecrets};

/// Secrets of one driver that are asked for. What waits for others waits for the end of its backoff.
const MAX_SECRETS: usize = 256;
/// The shortest time from one read to the next, of any Secret.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The Secrets that attachments of one driver wait for. Who waits for which, and who is not given one, is remembered with the keys of the
/// queue.
pub(super) struct SecretWaits {
    queue: Queue<AttacherKey>,
    awaited: Arc<AwaitedSecrets>,
    withheld: Arc<WithheldAttachments>,
    poller: OnceLock<AbortOnDropHandle<()>>,
}

/// The attachments whose Secret may not be read or given to the driver, as the status of the AttacherConfig shows them. In an order, so
/// that the first one is the same each time.
struct WithheldAttachments {
    publisher: DriverStateSender,
    by_key: Mutex<BTreeMap<AttacherKey, Withheld>>,
}

/// Shows that an attachment is not given its Secret, for as long as that is remembered with its key.
pub(crate) struct WithheldGuard {
    all: Arc<WithheldAttachments>,
    key: AttacherKey,
    what: Withheld,
}

impl WithheldAttachments {
    /// Publishes what is withheld after a change: how many, and the first.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<AttacherKey, Withheld>)) {
        // Held while it is published: another attempt may know better a moment later.
        let mut by_key = self.by_key.lock();
        change(&mut by_key);
        self.publisher
            .withheld(by_key.values().next().map(|first| WithheldSecrets {
                reason: first.reason,
                message: first.message.clone(),
                attachments: by_key.len(),
            }));
    }
}

impl WithheldGuard {
    fn new(all: &Arc<WithheldAttachments>, key: &AttacherKey, what: &Withheld) -> Self {
        all.change(|by_key| {
            by_key.insert(key.clone(), what.clone());
        });
        Self {
            all: all.clone(),
            key: key.clone(),
            what: what.clone(),
        }
    }

    fn set(&mut self, what: &Withheld) {
        if self.what != *what {
            self.what = what.clone();
            self.all.change(|by_key| {
                by_key.insert(self.key.clone(), what.clone());
            });
        }
    }
}

impl Drop for WithheldGuard {
    fn drop(&mut self) {
        self.all.change(|by_key| {
            by_key.remove(&self.key);
        });
    }
}

/// A Secret that an attachment waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedSecret {
    reference: SecretReference,
    /// The newest version that it was tried with or woken for.
    tried: ResourceVersion,
}

/// Why an attachment is not given its Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Withheld {
    secret: SecretReference,
    reason: ConditionReason,
    message: String,
}

impl Withheld {
    /// As an attempt learned it.
    pub fn of(denied: &DeniedSecret) -> Self {
        let (secret, reason, message) = match denied {
            DeniedSecret::Forbidden(secret) => (
                secret,
                ConditionReason::SecretForbidden,
                permissions::forbidden_secret_message(secret),
            ),
            DeniedSecret::NotAllowed(secret, refusal) => {
                (secret, ConditionReason::SecretNotAllowed, refusal.to_string())
            }
        };
        Self {
            secret: secret.clone(),
            reason,
            message,
        }
    }

    /// The AttacherConfig does not list it; none when the refusal is another one.
    pub fn not_allowed(refusal: &Refusal) -> Option<Self> {
        DeniedSecret::by(refusal).map(|denied| Self::of(&denied))
    }
}

#[derive(Default)]
struct AwaitedSecrets {
    /// Held while it is changed who waits for them: a read that comes in meanwhile must see both.
    known: Mutex<BTreeMap<SecretReference, KnownSecret>>,
    /// Notified of each change of who waits for what.
    changed: Notify,
}

/// What is known of a Secret that is waited for.
struct KnownSecret {
    /// The newest version that was seen.
    version: ResourceVersion,
    /// The last event that changed something.
    last_change: Option<SecretEvent>,
    /// The pause before the next read, which is due then.
    pause: Option<Duration>,
    due: Instant,
}

impl KnownSecret {
    fn new() -> Self {
        Self {
            version: ResourceVersion::default(),
            last_change: None,
            pause: None,
            due: Instant::now(),
        }
    }

    /// Takes in what a read says. Answers with the version from which on an attachment need not be tried again, and whether the Secret
    /// is another one than what was tried before, whatever its version; nothing when nothing changed.
    fn take_in(&mut self, event: SecretEvent) -> Option<(ResourceVersion, bool)> {
        let is_change = event.is_news_after(self.last_change);
        let pause = pause_after(is_change, self.pause);
        self.pause = Some(pause);
        self.due = Instant::now() + pause;
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
            // One that comes back has a newer version.
            SecretEvent::Gone | SecretEvent::Unknown => None,
            // Once it may be read again, it is to be tried whatever its version.
            SecretEvent::Forbidden => {
                self.version = ResourceVersion::default();
                Some((self.version, true))
            }
        }
    }
}

impl SecretWaits {
    /// For the keys of this queue. What is withheld is shown in the status of the AttacherConfig.
    pub fn new(queue: Queue<AttacherKey>, publisher: DriverStateSender) -> Self {
        let withheld = WithheldAttachments {
            publisher,
            by_key: Mutex::default(),
        };
        Self {
            queue,
            awaited: Arc::default(),
            withheld: Arc::new(withheld),
            poller: OnceLock::new(),
        }
    }

    /// An attachment failed with this version of a Secret, or without it. It waits for no other one any more.
    pub fn wait(
        &self,
        requests: &Requests,
        reference: &SecretReference,
        key: &AttacherKey,
        tried: Option<ResourceVersion>,
    ) {
        let is_newer = {
            let mut known = self.awaited.known.lock();
            let has_room = known.contains_key(reference) || has_room(&mut known, &self.queue);
            let version = has_room.then(|| known.entry(reference.clone()).or_insert_with(KnownSecret::new).version);
            self.queue.remember(key, |memory| {
                let before = memory.secret.take().filter(|known| known.reference == *reference);
                let Some(version) = version else { return false };
                let tried = tried
                    .unwrap_or_default()
                    .max(before.map(|known| known.tried).unwrap_or_default());
                memory.secret = Some(AwaitedSecret {
                    reference: reference.clone(),
                    tried: tried.max(version),
                });
                tried < version
            })
        };
        // The Secret may have been seen to be fixed while the attempt was on its way.
        if is_newer == Some(true) {
            self.queue.wake(key, EnqueueCause::Update.into());
        }
        self.awaited.changed.notify_one();
        self.poller.get_or_init(|| {
            let polling = poll(self.awaited.clone(), requests.for_polls(), self.queue.clone());
            AbortOnDropHandle::new(schedule::spawn(polling))
        });
    }

    /// Ends the wait for Secrets that the driver may not be given any more. Who waits for one is to be tried again.
    pub fn keep_allowed(&self, is_allowed: impl Fn(&SecretReference) -> bool) {
        self.queue.remember_all(|_, memory| {
            memory.secret.take_if(|awaited| !is_allowed(&awaited.reference));
        });
        self.awaited.changed.notify_one();
    }

    /// Takes in which Secret the next call about an attachment needs, or why it is not given it, as far as is known by now:
    /// it waits for no other one.
    pub fn needs(&self, key: &AttacherKey, needed: &Result<Option<&SecretReference>, Refusal>) {
        let secret = needed.as_ref().ok().copied().flatten();
        let still = |known: &Withheld| match needed {
            Ok(secret) => known.reason == ConditionReason::SecretForbidden && *secret == Some(&known.secret),
            Err(refusal) => Withheld::not_allowed(refusal).as_ref() == Some(known),
        };
        let ended = self.queue.remember(key, |memory| {
            let waits = memory.secret.take_if(|awaited| Some(&awaited.reference) != secret);
            (waits, memory.withheld.take_if(|known| !still(&known.what)))
        });
        if ended.is_some_and(|(waits, _)| waits.is_some()) {
            self.awaited.changed.notify_one();
        }
    }

    /// Whether an attachment waits for a Secret, or is denied one.
    pub fn concern(&self, key: &AttacherKey) -> bool {
        let concerns = self
            .queue
            .remember(key, |memory| memory.secret.is_some() || memory.withheld.is_some());
        concerns == Some(true)
    }

    /// An attempt has settled an attachment, or found that it is gone.
    pub fn end(&self, key: &AttacherKey) {
        self.needs(key, &Ok(None));
    }

    /// An attachment has left the queue, of which this was remembered.
    pub fn ended(&self, memory: &KeyMemory) {
        if memory.secret.is_some() {
            self.awaited.changed.notify_one();
        }
    }

    /// Takes in whether an attempt at an attachment was denied its Secret.
    pub fn learn(&self, key: &AttacherKey, denied: Option<&Withheld>) {
        self.queue.remember(key, |memory| match (&mut memory.withheld, denied) {
            (Some(known), Some(denied)) => known.set(denied),
            (withheld, denied) => *withheld = denied.map(|denied| WithheldGuard::new(&self.withheld, key, denied)),
        });
    }
}

impl AwaitedSecrets {
    /// The Secret that is to be read next, and when.
    fn next(&self) -> Option<(Instant, SecretReference)> {
        let known = self.known.lock();
        let (reference, next) = known.iter().min_by_key(|(_, secret)| secret.due)?;
        Some((next.due, reference.clone()))
    }

    /// Whether an attachment waits for a Secret. One that nobody waits for is forgotten.
    fn is_awaited(&self, reference: &SecretReference, queue: &Queue<AttacherKey>) -> bool {
        let mut known = self.known.lock();
        let mut is_awaited = false;
        queue.remember_all(|_, memory| {
            is_awaited |= memory
                .secret
                .as_ref()
                .is_some_and(|secret| secret.reference == *reference);
        });
        if !is_awaited {
            known.remove(reference);
        }
        is_awaited
    }

    /// Resolves when nobody waits for this Secret any more.
    async fn ended(&self, reference: &SecretReference, queue: &Queue<AttacherKey>) {
        while self.is_awaited(reference, queue) {
            self.changed.notified().await;
        }
    }

    /// Lets everything be tried at once that was not tried with the newest version.
    fn take_in(&self, reference: &SecretReference, event: SecretEvent, queue: &Queue<AttacherKey>) {
        let mut outdated = Vec::new();
        {
            let mut known = self.known.lock();
            let change = known.get_mut(reference).and_then(|known| known.take_in(event));
            let Some((version, is_another)) = change else { return };
            queue.remember_all(|key, memory| {
                let Some(awaited) = memory.secret.as_mut().filter(|awaited| awaited.reference == *reference) else {
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
        for key in &outdated {
            queue.wake(key, EnqueueCause::Update.into());
        }
    }
}

/// Whether one more Secret can be asked for, when those that nobody waits for any more are forgotten.
fn has_room(known: &mut BTreeMap<SecretReference, KnownSecret>, queue: &Queue<AttacherKey>) -> bool {
    if known.len() >= MAX_SECRETS {
        let mut awaited = BTreeSet::new();
        queue.remember_all(|_, memory| {
            if let Some(secret) = &memory.secret
                && !awaited.contains(&secret.reference)
            {
                awaited.insert(secret.reference.clone());
            }
        });
        known.retain(|reference, _| awaited.contains(reference));
    }
    known.len() < MAX_SECRETS
}

/// Reads the metadata of one Secret after the other while attachments wait for any.
async fn poll(awaited: Arc<AwaitedSecrets>, requests: Requests, queue: Queue<AttacherKey>) {
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
            () = awaited.ended(&reference, &queue) => continue,
            event = SecretEvent::poll(&requests, &reference) => awaited.take_in(&reference, event, &queue),
        }
        not_before = Instant::now() + POLL_INTERVAL;
    }
}
