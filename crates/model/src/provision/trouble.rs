//! What is wrong with the volumes of a driver, for conditions and findings: from what attempts tell and from how long something lasts.
//!
//! One object counts once, for the most telling of what is wrong with it. An attempt stores a [`Trouble`] in the memory of its object when it
//! tells why nothing goes on, and it stays there until something goes on: a retry that is under way takes nothing back.

use jiff::Timestamp;
use std::time::Duration;

use crate::api::condition::{ConditionReason, ConditionType, ConditionUpdate, whole_seconds};
use crate::decide::{cut, plain};
use crate::findings::{FindingKind, age};

/// Longest words that are kept of one object, in bytes.
const MAX_WORDS: usize = 400;

named! {
    /// What can be wrong, the worst first of each condition.
    #[allow(missing_docs, reason = "`objects` says what each is")]
    pub enum TroubleKind {
        SecretForbidden,
        DriverInvalid,
        ProvisioningUncertain,
        ProvisioningStuck,
        ClassMissing,
        MarkerOfAnotherDriver,
        ProvisioningFailing,
        PossiblyLeaked,
        ReleasedWhileBound,
        HandleShared,
        NeedsDecision,
        /// A deletion has lasted too long. Of one that has not, that it waits for something which ends by itself.
        DeletesStuck,
        DeletesFailing,
        VolumesHeld,
    }
}

impl TroubleKind {
    /// The condition that it is shown in, and the reason there.
    pub const fn condition(self) -> (ConditionType, ConditionReason) {
        use ConditionType::{DeletionHealthy, ProvisioningHealthy};
        match self {
            Self::SecretForbidden => (ProvisioningHealthy, ConditionReason::SecretForbidden),
            Self::DriverInvalid => (ProvisioningHealthy, ConditionReason::DriverInvalid),
            Self::ProvisioningUncertain => (ProvisioningHealthy, ConditionReason::ProvisioningUncertain),
            Self::ProvisioningStuck => (ProvisioningHealthy, ConditionReason::ProvisioningStuck),
            Self::ClassMissing => (ProvisioningHealthy, ConditionReason::ClassMissing),
            Self::MarkerOfAnotherDriver | Self::ProvisioningFailing => {
                (ProvisioningHealthy, ConditionReason::ProvisioningFailing)
            }
            Self::PossiblyLeaked => (DeletionHealthy, ConditionReason::PossiblyLeaked),
            Self::ReleasedWhileBound => (DeletionHealthy, ConditionReason::ReleasedWhileBound),
            Self::HandleShared => (DeletionHealthy, ConditionReason::HandleShared),
            Self::NeedsDecision => (DeletionHealthy, ConditionReason::NeedsDecision),
            Self::DeletesStuck => (DeletionHealthy, ConditionReason::DeletesStuck),
            Self::DeletesFailing => (DeletionHealthy, ConditionReason::DeletesFailing),
            Self::VolumesHeld => (DeletionHealthy, ConditionReason::VolumesHeld),
        }
    }

    /// The finding that it is, for an object that has lasted too long or not.
    pub fn finding(self, is_old: bool) -> Option<FindingKind> {
        match self {
            Self::ClassMissing => Some(FindingKind::ClassMissing),
            Self::MarkerOfAnotherDriver => Some(FindingKind::MarkerOfAnotherDriver),
            Self::PossiblyLeaked => Some(FindingKind::PossibleLeak),
            Self::ReleasedWhileBound => Some(FindingKind::ReleasedWhileBound),
            Self::HandleShared => Some(FindingKind::HandleShared),
            Self::NeedsDecision => Some(FindingKind::NeedsDecision),
            Self::SecretForbidden
            | Self::DriverInvalid
            | Self::ProvisioningUncertain
            | Self::ProvisioningStuck
            | Self::ProvisioningFailing => is_old.then_some(FindingKind::ProvisionStuck),
            Self::DeletesStuck | Self::DeletesFailing => is_old.then_some(FindingKind::DeleteStuck),
            Self::VolumesHeld => None,
        }
    }

