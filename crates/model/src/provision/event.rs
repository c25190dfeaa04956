//! The Events about PersistentVolumeClaims and PersistentVolumes: reasons and notes. Reasons are part of the interface, and those of
//! external-provisioner keep their names and the beginning of their texts.

use std::time::Duration;

use super::action::{ClaimReason, VolumeReason};
use super::attempt::RescheduleCause;
use super::parameters;
use super::settle::CreateOutcome;
use crate::answer::{ApiError, ApiErrorKind, NOT_AUTHENTICATED};
use crate::api::EventType;
use crate::api::names::RESERVED_PARAMETER_PREFIX;
use crate::decide::{check_access_modes, cut, plain};
use crate::objects::{AccessModes, Claim, SecretReference, StorageClass, Volume, VolumePhase};

/// The API server's limit on the note of an Event, in bytes.
pub const MAX_NOTE: usize = 1024;

named! {
    /// Why an Event was written (`Event.reason`).
    pub enum ProvisionEventReason {
        /// The first attempt has not ended after a second.
        Provisioning,
        /// The volume is there, and its PersistentVolume is saved.
        ProvisioningSucceeded,
        /// An attempt failed; there is no volume.
        ProvisioningFailed,
        /// A call ended without saying whether there is a volume.
        ProvisioningUncertain,
        /// The selected node was taken off.
        ProvisioningRescheduled,
        /// The claim is not wanted any more: it is not known whether there is a volume, or the volume that there is has a PersistentVolume
        /// with which it is deleted or kept.
        ProvisioningCancelled,
        /// A PersistentVolume of the name is another claim's.
        ProvisioningNameTaken,
        /// A person let the claim go.
        ProvisioningReleased,
        /// A person asked for that, and it was refused.
        ProvisioningReleaseRefused,
        /// DeleteVolume was not answered with OK.
        VolumeFailedDelete,
        /// The deletion waits.
        VolumeDelete,
        /// The volume is deleted.
        VolumeDeleted,
        /// The driver answered the ID of a volume that another PersistentVolume has as well.
        HandleShared,
        /// A PersistentVolume is Released, and its claim is there.
        ReleasedWhileBound,
        /// A volume may be left in the storage system.
        VolumePossiblyLeaked,
        /// A StorageClass has keys that are deprecated.
        DeprecatedParameters,
    }
}

impl ProvisionEventReason {
    /// `Event.type` of an Event with this reason.
    pub const fn level(self) -> EventType {
        match self {
            Self::Provisioning
            | Self::ProvisioningSucceeded
            | Self::ProvisioningRescheduled
            | Self::ProvisioningCancelled
            | Self::VolumeDelete
            | Self::VolumeDeleted
            | Self::DeprecatedParameters => EventType::Normal,
            _ => EventType::Warning,
        }
    }

    /// The reason of the Event about a claim that waits or is refused.
    pub const fn of_claim(reason: ClaimReason) -> Self {
        match reason {
            ClaimReason::NameTaken => Self::ProvisioningNameTaken,
            ClaimReason::TwoVolumes => Self::VolumePossiblyLeaked,
            ClaimReason::HandleShared => Self::HandleShared,
            ClaimReason::NodeGone => Self::ProvisioningRescheduled,
            ClaimReason::FindOut => Self::ProvisioningCancelled,
            ClaimReason::Populator => Self::Provisioning,
            _ => Self::ProvisioningFailed,
        }
    }
}

/// What is said of a claim that a volume populator provisions.
pub const POPULATOR_NOTE: &str = "Assuming an external populator will provision the volume";

/// A note within the limit of the API server, on one line.
pub fn note(text: &str) -> String {
    plain(cut(text, MAX_NOTE)).into_owned()
}

/// That an attempt has begun.
pub fn provisioning(namespace: &str, name: &str) -> String {
    note(&format!(
        "External provisioner is provisioning volume for claim \"{namespace}/{name}\""
    ))
}

/// That the volume is there; and of a driver that attaches volumes, that this one cannot be attached.
pub fn succeeded(volume: &str, claim: &Claim, elapsed: Duration, attempts: u32, attaches: bool) -> String {
    let seconds = elapsed.as_secs_f64();
    let done = format!("Successfully provisioned volume {volume} in {seconds:.1} s, attempts: {attempts}");
    let modes: Vec<_> = claim.access_modes.iter().map(|mode| mode.as_str()).collect();
    match check_access_modes(AccessModes::parse(&modes)) {
        Err(refusal) if attaches => note(&format!("{done}. It cannot be attached: {refusal}")),
        _ => note(&done),
    }
}

/// That the PersistentVolume of a volume that nobody wants is saved, by this rule.
pub fn recorded(reason: ClaimReason, volume: &str) -> String {
    let becomes = match reason {
        ClaimReason::KeepVolume => "kept, as its reclaim policy says",
        _ => "deleted with it",
    };
    note(&format!(
        "the PersistentVolumeClaim is not wanted any more: saved PersistentVolume {volume}, so that its volume is {becomes}"
    ))
}

