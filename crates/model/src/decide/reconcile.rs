//! What is attached, compared with what the driver lists: the reconciler of the Go sidecar (`--reconcile-sync`).
//!
//! An attachment that the driver lists otherwise is worked on again as if it were not settled: a wanted one is
//! published once more, the remains of a finished detach are taken back. It goes further than the sidecar in care: a
//! mismatch must be found by two passes in a row before anything is done about it, because a listing takes time and
//! attachments change meanwhile; and it counts until a pass finds it gone, so a failed repair is not forgotten. Repairs that the
//! driver answers with OK and that change nothing in its list come more and more rarely.
//!
//! What is being attached or detached, and is listed as it is to be, is tried again at once: the backend went on after the deadline of a
//! call, and the next one will be answered with OK.
//!
//! Volumes without an attachment are never touched, and `attached` is never taken from a live one.

mod listing;
mod mismatches;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::action::Action;
use super::attach::{has_lost_finalizer, node_refusal};
use super::calls::VolumeOnNode;
use super::observed::{Observed, SecretState};
use super::published_volume::published_volume;
use super::record::is_settled;
use super::refusal::Refusal;
use crate::objects::{AttachmentSource, Finalizers, InTreePlugin, RepairError, Volume, repair_volume_handle};

pub use listing::{Listing, MAX_UNCLAIMED};
pub use mismatches::{LastingMismatches, Mismatches, REPAIRS_IN_A_ROW, Repairs, contradiction};

/// What the driver should list about an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Name of the VolumeAttachment.
    pub name: Arc<str>,
    /// Its UID: one that is made anew under the same name starts without suspicion.
    pub uid: Box<str>,
    /// The handle under which the driver lists the volume.
    pub handle: Box<str>,
    /// The node's ID.
    pub node_id: Box<str>,
    /// The ID under which it was published, if the node has another one now: a driver that changed the form of its node
    /// IDs may list either.
    pub former_node_id: Option<Box<str>>,
    /// Whether the volume should be at the node.
    pub wanted: DesiredState,
}

/// Where a volume should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// At the node.
    Published,
    /// Not at the node any more.
    Unpublished,
}

/// Why an attachment is not compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotComparable {
    /// A repair would be refused: its volume or node is not known, or it cannot be attached or detached as things are.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A repair would do nothing: its volume is for one node, and attached to another one as well.
    #[error("the volume is attached to another node as well")]
    InUseElsewhere,
    /// The driver may list its volume under another handle.
    #[error(transparent)]
    Handle(#[from] RepairError),
}

/// What to expect of an attachment of this driver; none while it is being worked on anyway. What is expected can be
/// repaired, as far as the objects and settings say.
pub fn expectation(observed: &Observed<'_>) -> Result<Option<Expectation>, NotComparable> {
    let (attachment, finalizer) = (observed.attachment, &*observed.driver.finalizer);
    if !is_served(observed) || has_lost_finalizer(attachment, finalizer) || !is_settled(attachment, finalizer) {
        return Ok(None);
    }
    expected(observed).map(Some)
}

/// What the driver lists once the attach or detach that is being made has come to its end at the backend, which may go on after the
/// deadline of a call; none where no call was made, or the next one would be refused. For an attach it is at the node as it is
/// registered now.
pub fn awaited(observed: &Observed<'_>) -> Option<Expectation> {
    let (attachment, finalizer) = (observed.attachment, &*observed.driver.finalizer);
    let is_detach = attachment.deleting.is_some();
    let is_called_for = is_detach || attachment.finalizers.contains(finalizer);
    if !is_served(observed) || !is_called_for || is_settled(attachment, finalizer) {
        return None;
    }
    let expected = expected(observed).ok()?;
    let former_node_id = expected.former_node_id.filter(|_| is_detach);
    Some(Expectation {
        former_node_id,
        ..expected
    })
}

/// Whether an attachment is the driver's, which attaches by calls.
fn is_served(observed: &Observed<'_>) -> bool {
    observed.attachment.attacher == observed.driver.name && observed.driver.capabilities.publish_unpublish
}

fn expected(observed: &Observed<'_>) -> Result<Expectation, NotComparable> {
    let attachment = observed.attachment;
    let wanted = match attachment.deleting {
        None => DesiredState::Published,
        Some(_) => DesiredState::Unpublished,
    };
    check_repair(observed)?;
    let (handle, _) = published_volume(attachment, observed.volume)?;
    // The sidecar's order: what the node says now, else what was noted.
    let noted = attachment.node_id.as_deref();
    let node_id = observed.node.registered().or(noted);
    let node_id = node_id.ok_or_else(|| node_refusal(observed))?;
    Ok(Expectation {
        name: attachment.name.clone(),
        uid: attachment.uid.clone(),
        handle: listed_handle(observed, handle, node_id)?.into(),
        node_id: node_id.into(),
        former_node_id: noted.filter(|noted| *noted != node_id).map(Box::from),
        wanted,
    })
}

