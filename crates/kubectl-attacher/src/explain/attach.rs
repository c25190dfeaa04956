//! The VolumeAttachment: whether it is there, attached, or waits, and for what.

use csi_attacher_model::api::MAX_DURATION;
use csi_attacher_model::api::condition::{ConditionReason, ConditionType};
use csi_attacher_model::decide::{Refusal, grpc_code as codes, is_final};
use csi_attacher_model::findings::{DETACH_FOLLOWS, age};
use csi_attacher_model::objects::{Attachment, Operation, VolumeError};
use std::sync::Arc;
use std::time::Duration;

use super::decision::{NextStep, finding, in_use_elsewhere, next_step};
use super::last::{current_error, grpc_code, is_of_call, last_attempt, last_error, secret_error};
use super::report::{Diagnosis, ObjectName, Step, StepState, Verdict};
use super::service::{Service, is_served_by_sidecar};
use super::steps::{describe, not_visible};
use super::{Case, detach, holders};
use crate::observed::{ConfigRecord, Lookup, Scene};

/// The step of the VolumeAttachment, and the diagnosis that it leads to.
pub(super) fn attachment(scene: &Scene, service: &Service) -> (Step, Diagnosis) {
    let found = scene.attachment.found();
    let name = found.map_or("<none>", |attachment| &*attachment.name);
    let object = ObjectName::cluster("VolumeAttachment", name);
    let diagnosis = match &scene.attachment {
        Lookup::Unknown => not_visible("VolumeAttachments could not be read"),
        Lookup::Missing => holders::without_attachment(scene),
        Lookup::Found(attachment) if attachment.deleting.is_some() => detach::diagnosis(scene, attachment, service),
        Lookup::Found(attachment) if attachment.attached => attached(scene, attachment),
        Lookup::Found(attachment) => pending(scene, attachment, service),
    };
    let state = match diagnosis.verdict {
        Verdict::Healthy => StepState::Done,
        Verdict::InProgress => StepState::Waiting,
        Verdict::Unknown => StepState::Unknown,
        Verdict::Blocked => StepState::Blocked,
    };
    (Step::new(state, object, diagnosis.summary.clone()), diagnosis)
}

fn attached(scene: &Scene, attachment: &Attachment) -> Diagnosis {
    let node = &attachment.node;
    if let Some((case, text)) = finding(scene, attachment) {
        return inconsistent(scene, attachment, Diagnosis::new(case, text));
    }
    let diagnosis = Diagnosis::new(Case::Attached, format!("the volume is attached to node {node}"));
    match &scene.pod {
        Some(pod) if pod.phase == "Pending" && pod.deleting.is_none() => diagnosis.run(
            "the attacher has done its part; if the pod does not start, read the kubelet's events (FailedMount)",
            describe(pod),
        ),
        _ => diagnosis,
    }
}

/// What is attached is not what its objects say now: what to do about a finding of the operator.
fn inconsistent(scene: &Scene, attachment: &Attachment, diagnosis: Diagnosis) -> Diagnosis {
    let node = &attachment.node;
    if diagnosis.case == Case::AttachedTwice
        && let Some(other) = in_use_elsewhere(scene, attachment)
    {
        return diagnosis
            .since(other.created)
            .next(
                "nothing while pods on both nodes use the volume: kube-controller-manager requests a detach only \
                 from a node without them",
            )
            .run(
                "find out which node has it in use, and delete the VolumeAttachment of the other one",
                format!("kubectl attacher why va {}", other.name),
            );
    }
    let diagnosis = diagnosis.since(attachment.created);
    let diagnosis = match diagnosis.case {
        Case::DriverNotOnNode => {
            let waiting = diagnosis.next("nothing, until the kubelet registers the driver on the node");
            check_node_plugin(scene, node, waiting)
        }
        // After a restart kube-controller-manager knows these only from a Node that lists them.
        Case::InlineLeftOver | Case::VolumeMissing | Case::LeftOver if scene.node.is_missing() => diagnosis
            .next("nothing, if kube-controller-manager was restarted since the Node is gone: then no controller resolves this"),
        _ => diagnosis.next(DETACH_FOLLOWS),
    };
    diagnosis.run(
        "find out whether a pod on the node uses the volume; if none does and the VolumeAttachment stays, deleting it \
         requests the detach",
        format!("kubectl get pods --all-namespaces --field-selector spec.nodeName={node}"),
    )
}

/// Without the driver's pod on the node, the kubelet does not register the driver.
fn check_node_plugin(scene: &Scene, node: &str, diagnosis: Diagnosis) -> Diagnosis {
    diagnosis.advise(format!(
        "check the pod of driver {}'s node plugin (DaemonSet) on node {node}",
        scene.driver.name
    ))
}

