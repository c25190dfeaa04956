//! A volume that another node has: who, and what has to happen until it is free.

use csi_attacher_model::api::names::finalizer_name;
use csi_attacher_model::objects::Attachment;
use jiff::Timestamp;

use super::Case;
use super::last::{current_error, last_attempt, last_error};
use super::report::{Diagnosis, HolderReport};
use super::steps::not_visible;
use crate::observed::{Holder, HolderPod, Lookup, Scene};
use csi_attacher_model::findings::age;
use csi_attacher_model::objects::Operation;

/// No VolumeAttachment for this node: another node has the volume, or nobody has requested it.
pub(super) fn without_attachment(scene: &Scene) -> Diagnosis {
    let Some(node) = &scene.node_name else {
        return match (&scene.naming, &scene.users) {
            (Lookup::Found(_), Lookup::Found(_)) => Diagnosis::new(
                Case::NotUsed,
                "no pod on a node needs the volume, and it is attached to none",
            ),
            (Lookup::Found(_), _) => not_visible("pods could not be listed, and one may need the volume"),
            _ => not_visible("VolumeAttachments could not be listed, and the volume may be attached to a node"),
        };
    };
    if let Some(holder) = holder(scene) {
        return held(scene, holder);
    }
    if let Lookup::Found(volume) = &scene.volume
        && volume.deleting
    {
        let name = &volume.name;
        let summary = format!("PersistentVolume {name} is being deleted, and is not attached any more");
        return volume_deleting(summary, name).since(scene.volume_deleting);
    }
    if scene.is_for_one_node() && scene.holders.is_unknown() {
        return not_visible("VolumeAttachments could not be listed, and the volume may be attached to another node");
    }
    not_requested(scene, node)
}

/// A PersistentVolume that is being deleted is attached nowhere any more.
pub(super) fn volume_deleting(summary: String, name: &str) -> Diagnosis {
    Diagnosis::new(Case::VolumeDeleting, summary)
        .next("nothing: a volume that is being deleted is not attached")
        .run(
            "find out who deleted the PersistentVolume; the pod needs another one",
            format!("kubectl attacher why pv {name}"),
        )
}

fn not_requested(scene: &Scene, node: &str) -> Diagnosis {
    let pod = scene.pod.as_ref();
    let scheduled = pod.and_then(|pod| pod.scheduled.as_ref()?.since);
    let since = scheduled.or(pod.and_then(|pod| pod.created));
    if pod.is_some_and(|pod| pod.deleting.is_some()) {
        let summary = format!("the pod on node {node} does not need the volume any more");
        return Diagnosis::new(Case::NotUsed, summary);
    }
    let mut diagnosis = Diagnosis::new(
        Case::NotRequested,
        format!("kube-controller-manager has not requested the attach to node {node}: there is no VolumeAttachment"),
    )
    .since(since)
    .next("kube-controller-manager creates the VolumeAttachment");
    let told = scene.pod_events.found().into_iter().flatten();
    let told = told.filter(|event| event.reason == "FailedAttachVolume");
    if let Some(event) = told.max_by_key(|event| event.last) {
        let message = &event.message;
        diagnosis = diagnosis.advise(format!("the pod's last event FailedAttachVolume says: {message}"));
    }
    if since.is_some_and(|since| age(since, scene.now) > scene.stuck_after) {
        diagnosis.verdict = super::Verdict::Blocked;
        diagnosis = diagnosis.advise("check that kube-controller-manager runs, and read its log");
    }
    diagnosis
}

/// The other attachment that keeps a volume for one node from this one: one that is attached before one that goes.
fn holder(scene: &Scene) -> Option<&Holder> {
    if !scene.is_for_one_node() {
        return None;
    }
    let others = || {
        let others = scene.holders.found().into_iter().flatten();
        others.filter(|other| Some(&*other.attachment.node) != scene.node_name.as_deref())
    };
    let live = others().find(|other| other.attachment.deleting.is_none());
    live.or_else(|| others().next())
}

/// An attach that the driver refuses while another node has the volume: that is what has to end.
pub(super) fn refused_for_holder(scene: &Scene, refusal: &str) -> Option<Diagnosis> {
    let diagnosis = held(scene, holder(scene)?);
    Some(diagnosis.advise(format!("the driver refuses the attach meanwhile: {refusal}")))
}