/// What a listing has to agree with to be proof that the volume of another attachment is absent: that one that is attached is there. The
/// error of an attach is that of a repair, as it is attached: the driver may then be right that it is not there, as after the end of its machine.
pub fn witness(observed: &Observed<'_>) -> Option<Expectation> {
    let attachment = observed.attachment;
    let is_refused = attachment.deleting.is_none() && attachment.attach_error.is_some();
    if is_refused {
        return None;
    }
    let expected = expectation(observed).ok().flatten();
    expected.filter(|expected| expected.wanted == DesiredState::Published)
}

/// Why a repair would be refused, or call nothing. A refused one changes nothing at the driver, and leaves an error on what is attached:
/// that makes the outcome of its attach look unknown when a person asks for its release.
fn check_repair(observed: &Observed<'_>) -> Result<(), NotComparable> {
    let forced = Observed {
        forced: true,
        // Whether there is a Secret shows only when it is read, and what is refused after that is to be known now.
        credentials: SecretState::Loaded,
        ..*observed
    };
    match (super::attachment(&forced), observed.volume) {
        (Action::Refuse(refusal), _) => Err(refusal.into()),
        (Action::Ignore(_), _) => Err(NotComparable::InUseElsewhere),
        // A repair would protect the volume first, and may be refused after that.
        (Action::ProtectVolume(_), Some(volume)) => {
            let protected = Volume {
                finalizers: Finalizers::new([&*observed.driver.finalizer]),
                ..volume.clone()
            };
            check_repair(&Observed {
                volume: Some(&protected),
                ..*observed
            })
        }
        _ => Ok(()),
    }
}

/// What the driver lists where an attachment is to be let go without its confirmation: the volume, at each of these places. One that may
/// have been translated may be listed under its completed handle as well.
pub fn release_expectations(observed: &Observed<'_>, places: &[VolumeOnNode<'_>]) -> Vec<Expectation> {
    let attachment = observed.attachment;
    let mut expectations = Vec::new();
    for place in places {
        let completed = listed_handle(observed, place.volume_id, place.node_id).ok();
        let completed = completed.filter(|completed| completed != place.volume_id);
        for handle in [Some(Cow::Borrowed(place.volume_id)), completed].into_iter().flatten() {
            expectations.push(Expectation {
                name: attachment.name.clone(),
                uid: attachment.uid.clone(),
                handle: handle.into(),
                node_id: place.node_id.into(),
                former_node_id: None,
                wanted: DesiredState::Unpublished,
            });
        }
    }
    expectations
}

/// Whether the volume was translated from an in-tree source, or may have been: the driver may list it under another handle.
pub fn may_be_translated(observed: &Observed<'_>) -> bool {
    let inline = matches!(observed.attachment.source, AttachmentSource::Inline(_));
    let in_tree = observed.volume.is_none_or(|volume| volume.in_tree.is_some());
    InTreePlugin::of_word(&observed.driver.name).is_some() && (inline || in_tree)
}

/// The handle of a volume that may have been translated is completed as the driver completes it; a complete one stays as it is. In-line
/// volumes are translated before they come here.
fn listed_handle<'a>(observed: &Observed<'_>, handle: &'a str, node_id: &str) -> Result<Cow<'a, str>, RepairError> {
    if may_be_translated(observed) {
        return repair_volume_handle(&observed.driver.name, handle, node_id);
    }
    Ok(Cow::Borrowed(handle))
}

/// A volume that the driver lists at a node of this cluster though no attachment is for it there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unclaimed {
    /// The volume's handle.
    pub handle: Box<str>,
    /// The node's ID.
    pub node_id: Box<str>,
}

/// What came of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The driver says otherwise than expected.
    pub contradicted: Vec<Expectation>,
    /// The driver says what was expected.
    pub agreed: Vec<Expectation>,
    /// The driver lists them at nodes where no attachment is for them.
    pub unclaimed: BTreeSet<Unclaimed>,
}

/// Volumes that the driver lists at nodes of this cluster and no VolumeAttachment names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumesWithoutAttachment {
    /// How many, up to [`MAX_UNCLAIMED`].
    pub count: usize,
    /// Some of them, in the order of their handles.
    pub examples: Vec<Unclaimed>,
}

/// So many of the volumes without a VolumeAttachment are shown.
pub const MAX_EXAMPLES: usize = 16;

/// What the last pass found at nodes without a VolumeAttachment.
#[derive(Clone, Debug, Default)]
pub struct LastingUnclaimed(Option<BTreeSet<Unclaimed>>);

impl LastingUnclaimed {
    /// Takes in what a pass found that was made to its end, and answers what the pass before found as well: one pass alone may
    /// have met an attach or detach that was under way. None after the first pass.
    pub fn pass(&mut self, found: BTreeSet<Unclaimed>) -> Option<VolumesWithoutAttachment> {
        let before = self.0.replace(found);
        let (before, found) = (before?, self.0.as_ref()?);
        let lasting = found.intersection(&before);
        let examples = lasting.clone().take(MAX_EXAMPLES).cloned().collect();
        let count = lasting.count();
        Some(VolumesWithoutAttachment { count, examples })
    }
}
