//! What a driver works on, and why.

use std::sync::Arc;
use tokio::sync::Notify;

use crate::apiserver::HeldSecret;
use crate::objects::{Claim, ClaimReference, SecretReference, Volume};
use crate::provision::attempt::{ClaimMemory, RetryRequests};
use crate::provision::deletion::VolumeMemory;
use crate::provision::{PendingObject, PendingOperation, VolumeReason};
use crate::queue::Remembered;
use crate::runtime::fence::UnsentCalls;
use crate::runtime::secret_waits::{AwaitedSecret, AwaitsSecret};
use crate::traces::{Beginning, Progress};

/// A PersistentVolumeClaim. The name of its volume follows from the UID, so that there is never more than one call for a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// Namespace and name with a slash between, as in [`Claim::key`].
    pub name: Arc<str>,
}

impl ClaimKey {
    /// The key of a claim.
    pub fn of(claim: &Claim) -> Self {
        Self {
            uid: Arc::from(&*claim.uid),
            name: claim.key.clone(),
        }
    }

    /// The key of the claim that a PersistentVolume names.
    pub fn named_by(reference: &ClaimReference) -> Self {
        Self {
            uid: Arc::from(&*reference.uid),
            name: format!("{}/{}", reference.namespace, reference.name).into(),
        }
    }
}

/// A PersistentVolume whose volume may have to be deleted. One that is made again under its name is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeKey {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl VolumeKey {
    /// The key of a PersistentVolume.
    pub fn of(volume: &Volume) -> Self {
        Self {
            uid: Arc::from(&*volume.uid),
            name: volume.name.clone(),
        }
    }
}

/// What a driver works on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKey {
    /// A claim that wants a volume, or wanted one.
    Claim(ClaimKey),
    /// A PersistentVolume.
    Volume(VolumeKey),
}

/// What is remembered of a claim, with all that belongs to its open call: the next engine of the driver goes on with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimState {
    /// What the next attempt has to know.
    pub known: ClaimMemory,
    /// The Secret of the last call, while its volume may be there.
    secret_of_call: HeldSecret,
}

impl ClaimState {
    /// Takes in what an attempt knows, and the Secret that it has read, if it has.
    pub fn take(&mut self, known: ClaimMemory, read: &HeldSecret) {
        if !known.holds_volume() {
            self.secret_of_call = HeldSecret::default();
        } else if !read.is_empty() {
            self.secret_of_call = read.clone();
        }
        self.known = known;
    }

    /// The Secret of the last call, if it is this one.
    pub fn secret_of_call(&self, wanted: &SecretReference) -> Option<HeldSecret> {
        let is_wanted = self.secret_of_call.of(Some(wanted)).is_some();
        is_wanted.then(|| self.secret_of_call.clone())
    }

    /// As [`ClaimMemory::continued`].
    pub fn continued(self, claim: &Claim, driver: &str, writer: &str) -> Option<Self> {
        let known = self.known.continued(claim, driver, writer)?;
        Some(Self { known, ..self })
    }
}

/// What is remembered of a key while it is in the queue.
#[derive(Debug, Default)]
pub struct KeyMemory {
    /// Of a claim: what the next attempt has to know.
    pub(crate) claim: ClaimState,
    /// Of a PersistentVolume: the same.
    pub(crate) volume: VolumeMemory,
    /// What people asked for.
    pub(crate) retries: RetryRequests,
    /// Notified when a claim changes on which a person asks for something, and when the role ends: while a call is under way no attempt
    /// looks at it.
    pub(crate) changed: Arc<Notify>,
    /// How far its life cycle has come.
    pub(crate) progress: Progress,
    /// Its calls in a row that were not sent.
    pub(crate) unsent: UnsentCalls,
    /// The Secret that it waits for.
    pub(crate) secret: Option<AwaitedSecret>,
    /// Whether it was told that its first attempt takes long.
    pub(crate) is_announced: bool,
}

impl KeyMemory {
    /// What a PersistentVolume waits for; none when it does not wait.
    pub fn waits(&self) -> Option<VolumeReason> {
        self.volume.waits()
    }

    /// Whether a call for a claim may have made a volume, and nobody knows.
    pub fn is_uncertain(&self) -> bool {
        self.claim.known.is_uncertain()
    }
}

impl WorkKey {
    /// The UID of the object.
    pub fn uid(&self) -> &Arc<str> {
        match self {
            Self::Claim(key) => &key.uid,
            Self::Volume(key) => &key.uid,
        }
    }

    /// The name of the object, of a claim with its namespace and a slash before it.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Claim(key) => &key.name,
            Self::Volume(key) => &key.name,
        }
    }

    /// That name as the log has it: of a claim, or of a PersistentVolume.
    pub(crate) fn claim_or_volume(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Claim(key) => (Some(&*key.name), None),
            Self::Volume(key) => (None, Some(&*key.name)),
        }
    }

    /// What is done for the object, as what is remembered of it says.
    pub fn pending<'k>(&'k self, memory: &'k KeyMemory) -> PendingObject<'k> {
        let (operation, uncertain_since, trouble) = match self {
            Self::Claim(_) => (
                PendingOperation::Provision,
                memory.claim.known.uncertain_since(),
                memory.claim.known.trouble(),
            ),
            Self::Volume(_) => (PendingOperation::Delete, None, memory.volume.trouble()),
        };
        PendingObject {
            operation,
            name: self.name(),
            since: memory.progress.begun.as_ref().map(Beginning::at),
            uncertain_since,
            trouble,
        }
    }
}

impl Remembered for WorkKey {
    type Memory = KeyMemory;
}

impl AwaitsSecret for WorkKey {
    fn awaited(memory: &mut KeyMemory) -> &mut Option<AwaitedSecret> {
        &mut memory.secret
    }
}