fn report(holder: &Holder) -> HolderReport {
    let pods = holder.pods.found().into_iter().flatten();
    HolderReport {
        node: holder.attachment.node.to_string(),
        attachment: holder.attachment.name.to_string(),
        pods: pods.map(|pod| pod.name.clone()).collect(),
    }
}

fn held(scene: &Scene, holder: &Holder) -> Diagnosis {
    let mut diagnosis = match holder.attachment.deleting {
        Some(deleted) => leaving(holder, deleted),
        None => wanted(scene, holder),
    };
    diagnosis.holder = Some(report(holder));
    diagnosis
}

/// kube-controller-manager still wants the volume at the other node.
fn wanted(scene: &Scene, holder: &Holder) -> Diagnosis {
    let node = &holder.attachment.node;
    let pods = holder.pods.found().map(Vec::as_slice).unwrap_or_default();
    let out_of_service = holder.node.found().and_then(|node| node.out_of_service);
    if let Some(since) = out_of_service {
        return tainted(holder, since);
    }
    let mounted = match (scene.handle(), &holder.node) {
        (Some(handle), Lookup::Found(node)) => node.uses(&holder.attachment.attacher, handle),
        _ => false,
    };
    let running: Vec<&HolderPod> = pods.iter().filter(|pod| pod.deleting.is_none()).collect();
    let in_use = mounted || !pods.is_empty();
    let is_unready = holder.node.found().is_some_and(|node| !node.is_ready());
    if holder.node.is_missing() || (is_unready && in_use) {
        return unready_node(holder, pods);
    }
    if !running.is_empty() {
        return used(node, &running);
    }
    if in_use {
        let since = pods.iter().filter_map(|pod| pod.deleting).min();
        return unmounting(node, pods, since);
    }
    let (pods, when) = if holder.pods.is_unknown() {
        ("its pods could not be listed", "once no pod on it uses the volume")
    } else if holder.node.is_unknown() || scene.handle().is_none() {
        ("no pod on that node uses it any more", "once it is unmounted")
    } else {
        ("no pod on that node uses it any more", "at once")
    };
    let summary = format!("the volume is attached to node {node} and may be attached to one node only; {pods}");
    let next = format!("kube-controller-manager requests the detach from node {node} {when}");
    let diagnosis = Diagnosis::new(Case::WaitingForDetach, summary)
        .since(holder.attachment.created)
        .next(next);
    follow(diagnosis, &holder.attachment)
}

fn follow(diagnosis: Diagnosis, other: &Attachment) -> Diagnosis {
    diagnosis.run(
        "follow the other attachment",
        format!("kubectl attacher why va {}", other.name),
    )
}

fn used(node: &str, running: &[&HolderPod]) -> Diagnosis {
    let names: Vec<&str> = running.iter().map(|pod| &*pod.name).collect();
    let first = names.first().copied().unwrap_or_default();
    let (namespace, name) = first.split_once('/').unwrap_or(("", first));
    let controller = running.first().and_then(|pod| pod.owner.as_deref());
    let owned = controller.map_or_else(
        || "has no owner that would make it again".to_owned(),
        |controller| format!("belongs to {controller}"),
    );
    let summary = format!(
        "the volume may be attached to one node only, and pod {} uses it on node {node} (Multi-Attach error)",
        names.join(", ")
    );
    Diagnosis::new(Case::UsedOnOtherNode, summary)
        .next("nothing, until that pod ends: no VolumeAttachment is made for the second node")
        .run(
            format!("decide which of the pods has to go; pod {first} {owned}"),
            format!("kubectl get pod {name} --namespace {namespace} --output wide"),
        )
        .advise(
            "for a Deployment with one replica, set strategy Recreate: then the old pod ends before the new one starts",
        )
}

fn names(pods: &[HolderPod]) -> String {
    let names: Vec<&str> = pods.iter().map(|pod| &*pod.name).collect();
    names.join(", ")
}

fn unmounting(node: &str, pods: &[HolderPod], since: Option<Timestamp>) -> Diagnosis {
    let when = match &*names(pods) {
        "" => "and its kubelet has not unmounted it yet".to_owned(),
        names => format!("and its kubelet unmounts it after the end of pod {names}"),
    };
    let summary = format!("the volume is still mounted on node {node}, {when}");
    Diagnosis::new(Case::WaitingForUnmount, summary)
        .since(since)
        .next("kube-controller-manager requests the detach when the kubelet reports the unmount")
        .run(
            "find out why the pod does not end, or the volume is not unmounted",
            format!("kubectl describe node {node}"),
        )
}

