//! What an attacher does next with a VolumeAttachment, asked of the operator's own rules.

use csi_attacher_model::decide::{
    self, Action, DriverFacts, Neighbours, NodeEntry, Policy, Refusal, SecretState, Snapshot, is_in_use, is_leaving,
    observe,
};
use csi_attacher_model::findings::{FindingInput, FindingKind, finding_message, findings};
use csi_attacher_model::objects::{Attachment, AttachmentSource};
use std::sync::Arc;

use super::Case;
use crate::observed::{Lookup, Scene};

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NextStep {
    /// Nothing is left to do.
    Nothing,
    /// It was not begun: the first writes come next.
    Begin,
    /// The call comes next, with these words.
    Call(String),
    /// It waits for the detach of this VolumeAttachment.
    AwaitDetach(Arc<str>),
    /// The finalizer goes without a call.
    Release,
    /// A person's request to release it is answered first.
    AnswerRequest,
    /// It cannot be done as things are.
    Refuse(Refusal),
}

/// Asks the rules. None when an object that they need could not be read.
pub(super) fn next_step(scene: &Scene, attachment: &Arc<Attachment>) -> Option<NextStep> {
    let (facts, policy) = (scene.driver.facts(), scene.driver.policy(scene.now));
    let snapshot = snapshot(scene, attachment, &facts)?;
    let step = ask(&snapshot, &facts, &policy, SecretState::NotLoaded);
    Some(step)
}

/// Whether the volume may be at another machine than that of the Node object ([`decide::on_other_machine`]). None when an object that says so
/// could not be read.
pub(crate) fn is_on_other_machine(scene: &Scene, attachment: &Arc<Attachment>) -> Option<bool> {
    let (facts, policy) = (scene.driver.facts(), scene.driver.policy(scene.now));
    let snapshot = snapshot(scene, attachment, &facts)?;
    let observed = observe(&snapshot, &facts, &policy, SecretState::NotLoaded);
    Some(decide::on_other_machine(&observed).is_some())
}

/// What the rules decide from. None when an object that they need could not be read.
fn snapshot(scene: &Scene, attachment: &Arc<Attachment>, facts: &DriverFacts) -> Option<Snapshot> {
    let by_volume = matches!(attachment.source, AttachmentSource::PersistentVolume(_));
    let is_known = (!by_volume || !scene.volume.is_unknown()) && !scene.csi_node.is_unknown();
    is_known.then(|| Snapshot {
        attachment: Arc::clone(attachment),
        volume: scene.volume.found().cloned(),
        node: scene.csi_node.found().map(|node| Arc::new(node.drivers.clone())),
        neighbours: neighbours(scene, attachment, facts),
    })
}

/// What the operator's findings are made of, where nothing but the VolumeAttachment was read: the node is taken for what it was.
pub(crate) fn finding_input<'a>(attachment: &'a Attachment, driver: &'a DriverFacts) -> FindingInput<'a> {
    FindingInput {
        attachment,
        volume: None,
        node: NodeEntry::Registered(attachment.node_id.as_deref().unwrap_or_default()),
        attached_at: None,
        wanted_at: None,
        driver,
        attach_required: None,
        leads_since: None,
    }
}

/// What the operator finds wrong with what is attached, the worst of it, in its words. An object that could not be read is no finding.
pub(super) fn finding(scene: &Scene, attachment: &Attachment) -> Option<(Case, String)> {
    let facts = scene.driver.facts();
    let unread = finding_input(attachment, &facts);
    let input = FindingInput {
        volume: scene.volume.found().map(|volume| &**volume),
        node: match &scene.csi_node {
            Lookup::Unknown => unread.node,
            known => NodeEntry::of(known.found().map(|record| &record.drivers), &scene.driver.name),
        },
        attached_at: in_use_elsewhere(scene, attachment).map(|other| &*other.node),
        wanted_at: wanted_elsewhere(scene, attachment).map(|other| &*other.node),
        attach_required: scene.driver.attach_required.found().copied(),
        ..unread
    };
    // The rules take a volume that could not be read for one that is gone.
    let is_known = |kind: &FindingKind| *kind != FindingKind::VolumeGone || scene.volume.is_missing();
    let found = findings(&input, scene.now, scene.stuck_after);
    let mut found = found.into_iter().filter(is_known);
    let (case, message) = found.find_map(|kind| Some((case_of(kind)?, finding_message(kind, &input))))?;
    // The answer names it already.
    let own = format!("VolumeAttachment {}: ", attachment.name);
    Some((case, message.strip_prefix(&own).map(str::to_owned).unwrap_or(message)))
}

