//! Waking what failed over a publish secret when that secret changes.
//!
//! Secrets are read live and never kept, so no cache has them. While an attachment that needs a Secret is
//! waiting to be tried again, that one Secret is asked for now and then: its metadata only, its contents stay with the API
//! server. One that may not be read is asked for too, and a permission that is granted ends the wait.
//!
//! However many Secrets are missing, one task asks for one after the other, and leaves the limits of requests to the work.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

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

/// The Secrets that attachments of one driver wait for.
#[derive(Default)]
pub(super) struct SecretWaits {
    waiting: Arc<WaitingAttachments>,
    poller: OnceLock<AbortOnDropHandle<()>>,
    /// The attachments whose Secret may not be read or given to the driver. In an order, so that the first one is the same
    /// each time.
    withheld: Mutex<BTreeMap<Arc<str>, Withheld>>,
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
struct WaitingAttachments {
    secrets: Mutex<BTreeMap<SecretReference, Awaited>>,
    /// Notified of each change of `secrets`.
    changed: Notify,
}

/// A Secret that is waited for.
struct Awaited {
    /// Who waits, with the newest version of the Secret that it was tried with or woken for. In an order, so that a
    /// simulation can be repeated.
    names: BTreeMap<Arc<str>, ResourceVersion>,
    /// The newest version that was seen.
    known: ResourceVersion,
    /// The last event that changed something.
    last_change: Option<SecretEvent>,
    /// The pause before the next read, which is due then.
    pause: Option<Duration>,
    due: Instant,
}

impl Awaited {
    fn new() -> Self {
        Self {
            names: BTreeMap::new(),
            known: ResourceVersion::default(),
            last_change: None,
            pause: None,
            due: Instant::now(),
        }
    }

    /// Lets everything be tried at once that was not tried with the newest version; what the queue does not know any more
    /// is forgotten.
    fn wake(&mut self, queue: &Queue<AttacherKey>) {
        let known = self.known;
        self.names.retain(|name, tried| {
            *tried >= known || {
                *tried = known;
                queue.wake(&AttacherKey::Attachment(name.clone()), EnqueueCause::Update.into())
            }
        });
    }

    fn take_in(&mut self, event: SecretEvent, queue: &Queue<AttacherKey>) {
        let is_change = event.is_news_after(self.last_change);
        let pause = pause_after(is_change, self.pause);
        self.pause = Some(pause);
        self.due = Instant::now() + pause;
        if !is_change {
            return;
        }
        self.last_change = Some(event);
        match event {
            SecretEvent::State(version) => {
                // The API server went back to an older state: nobody has tried with what the Secret is now.
                if version < self.known {
                    self.names
                        .values_mut()
                        .for_each(|tried| *tried = ResourceVersion::default());
                }
                self.known = version;
                self.wake(queue);
            }
            // One that comes back has a newer version.
            SecretEvent::Gone | SecretEvent::Unknown => {}
            // Once it may be read again, it is to be tried whatever its version.
            SecretEvent::Forbidden => {
                self.known = ResourceVersion::default();
                self.names.values_mut().for_each(|tried| *tried = self.known);
            }
        }
    }
}

impl SecretWaits {
    /// An attachment failed with this version of a Secret, or without it. It waits for no other one any more.
    pub fn wait(
        &self,
        requests: &Requests,
        queue: &Queue<AttacherKey>,
        reference: &SecretReference,
        name: &Arc<str>,
        tried: Option<ResourceVersion>,
    ) {
        self.keep(name, Some(reference));
        let mut secrets = self.waiting.secrets.lock();
        if !secrets.contains_key(reference) && secrets.len() >= MAX_SECRETS {
            return;
        }
        let awaited = secrets.entry(reference.clone()).or_insert_with(Awaited::new);
        let newest = awaited.names.entry(name.clone()).or_default();
        *newest = tried.unwrap_or_default().max(*newest);
        // The Secret may have been seen to be fixed while the attempt was on its way.
        awaited.wake(queue);
        drop(secrets);
        self.waiting.changed.notify_one();
        self.poller.get_or_init(|| {
            let polling = poll(self.waiting.clone(), requests.for_polls(), queue.clone());
            AbortOnDropHandle::new(schedule::spawn(polling))
        });
    }

    /// Ends the wait of an attachment for all Secrets but this one.
    fn keep(&self, name: &str, reference: Option<&SecretReference>) {
        self.retain(|known, awaited| {
            if Some(known) != reference {
                awaited.names.remove(name);
            }
            !awaited.names.is_empty()
        });
    }