fn unready_node(holder: &Holder, pods: &[HolderPod]) -> Diagnosis {
    let node = &holder.attachment.node;
    let names = names(pods);
    let record = holder.node.found();
    let state = record.map_or("does not exist", |_| "is not Ready");
    // A pod whose containers were last reported as running counts until its object is gone: the 6 minutes begin then.
    let next = if pods.is_empty() {
        "kube-controller-manager requests the detach without a confirmed unmount, up to 6 minutes after the last \
         pod that uses the volume is gone"
            .to_owned()
    } else if record.is_none() {
        format!("kube-controller-manager deletes the pods of node {node}, and requests the detach 6 minutes later")
    } else {
        let first = if pods.iter().any(|pod| pod.deleting.is_none()) {
            "the pods on the node are deleted when their toleration of the taint ends (5 minutes by default); then "
        } else {
            ""
        };
        format!(
            "{first}pod {names} stays Terminating while node {node} is not Ready, and if its containers ran, \
             kube-controller-manager requests nothing until the pod object is gone: the node comes back, the Node is deleted, or it gets the \
             out-of-service taint"
        )
    };
    let deleted = pods.iter().filter_map(|pod| pod.deleting).min();
    let since = record.and_then(|node| node.ready.as_ref().and_then(|ready| ready.since));
    let summary =
        format!("the volume is attached to node {node}, and that node {state}, so nobody confirms the unmount");
    let diagnosis = Diagnosis::new(Case::WaitingForUnmount, summary)
        .since(deleted.or(since))
        .next(next);
    if record.is_none() {
        // A Node that does not exist cannot be described, and takes no taint.
        let diagnosis = diagnosis.advise(format!(
            "find out at the cloud or the hypervisor whether machine {node} still runs: while it does, it may write to the \
             volume"
        ));
        return follow(diagnosis, &holder.attachment);
    }
    diagnosis
        .run(
            "find out whether the machine is off",
            format!("kubectl describe node {node}"),
        )
        .advise(
            "only if the machine is certainly off (as the cloud or the hypervisor says): the taint \
             node.kubernetes.io/out-of-service=nodeshutdown:NoExecute on that node lets Kubernetes detach immediately",
        )
}

fn tainted(holder: &Holder, since: Option<Timestamp>) -> Diagnosis {
    let node = &holder.attachment.node;
    let summary = format!(
        "the volume is attached to node {node}, which has the out-of-service taint; it is detached without a confirmed unmount"
    );
    let diagnosis = Diagnosis::new(Case::OutOfServiceTaint, summary)
        .since(since.or(holder.attachment.deleting))
        .next("kube-controller-manager deletes the node's pods and then requests the detach");
    follow(diagnosis, &holder.attachment)
}

/// The detach from the other node was requested.
fn leaving(holder: &Holder, deleted: Timestamp) -> Diagnosis {
    let other = &holder.attachment;
    let tainted = holder.node.found().is_some_and(|node| node.out_of_service.is_some());
    let (case, taint) = if tainted {
        (Case::OutOfServiceTaint, ", which has the out-of-service taint")
    } else {
        (Case::WaitingForDetach, "")
    };
    let held = other.finalizers.contains(&finalizer_name(&other.attacher));
    let how = match current_error(other) {
        Some(_) if held => ", and that keeps failing",
        _ => "",
    };
    let summary = format!("the volume is being detached from node {}{taint}{how}", other.node);
    let diagnosis = Diagnosis::new(case, summary)
        .since(Some(deleted))
        .next("the attach follows when that detach has ended");
    let mut diagnosis = follow(diagnosis, other);
    diagnosis.last_error = last_error(other);
    if diagnosis.last_error.is_some() {
        diagnosis.last_attempt = last_attempt(&holder.events, Operation::Detach);
    }
    diagnosis
}

/// The attacher itself holds the attach back for the detach of another VolumeAttachment.
pub(super) fn awaits(scene: &Scene, attachment: &Attachment, other: &str) -> Diagnosis {
    let holders = scene.holders.found();
    let found = holders.and_then(|holders| holders.iter().find(|holder| *holder.attachment.name == *other));
    match found {
        Some(holder) => held(scene, holder),
        None => Diagnosis::new(
            Case::WaitingForDetach,
            format!("the attach waits for the detach of VolumeAttachment {other}"),
        )
        .since(attachment.created),
    }
}