/// That an attempt failed; and when the next one is, if there is one.
pub fn failed(error: &str, is_infeasible: bool, attempt: u32, retry_after: Option<Duration>) -> String {
    let lead = if is_infeasible && retry_after.is_some() {
        "Volume provisioning failed with infeasible error. Retries will be delayed. "
    } else {
        ""
    };
    let next = match retry_after.map(whole_seconds) {
        Some(seconds) => format!(" (attempt {attempt}, next retry in {seconds} s)"),
        None => format!(" (attempt {attempt})"),
    };
    before(lead, error, &next)
}

/// That an attempt waits for something, whose change ends the wait.
pub fn waits(cause: &str, attempt: u32, retry_after: Duration) -> String {
    let seconds = whole_seconds(retry_after);
    let next = format!(" (attempt {attempt}, next retry in {seconds} s, or when what it waits for changes)");
    before("", cause, &next)
}

/// The error is kept as it is, and what is said of the next attempt comes after it, however long the error is.
fn before(lead: &str, error: &str, next: &str) -> String {
    let room = MAX_NOTE.saturating_sub(lead.len() + next.len());
    note(&format!("{lead}{}{next}", cut(error, room)))
}

/// Rounded up: 0 would say that it is retried at once.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// That a call ended without a volume that can be used, with this error of the driver.
pub fn call_failed(outcome: &CreateOutcome, error: &str) -> String {
    match outcome {
        // The driver refuses other arguments than those of a call whose outcome is not known.
        CreateOutcome::OtherCallOpen => format!(
            "it is not known what an earlier call did, which was made with other settings: put them back, or delete the \
             PersistentVolumeClaim and let it go with the annotation attacher.csi.dev/release: {error}"
        ),
        // It has a volume of the name that it does not give.
        CreateOutcome::NameInUse => {
            format!("a volume of this name exists with other settings, or the name was used before: {error}")
        }
        _ => error.to_owned(),
    }
}

/// That the API server refuses the PersistentVolume of a volume that is there.
pub fn save_refused(error: &str) -> String {
    format!("the PersistentVolume cannot be saved, and its volume is kept: {error}")
}

/// That something in the marker does not count.
pub const MARKER_IGNORED_NOTE: &str = "the annotation attacher.csi.dev/provisioning is not as this version of the operator writes it: it cannot \
     be read, is of another PersistentVolumeClaim, or has a prefix, a Secret or a topology that the PersistentVolumeClaim, its StorageClass and \
     the driver do not allow. What is not allowed is ignored, and what the StorageClass, the settings and the nodes say now takes its place";

/// That the driver is asked what became of the volume of a claim that nobody wants; and what to do should it never say.
pub fn finding_out(volume: &str) -> String {
    note(&format!(
        "the PersistentVolumeClaim is not wanted any more while it is not known whether volume {volume} was created; asking the driver. \
         If it never answers: look for {volume} in the storage system, and let the PersistentVolumeClaim go with the annotation \
         attacher.csi.dev/release"
    ))
}

/// That the selected node was taken off a claim: kube-scheduler selects one again.
pub fn rescheduled(node: &str, cause: RescheduleCause) -> String {
    let cause = match cause {
        RescheduleCause::NodeGone => "it has no Node or no CSINode any more",
        RescheduleCause::Exhausted => "the driver has no room there (RESOURCE_EXHAUSTED)",
    };
    note(&format!(
        "no volume was made for node {node}: {cause}; kube-scheduler selects a node again"
    ))
}

/// Why the volume of a PersistentVolume is not deleted now, `of` what as the attempt tells; none for what is no news.
pub fn volume_waits(reason: VolumeReason, volume: &Volume, of: &str) -> Option<String> {
    let name = &*volume.name;
    let text = match reason {
        VolumeReason::StillAttached => {
            format!("persistentvolume {name} is still attached to node {of}, waiting for detach")
        }
        VolumeReason::Held => format!(
            "DeleteVolume is not called for persistentvolume {name}, as spec.provisioning.deletion of the AttacherConfig is Hold; set it to \
             Enabled to delete the volume"
        ),
        VolumeReason::HandleShared => of.to_owned(),
        VolumeReason::Syncing => format!(
            "DeleteVolume is not called for persistentvolume {name}, as it is not known whether its volume is in use: {of} cannot be listed and \
             watched as they are now; look at the API server and at the log of the operator"
        ),
        // A person decided, and the claim that the volume was made for is there.
        VolumeReason::ReleasedWhileBound
            if matches!(volume.lifecycle.phase, VolumePhase::Available | VolumePhase::Pending) =>
        {
            format!(
                "persistentvolume {name} was deleted while it was not bound, and its PersistentVolumeClaim {of} is there: its volume is not \
                 deleted; delete the PersistentVolumeClaim as well, or set the policy of the PersistentVolume to Retain, and the \
                 PersistentVolumeClaim gets the volume again"
            )
        }
        VolumeReason::ReleasedWhileBound => format!(
            "persistentvolume {name} is Released, and its PersistentVolumeClaim {of} is there: its volume is not deleted; find out what \
             changed status.phase of the PersistentVolume, and set its policy to Retain until then"
        ),
        VolumeReason::NeedsDecision => {
            let why = if volume.deleting {
                "is being deleted while no PersistentVolumeClaim is bound to it"
            } else {
                "is Released, and no provisioner made it or protected it while it was bound"
            };
            format!(
                "persistentvolume {name} {why}: its volume may hold data. To delete it, set the annotation attacher.csi.dev/reclaim to \
                 Delete; to keep it, set persistentVolumeReclaimPolicy to Retain"
            )
        }
        VolumeReason::NotCsi if !of.is_empty() => of.to_owned(),
        VolumeReason::NotCsi => format!(
            "persistentvolume {name} has no volumeHandle of this driver, so that no volume can be deleted: set its policy to Retain, and \
             delete it"
        ),
        _ => return None,
    };
    Some(note(&text))
}

