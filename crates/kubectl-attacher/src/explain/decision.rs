//! What an attacher does next with a VolumeAttachment, asked of the operator's own rules.

use csi_attacher_model::decide::{
    self, Action, DriverFacts, Neighbours, NodeEntry, Policy, Refusal, SecretState, Snapshot, is_in_use, is_leaving,
    observe,
};
use csi_attacher_model::findings::{FindingInput, FindingKind, FindingThresholds, finding_message, findings};
use csi_attacher_model::objects::{Attachment, AttachmentSource};
use std::sync::Arc;

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
    let by_volume = matches!(attachment.source, AttachmentSource::PersistentVolume(_));
    if (by_volume && scene.volume.is_unknown()) || scene.csi_node.is_unknown() {
        return None;
    }
    let (facts, policy) = (scene.driver.facts(), scene.driver.policy());
    let snapshot = Snapshot {
        attachment: Arc::clone(attachment),
        volume: scene.volume.found().cloned(),
        node: scene.csi_node.found().map(|node| Arc::new(node.drivers.clone())),
        neighbours: neighbours(scene, attachment, &facts),
    };
    let step = ask(&snapshot, &facts, &policy, SecretState::NotLoaded);
    Some(step)
}

/// What the operator's findings are made of, where nothing but the VolumeAttachment was read.
pub(crate) fn finding_input<'a>(attachment: &'a Attachment, driver: &'a DriverFacts) -> FindingInput<'a> {
    FindingInput {
        attachment,
        volume: None,
        node: NodeEntry::Registered(""),
        attached_at: None,
        wanted_at: None,
        driver,
        attach_required: None,
        leads_since: None,
    }
}

/// What the operator finds wrong with what is attached, and its words for it: that it stands for another volume or another machine.
/// An object that could not be read is no finding.
pub(super) fn finding(scene: &Scene, attachment: &Attachment) -> Option<(FindingKind, String)> {
    let facts = scene.driver.facts();
    let csi_node = scene.csi_node.found();
    let node_id = csi_node.and_then(|record| record.drivers.node_id(&scene.driver.name));
    let input = FindingInput {
        volume: scene.volume.found().map(|volume| &**volume),
        node: node_id.map_or(NodeEntry::Missing, NodeEntry::Registered),
        ..finding_input(attachment, &facts)
    };
    let rules = FindingThresholds {
        stuck_after: scene.stuck_after,
    };
    let found = findings(&input, scene.now, &rules);
    let kinds = [FindingKind::VolumeReplaced, FindingKind::NodeIdChanged];
    let kind = kinds.into_iter().find(|kind| found.contains(*kind))?;
    Some((kind, finding_message(kind, &input)))
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
    let mut others = holders.iter().map(|holder| &holder.attachment);
    let mut elsewhere: Vec<Arc<Attachment>> = others
        .clone()
        .filter(|other| {
            other.attacher == attachment.attacher
                && other.node != attachment.node
                && other.deleting.is_some()
                && scene.is_of_volume(other)
        })
        .cloned()
        .collect();
    elsewhere.sort_by_key(|other| !is_leaving(other, &facts.finalizer));
    let here = others
        .find(|other| {
            attachment.deleting.is_some()
                && other.attacher == attachment.attacher
                && other.node == attachment.node
                && other.name != attachment.name
                && scene.is_of_volume(other)
                && is_in_use(other)
        })
        .cloned();
    Neighbours {
        elsewhere,
        here,
        // Which claims a detach renews first is no answer to why it does not end.
        claimed: Vec::new(),
    }
}