    /// Whether it is so whatever the age of the object.
    const fn is_certain(self) -> bool {
        !matches!(
            self,
            Self::ProvisioningUncertain
                | Self::ProvisioningStuck
                | Self::ProvisioningFailing
                | Self::DeletesStuck
                | Self::DeletesFailing
        )
    }

    /// The objects that it is about, for the message of the condition.
    const fn objects(self) -> &'static str {
        match self {
            Self::SecretForbidden => "PersistentVolumeClaims whose Secret the driver is not given",
            Self::DriverInvalid => "PersistentVolumeClaims whose answer of the driver cannot be used",
            Self::ProvisioningUncertain => {
                "PersistentVolumeClaims of which the outcome of CreateVolume has been unknown for longer than --stuck-after"
            }
            Self::ProvisioningStuck => "PersistentVolumeClaims that have been pending for longer than --stuck-after",
            Self::ClassMissing => "PersistentVolumeClaims whose StorageClass is missing",
            Self::MarkerOfAnotherDriver => "PersistentVolumeClaims with a marker of another driver",
            Self::ProvisioningFailing => "PersistentVolumeClaims that failed and will be retried",
            Self::PossiblyLeaked => "volumes that may be left in the storage system",
            Self::ReleasedWhileBound => {
                "PersistentVolumes that are Released or deleted though their PersistentVolumeClaim is there"
            }
            Self::HandleShared => "volumes that another PersistentVolume has as well",
            Self::NeedsDecision => "PersistentVolumes whose volume a person has to decide about",
            Self::DeletesStuck => "PersistentVolumes whose deletion has lasted longer than --stuck-after",
            Self::DeletesFailing => "PersistentVolumes whose deletion failed and will be retried",
            Self::VolumesHeld => "PersistentVolumes whose volume is kept",
        }
    }
}

/// What is wrong with one object, in words that do not change while it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What it is.
    pub kind: TroubleKind,
    /// The cause, and what to do.
    pub words: Box<str>,
    /// Whether it keeps a call from being made, and so is over as soon as one is made.
    pub keeps_call: bool,
}

impl Trouble {
    /// One of this kind, with as many of these words as are kept.
    pub(super) fn new(kind: TroubleKind, words: &str) -> Self {
        Self {
            kind,
            words: plain(cut(words, MAX_WORDS)).into(),
            keeps_call: false,
        }
    }

    /// Whether it is that a volume may be lost: that stays until one is saved.
    pub(super) fn is_lost(&self) -> bool {
        self.kind == TroubleKind::PossiblyLeaked
    }

    /// A call is made: what kept it from being made is over.
    pub(super) fn is_called(known: &mut Option<Self>) {
        known.take_if(|known| known.keeps_call);
    }

    /// Others do what is left to do, and nothing is missing here.
    pub(super) fn is_left_to_others(known: &mut Option<Self>) {
        known.take_if(|known| !known.is_lost());
    }
}

named! {
    /// What is done for an object; the words are for ids, labels and attributes.
    pub enum PendingOperation {
        /// A claim wants a volume.
        Provision = "provision",
        /// The volume of a PersistentVolume is to be deleted.
        Delete = "delete",
    }
}

/// An object that is worked on.
#[derive(Clone, Copy, Debug)]
pub struct PendingObject<'a> {
    /// What is done for it.
    pub operation: PendingOperation,
    /// Its name, with the namespace and a slash before it if it has one.
    pub name: &'a str,
    /// Since when the operation is wanted; none when it is not.
    pub since: Option<Timestamp>,
    /// Since when the outcome of a call is unknown.
    pub uncertain_since: Option<Timestamp>,
    /// What an attempt told last.
    pub trouble: Option<&'a Trouble>,
}

