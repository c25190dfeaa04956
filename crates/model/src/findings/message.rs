//! The sentence about each finding. It does not change while the finding stays: it has times, not ages.

use super::finding::{FindingInput, FindingKind};
use crate::decide::{NodeEntry, Refusal, not_replaced, plain, replaced, shown_handle};
use crate::objects::Attachment;

/// How the field managers of kubectl begin: `kubectl-patch`, `kubectl-edit`.
const KUBECTL: &str = "kubectl";

/// What becomes of an attachment that is left over: kube-controller-manager knows it by itself, or by
/// `status.volumesAttached` of the Node. Where it was restarted, and the Node is gone or does not list the volume, nobody
/// requests the detach.
pub const DETACH_FOLLOWS: &str =
    "kube-controller-manager requests the detach once no pod on the node uses the volume and it is unmounted";

/// What is wrong with one VolumeAttachment, and what a person should do.
pub fn finding_message(kind: FindingKind, input: &FindingInput<'_>) -> String {
    let attachment = input.attachment;
    let (name, node, driver) = (&attachment.name, &attachment.node, &input.driver.name);
    let volume = attachment.volume_name().map_or("", |name| name);
    match kind {
        FindingKind::AttachedTwice => attached_twice(input),
        FindingKind::VolumeReplaced => volume_replaced(input),
        FindingKind::NodeIdChanged => node_id_changed(input),
        FindingKind::OtherAttacher => {
            let writer = attachment.other_writer.as_ref();
            let writer = writer.map_or("another client", |writer| &writer.manager);
            let what = if writer.starts_with(KUBECTL) {
                "a person or a script changed what the operator decides by"
            } else {
                "two attachers serve the driver; remove the other one (a container csi-attacher), or set \
                 spec.leaderElection.namespace to the namespace of its Lease"
            };
            format!(
                "VolumeAttachment {name} for node {node}: its status was written by {writer} while this operator leads driver {driver}: {what}"
            )
        }
        FindingKind::AttachStuck | FindingKind::DetachStuck => stuck(attachment, &input.driver.finalizer),
        FindingKind::VolumeGone => left_over(attachment, &format!("PersistentVolume {volume} was deleted")),
        FindingKind::NodeGone => format!(
            "VolumeAttachment {name}: node {node} has no CSINode; if the node is permanently gone, delete its Node object or \
             this VolumeAttachment"
        ),
        FindingKind::DriverNotOnNode if input.node == NodeEntry::BlankId => {
            let (node, driver) = (node.clone(), driver.clone());
            format!("VolumeAttachment {name}: {}", Refusal::BlankNodeId { node, driver })
        }
        FindingKind::DriverNotOnNode => format!(
            "VolumeAttachment {name}: driver {driver} is not registered on node {node} (see CSINode {node}); check \
             the driver's pod on that node"
        ),
        FindingKind::InlineLeftOver => format!(
            "VolumeAttachment {name}: the inline volume is left over on node {node}: {}; delete the VolumeAttachment once \
             no pod on the node uses the volume",
            match input.wanted_at {
                Some(other) => format!("a later attachment wants it on node {other}"),
                None => "the node has no CSINode any more".to_owned(),
            }
        ),
        FindingKind::LeftOver | FindingKind::AttachNotRequired => {
            left_over(attachment, &format!("CSIDriver {driver} has attachRequired false"))
        }
        FindingKind::CSIDriverMissing => format!("there is no CSIDriver {driver}"),
        // They are never about an attachment.
        FindingKind::AttachedWithoutCall
        | FindingKind::PossibleLeak
        | FindingKind::ReleasedWhileBound
        | FindingKind::HandleShared
        | FindingKind::NeedsDecision
        | FindingKind::ProvisionStuck
        | FindingKind::DeleteStuck
        | FindingKind::ClassMissing
        | FindingKind::MarkerOfAnotherDriver => kind.as_str().to_owned(),
    }
}

fn left_over(attachment: &Attachment, why: &str) -> String {
    let Attachment { name, node, .. } = attachment;
    format!(
        "VolumeAttachment {name}: {why}, and the attachment to node {node} is left over; {DETACH_FOLLOWS}; delete the \
         VolumeAttachment by hand only if it stays after that"
    )
}

/// The other VolumeAttachment may name another PersistentVolume.
fn attached_twice(input: &FindingInput<'_>) -> String {
    let Attachment { name, node, .. } = input.attachment;
    let volume = match input.attachment.volume_name() {
        Some(volume) => format!("the volume of PersistentVolume {volume}"),
        None => "the inline volume".to_owned(),
    };
    format!(
        "VolumeAttachment {name}: {volume} is attached to node {node} and to node {}, and its access mode allows one node \
         only; data may be damaged: find out which node has it in use, and delete the other VolumeAttachment",
        input.attached_at.unwrap_or("?")
    )
}

fn volume_replaced(input: &FindingInput<'_>) -> String {
    let (name, node) = (&input.attachment.name, &input.attachment.node);
    let volume = input.attachment.volume_name().map_or("", |name| name);
    let refusal = input
        .volume
        .and_then(|volume| not_replaced(input.attachment, volume).err());
    if let Some(wrong_note @ Refusal::NoteContradicted { .. }) = refusal {
        return wrong_note.to_string();
    }
    let handles = input.volume.and_then(|volume| replaced(input.attachment, volume));
    let (attached, now) = handles.unwrap_or_default();
    let (attached, now) = (shown_handle(attached), shown_handle(now));
    format!(
        "VolumeAttachment {name}: volume {attached} is attached to node {node}, and PersistentVolume {volume} is volume {now} since it was \
         created again; delete the VolumeAttachment once no pod on the node uses the volume"
    )
}

fn node_id_changed(input: &FindingInput<'_>) -> String {
    let (name, node) = (&input.attachment.name, &input.attachment.node);
    let published_at = shown_handle(input.attachment.node_id.as_deref().unwrap_or_default());
    let now = input.node.registered().map(shown_handle).unwrap_or_default();
    format!(
        "VolumeAttachment {name}: the volume is attached to node ID {published_at}, and CSINode {node} has node ID {now} now: if node \
         {node} is another machine, delete the VolumeAttachment once no pod on the node uses the volume"
    )
}

fn stuck(attachment: &Attachment, finalizer: &str) -> String {
    let (operation, direction) = match attachment.deleting {
        Some(_) => ("detach", "from"),
        None => ("attach", "to"),
    };
    let why = match attachment.pending_error() {
        Some(error) => format!("the last error: {}", plain(&error.message)),
        None if attachment.deleting.is_none() && !attachment.finalizers.contains(finalizer) => {
            "it never began".to_owned()
        }
        None => "neither an answer nor an error came yet".to_owned(),
    };
    let since = attachment.pending_since().map(|since| since.to_string());
    format!(
        "the {operation} of VolumeAttachment {} {direction} node {} has been waiting since {}; {why}",
        attachment.name,
        attachment.node,
        since.unwrap_or_default()
    )
}