/// The case of a finding about what is attached.
const fn case_of(kind: FindingKind) -> Option<Case> {
    match kind {
        FindingKind::AttachedTwice => Some(Case::AttachedTwice),
        FindingKind::VolumeReplaced => Some(Case::VolumeReplaced),
        FindingKind::NodeIdChanged => Some(Case::NodeIdChanged),
        FindingKind::VolumeGone => Some(Case::VolumeMissing),
        FindingKind::NodeGone | FindingKind::DriverNotOnNode => Some(Case::DriverNotOnNode),
        FindingKind::InlineLeftOver => Some(Case::InlineLeftOver),
        FindingKind::LeftOver => Some(Case::LeftOver),
        // Only who leads the driver knows since when, and so who writes beside it. What is attached is not stuck. The others are
        // never about a VolumeAttachment.
        FindingKind::OtherAttacher
        | FindingKind::AttachStuck
        | FindingKind::DetachStuck
        | FindingKind::AttachNotRequired
        | FindingKind::CSIDriverMissing
        | FindingKind::AttachedWithoutCall
        | FindingKind::PossibleLeak
        | FindingKind::ReleasedWhileBound
        | FindingKind::HandleShared
        | FindingKind::NeedsDecision
        | FindingKind::ProvisionStuck
        | FindingKind::DeleteStuck
        | FindingKind::ClassMissing
        | FindingKind::MarkerOfAnotherDriver => None,
    }
}

/// The VolumeAttachments of the same volume at other nodes.
fn elsewhere<'s>(scene: &'s Scene, attachment: &'s Attachment) -> impl Iterator<Item = &'s Attachment> {
    let holders = scene.holders.found().into_iter().flatten();
    let others = holders.map(|holder| &*holder.attachment);
    others.filter(move |other| other.node != attachment.node && scene.is_of_volume(other))
}

/// One that has the volume in use at another node.
pub(super) fn in_use_elsewhere<'s>(scene: &'s Scene, attachment: &'s Attachment) -> Option<&'s Attachment> {
    elsewhere(scene, attachment).find(|other| is_in_use(other))
}

/// A later one of an inline volume, at another node: kube-controller-manager has forgotten the earlier one.
fn wanted_elsewhere<'s>(scene: &'s Scene, attachment: &'s Attachment) -> Option<&'s Attachment> {
    let is_later = |other: &&Attachment| {
        let is_inline = matches!(other.source, AttachmentSource::Inline(_));
        is_inline && other.deleting.is_none() && other.created > attachment.created
    };
    elsewhere(scene, attachment).find(is_later)
}

fn ask(snapshot: &Snapshot, facts: &DriverFacts, policy: &Policy, credentials: SecretState) -> NextStep {
    let observed = observe(snapshot, facts, policy, credentials);
    match decide::attachment(&observed) {
        Action::Ignore(_) => NextStep::Nothing,
        Action::ProtectVolume(_) | Action::Claim(_) | Action::MarkAttached(_) => NextStep::Begin,
        Action::LoadCredentials(_) => ask(snapshot, facts, policy, SecretState::Loaded),
        Action::AwaitDetach(other) => NextStep::AwaitDetach(other),
        Action::Publish(plan) => NextStep::Call(format!(
            "ControllerPublishVolume for volume {} at node ID {}",
            plan.place.volume_id, plan.place.node_id
        )),
        Action::Unpublish(plan) => {
            let ids: Vec<&str> = plan.places.iter().map(|place| place.node_id).collect();
            let volume = plan.places.first().map_or("", |place| place.volume_id);
            NextStep::Call(format!(
                "ControllerUnpublishVolume for volume {volume} at node ID {}",
                ids.join(", ")
            ))
        }
        Action::Release(_) => NextStep::Release,
        Action::JudgeRelease(_) | Action::RefuseRelease(_) => NextStep::AnswerRequest,
        Action::Refuse(refusal) => NextStep::Refuse(refusal),
    }
}

/// The other attachments that bear on one, as the operator's cache picks them; of those at other nodes with the same ID nothing is known.
fn neighbours(scene: &Scene, attachment: &Attachment, facts: &DriverFacts) -> Neighbours {
    let Lookup::Found(holders) = &scene.holders else {
        return Neighbours::default();
    };
    let others = holders.iter().map(|holder| &holder.attachment);
    let mut others = others.filter(|other| other.attacher == attachment.attacher && scene.is_of_volume(other));
    let goes_elsewhere = |other: &&Arc<Attachment>| other.node != attachment.node && other.deleting.is_some();
    let mut elsewhere: Vec<Arc<Attachment>> = others.clone().filter(goes_elsewhere).cloned().collect();
    elsewhere.sort_by_key(|other| !is_leaving(other, &facts.finalizer));
    let here = others
        .find(|other| {
            attachment.deleting.is_some()
                && other.node == attachment.node
                && other.name != attachment.name
                && is_in_use(other)
        })
        .cloned();
    Neighbours {
        elsewhere,
        here,
        // Which claims a detach renews first is no answer to why it does not end.
        claimed: Vec::new(),
        // It bears on repairs alone.
        in_use_elsewhere: false,
    }
}
