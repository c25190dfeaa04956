//! The steps before the VolumeAttachment: pod, claim, volume, CSIDriver, node.

use csi_attacher_model::decide::replaced;
use csi_attacher_model::objects::Attachment;

use super::Case;
use super::report::{Diagnosis, ObjectName, Step, StepState};
use crate::observed::{ClaimRecord, Lookup, PodRecord, Scene};

/// What to do about a PersistentVolume that is gone.
const RESTORE: &str = "restore the PersistentVolume, or delete the claim and create it again";

/// A pod that ended needs no volume, whoever has it by now. Its own VolumeAttachment may be left over, also where one could not be read.
pub(super) fn ended_pod(scene: &Scene, steps: &mut Vec<Step>) -> Option<Diagnosis> {
    let pod = scene.pod.as_ref().filter(|pod| pod.is_over())?;
    let is_unread = scene.claim_name.is_some() && scene.claim.is_unknown()
        || scene.volume_name.is_some() && scene.volume.is_unknown()
        || scene.volume_name.is_some() && scene.attachment.is_unknown();
    if is_unread || scene.attachment.found().is_some() {
        return None;
    }
    let object = ObjectName::namespaced("Pod", &pod.namespace, &pod.name);
    let summary = format!("the pod has ended ({}) and needs no volume any more", pod.phase);
    steps.push(Step::done(object, summary.clone()));
    Some(Diagnosis::new(Case::NotUsed, summary))
}

/// The pod has a node.
pub(super) fn pod(scene: &Scene, steps: &mut Vec<Step>) -> Option<Diagnosis> {
    let pod = scene.pod.as_ref()?;
    let object = ObjectName::namespaced("Pod", &pod.namespace, &pod.name);
    let Some(node) = &pod.node else {
        let diagnosis = not_scheduled(scene, pod);
        steps.push(Step::new(StepState::Blocked, object, diagnosis.summary.clone()));
        if let (Some(name), Lookup::Found(claim)) = (&scene.claim_name, &scene.claim)
            && !claim.is_bound()
        {
            steps.push(Step::note(
                claim_object(name),
                "is not bound yet, which may be what the scheduler waits for",
            ));
        }
        return Some(diagnosis);
    };
    steps.push(if pod.deleting.is_some() {
        Step::note(object, format!("is being deleted on node {node}"))
    } else {
        Step::done(object, format!("is scheduled to node {node}"))
    });
    None
}

/// The command that shows a pod and its Events.
pub(super) fn describe(pod: &PodRecord) -> String {
    format!("kubectl describe pod {} --namespace {}", pod.name, pod.namespace)
}