/// What the attacher does next with an attachment, or why it cannot do anything.
pub(super) fn possible_step(
    scene: &Scene,
    attachment: &Arc<Attachment>,
    service: &Service,
) -> Result<NextStep, Box<Diagnosis>> {
    let with_errors = |diagnosis| Box::new(with_errors(scene, attachment, diagnosis));
    if let Some(problem) = service.diagnosis(&scene.driver) {
        return Err(with_errors(problem));
    }
    match next_step(scene, attachment) {
        None => Err(with_errors(not_visible(
            "the PersistentVolume or the CSINode could not be read",
        ))),
        Some(NextStep::Refuse(refusal)) => Err(Box::new(refused(scene, attachment, &refusal))),
        Some(next) => Ok(next),
    }
}

/// An attach that has not ended.
fn pending(scene: &Scene, attachment: &Arc<Attachment>, service: &Service) -> Diagnosis {
    let next = match possible_step(scene, attachment, service) {
        Ok(next) => next,
        Err(diagnosis) => return *diagnosis,
    };
    if let NextStep::AwaitDetach(other) = &next {
        return holders::awaits(scene, attachment, other);
    }
    if let Some(diagnosis) = secret(scene, attachment) {
        return diagnosis;
    }
    match current_error(attachment) {
        Some(error) => {
            // The volume is published to another node (CSI spec, "ControllerPublishVolume Errors").
            if grpc_code(error) == Some(codes::FAILED_PRECONDITION)
                && let Some(diagnosis) = holders::refused_for_holder(scene, &error.message)
            {
                return diagnosis;
            }
            let diagnosis = match grpc_code(error) {
                Some(codes::RESOURCE_EXHAUSTED) => limit(scene, attachment),
                Some(code) if !is_final(code) => uncertain(scene, attachment),
                _ => beside_driver(scene, attachment, error).unwrap_or_else(|| failing(scene, attachment)),
            };
            with_next(with_errors(scene, attachment, diagnosis), &next)
        }
        None => with_next(not_failed(scene, attachment, service), &next),
    }
}

/// Adds what is known of errors and attempts.
pub(super) fn with_errors(scene: &Scene, attachment: &Attachment, mut diagnosis: Diagnosis) -> Diagnosis {
    let operation = Operation::of(attachment);
    diagnosis.last_error = last_error(attachment);
    if diagnosis.last_error.is_some() {
        diagnosis.last_attempt = last_attempt(&scene.events, operation);
    }
    diagnosis.since = diagnosis.since.or(attachment.pending_since());
    diagnosis
}

/// Adds what the attacher does next.
pub(super) fn with_next(diagnosis: Diagnosis, next: &NextStep) -> Diagnosis {
    if diagnosis.next.is_some() {
        return diagnosis;
    }
    match next {
        NextStep::Call(call) => diagnosis.next(format!("the attacher calls {call}")),
        NextStep::Begin => diagnosis.next("the attacher puts its finalizer on the objects, and then calls the driver"),
        NextStep::Release => diagnosis.next("the attacher removes its finalizer, and the object is deleted"),
        NextStep::AnswerRequest => diagnosis.next("the operator answers the request to release the VolumeAttachment"),
        NextStep::Nothing | NextStep::AwaitDetach(_) | NextStep::Refuse(_) => diagnosis,
    }
}

/// That it is tried again; and the command that does so at once, which a sidecar does not obey.
pub(super) fn retries(diagnosis: Diagnosis, scene: &Scene, first: &str, attachment: &Attachment) -> Diagnosis {
    let text = format!("{first}the attacher retries by itself");
    if is_served_by_sidecar(&scene.driver, scene.now) {
        return diagnosis.advise(text);
    }
    diagnosis.run(
        format!("{text}, and immediately with"),
        format!("kubectl attacher retry {}", attachment.name),
    )
}

/// A failure that is not an answer of the driver, which mostly was not asked at all: a webhook, the Lease or an object is to blame.
pub(super) fn beside_driver(scene: &Scene, attachment: &Attachment, error: &VolumeError) -> Option<Diagnosis> {
    if is_of_call(error) {
        return None;
    }
    let (node, driver) = (&attachment.node, &scene.driver.name);
    let (case, what) = match Operation::of(attachment) {
        Operation::Attach => (Case::AttachFailing, format!("attach to node {node}")),
        Operation::Detach => (Case::DetachFailing, format!("detach from node {node}")),
    };
    let summary = format!("the {what} fails, and the error is not an answer of driver {driver}");
    let diagnosis = Diagnosis::new(case, summary);
    Some(retries(diagnosis, scene, "follow the message; ", attachment))
}

