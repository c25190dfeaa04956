//! A PersistentVolume that is being deleted: what keeps it.

use csi_attacher_model::api::names::{FINALIZER_PREFIX, PROVISIONER_FINALIZER, finalizer_name};
use csi_attacher_model::decide::{self, KeepReason};
use csi_attacher_model::objects::{Attachment, Volume};
use std::sync::Arc;

use super::Case;
use super::report::{Chain, Diagnosis, ObjectName, Step, StepState, Verdict};
use super::service::{Service, orphan, service};
use super::steps::not_visible;
use crate::observed::{ConfigRecord, Lookup, Scene};

/// The finalizer that keeps a PersistentVolume while a claim is bound to it.
const PV_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Explains why a PersistentVolume that is being deleted is still there. None for one that is not.
pub fn volume_release(scene: &Scene) -> Option<Chain> {
    let volume = scene.volume.found().filter(|volume| volume.deleting)?;
    let mut steps = Vec::new();
    let object = ObjectName::cluster("PersistentVolume", &*volume.name);
    steps.push(Step::note(
        object.clone(),
        format!("is being deleted, and is kept by {}", volume.finalizers),
    ));
    let diagnosis = diagnosis(scene, volume, &mut steps);
    let state = if diagnosis.verdict == Verdict::Blocked {
        StepState::Blocked
    } else {
        StepState::Waiting
    };
    steps.push(Step::new(state, object, diagnosis.summary.clone()));
    Some(Chain {
        volume: scene.volume_name.clone(),
        node: None,
        driver: Some(scene.driver.name.clone()).filter(|name| !name.is_empty()),
        attachment: None,
        trace_id: None,
        steps,
        diagnosis: diagnosis.since(scene.volume_deleting),
    })
}

fn diagnosis(scene: &Scene, volume: &Volume, steps: &mut Vec<Step>) -> Diagnosis {
    let name = &volume.name;
    let attacher = volume.finalizers.iter().find(|held| held.starts_with(FINALIZER_PREFIX));
    let Some(finalizer) = attacher else {
        return by_others(scene, volume);
    };
    let Lookup::Found(naming) = &scene.naming else {
        return not_visible("VolumeAttachments could not be listed, and one may name the volume");
    };
    let facts = scene.driver.facts();
    if finalizer != finalizer_name(&scene.driver.name) {
        let summary = format!(
            "finalizer {finalizer} keeps the PersistentVolume, and it is not that of its driver {}",
            scene.driver.name
        );
        return Diagnosis::new(Case::OrphanFinalizer, summary).advise("find the attacher that set it");
    }
    let served = service(&scene.driver, scene.now);
    match decide::volume(volume, naming.len(), &facts) {
        Err(KeepReason::Attached) => attached(name, naming),
        Err(KeepReason::Live | KeepReason::NotProtected) => by_others(scene, volume),
        Ok(_) => {
            steps.push(served.step(&scene.driver));
            unserved(scene, name, finalizer, &served).unwrap_or_else(|| {
                Diagnosis::new(Case::Detaching, "no VolumeAttachment names the volume any more")
                    .next(format!("the attacher removes finalizer {finalizer} within moments"))
            })
        }
    }
}

fn unserved(scene: &Scene, name: &str, finalizer: &str, served: &Service) -> Option<Diagnosis> {
    let driver = &scene.driver.name;
    match served {
        Service::Nobody => {
            let summary =
                format!("finalizer {finalizer} keeps the PersistentVolume, and no attacher serves driver {driver}");
            Some(orphan(summary, driver, &format!("pv {name}")))
        }
        Service::Unknown => Some(not_visible("AttacherConfigs and Leases could not be read")),
        other => other.diagnosis(&scene.driver),
    }
}

fn attached(name: &str, naming: &[Arc<Attachment>]) -> Diagnosis {
    let all = naming.iter();
    let first = all.clone().min_by_key(|own| (own.deleting.is_some(), own.name.clone()));
    let names: Vec<String> = all.map(|own| format!("{} (node {})", own.name, own.node)).collect();
    let names = names.join(", ");
    let summary = format!("PersistentVolume {name} is kept until no VolumeAttachment names it: {names}");
    let diagnosis = Diagnosis::new(Case::VolumeInUse, summary)
        .since(naming.iter().filter_map(|own| own.deleting).min())
        .next("the attacher removes its finalizer when the last one is gone");
    match first {
        Some(first) => diagnosis.run(
            "follow the attachment",
            format!("kubectl attacher why va {}", first.name),
        ),
        None => diagnosis,
    }
}

/// Nothing of an attacher keeps the volume.
fn by_others(scene: &Scene, volume: &Volume) -> Diagnosis {
    let name = &volume.name;
    if volume.finalizers.contains(PV_PROTECTION)
        && let Some(claim) = &volume.claim
    {
        return Diagnosis::new(
            Case::VolumeInUse,
            format!("PersistentVolume {name} is kept until claim {}/{} is deleted", claim.namespace, claim.name),
        )
        .next("kube-controller-manager removes its finalizer when the claim is gone; the claim waits for the pods that use it")
        .advise(after_the_claim(scene.reclaim_policy.as_deref()))
        .run(
            "find out who uses the claim, and whether its data is needed",
            format!("kubectl describe pvc {} --namespace {}", claim.name, claim.namespace),
        );
    }
    let held = &volume.finalizers;
    let summary = format!("finalizer {held} keeps PersistentVolume {name}, and no attacher set it");
    let diagnosis = Diagnosis::new(Case::ForeignFinalizer, summary);
    let provisions = |config: &ConfigRecord| config.spec.as_ref().is_ok_and(|spec| spec.provisioning.is_some());
    if volume.finalizers.contains(PROVISIONER_FINALIZER) && scene.driver.config.found().is_some_and(provisions) {
        return diagnosis.run(
            "the operator provisions for the driver, and keeps the PersistentVolume until the disk is deleted; the Events say why \
             it is not",
            format!("kubectl describe pv {name}"),
        );
    }
    diagnosis.advise("check the controller that set it; external-provisioner sets its own until the disk is deleted")
}

/// What becomes of the data when the claim is deleted. `why` names no command that deletes: this decision is a person's.
fn after_the_claim(policy: Option<&str>) -> String {
    match policy {
        Some("Delete") => "as long as the claim exists, the data does: its reclaim policy is Delete, so whoever deletes the claim deletes \
             the disk; back the data up, or set persistentVolumeReclaimPolicy: Retain, before anything else"
            .to_owned(),
        Some(policy) => format!(
            "its reclaim policy is {policy}: the disk stays when the claim is deleted, without a PersistentVolume that names it"
        ),
        None => "read its persistentVolumeReclaimPolicy first: with Delete, whoever deletes the claim deletes the disk".to_owned(),
    }
}