/// That a PersistentVolume goes without a call.
pub fn left_to(volume: &str, heir: &str) -> String {
    note(&format!(
        "persistentvolume {volume} goes without DeleteVolume: persistentvolume {heir} has the same volumeHandle and is Released as well, and \
         the volume is deleted with that one"
    ))
}

/// That DeleteVolume is called without the Secret that it should have.
pub fn without_secret(secret: &SecretReference) -> String {
    note(&format!(
        "Secret {}/{} is not there: the driver is asked to delete the volume without it",
        secret.namespace, secret.name
    ))
}

/// That the volume is deleted; with an error, one that the settings take for that.
pub fn deleted(handle: &str, error: Option<&str>) -> String {
    let handle = cut(handle, MAX_NOTE / 2);
    match error {
        None => note(&format!("Successfully deleted volume {handle}")),
        Some(error) => note(&format!(
            "volume {handle} counts as deleted, as spec.provisioning.orphanPolicy says: {error}"
        )),
    }
}

/// That the policy keeps a volume that may be gone.
pub fn perhaps_deleted(handle: &str) -> String {
    let handle = cut(handle, MAX_NOTE / 2);
    note(&format!(
        "the policy keeps volume {handle}, and it is not known what an earlier DeleteVolume did: look whether the volume is there"
    ))
}

/// As [`request_refused`], of what is needed to delete a volume.
pub fn volume_request_refused(error: &ApiError) -> Option<String> {
    let verbs = "get, patch and delete on PersistentVolumes, and get on PersistentVolumeClaims";
    refused(error, "PersistentVolume", verbs)
}

/// That the API server refuses what is needed, and what to do; none for what may succeed a moment later, but for an answer 401: that is told
/// once it lasts.
pub fn request_refused(error: &ApiError) -> Option<String> {
    let verbs = "get and patch on PersistentVolumeClaims, and get and create on PersistentVolumes";
    refused(error, "PersistentVolumeClaim", verbs)
}

/// `verbs` are those that the requests about an object of this kind need.
fn refused(error: &ApiError, kind: &str, verbs: &str) -> Option<String> {
    let help = match error.kind {
        _ if error.is_unauthenticated() => NOT_AUTHENTICATED.to_owned(),
        _ if error.is_transient() => return None,
        ApiErrorKind::Forbidden if !error.is_of_admission() => format!("grant the operator the verbs {verbs}"),
        _ => {
            format!("check admission webhooks and policies, and whether something else changes the {kind} all the time")
        }
    };
    let error = error.to_string();
    Some(format!(
        "the API server refuses a request about the {kind}: {}; {help}",
        cut(&error, MAX_NOTE / 2)
    ))
}

/// That the driver made two volumes for a claim, and what may be left of them.
pub fn two_volumes(volume: &str, saved: &str, lost: &str) -> String {
    let (saved, lost) = (cut(saved, MAX_NOTE / 4), cut(lost, MAX_NOTE / 4));
    note(&format!(
        "the driver made two volumes: PersistentVolume {volume} names volume {saved}, and CreateVolume was answered with volume {lost}, \
         which may be left in the storage system; nothing is deleted; find out which of them is in use, and delete the other one there"
    ))
}

/// That a volume may be left in the storage system, and how it is found there.
pub fn possibly_leaked(volume: &str, cause: &str) -> String {
    note(&format!(
        "volume {volume} may be left in the storage system: {cause}; look for it there and delete it"
    ))
}

/// That a class has deprecated keys, and which keys they stand for; none when it has none.
///
/// A driver may read such a key itself, as `fstype`, and whoever writes the new one takes it from the driver. That comes first: the note of
/// a class with all of them may be cut.
pub fn deprecated_keys(class: &StorageClass) -> Option<String> {
    let pairs: Vec<_> = parameters::deprecated_keys(class)
        .map(|(old, new)| format!("{old} in place of {new}"))
        .collect();
    (!pairs.is_empty()).then(|| {
        note(&format!(
            "StorageClass {} has keys from before the prefix {RESERVED_PARAMETER_PREFIX}. They are also sent to the driver, and the keys that \
             took their place are not: keep an old key where the driver documents it. The operator reads {}",
            class.name,
            pairs.join(", ")
        ))
    })
}