fn failing(scene: &Scene, attachment: &Attachment) -> Diagnosis {
    let (driver, node) = (&scene.driver.name, &attachment.node);
    let summary = format!("driver {driver} refuses to attach the volume to node {node}");
    let diagnosis = Diagnosis::new(Case::AttachFailing, summary);
    retries(diagnosis, scene, "follow the driver's message; ", attachment)
}

fn uncertain(scene: &Scene, attachment: &Attachment) -> Diagnosis {
    let summary = format!(
        "the last call to attach the volume to node {} did not end in time or was cut off: the volume may be attached",
        attachment.node
    );
    let diagnosis = Diagnosis::new(Case::AttachUncertain, summary);
    let slow = "if calls take longer than their deadline, raise it";
    let diagnosis = match scene.driver.config_in_use(scene.now) {
        _ if is_served_by_sidecar(&scene.driver, scene.now) => {
            diagnosis.advise(format!("{slow}: --timeout of the sidecar"))
        }
        Lookup::Missing => diagnosis.advise(format!("{slow}: --timeout of the operator in place of the sidecar")),
        Lookup::Found(ConfigRecord {
            name, spec: Ok(spec), ..
        }) => match raise_publish(name, spec.timeouts.publish) {
            Some(command) => diagnosis.run(slow, command),
            None => diagnosis,
        },
        Lookup::Found(_) | Lookup::Unknown => {
            diagnosis.advise(format!("{slow}: spec.timeouts.publish of the AttacherConfig"))
        }
    };
    retries(diagnosis, scene, "", attachment)
}

/// The command that doubles the deadline, in whole seconds, as far as the API server takes that; none where it is the longest already.
fn raise_publish(config: &str, timeout: Duration) -> Option<String> {
    let seconds = timeout.saturating_mul(2).min(MAX_DURATION).as_secs().max(1);
    let patch = format!("{{\"spec\":{{\"timeouts\":{{\"publish\":\"{seconds}s\"}}}}}}");
    (timeout < MAX_DURATION).then(|| format!("kubectl patch atc {config} --type=merge -p '{patch}'"))
}

fn limit(scene: &Scene, attachment: &Attachment) -> Diagnosis {
    let (driver, node) = (&scene.driver.name, &attachment.node);
    let known = scene.csi_node.found();
    let known = known.and_then(|record| record.limits.get(driver));
    let count = match (scene.on_node, known) {
        (Some(used), Some(limit)) => format!(" ({used} VolumeAttachments, its limit is {limit})"),
        (Some(used), None) => format!(" ({used} VolumeAttachments, its CSINode has no limit)"),
        _ => String::new(),
    };
    let summary = format!("node {node} takes no more volumes of driver {driver}{count}");
    let diagnosis = Diagnosis::new(Case::AttachLimit, summary).run(
        "move pods to other nodes; see how many volumes the node takes",
        format!("kubectl get csinode {node} -o yaml"),
    );
    retries(diagnosis, scene, "", attachment)
}

/// What stops before the driver is asked.
pub(super) fn refused(scene: &Scene, attachment: &Attachment, refusal: &Refusal) -> Diagnosis {
    let node = &attachment.node;
    let diagnosis = |case| Diagnosis::new(case, refusal.to_string());
    let diagnosis = match refusal {
        Refusal::NodeNotFound(_) | Refusal::DriverNotOnNode { .. } => {
            let next = "the attach continues as soon as the kubelet registers the driver on the node";
            check_node_plugin(scene, node, diagnosis(Case::DriverNotOnNode).next(next))
        }
        Refusal::VolumeDeleting(name) => holders::volume_deleting(refusal.to_string(), name),
        Refusal::VolumeNotFound(name) => Diagnosis::new(
            Case::VolumeMissing,
            format!(
                "PersistentVolume {name} does not exist, and nothing on the VolumeAttachment says what was attached"
            ),
        )
        .advise("restore the PersistentVolume"),
        Refusal::SecretNotAllowed { secret, .. } => diagnosis(Case::SecretNotAllowed).run(
            format!(
                "add the entry if the driver may have Secret {}/{}",
                secret.namespace, secret.name
            ),
            scene
                .driver
                .config
                .found()
                .map_or_else(String::new, |config| format!("kubectl edit atc {}", config.name)),
        ),
        Refusal::Leaving(_) => {
            diagnosis(Case::ConfigDeleting).advise("create another AttacherConfig for the driver, which takes over")
        }
        Refusal::CapabilityLost(_) => {
            diagnosis(Case::CapabilityLost).advise("check that spec.endpoint is that of the driver's controller plugin")
        }
        Refusal::SharedOnNode { attachment: other, .. } => Diagnosis::new(
            Case::Refused,
            format!(
                "VolumeAttachment {other} has the same volume on node {node} in use; a detach now would remove it there"
            ),
        )
        .next("the detach follows when the other VolumeAttachment is not in use any more")
        .run(
            "find out who needs the other VolumeAttachment",
            format!("kubectl attacher why va {other}"),
        ),
        _ => diagnosis(Case::Refused).advise("fix the object that the message names"),
    };
    with_errors(scene, attachment, diagnosis)
}

