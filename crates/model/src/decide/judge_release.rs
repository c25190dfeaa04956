//! Whether a request to let a VolumeAttachment go counts, and whether the evidence allows it: see `release_request.rs`.

use super::action::Action;
use super::attach::is_detaching;
use super::calls::VolumeOnNode;
use super::message::shown_error;
use super::observed::Observed;
use super::published_volume;
use super::release_request::{
    ListedEvidence, ReleaseAnswer, ReleaseBasis, ReleaseEvidence, ReleasePlan, ReleaseProof, ReleaseRefusal,
    ReleaseRequest, key, quoted,
};
use crate::objects::Attachment;

/// What a request on a VolumeAttachment that is being deleted asks for. None while the driver has not been asked to detach, when
/// there is no request, when it was answered, and when nothing is to be detached. One that has lost our finalizer is judged as any other.
pub(super) fn requested<'a>(observed: &Observed<'a>) -> Option<Action<'a>> {
    let attachment = observed.attachment;
    let note = attachment.release.as_deref()?;
    let answer = ReleaseAnswer::read(note.answer.as_deref());
    let is_answered = observed.release_answered || answer.is_some_and(|answer| answer.request == key(&note.request));
    if is_answered || !is_detaching(attachment, &observed.driver.finalizer) {
        return None;
    }
    let request = ReleaseRequest::read(&note.request).and_then(|request| {
        request.check("VolumeAttachment", &attachment.uid, attachment.deleting)?;
        Ok(request)
    });
    let request = match request {
        Ok(request) => request,
        Err(refusal) => return Some(Action::RefuseRelease(refusal)),
    };
    // Only what the driver was asked for and did not do needs a person.
    attachment.detach_error.as_ref()?;
    let (confirmed, places) = places(observed);
    Some(Action::JudgeRelease(ReleasePlan {
        request,
        places: confirmed.into_iter().chain(places).collect(),
    }))
}

/// Where the volume is not, as a person confirmed, and where it may be; nowhere when that is not known.
fn places<'a>(observed: &Observed<'a>) -> (Vec<VolumeOnNode<'a>>, Vec<VolumeOnNode<'a>>) {
    let known = published_volume::published_volume(observed.attachment, observed.volume)
        .and_then(|(volume_id, _)| published_volume::places(observed, volume_id));
    known.unwrap_or_default()
}

/// A place where the volume may be and for which the Node object, and so its out-of-service taint, does not speak: a node may have come
/// back under its name as another machine while the former one runs on.
pub fn on_other_machine<'a>(observed: &Observed<'a>) -> Option<VolumeOnNode<'a>> {
    let node_id = observed.node.registered().or(observed.attachment.node_id.as_deref());
    let (_, places) = places(observed);
    places.into_iter().find(|place| Some(place.node_id) != node_id)
}

/// The answer to the request on an attachment, as the annotation has it; none when there is no request.
///
/// It has to be read again, and an annotation that is longer than 4 KiB is not kept: of 200 bytes of a request, JSON makes 1,200 at most,
/// and of 1,024 bytes without control characters, 2,048.
pub fn release_answer(attachment: &Attachment, refusal: &ReleaseRefusal) -> Option<String> {
    let note = attachment.release.as_deref()?;
    let answer = ReleaseAnswer {
        request: key(&note.request),
        reason: refusal.reason().to_owned(),
        message: shown_error(&refusal.to_string()).into_owned(),
    };
    serde_json::to_string(&answer).ok()
}

/// Whether the evidence allows a release, and what it rests on.
///
/// What the driver lists is proof only for an attach that ended well: one that timed out may still be in progress at the driver, and
/// put the volume at the node after it was listed.
pub fn judge_release(
    observed: &Observed<'_>,
    plan: &ReleasePlan<'_>,
    evidence: &ReleaseEvidence,
) -> Result<ReleaseBasis, ReleaseRefusal> {
    plan.request.check_age(evidence.now)?;
    if let Some(other) = evidence.here.as_ref() {
        return Err(ReleaseRefusal::InUseOnNode(other.clone()));
    }
    if let Some(other) = published_volume::attachment_still_using(observed) {
        return Err(ReleaseRefusal::InUseOnNode(other.name.clone()));
    }
    let certain = observed.attachment.attached && observed.attachment.attach_error.is_none();
    let unproven = match &evidence.listed {
        ListedEvidence::At(node_id) => return Err(ReleaseRefusal::ListedAtNode(node_id.clone())),
        ListedEvidence::NotThere if certain && !plan.places.is_empty() => return Ok(ReleaseBasis::Listing),
        ListedEvidence::NotThere => {
            "the outcome of the attach is unknown, and a call may still be in progress".to_owned()
        }
        ListedEvidence::CannotList => "the driver cannot list where its volumes are attached".to_owned(),
        ListedEvidence::Failed(error) => format!("the driver did not list its volumes ({})", quoted(error)),
        ListedEvidence::Silent => "the driver does not list where the volume is attached".to_owned(),
        ListedEvidence::AtUnknown(node_id) => {
            let node_id = quoted(node_id);
            format!("the driver lists the volume at node ID {node_id}, which no CSINode has")
        }
        ListedEvidence::NotThereDoubtful(doubt) => doubt.words(),
    };
    match (plan.request.proof, &evidence.elsewhere) {
        (Some(ReleaseProof::OutOfServiceTaint), _) => match on_other_machine(observed) {
            Some(place) => Err(ReleaseRefusal::OtherMachine(quoted(place.node_id))),
            None => Ok(ReleaseBasis::OutOfServiceTaint),
        },
        (Some(ReleaseProof::Confirmed), None) => Ok(ReleaseBasis::Confirmed),
        (Some(ReleaseProof::Confirmed), Some(other)) => Err(ReleaseRefusal::AttachedElsewhere(other.clone())),
        (None, _) => Err(ReleaseRefusal::NoProof(unproven)),
    }
}
