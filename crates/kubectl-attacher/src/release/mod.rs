//! Whether an object may be released, and by whom: pure. Every doubt is a refusal.
//!
//! The operator judges for itself ([`csi_attacher_model::decide::judge_release`]); what is checked here comes before that, and is all
//! there is where no attacher serves the driver.

#[cfg(test)]
mod tests;

use csi_attacher_model::api::names::finalizer_name;
use csi_attacher_model::decide::{self, ReleaseProof, is_claimed, is_detaching};
use csi_attacher_model::findings::age;
use csi_attacher_model::objects::Attachment;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

use crate::explain::{Service, is_on_other_machine, service};
use crate::observed::{Lookup, NodeRecord, PodRecord, Scene};

/// How an object is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseWay {
    /// The operator is asked, with what a person vouches for.
    AskOperator(Option<ReleaseProof>),
    /// Nobody serves the driver: the finalizer is removed by this program.
    PatchDirectly(ReleaseProof),
}

/// What was found out beside the scene.
#[derive(Clone, Debug, Default)]
pub struct ReleaseFacts {
    /// Pods on the attachment's node that use the claim.
    pub users: Lookup<Vec<PodRecord>>,
    /// Whether a person knows that the volume is attached nowhere.
    pub confirmed: bool,
    /// An attacher that serves the driver without a Lease writes an error within this time, so that it is seen.
    pub quiet_for: Duration,
}

/// Why not, for people.
pub type Refused = String;

/// How a VolumeAttachment may be released.
pub fn attachment(scene: &Scene, facts: &ReleaseFacts) -> Result<ReleaseWay, Refused> {
    let Lookup::Found(attachment) = &scene.attachment else {
        return Err("the VolumeAttachment could not be read".to_owned());
    };
    let name = &attachment.name;
    let Some(deleted) = attachment.deleting else {
        return Err(format!(
            "VolumeAttachment {name} is not being deleted, so nobody has requested its detach; whether a pod uses the volume says: kubectl \
             get pods --all-namespaces --field-selector spec.nodeName={}",
            attachment.node
        ));
    };
    let finalizer = finalizer_name(&attachment.attacher);
    if !is_detaching(attachment, &finalizer) {
        return Err(format!(
            "VolumeAttachment {name} does not carry the finalizer {finalizer}: the attacher holds it no more"
        ));
    }
    in_use(scene, attachment, facts)?;
    let proof = proof(scene, attachment, facts.confirmed);
    match service(&scene.driver, scene.now) {
        Service::Operator { .. } => Ok(ReleaseWay::AskOperator(proof)),
        Service::Sidecar(holder) => Err(format!(
            "a sidecar ({holder}) serves driver {}: it decides about its finalizer, and does not take requests; fix the driver",
            scene.driver.name
        )),
        Service::Problem(problem) => Err(format!(
            "the operator is responsible for driver {} and cannot answer now: {}; fix that first, or delete the AttacherConfig if \
             the driver is gone for good",
            scene.driver.name, problem.summary
        )),
        Service::Unknown => {
            Err("AttacherConfigs and Leases could not be read, so an attacher may serve the driver".to_owned())
        }
        Service::Nobody if !attachment.finalizers.contains(&finalizer) => Err(format!(
            "somebody took the finalizer {finalizer} off VolumeAttachment {name}, and {} keeps it; nobody detaches the volume: if it is not \
             attached, remove those",
            attachment.finalizers
        )),
        Service::Nobody => direct(scene, attachment, deleted, proof, facts.quiet_for),
    }
}

/// Signs that the volume is in use at the node, which no confirmation outweighs.
fn in_use(scene: &Scene, attachment: &Attachment, facts: &ReleaseFacts) -> Result<(), Refused> {
    let node = &attachment.node;
    let record = match &scene.node {
        Lookup::Found(record) => record,
        Lookup::Missing => return Ok(()),
        Lookup::Unknown => return Err("the Node could not be read, so the volume may be in use".to_owned()),
    };
    if record.out_of_service.is_some() || !record.is_ready() {
        return Ok(());
    }
    let handle = scene.handle();
    if handle.is_some_and(|handle| record.uses(&attachment.attacher, handle)) {
        return Err(format!(
            "the kubelet of node {node}, which is Ready, reports the volume as mounted (status.volumesInUse)"
        ));
    }
    // Of what has no claim the kubelet alone says whether it is in use.
    if facts.users.is_unknown() && (handle.is_none() || may_have_claim(scene)) {
        return Err(format!(
            "which pods use the volume could not be read, and node {node} is Ready, so one may use it there"
        ));
    }
    let mut users = facts.users.found().into_iter().flatten();
    if let Some(pod) = users.find(|pod| !pod.is_over()) {
        return Err(format!(
            "pod {}/{} on node {node}, which is Ready, uses the volume",
            pod.namespace, pod.name
        ));
    }
    Ok(())
}

fn may_have_claim(scene: &Scene) -> bool {
    let is_unread = scene.volume_name.is_some() && scene.volume.is_unknown();
    is_unread || scene.claim_name.is_some() || scene.former_claim.is_some()
}

