//! The Secrets that attachments wait for, or that their driver is not given. Who waits for which, and who is not given one, is remembered
//! with the keys of the queue.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::KeyMemory;
use crate::api::condition::ConditionReason;
use crate::api::permissions;
use crate::cache::{AttacherKey, EnqueueCause};
use crate::decide::Refusal;
use crate::objects::SecretReference;
use crate::queue::Queue;
use csi_attacher_model::attempt::DeniedSecret;
use csi_attacher_runtime::secret_waits;
use csi_attacher_runtime::state::{DriverStateSender, WithheldSecrets};

pub(super) struct SecretWaits {
    /// What is woken when its Secret changes.
    pub waits: secret_waits::SecretWaits<AttacherKey>,
    queue: Queue<AttacherKey>,
    withheld: Arc<WithheldAttachments>,
}

/// The attachments whose Secret may not be read or given to the driver, as the status of the AttacherConfig shows them. In an order, so
/// that the first one is the same each time.
struct WithheldAttachments {
    status: DriverStateSender,
    by_key: Mutex<BTreeMap<AttacherKey, DeniedSecret>>,
}

/// Shows that an attachment is not given its Secret, for as long as that is remembered with its key.
pub(crate) struct WithheldGuard {
    all: Arc<WithheldAttachments>,
    key: AttacherKey,
    what: DeniedSecret,
}

impl WithheldAttachments {
    /// Shows what is withheld after a change: how many, and the first.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<AttacherKey, DeniedSecret>)) {
        // Held while it is shown: another attempt may know better a moment later.
        let mut by_key = self.by_key.lock();
        change(&mut by_key);
        let first = by_key.values().next();
        self.status.withheld(first.map(|first| shown(first, by_key.len())));
    }
}

/// What the status shows of what is withheld from so many attachments, of which this is the first.
fn shown(first: &DeniedSecret, attachments: usize) -> WithheldSecrets {
    let (reason, message) = match first {
        DeniedSecret::Forbidden(secret) => (
            ConditionReason::SecretForbidden,
            permissions::forbidden_secret_message(secret),
        ),
        DeniedSecret::NotAllowed(_, refusal) => (ConditionReason::SecretNotAllowed, refusal.to_string()),
    };
    WithheldSecrets {
        reason,
        message,
        attachments,
    }
}

impl WithheldGuard {
    fn new(all: &Arc<WithheldAttachments>, key: &AttacherKey, what: &DeniedSecret) -> Self {
        all.change(|by_key| {
            by_key.insert(key.clone(), what.clone());
        });
        Self {
            all: all.clone(),
            key: key.clone(),
            what: what.clone(),
        }
    }

    fn set(&mut self, what: &DeniedSecret) {
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

impl SecretWaits {
    /// For the keys of this queue. What is withheld is shown in the status of the AttacherConfig.
    pub fn new(queue: Queue<AttacherKey>, status: DriverStateSender) -> Self {
        let withheld = WithheldAttachments {
            status,
            by_key: Mutex::default(),
        };
        Self {
            waits: secret_waits::SecretWaits::new(queue.clone(), EnqueueCause::Update),
            queue,
            withheld: Arc::new(withheld),
        }
    }

    /// Takes in which Secret the next call about an attachment needs, or why it is not given it, as far as is known by now:
    /// it waits for no other one.
    pub fn needs(&self, key: &AttacherKey, needed: &Result<Option<&SecretReference>, Refusal>) {
        let still = |known: &DeniedSecret| match needed {
            Ok(secret) => matches!(known, DeniedSecret::Forbidden(known) if *secret == Some(known)),
            Err(refusal) => DeniedSecret::by(refusal).as_ref() == Some(known),
        };
        self.waits.keep(key, needed.as_ref().ok().copied().flatten());
        let ended = |memory: &mut KeyMemory| memory.withheld.take_if(|known| !still(&known.what));
        drop(self.queue.remember(key, ended));
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

    /// Takes in whether an attempt at an attachment was denied its Secret.
    pub fn learn(&self, key: &AttacherKey, denied: Option<&DeniedSecret>) {
        self.queue.remember(key, |memory| match (&mut memory.withheld, denied) {
            (Some(known), Some(denied)) => known.set(denied),
            (withheld, denied) => *withheld = denied.map(|denied| WithheldGuard::new(&self.withheld, key, denied)),
        });
    }
}