    /// Ends the wait for Secrets that the driver may not be given any more. Who waits for one is to be tried again.
    pub fn keep_allowed(&self, is_allowed: impl Fn(&SecretReference) -> bool) {
        self.retain(|known, _| is_allowed(known));
    }

    fn retain(&self, keep: impl FnMut(&SecretReference, &mut Awaited) -> bool) {
        let mut secrets = self.waiting.secrets.lock();
        let before = secrets.len();
        secrets.retain(keep);
        let fewer = secrets.len() < before;
        drop(secrets);
        if fewer {
            self.waiting.changed.notify_one();
        }
    }

    /// Takes in which Secret the next call about an attachment needs, or why it is not given it, as far as is known by now:
    /// it waits for no other one.
    pub fn needs(&self, name: &str, needed: &Result<Option<&SecretReference>, Refusal>, publisher: &DriverStateSender) {
        self.keep(name, needed.as_ref().ok().copied().flatten());
        let still = |known: &Withheld| match needed {
            Ok(secret) => known.reason == ConditionReason::SecretForbidden && *secret == Some(&known.secret),
            Err(refusal) => Withheld::not_allowed(refusal).as_ref() == Some(known),
        };
        self.publish(publisher, |withheld| {
            let is_over = withheld.get(name).is_some_and(|known| !still(known));
            is_over && withheld.remove(name).is_some()
        });
    }

    /// Whether an attachment waits for a Secret, or is denied one.
    pub fn concern(&self, name: &str) -> bool {
        let is_waiting = |awaited: &Awaited| awaited.names.contains_key(name);
        self.withheld.lock().contains_key(name) || self.waiting.secrets.lock().values().any(is_waiting)
    }

    /// An attachment is settled, or gone.
    pub fn end(&self, name: &str, publisher: &DriverStateSender) {
        self.needs(name, &Ok(None), publisher);
    }

    /// Takes in whether an attempt at an attachment was denied its Secret.
    pub fn learn(&self, name: &str, denied: Option<&Withheld>, publisher: &DriverStateSender) {
        self.publish(publisher, |withheld| {
            let before = match denied {
                Some(denied) => withheld.insert(name.into(), denied.clone()),
                None => withheld.remove(name),
            };
            before.as_ref() != denied
        });
    }

    /// Publishes what is withheld now, if `change` changes anything.
    fn publish(&self, publisher: &DriverStateSender, change: impl FnOnce(&mut BTreeMap<Arc<str>, Withheld>) -> bool) {
        // Held while it is published: another attempt may know better a moment later.
        let mut withheld = self.withheld.lock();
        if !change(&mut withheld) {
            return;
        }
        publisher.withheld(withheld.values().next().map(|first| WithheldSecrets {
            reason: first.reason,
            message: first.message.clone(),
            attachments: withheld.len(),
        }));
    }
}

impl WaitingAttachments {
    /// The Secret that is to be read next, and when.
    fn next(&self) -> Option<(Instant, SecretReference)> {
        let secrets = self.secrets.lock();
        let next = secrets.iter().min_by_key(|(_, awaited)| awaited.due)?;
        Some((next.1.due, next.0.clone()))
    }

    /// Resolves when nobody waits for this Secret any more.
    async fn ended(&self, reference: &SecretReference) {
        while self.secrets.lock().contains_key(reference) {
            self.changed.notified().await;
        }
    }

    fn take_in(&self, reference: &SecretReference, event: SecretEvent, queue: &Queue<AttacherKey>) {
        let mut secrets = self.secrets.lock();
        let Some(awaited) = secrets.get_mut(reference) else {
            return;
        };
        awaited.take_in(event, queue);
        if awaited.names.is_empty() {
            secrets.remove(reference);
        }
    }
}

/// Reads the metadata of one Secret after the other while attachments wait for any.
async fn poll(waiting: Arc<WaitingAttachments>, requests: Requests, queue: Queue<AttacherKey>) {
    let mut not_before = Instant::now();
    loop {
        let Some((due, reference)) = waiting.next() else {
            waiting.changed.notified().await;
            continue;
        };
        let at = due.max(not_before);
        if at > Instant::now() {
            tokio::select! {
                biased;
                () = waiting.changed.notified() => {}
                () = sleep_until(at) => {}
            }
            continue;
        }
        tokio::select! {
            biased;
            () = waiting.ended(&reference) => {}
            event = SecretEvent::poll(&requests, &reference) => waiting.take_in(&reference, event, &queue),
        }
        not_before = Instant::now() + POLL_INTERVAL;
    }
}