/// What makes a release safe. A Node object that is missing is no proof: the machine may be running. Nor is the taint of another machine,
/// which only the operator is asked about: it says which one.
fn proof(scene: &Scene, attachment: &Arc<Attachment>, confirmed: bool) -> Option<ReleaseProof> {
    let tainted = scene.node.found().is_some_and(|node| node.out_of_service.is_some());
    if tainted && !(confirmed && is_on_other_machine(scene, attachment) != Some(false)) {
        Some(ReleaseProof::OutOfServiceTaint)
    } else {
        confirmed.then_some(ReleaseProof::Confirmed)
    }
}

/// Nobody serves the driver. What the driver lists cannot be asked for here.
fn direct(
    scene: &Scene,
    attachment: &Arc<Attachment>,
    deleted: Timestamp,
    proof: Option<ReleaseProof>,
    quiet_for: Duration,
) -> Result<ReleaseWay, Refused> {
    let failed = attachment.detach_error.as_ref().and_then(|error| error.time);
    let since_error = failed.map(|at| age(at, scene.now));
    if let Some(ago) = since_error.filter(|ago| *ago < quiet_for) {
        return Err(format!(
            "an error of the detach was written {} s ago, so an attacher without a Lease may be at work; stop it, and wait for {} s",
            ago.as_secs(),
            quiet_for.as_secs()
        ));
    }
    if age(deleted, scene.now) < quiet_for {
        return Err(format!(
            "it is being deleted for less than {} s, in which an attacher without a Lease could still begin",
            quiet_for.as_secs()
        ));
    }
    let Lookup::Found(holders) = &scene.holders else {
        return Err("VolumeAttachments could not be listed, and another one may have the volume".to_owned());
    };
    let facts = scene.driver.facts();
    let others = holders.iter().map(|holder| &holder.attachment);
    let mut others = others.filter(|other| other.attached || is_claimed(other, &facts));
    if let Some(other) = others.clone().find(|other| other.node == attachment.node) {
        return Err(format!(
            "VolumeAttachment {} has the same volume on node {}",
            other.name, other.node
        ));
    }
    if let (Some(ReleaseProof::Confirmed), Some(other)) = (proof, others.next()) {
        return Err(format!(
            "VolumeAttachment {} has the volume on node {}, so the confirmation that it is attached nowhere is wrong",
            other.name, other.node
        ));
    }
    if proof == Some(ReleaseProof::OutOfServiceTaint) && is_on_other_machine(scene, attachment) != Some(false) {
        return Err(
            "the out-of-service taint is that of the machine that has the name of the node now, and the volume may be at a former one"
                .to_owned(),
        );
    }
    proof.map(ReleaseWay::PatchDirectly).ok_or_else(|| {
        "nothing proves that the volume is detached: no attacher can ask the driver, and the node does not have the out-of-service \
         taint (a Node object that is missing is no proof)"
            .to_owned()
    })
}

/// On what ground a PersistentVolume may be released. Only by this program: an operator or a sidecar does it by itself.
pub fn volume(scene: &Scene, nodes: &Lookup<Vec<NodeRecord>>, confirmed: bool) -> Result<ReleaseProof, Refused> {
    let Lookup::Found(volume) = &scene.volume else {
        return Err("the PersistentVolume could not be read".to_owned());
    };
    let name = &volume.name;
    let Lookup::Found(naming) = &scene.naming else {
        return Err("VolumeAttachments could not be listed, and one may name the volume".to_owned());
    };
    if !volume.deleting {
        return Err(format!("PersistentVolume {name} is not being deleted"));
    }
    if let Some(first) = naming.first() {
        return Err(format!(
            "VolumeAttachment {} names the volume; go on with: kubectl attacher why va {}",
            first.name, first.name
        ));
    }
    let facts = scene.driver.facts();
    if decide::volume(volume, naming.len(), &facts).is_err() {
        return Err(format!(
            "PersistentVolume {name} does not carry the finalizer {}",
            facts.finalizer
        ));
    }
    match service(&scene.driver, scene.now) {
        Service::Nobody => {}
        Service::Operator { .. } | Service::Sidecar(_) => {
            return Err("an attacher serves the driver, and removes its finalizer by itself within moments".to_owned());
        }
        Service::Problem(problem) => {
            return Err(format!(
                "the operator is responsible for the driver and cannot act now: {}",
                problem.summary
            ));
        }
        Service::Unknown => {
            return Err("AttacherConfigs and Leases could not be read, so an attacher may serve the driver".to_owned());
        }
    }
    let Lookup::Found(nodes) = nodes else {
        return Err("Nodes could not be listed, and one may have the volume mounted".to_owned());
    };
    let handle = scene.handle().unwrap_or_default();
    if let Some(node) = nodes.iter().find(|node| node.uses(&scene.driver.name, handle)) {
        return Err(format!(
            "the kubelet of node {} reports the volume as mounted (status.volumesInUse)",
            node.name
        ));
    }
    if confirmed {
        Ok(ReleaseProof::Confirmed)
    } else {
        Err("no VolumeAttachment names the volume, but nothing proves that it is detached: no attacher can ask the driver".to_owned())
    }
}