impl PendingObject<'_> {
    /// What is wrong with it, and whether it has lasted too long: `stuck_after`, and twice that while nothing failed, as one long call may
    /// be under way.
    pub fn trouble(&self, stuck_after: Duration, now: Timestamp) -> Option<(TroubleKind, bool)> {
        let told = self.trouble.map(|trouble| trouble.kind);
        let limit = if told.is_some() {
            stuck_after
        } else {
            stuck_after.saturating_mul(2)
        };
        let is_old = self.since.is_some_and(|since| age(since, now) > limit);
        let is_uncertain = self.uncertain_since.is_some_and(|since| age(since, now) > stuck_after);
        let stuck = match self.operation {
            PendingOperation::Provision => TroubleKind::ProvisioningStuck,
            PendingOperation::Delete => TroubleKind::DeletesStuck,
        };
        let kind = match told {
            Some(told) if told.is_certain() => Some(told),
            _ if is_uncertain => Some(TroubleKind::ProvisioningUncertain),
            _ if is_old => Some(stuck),
            // What ends by itself is no trouble before that.
            Some(TroubleKind::DeletesStuck) => None,
            told => told,
        };
        kind.map(|kind| (kind, is_old))
    }

    /// What is wrong with it, in words.
    pub fn words(&self) -> String {
        let told = self
            .trouble
            .map_or("neither an answer nor an error came yet", |trouble| &trouble.words);
        match self.since.map(whole_seconds) {
            Some(since) => format!("{}, since {since}: {told}", self.name),
            None => format!("{}: {told}", self.name),
        }
    }
}

/// The objects of one kind of trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counted {
    count: usize,
    /// Of the oldest one, and by name of those that are as old: so it is the same one in whatever order they come.
    since: Option<Timestamp>,
    name: Box<str>,
    words: String,
}

/// How the volumes of one driver are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvisionHealth([Option<Counted>; TroubleKind::ALL.len()]);

impl ProvisionHealth {
    /// Takes an object in that has such a trouble.
    pub fn add(&mut self, kind: TroubleKind, object: &PendingObject<'_>) {
        let Some(counted) = self.0.get_mut(kind as usize) else {
            return;
        };
        let counted = counted.get_or_insert_with(|| Counted {
            count: 0,
            since: object.since,
            name: object.name.into(),
            words: object.words(),
        });
        counted.count += 1;
        let known = (counted.since.is_none(), counted.since, &*counted.name);
        let is_older = (object.since.is_none(), object.since, object.name) < known;
        if is_older {
            (counted.since, counted.name, counted.words) = (object.since, object.name.into(), object.words());
        }
    }

    /// How many objects have this trouble.
    pub fn count(&self, kind: TroubleKind) -> usize {
        let counted = self.0.get(kind as usize).and_then(Option::as_ref);
        counted.map_or(0, |counted| counted.count)
    }

    /// `ProvisioningHealthy` or `DeletionHealthy`: its reason is the worst of what is wrong, its message tells all. What the settings ask
    /// for is not wrong.
    pub fn condition(&self, type_: ConditionType) -> ConditionUpdate {
        let kinds = TroubleKind::ALL.iter().zip(&self.0);
        let found = kinds.filter_map(|(kind, counted)| Some((*kind, counted.as_ref()?)));
        let found: Vec<_> = found.filter(|(kind, _)| kind.condition().0 == type_).collect();
        let Some((worst, _)) = found.first() else {
            let text = match type_ {
                ConditionType::DeletionHealthy => "no deletion of a volume keeps failing or waits for a person",
                _ => "no PersistentVolumeClaim keeps failing",
            };
            return ConditionUpdate::new(type_, true, ConditionReason::NoFailures, text);
        };
        let texts: Vec<String> = found.iter().map(|(kind, counted)| counted.message(*kind)).collect();
        let is_healthy = *worst == TroubleKind::VolumesHeld;
        ConditionUpdate::new(type_, is_healthy, worst.condition().1, texts.join("; "))
    }
}

impl Counted {
    fn message(&self, kind: TroubleKind) -> String {
        let the = if self.count == 1 { "" } else { "the oldest is " };
        format!("{}: {}; {the}{}", kind.objects(), self.count, self.words)
    }
}
