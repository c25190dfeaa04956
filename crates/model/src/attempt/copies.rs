//! The PersistentVolume and the CSINode are read where what the cache has of them is not enough: where no watch keeps the copy, and where
//! the watch may be late.

use super::step::{Answer, Read, ReadTarget, Step, View};
use super::{Attempt, DecisionInputs, FailureCause, Phase};
use crate::answer::ApiErrorKind;
use crate::decide::{Action, Failure, Refusal, Snapshot};
use crate::objects::Attachment;

/// How far an action rests on what the cache has of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// Not at all.
    Nothing,
    /// On its copy, if there is one.
    Copy,
    /// On what the cache does not have: the object, or the driver in it.
    Absence,
}

impl Basis {
    /// Whether the object is to be read.
    fn needs_read(self, is_known: bool, is_watched: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::Copy => is_known && !is_watched,
            // Its watch may be behind that of VolumeAttachments, and a driver registers at the moment that the first pods come to a new
            // node: an error on the VolumeAttachment, gone again a moment later, would only alarm.
            Self::Absence => true,
        }
    }
}

impl Attempt {
    /// Reads the PersistentVolume and the CSINode that a call, a Secret or a refusal rests on, where their watches are not at work: the
    /// copies in the cache may be of any age, both objects can be made again under their names, and no write of an attempt tests them.
    /// What the cache does not have is read in any case. Each once in an attempt.
    pub(super) fn read_copies(
        &mut self,
        view: &dyn View,
        inputs: &DecisionInputs,
        action: &Action<'_>,
    ) -> Option<Step> {
        let Snapshot {
            attachment,
            volume,
            node,
            ..
        } = &inputs.snapshot;
        let (of_volume, of_node) = bases(action, attachment);
        let watched = view.watched();
        if let Some(name) = attachment.volume_name()
            && of_volume.needs_read(volume.is_some(), watched.volumes)
            && !std::mem::replace(&mut self.has_read_volume, true)
        {
            let unwatched = volume.as_ref().filter(|_| !watched.volumes);
            let uid = unwatched.map(|volume| volume.uid.clone());
            return Some(self.read_copy(ReadTarget::Volume(name.clone()), uid));
        }
        if of_node.needs_read(node.is_some(), watched.nodes) && !std::mem::replace(&mut self.has_read_node, true) {
            let unwatched = node.as_ref().filter(|_| !watched.nodes);
            let uid = unwatched.map(|node| node.uid.clone());
            return Some(self.read_copy(ReadTarget::Node(attachment.node.clone()), uid));
        }
        None
    }

    fn read_copy(&mut self, target: ReadTarget, uid: Option<Box<str>>) -> Step {
        self.phase = Phase::Copy(target.clone());
        Step::Read(Read::Unwatched(target, uid))
    }

    /// The object was read. Only the API server can say that it is gone; what can be neither watched nor read is not known.
    pub(super) fn copy_answered(&mut self, view: &dyn View, target: &ReadTarget, answer: Answer) -> Step {
        let watched = view.watched();
        let (is_watched, what) = match target {
            ReadTarget::Volume(name) => (watched.volumes, format!("PersistentVolume {name:?}")),
            ReadTarget::Node(name) => (watched.nodes, format!("CSINode {name:?}")),
        };
        match answer {
            Err(error) if error.kind != ApiErrorKind::NotFound && !is_watched && !self.is_noted(target) => {
                let failure = Failure::plain(format!(
                    "{what} can be neither watched nor read, so that its present state is not known; the driver is not called: \
                     {error}"
                ));
                self.record_failure(view, failure, FailureCause::UNCONFIRMED)
            }
            _ => self.observe(view),
        }
    }

    /// Whether what is needed of the object was noted at the claim. The note has the volume and the Secret of a detach, which is not to
    /// wait for a PersistentVolume that cannot be read.
    fn is_noted(&self, target: &ReadTarget) -> bool {
        let is_noted = |attachment: &Attachment| attachment.deleting.is_some() && attachment.volume_note.is_some();
        matches!(target, ReadTarget::Volume(_)) && self.snapshot().is_some_and(|known| is_noted(&known.attachment))
    }
}

/// How far an action rests on the PersistentVolume, and on the CSINode.
fn bases(action: &Action<'_>, attachment: &Attachment) -> (Basis, Basis) {
    match action {
        Action::Publish(_) => (Basis::Copy, Basis::Copy),
        Action::Unpublish(_) => bases_of_detach(attachment),
        Action::LoadCredentials(_) => (Basis::Copy, Basis::Nothing),
        Action::Refuse(refusal) => bases_of_refusal(refusal, attachment),
        _ => (Basis::Nothing, Basis::Nothing),
    }
}

/// A detach goes by what was noted when the volume was claimed, as far as anything was.
fn bases_of_detach(attachment: &Attachment) -> (Basis, Basis) {
    if attachment.volume_note.is_none() || attachment.node_id.is_none() {
        (Basis::Copy, Basis::Copy)
    } else {
        (Basis::Nothing, Basis::Nothing)
    }
}

fn bases_of_refusal(refusal: &Refusal, attachment: &Attachment) -> (Basis, Basis) {
    match refusal {
        Refusal::VolumeNotFound(_) => (Basis::Absence, Basis::Nothing),
        Refusal::NodeNotFound(_) | Refusal::DriverNotOnNode { .. } => (Basis::Nothing, Basis::Absence),
        Refusal::BlankNodeId { .. } => (Basis::Nothing, Basis::Copy),
        Refusal::BlankNodeAnnotation(missing) => bases_of_refusal(missing, attachment),
        Refusal::SharedOnNode { .. } => bases_of_detach(attachment),
        // What is noted already, and not what a claim would note of the volume.
        Refusal::NoteTooLarge { .. } if attachment.note_fault.is_some() => (Basis::Nothing, Basis::Nothing),
        Refusal::NoteUnreadable { .. }
        | Refusal::SourceTwice
        | Refusal::SourceMissing
        | Refusal::InlineNotCsi
        | Refusal::CapabilityLost(_)
        | Refusal::Leaving(_) => (Basis::Nothing, Basis::Nothing),
        // Everything else is about the volume. An in-line one has no copy.
        _ => (Basis::Copy, Basis::Nothing),
    }
}