fn not_scheduled(scene: &Scene, pod: &PodRecord) -> Diagnosis {
    let scheduled = pod.scheduled.clone().unwrap_or_default();
    let why = match (scheduled.reason.as_str(), scheduled.message.as_str()) {
        ("", "") => "the scheduler has not answered yet".to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    let unbound = matches!(&scene.claim, Lookup::Found(claim) if !claim.is_bound());
    let summary = format!("pod {}/{} is not scheduled to a node: {why}", pod.namespace, pod.name);
    let diagnosis = Diagnosis::new(Case::PodNotScheduled, summary)
        .since(scheduled.since.or(pod.created))
        .next("kube-controller-manager requests the attach when the pod has a node")
        .run("fix what the scheduler names", describe(pod));
    match (&scene.claim_name, unbound) {
        (Some(claim), true) => diagnosis.advise(format!(
            "claim {claim} has no PersistentVolume yet; the pod may wait for that"
        )),
        _ => diagnosis,
    }
}

fn claim_object(name: &str) -> ObjectName {
    match name.split_once('/') {
        Some((namespace, name)) => ObjectName::namespaced("PersistentVolumeClaim", namespace, name),
        None => ObjectName::cluster("PersistentVolumeClaim", name),
    }
}

/// The claim is there and bound. Whatever became of it, a VolumeAttachment that is there is what was asked about.
pub(super) fn claim(scene: &Scene, steps: &mut Vec<Step>) -> Option<Diagnosis> {
    let name = scene.claim_name.as_ref()?;
    let object = claim_object(name);
    let is_past = scene.attachment.found().is_some();
    let (text, diagnosis) = match &scene.claim {
        Lookup::Unknown => {
            steps.push(Step::unknown(object));
            let decides = scene.volume_name.is_none() && !is_past;
            return decides.then(|| not_visible("the claim could not be read"));
        }
        // A PersistentVolume may outlive its claim.
        Lookup::Missing if scene.volume_name.is_some() => {
            steps.push(Step::note(object, "does not exist any more"));
            return None;
        }
        Lookup::Missing => {
            let diagnosis = Diagnosis::new(Case::ClaimMissing, format!("claim {name} does not exist"))
                .since(scene.pod.as_ref().and_then(|pod| pod.created))
                .advise("create the claim; a generic ephemeral volume's claim is made by kube-controller-manager");
            ("does not exist".to_owned(), diagnosis)
        }
        Lookup::Found(claim) if claim.is_bound() => {
            let volume = claim.volume.as_deref().unwrap_or_default();
            steps.push(Step::done(object, format!("is bound to PersistentVolume {volume}")));
            return None;
        }
        Lookup::Found(claim) => {
            let diagnosis = if claim.is_lost() {
                lost(name, claim)
            } else {
                not_bound(name, claim)
            };
            (diagnosis.summary.clone(), diagnosis)
        }
    };
    let state = if is_past { StepState::Note } else { StepState::Blocked };
    steps.push(Step::new(state, object, text));
    (!is_past).then_some(diagnosis)
}

/// A claim is never bound again, whatever the provisioner does.
fn lost(name: &str, claim: &ClaimRecord) -> Diagnosis {
    let volume = claim.volume.as_deref().unwrap_or_default();
    let summary =
        format!("claim {name} is Lost: PersistentVolume {volume} does not exist, or is that of another claim");
    Diagnosis::new(Case::VolumeMissing, summary).advise(RESTORE)
}

fn not_bound(name: &str, claim: &ClaimRecord) -> Diagnosis {
    let (namespace, short) = name.split_once('/').unwrap_or(("", name));
    let class = match claim.storage_class.as_deref() {
        Some(class) if !class.is_empty() => format!("StorageClass {class}"),
        _ => "no StorageClass".to_owned(),
    };
    let phase = &claim.phase;
    let summary =
        format!("claim {name} is {phase} and has no PersistentVolume ({class}), so there is nothing to attach");
    Diagnosis::new(Case::ClaimNotBound, summary)
    .since(claim.created)
    .next("the provisioner, or kube-controller-manager, binds a PersistentVolume")
    .run(
        "check the provisioner: the operator where spec.provisioning of the driver's AttacherConfig is set, else external-provisioner",
        format!("kubectl describe pvc {short} --namespace {namespace}"),
    )
}

/// The volume is there and one of a CSI driver. Another one that has its name now leaves a VolumeAttachment as it is.
pub(super) fn volume(scene: &Scene, steps: &mut Vec<Step>) -> Option<Diagnosis> {
    let name = scene.volume_name.as_ref()?;
    let object = ObjectName::cluster("PersistentVolume", name);
    let is_past = scene.attachment.found().is_some();
    let (step, diagnosis) = match &scene.volume {
        Lookup::Unknown => (Step::unknown(object), None),
        Lookup::Missing if is_past => (Step::note(object, "does not exist any more"), None),
        Lookup::Missing => {
            let diagnosis = Diagnosis::new(Case::VolumeMissing, format!("PersistentVolume {name} does not exist"));
            let step = Step::new(StepState::Blocked, object, "does not exist");
            (step, Some(diagnosis.advise(RESTORE)))
        }
        Lookup::Found(volume) => match volume.spec.csi() {
            None => {
                let text = "is not a volume of a CSI driver";
                let summary = format!("PersistentVolume {name} {text}; no VolumeAttachment is made for it");
                let diagnosis = (!is_past).then(|| Diagnosis::new(Case::NotCsi, summary));
                (Step::note(object, text), diagnosis)
            }
            Some(source) => {
                let deleting = if volume.deleting { ", is being deleted" } else { "" };
                let text = format!("is volume {} of driver {}{deleting}", source.handle, source.driver);
                let other = published(scene).and_then(|own| Some((&own.name, replaced(own, volume)?.0)));
                let step = match other {
                    Some((own, other)) => Step::note(
                        object,
                        format!("{text}, and VolumeAttachment {own} is of volume {other}"),
                    ),
                    None if volume.deleting => Step::note(object, text),
                    None => Step::done(object, text),
                };
                (step, None)
            }
        },
    };
    steps.push(step);
    diagnosis
}

/// The VolumeAttachment, if it stands for what was published and not for what is to be.
fn published(scene: &Scene) -> Option<&Attachment> {
    let attachment = scene.attachment.found()?;
    (attachment.attached || attachment.deleting.is_some()).then_some(attachment)
}

/// The driver wants volumes to be attached.
pub(super) fn csi_driver(scene: &Scene, steps: &mut Vec<Step>) -> Option<Diagnosis> {
    let name = &scene.driver.name;
    let object = ObjectName::cluster("CSIDriver", name);
    let is_past = scene.attachment.found().is_some();
    steps.push(match &scene.driver.attach_required {
        Lookup::Found(true) => Step::done(object, "has attachRequired: true"),
        Lookup::Found(false) if is_past => Step::note(object, "has attachRequired: false"),
        Lookup::Found(false) => Step::done(object, "has attachRequired: false"),
        Lookup::Missing => Step::note(object, "does not exist; Kubernetes then attaches volumes of the driver"),
        Lookup::Unknown => Step::unknown(object),
    });
    if is_past || scene.driver.attach_required.found() != Some(&false) {
        return None;
    }
    let summary = format!(
        "CSIDriver {name} has attachRequired: false, so the volume is never attached; what the pod waits for is a mount"
    );
    let diagnosis = Diagnosis::new(Case::AttachNotRequired, summary);
    Some(match &scene.pod {
        Some(pod) => diagnosis.run(
            "if the pod does not start, read the kubelet's events (FailedMount)",
            describe(pod),
        ),
        None => diagnosis,
    })
}

/// What the node shows. It holds up nothing by itself: the decision says whether it does.
pub(super) fn node(scene: &Scene, steps: &mut Vec<Step>) {
    let Some(name) = &scene.node_name else { return };
    let tell = |text: &str| Step::note(ObjectName::cluster("Node", name), text);
    match &scene.node {
        Lookup::Found(node) => {
            steps.extend((!node.is_ready()).then(|| tell("is not Ready")));
            steps.extend(node.out_of_service.map(|_| tell("has the out-of-service taint")));
        }
        Lookup::Missing => steps.push(tell("does not exist")),
        Lookup::Unknown => {}
    }
    let object = ObjectName::cluster("CSINode", name);
    let driver = &scene.driver.name;
    steps.push(match &scene.csi_node {
        Lookup::Unknown => Step::unknown(object),
        Lookup::Missing => Step::note(object, "does not exist"),
        Lookup::Found(record) => match record.drivers.node_id(driver) {
            None => Step::note(object, format!("does not list driver {driver}")),
            Some(id) => {
                let used = match (scene.on_node, record.limits.get(driver)) {
                    (Some(used), Some(limit)) => format!(", {used} of {limit} volumes"),
                    _ => String::new(),
                };
                let text = format!("lists driver {driver} as {id}{used}");
                let published_at = published(scene).and_then(|attachment| attachment.node_id.as_deref());
                match published_at.filter(|published_at| *published_at != id) {
                    Some(other) => Step::note(object, format!("{text}, and the volume is attached to node ID {other}")),
                    None => Step::done(object, text),
                }
            }
        },
    });
}

/// What can be said of a node by itself.
pub fn node_steps(scene: &Scene) -> Vec<Step> {
    let Some(name) = &scene.node_name else {
        return Vec::new();
    };
    let object = ObjectName::cluster("Node", name);
    let tell = |text: &str| Step::note(object.clone(), text);
    let mut steps = match &scene.node {
        Lookup::Unknown => vec![Step::unknown(object.clone())],
        Lookup::Missing => vec![tell("does not exist")],
        Lookup::Found(node) if node.is_ready() => vec![Step::done(object.clone(), "is Ready")],
        Lookup::Found(_) => vec![tell("is not Ready")],
    };
    if let Lookup::Found(node) = &scene.node {
        steps.extend(node.unschedulable.then(|| tell("is cordoned")));
        steps.extend(node.out_of_service.map(|_| tell("has the out-of-service taint")));
    }
    let object = ObjectName::cluster("CSINode", name);
    steps.push(match &scene.csi_node {
        Lookup::Unknown => Step::unknown(object),
        Lookup::Missing => Step::note(object, "does not exist: no driver is registered on the node"),
        Lookup::Found(record) => {
            let drivers: Vec<&str> = record.drivers.drivers().collect();
            let drivers = if drivers.is_empty() {
                "no driver"
            } else {
                &drivers.join(", ")
            };
            Step::done(object, format!("lists {drivers}"))
        }
    });
    steps
}

/// The answer when an object that decides could not be read. What to do about that, its gaps say ([`super::Explanation::new`]).
pub(super) fn not_visible(what: &str) -> Diagnosis {
    Diagnosis::new(Case::NotVisible, format!("cannot tell: {what}"))
}
