//! The decision core: what to do next about one VolumeAttachment or PersistentVolume, and why.
//!
//! It is pure: no async, no client, no clock. [`attachment`] takes the observed objects and returns one [`Action`];
//! the effect layer (the drivers of the operator) performs it, puts the object that the API server returned into the cache and
//! asks again, until the answer is [`Action::Ignore`]. [`settle`] turns the outcome of an effect into the writes that
//! record it, in the order in which they must happen. Progress is kept in the objects alone, so that a crash at any
//! point is continued from what was saved.
//!
//! The invariants 1 to 4 of docs/contribute/ARCHITECTURE.md hold here, each by a property in `tests/properties.rs`. Without
//! `ControllerUnpublishVolume` our finalizer leaves a VolumeAttachment only as far as [`ReleaseWithoutCall`] says or, where a person asks
//! for it, [`judge_release`], which refuses whatever is in doubt.

mod action;
mod attach;
mod calls;
mod command;
mod detach;
mod driver_facts;
mod fingerprint;
mod former_place;
pub mod grpc_code;
pub(crate) mod json_patch;
mod judge_release;
mod message;
mod observed;
mod outcome;
pub mod patch;
mod protect;
mod publication;
mod published_volume;
pub mod reconcile;
mod record;
mod refusal;
mod release_request;
mod scrub;
mod settle;
mod snapshot;
mod volume;

pub use action::{Action, IgnoreReason};
pub use attach::{has_lost_finalizer, is_detaching, is_leaving, not_replaced};
pub use calls::{
    AccessMode, Capability, OwnedVolumeOnNode, PublishRequest, UnpublishRequest, VolumeAccessType, VolumeOnNode,
};
pub use command::{command_word, is_plain_command};
pub use driver_facts::{Capabilities, DriverFacts, ReleaseWithoutCall};
pub use fingerprint::{attachment_fingerprint, volume_fingerprint};
pub use judge_release::{judge_release, on_other_machine, release_answer};
pub use message::{
    MAX_ERROR_BYTES, MAX_WHOLE_ERROR, cut, cut_forms, escaped_json, is_unprintable, plain, shown_error, shown_handle,
    shown_within,
};
pub use observed::{
    Claimant, DetachWait, Neighbours, NodeEntry, Observed, OrphanPolicy, Policy, PublishSecrets, SecretState,
};
pub use outcome::{Failure, Outcome};
pub use patch::Write;
pub use protect::{KeepReason, may_release, volume};
pub use publication::{is_claimed, is_final, was_called_for};
pub use published_volume::{
    confirmation, contradicts_note, holds_its_place, is_claimed_for, is_in_use, is_same_volume, known_handle,
    published_beside_note, published_volume, replaced, wanted_handle,
};
pub use record::{CallAt, is_in_the_way, is_same_work, is_settled, may_be_in_use, may_note_failure};
pub use refusal::Refusal;
pub use release_request::{
    ListedEvidence, ListingDoubt, ReleaseAnswer, ReleaseBasis, ReleaseEvidence, ReleasePlan, ReleaseProof,
    ReleaseRefusal, ReleaseRequest, quoted,
};
pub use scrub::{SecretValues, scrub};
pub use settle::{check_publish_context, settle, unpublished};
pub use snapshot::{Snapshot, observe};
pub use volume::{check_access_modes, is_for_one_node};

use crate::objects::{Attachment, Volume};

#[cfg(test)]
pub(crate) mod tests;

/// The next step for a VolumeAttachment.
pub fn attachment<'a>(observed: &Observed<'a>) -> Action<'a> {
    if observed.attachment.attacher != observed.driver.name {
        return Action::Ignore(IgnoreReason::OtherAttacher);
    }
    if !observed.driver.capabilities.publish_unpublish {
        return attach::trivial(observed);
    }
    let action = if observed.attachment.deleting.is_some() {
        detach::decide(observed)
    } else {
        attach::decide(observed)
    };
    match action {
        Action::Refuse(refusal) => Action::Refuse(refusal.with_allowed_secret(observed)),
        action => action,
    }
}

/// The publish secret that the next call about an attachment needs; an error if it is not known, or if the driver may
/// not be given it.
pub fn publish_secret<'a>(observed: &Observed<'a>) -> Result<Option<&'a crate::objects::SecretReference>, Refusal> {
    let (attachment, driver) = (observed.attachment, observed.driver);
    if attachment.attacher != driver.name || !driver.capabilities.publish_unpublish {
        Ok(None)
    } else if attachment.deleting.is_some() {
        detach::secret(observed)
    } else {
        attach::secret(observed)
    }
}

/// Whether an attachment may need work, as it and its PersistentVolume say.
///
/// The cheap first rungs of [`attachment`]: a start with 50,000 attached volumes queues none of them.
pub fn needs_work(attachment: &Attachment, volume: Option<&Volume>, driver: &DriverFacts) -> bool {
    if attachment.deleting.is_some() {
        return attachment.finalizers.contains(&driver.finalizer)
            || (driver.capabilities.publish_unpublish && is_detaching(attachment, &driver.finalizer));
    }
    !attachment.attached
        || (driver.capabilities.publish_unpublish
            && (has_lost_finalizer(attachment, &driver.finalizer)
                || protect::unprotected(attachment, volume, driver).is_some()
                || attach::partly_noted(attachment, volume, driver).is_some()))
}
