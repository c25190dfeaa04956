//! A VolumeAttachment that is being deleted: what keeps it.

use csi_attacher_model::api::names::{FINALIZER_PREFIX, finalizer_name};
use csi_attacher_model::decide::{ReleaseAnswer, grpc_code as codes, is_detaching};
use csi_attacher_model::findings::age;
use csi_attacher_model::objects::Attachment;
use std::sync::Arc;

use super::Case;
use super::attach::{beside_driver, possible_step, retries, saturated, secret, with_errors, with_next};
use super::last::{current_error, grpc_code};
use super::report::Diagnosis;
use super::service::{Service, is_served_by_sidecar, orphan};
use crate::observed::{Lookup, Scene};

/// Where the detach stands.
pub(super) fn diagnosis(scene: &Scene, attachment: &Arc<Attachment>, service: &Service) -> Diagnosis {
    if let Some(diagnosis) = held_by_others(attachment) {
        return diagnosis;
    }
    if *service == Service::Nobody {
        let ours = finalizer_name(&attachment.attacher);
        return with_errors(scene, attachment, unserved(attachment, &ours, &scene.driver.name));
    }
    let next = match possible_step(scene, attachment, service) {
        Ok(next) => next,
        Err(diagnosis) => return *diagnosis,
    };
    if let Some(diagnosis) = secret(scene, attachment) {
        return diagnosis;
    }
    let diagnosis = match current_error(attachment) {
        Some(error) => match beside_driver(scene, attachment, error) {
            Some(diagnosis) => with_refusal(attachment, diagnosis),
            None => failing(scene, attachment, grpc_code(error)),
        },
        None => not_failed(scene, attachment),
    };
    with_next(with_errors(scene, attachment, diagnosis), &next)
}

/// What keeps a VolumeAttachment that is being deleted and of which an attacher of its driver has nothing to detach; none of any other one.
pub(crate) fn held_by_others(attachment: &Attachment) -> Option<Diagnosis> {
    if attachment.deleting.is_none() || is_detaching(attachment, &finalizer_name(&attachment.attacher)) {
        return None;
    }
    let diagnosis = match attachment.finalizers.iter().next() {
        None => Diagnosis::new(Case::Detaching, "the VolumeAttachment is about to be gone"),
        Some(first) => foreign(attachment, first),
    };
    Some(diagnosis.since(attachment.deleting))
}

fn foreign(attachment: &Attachment, first: &str) -> Diagnosis {
    let all = &attachment.finalizers;
    if first.starts_with(FINALIZER_PREFIX) {
        let driver = &attachment.attacher;
        let summary = format!("finalizer {all} keeps the VolumeAttachment, and it is not that of its driver {driver}");
        Diagnosis::new(Case::OrphanFinalizer, summary)
            .advise("find the attacher that set it; check that the driver was not renamed")
    } else {
        let summary = format!("the volume is detached, and finalizer {all} keeps the VolumeAttachment");
        Diagnosis::new(Case::ForeignFinalizer, summary)
            .advise(format!("check the controller that set finalizer {first}"))
    }
}

/// The finalizer of a driver that nobody serves.
fn unserved(attachment: &Attachment, finalizer: &str, driver: &str) -> Diagnosis {
    let kept = |by: &str| {
        let node = &attachment.node;
        format!(
            "{by} keeps the VolumeAttachment, and no attacher serves driver {driver}: nobody detaches the volume from node {node}"
        )
    };
    if attachment.finalizers.contains(finalizer) {
        let summary = kept(&format!("finalizer {finalizer}"));
        return orphan(summary, driver, &format!("va {}", attachment.name)).since(attachment.deleting);
    }
    // Somebody took ours off before the detach.
    Diagnosis::new(Case::OrphanFinalizer, kept(&attachment.finalizers.to_string()))
        .next("nothing, until an attacher serves the driver")
        .advise(format!("have driver {driver} served again by an AttacherConfig"))
        .since(attachment.deleting)
}

fn failing(scene: &Scene, attachment: &Attachment, code: Option<i32>) -> Diagnosis {
    let (driver, node) = (&scene.driver.name, &attachment.node);
    let summary = format!("driver {driver} does not confirm that the volume is detached from node {node}");
    let diagnosis = Diagnosis::new(Case::DetachFailing, summary);
    let diagnosis = match (code, scene.driver.config_in_use(scene.now)) {
        (Some(codes::NOT_FOUND), Lookup::Found(config)) => diagnosis.run(
            "if NotFound means detached for this driver, say so",
            format!(
                "kubectl patch atc {} --type=merge -p '{{\"spec\":{{\"orphanPolicy\":\"TreatNotFoundAsDetached\"}}}}'",
                config.name
            ),
        ),
        _ => retries(diagnosis, scene, "fix the driver or its backend; ", attachment),
    };
    let diagnosis = with_refusal(attachment, diagnosis);
    if is_served_by_sidecar(&scene.driver, scene.now) {
        return diagnosis;
    }
    diagnosis.run(
        "if the detach can never finish, show the evidence and ask for a release",
        format!("kubectl attacher release va {}", attachment.name),
    )
}

/// Adds what the operator answered to a request to release it.
fn with_refusal(attachment: &Attachment, diagnosis: Diagnosis) -> Diagnosis {
    let refused = attachment.release.as_ref().and_then(|note| note.answer.as_deref());
    match ReleaseAnswer::read(refused) {
        Some(answer) => diagnosis.advise(format!("a release was refused: {}: {}", answer.reason, answer.message)),
        None => diagnosis,
    }
}

fn not_failed(scene: &Scene, attachment: &Attachment) -> Diagnosis {
    if let Some(diagnosis) = saturated(scene, attachment, "detach") {
        return diagnosis;
    }
    let node = &attachment.node;
    let deleted = attachment.deleting.unwrap_or(scene.now);
    if age(deleted, scene.now) <= scene.stuck_after * 2 {
        let summary = format!("the volume is being detached from node {node}");
        return Diagnosis::new(Case::Detaching, summary).since(attachment.deleting);
    }
    let summary = format!("the detach from node {node} has neither ended nor failed");
    let diagnosis = Diagnosis::new(Case::DetachStuck, summary).since(attachment.deleting);
    retries(diagnosis, scene, "read the attacher's log; ", attachment)
}
