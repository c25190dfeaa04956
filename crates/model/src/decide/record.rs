//! Whether what a call came to may still be written down: what an attempt holds may be older than what is known by then.

use super::attach::is_detaching;
use super::calls::VolumeOnNode;
use super::driver_facts::DriverFacts;
use crate::objects::Attachment;

/// Whether there is nothing to attach or detach any more, by the owner of this finalizer, for an attachment that is not
/// forced: it is attached, or what was attached is taken back.
pub fn is_settled(attachment: &Attachment, finalizer: &str) -> bool {
    if attachment.deleting.is_some() {
        !is_detaching(attachment, finalizer)
    } else {
        attachment.attached
    }
}

/// Whether a result for the one is a result for the other, a later copy of it: to be moved the same way and, if it is being
/// attached, by the same claim.
pub fn is_same_work(one: &Attachment, other: &Attachment, driver: &DriverFacts) -> bool {
    one.deleting.is_some() == other.deleting.is_some() && is_same_claim(one, other, driver)
}

/// Whether a failure of what was begun for the one is still one of the other, a later copy of it. What is recorded as attached
/// meanwhile, as by the late write of an operator that has died, shows no error of a call that came after it.
pub fn may_note_failure(one: &Attachment, other: &Attachment, driver: &DriverFacts) -> bool {
    let attached_meanwhile = one.deleting.is_none() && other.attached && !one.attached;
    !attached_meanwhile && is_same_claim(one, other, driver)
}

/// Whether an attachment that was being attached has the same claim still: for the same place, and not renewed, as who renewed it
/// may have taken the volume back. What a detach came to counts whatever happened to the claim.
fn is_same_claim(one: &Attachment, other: &Attachment, driver: &DriverFacts) -> bool {
    let claim = |attachment: &Attachment| {
        let note = attachment.volume_note.as_ref();
        let note = note.map(|note| (note.handle.clone(), note.renewed));
        let node_id = attachment.node_id.clone();
        (attachment.finalizers.contains(&driver.finalizer), node_id, note)
    };
    one.deleting.is_some() || claim(one) == claim(other)
}

/// Whether a pod may use the volume by this attachment, or its detach will ask for the place. Only one that a restore of the
/// API server brought back to before its claim is neither: what is recorded as attached is never taken back, and what carries
/// our finalizer is detached in its turn.
pub fn may_be_in_use(known: &Attachment, driver: &DriverFacts) -> bool {
    known.attached || known.finalizers.contains(&driver.finalizer)
}

/// A call in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallAt<'a> {
    /// Where.
    pub place: VolumeOnNode<'a>,
    /// Whether it is a Publish, or what is done after one until its volume is safe.
    pub publishes: bool,
}

/// Whether one more call for a volume has to wait for another: for any at its place and, when the volume is to be `alone` at its
/// node, for each Publish of it at any node.
pub fn is_in_the_way(other: CallAt<'_>, place: VolumeOnNode<'_>, alone: bool) -> bool {
    other.place == place || (alone && other.publishes && other.place.volume_id == place.volume_id)
}