/// A publish secret that is missing or that may not be read.
pub(super) fn secret(scene: &Scene, attachment: &Attachment) -> Option<Diagnosis> {
    let told = secret_error(current_error(attachment));
    let (reference, looked) = match &scene.secret {
        Some((reference, looked)) => (Some(reference), looked),
        None => (None, &Lookup::Unknown),
    };
    let is_missing = match (looked, told) {
        // The last error may be older than the Secret: only the Secret itself says that it is missing.
        (Lookup::Missing, _) | (Lookup::Unknown, Some(Case::SecretMissing)) => true,
        (_, Some(Case::SecretForbidden)) => false,
        _ => return None,
    };
    let name = reference.map_or_else(
        || "of the volume".to_owned(),
        |secret| format!("{}/{}", secret.namespace, secret.name),
    );
    let diagnosis = if is_missing {
        let summary = format!("Secret {name}, which the volume names for the driver's calls, does not exist");
        Diagnosis::new(Case::SecretMissing, summary)
            .next("the attacher continues when the Secret is there")
            .advise(format!(
                "create Secret {name}, or fix controllerPublishSecretRef of the StorageClass and the volume"
            ))
    } else {
        let summary = format!(
            "the attacher has no permission to read Secret {name}, which the volume names for the driver's calls"
        );
        Diagnosis::new(Case::SecretForbidden, summary)
            .next("the attacher continues when the permission is there")
            .advise("create the Role and RoleBinding that the last error names")
    };
    Some(with_errors(scene, attachment, diagnosis))
}

/// Neither attached nor failed.
fn not_failed(scene: &Scene, attachment: &Attachment, service: &Service) -> Diagnosis {
    let finalizer = scene.driver.facts().finalizer;
    let began = attachment.finalizers.contains(&finalizer);
    if !began && let Some(diagnosis) = saturated(scene, attachment, "attach") {
        return diagnosis;
    }
    let waited = age(attachment.created.unwrap_or(scene.now), scene.now);
    let patience = scene.stuck_after * if began { 2 } else { 1 };
    let node = &attachment.node;
    let diagnosis = if waited <= patience {
        let what = if began {
            "the call to the driver is running or about to"
        } else {
            "the attacher has not begun"
        };
        Diagnosis::new(
            Case::Attaching,
            format!("the volume is being attached to node {node}: {what}"),
        )
    } else if *service == Service::Unknown {
        not_visible(
            "AttacherConfigs and Leases could not be read, and the attacher shows neither progress nor an error",
        )
    } else {
        let what = if began {
            "has not ended and has no error"
        } else {
            "has not begun"
        };
        let diagnosis = Diagnosis::new(Case::AttachStuck, format!("the attach to node {node} {what}"));
        retries(diagnosis, scene, "read the attacher's log; ", attachment)
    };
    diagnosis.since(attachment.created)
}

/// That a limit of the configuration holds work up, as the condition Saturated says.
pub(super) fn saturated(scene: &Scene, attachment: &Attachment, operation: &str) -> Option<Diagnosis> {
    let config = *scene.driver.config_in_use(scene.now).found()?;
    let condition = config.condition(ConditionType::Saturated)?;
    let mut of_attaching = ConditionReason::ATTACHING_SATURATED.iter();
    if condition.status != "True" || !of_attaching.any(|reason| reason.as_str() == condition.reason) {
        return None;
    }
    let (reason, message) = (condition.reason, condition.message);
    let summary = format!("the {operation} waits for its turn: {reason}: {message}");
    let diagnosis = Diagnosis::new(Case::LaneSaturated, summary)
        .since(attachment.pending_since())
        .next("it starts when a running call ends")
        .run(
            "raise the limit of spec.concurrency if the backend can handle it",
            format!("kubectl edit atc {}", config.name),
        );
    Some(diagnosis)
}
