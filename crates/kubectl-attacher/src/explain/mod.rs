//! The pure part: what was observed goes in, an explanation comes out.
//!
//! What an attacher would do next and why is asked of the operator's own core ([`csi_attacher_model::decide`]), so that there is one
//! opinion. What kube-controller-manager does, which the operator never decides, is told here by its documented rules.

mod attach;
mod case;
mod decision;
mod detach;
mod holders;
mod last;
mod release;
mod report;
mod service;
mod steps;

#[cfg(test)]
pub(crate) mod tests;

pub use case::Case;
pub(crate) use decision::{finding_input, is_on_other_machine};
pub(crate) use detach::held_by_others;
pub(crate) use last::current_error;
pub use release::volume_release;
pub use report::{Advice, Chain, Diagnosis, Explanation, ObjectName, Step, StepState, Verdict};
pub use service::{Service, service, stalled};
pub use steps::node_steps;

use crate::observed::{Scene, is_settled};
use csi_attacher_model::api::names::TRACEPARENT_ANNOTATION;
use csi_attacher_model::objects::Attachment;

/// Explains where one volume stands on its way to, or from, one node.
pub fn chain(scene: &Scene) -> Chain {
    let mut steps = Vec::new();
    let diagnosis = walk(scene, &mut steps);
    Chain {
        volume: scene.volume_name.clone(),
        node: scene.node_name.clone(),
        driver: Some(scene.driver.name.clone()).filter(|name| !name.is_empty()),
        attachment: scene.attachment.found().map(|attachment| attachment.name.to_string()),
        trace_id: scene.attachment.found().and_then(|attachment| trace_id(attachment)),
        steps,
        diagnosis,
    }
}

/// The trace that the operator noted on an attachment (W3C Trace Context: version, trace, span, flags).
fn trace_id(attachment: &Attachment) -> Option<String> {
    let noted = attachment.trace_context.get(TRACEPARENT_ANNOTATION)?;
    let id = noted.split('-').nth(1)?;
    let is_id = id.len() == 32 && id.chars().all(|character| character.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

/// Goes along the way to the first step that does not hold.
fn walk(scene: &Scene, steps: &mut Vec<Step>) -> Diagnosis {
    let early = steps::ended_pod(scene, steps)
        .or_else(|| steps::pod(scene, steps))
        .or_else(|| steps::claim(scene, steps))
        .or_else(|| steps::volume(scene, steps))
        .or_else(|| steps::csi_driver(scene, steps));
    if let Some(diagnosis) = early {
        return diagnosis;
    }
    steps::node(scene, steps);
    let service = service(&scene.driver, scene.now);
    let mut served = service.step(&scene.driver);
    let (mut step, diagnosis) = attach::attachment(scene, &service);
    if served.state == StepState::Blocked {
        // One step blocks: what is behind it only waits for it, unless no attacher would go on with it either.
        let is_attached = scene.attachment.found().is_some_and(|own| is_settled(own));
        let is_of_others = is_attached || diagnosis.case == Case::ForeignFinalizer;
        if is_of_others || matches!(step.state, StepState::Done | StepState::Unknown) {
            served.state = StepState::Note;
        } else if step.state == StepState::Blocked {
            step.state = StepState::Waiting;
            "waits for an attacher".clone_into(&mut step.text);
        }
    }
    steps.push(served);
    steps.push(step);
    diagnosis
}
