//! The calls that move a volume, and where: ControllerPublishVolume, ControllerUnpublishVolume at each place, and at the places of
//! earlier tries.

use super::record::Recorded;
use super::step::{Call, CallEnd, Event, LeaseLost, Step, Take, View};
use super::{Attempt, DecisionInputs, FailureCause, Note, Phase, Publish, Verdict};
use crate::api::names::NOT_ATTACHED_AT_ANNOTATION;
use crate::decide::{
    self, Action, DetachWait, Failure, MAX_WHOLE_ERROR, OwnedVolumeOnNode, PublishRequest, ReleaseEvidence,
    UnpublishRequest, VolumeOnNode, command_word, cut, shown_handle,
};
use crate::objects::StringMap;

impl Attempt {
    pub(super) fn publish_volume(
        &mut self,
        view: &dyn View,
        inputs: &DecisionInputs,
        request: &PublishRequest<'_>,
    ) -> Step {
        let (uid, volume) = (&inputs.snapshot.attachment.uid, inputs.snapshot.volume.as_ref());
        let is_releasable = volume.is_some_and(|volume| volume.is_in_tree_without(&view.driver().name));
        if is_releasable && self.released_for.as_ref() != Some(uid) {
            // Only one whose in-tree plug-in is not migrated (any more) is released while it lives. From now on the VolumeAttachment,
            // which is in the cache, keeps it from being released.
            self.released_for = Some(uid.clone());
            self.phase = Phase::LiveRelease;
            return Step::AwaitLiveRelease;
        }
        if !request.former.is_empty() && !std::mem::replace(&mut self.is_retracted, true) {
            return self.retract(view, inputs, request, 0);
        }
        // Until the answer is on record, and what vanished meanwhile is taken back: whoever calls for this place next has to know of
        // it, and so has who attaches a volume that can be on one node only at another one.
        let alone = request.capability.mode.is_for_one_node() && inputs.detach_wait == DetachWait::Allowed;
        self.phase = Phase::Take;
        Step::Take(Take {
            places: vec![request.place.into()],
            publish: Some(alone),
        })
    }

    pub(super) fn places_taken(&mut self, view: &dyn View) -> Step {
        let Some(inputs) = self.inputs.clone() else {
            return self.end(Verdict::Failed);
        };
        match inputs.action(view) {
            Action::Publish(request) => {
                let place: OwnedVolumeOnNode = request.place.into();
                self.publish = Some(Publish {
                    snapshot: inputs.snapshot.clone(),
                    place: place.clone(),
                    secret: self.secret().cloned(),
                });
                self.phase = Phase::Published;
                self.call(Call::Publish(place))
            }
            Action::Unpublish(request) => {
                self.note(Note::Detaches(self.places.clone()));
                self.detach_from(view, &request, 0)
            }
            Action::JudgeRelease(_) => {
                self.phase = Phase::Evidence;
                Step::Evidence
            }
            _ => self.observe(view),
        }
    }

    /// The driver has answered to ControllerPublishVolume.
    pub(super) fn published(&mut self, view: &dyn View, answer: Result<StringMap, CallEnd>) -> Step {
        let context = match answer {
            Err(CallEnd::LeaseLost(lost)) => return self.lost_while_publishing(view, lost),
            Err(CallEnd::Failed(failure)) => return self.record_failure(view, failure, FailureCause::Other),
            Ok(context) => context,
        };
        match decide::check_publish_context(&context) {
            Ok(()) => self.record_published(view, context),
            // One that the API server can never store is a failure of the driver, to be seen by people.
            Err(failure) => {
                let failure = FailureCause::not_recorded(&failure.message);
                self.record_failure(view, failure, FailureCause::NotRecorded)
            }
        }
    }

    /// Takes a volume back from where earlier tries may have left it, from this number on. That this fails holds nothing up: the
    /// node may be gone for good, the driver knows better than we do whether the volume can be elsewhere, and the place stays noted
    /// for the detach.
    fn retract(&mut self, view: &dyn View, inputs: &DecisionInputs, request: &PublishRequest<'_>, from: usize) -> Step {
        self.places.clear();
        for (number, place) in request.former.iter().enumerate().skip(from) {
            // Another PersistentVolume of the same handle may be attached there.
            if view.is_wanted_by_another(&inputs.snapshot, *place) {
                continue;
            }
            let step = self.take(&[*place]);
            self.phase = Phase::Former {
                number,
                is_called: false,
            };
            return step;
        }
        self.observe_afresh(view)
    }

    pub(super) fn former_answered(&mut self, view: &dyn View, number: usize, is_called: bool, event: Event) -> Step {
        let place = self.places.first().cloned();
        match (event, place) {
            (Event::Taken, Some(place)) if !is_called => {
                self.phase = Phase::Former {
                    number,
                    is_called: true,
                };
                return self.call(Call::Unpublish { place, anew: false });
            }
            (Event::Called(answer), Some(place)) => {
                let error = answer.err().map(|end| match end {
                    CallEnd::Failed(failure) => failure.message,
                    CallEnd::LeaseLost(lost) => lost.to_string(),
                });
                self.note(Note::Retracted(place, error));
            }
            _ => {}
        }
        let Some(inputs) = self.inputs.clone() else {
            return self.end(Verdict::Failed);
        };
        match inputs.action(view) {
            Action::Publish(request) => self.retract(view, &inputs, &request, number + 1),
            _ => self.observe(view),
        }
    }

    /// Renews the claims that the detach voids, from this number on, and makes the first call after the last one.
    fn detach_from(&mut self, view: &dyn View, request: &UnpublishRequest<'_>, from: usize) -> Step {
        let renewal = self.renew(view, from, &request.renew);
        renewal.unwrap_or_else(|| self.unpublish_at(view, 0))
    }

    pub(super) fn renewed(&mut self, view: &dyn View, from: usize) -> Step {
        let inputs = self.inputs.clone();
        match inputs.as_ref().map(|inputs| inputs.action(view)) {
            Some(Action::Unpublish(request)) => self.detach_from(view, &request, from),
            _ => self.observe(view),
        }
    }

    /// Calls ControllerUnpublishVolume at the place of this number, or records that all places are free of the volume.
    fn unpublish_at(&mut self, view: &dyn View, number: usize) -> Step {
        if let Some(place) = self.places.get(number).cloned() {
            self.phase = Phase::Unpublished { number };
            return self.call(Call::Unpublish { place, anew: false });
        }
        if let Some((failure, cause)) = self.not_detached.take() {
            return self.record_failure(view, failure, cause);
        }
        let inputs = self.inputs.clone();
        if let Some(Action::Unpublish(request)) = inputs.as_ref().map(|inputs| inputs.action(view)) {
            for place in request.confirmed {
                self.note(Note::Confirmed(place.into()));
            }
        }
        self.note(Note::Detached);
        self.record(view, Recorded::Unpublished)
    }

    /// The driver has answered to ControllerUnpublishVolume at the place of this number. A refusal at one place keeps the volume at no
    /// other: the driver may refuse for ever, as the volume was never there. What may succeed later is waited for.
    pub(super) fn unpublished(&mut self, view: &dyn View, number: usize, answer: Result<StringMap, CallEnd>) -> Step {
        let Some(place) = self.places.get(number).cloned() else {
            return self.end(Verdict::Failed);
        };
        let answer = match answer {
            Err(CallEnd::LeaseLost(lost)) => return self.lease_lost(lost),
            Err(CallEnd::Failed(failure)) => Err(failure),
            Ok(_) => Ok(()),
        };
        match decide::unpublished(&self.policy, answer) {
            Ok(orphan) => {
                if let Some(orphan) = orphan {
                    self.note(Note::Orphaned(place, orphan));
                }
            }
            Err(failure) => {
                let is_refused = failure.code.is_some_and(decide::is_final);
                let current = self.places.first().unwrap_or(&place);
                let failed = if number > 0 {
                    let observed = self.observed(view);
                    let list = observed.and_then(|observed| decide::confirmation(&observed, place.borrow()));
                    let failure = of_former(&failure, &self.name, place.borrow(), current.borrow(), list.as_deref());
                    (failure, FailureCause::FormerNode)
                } else {
                    (failure, FailureCause::Other)
                };
                if !is_refused {
                    return self.record_failure(view, failed.0, failed.1);
                }
                self.not_detached.get_or_insert(failed);
            }
        }
        self.unpublish_at(view, number + 1)
    }

    /// The evidence about a request to release is there. The places are held until the finalizer is gone: a call that begins meanwhile
    /// could put the volume at the node again.
    pub(super) fn release_judged(
        &mut self,
        view: &dyn View,
        evidence: Result<Box<ReleaseEvidence>, LeaseLost>,
    ) -> Step {
        let evidence = match evidence {
            Ok(evidence) => evidence,
            Err(lost) => return self.lease_lost(lost),
        };
        let Some(inputs) = self.inputs.clone() else {
            return self.end(Verdict::Failed);
        };
        let observed = inputs.observed(view);
        let Action::JudgeRelease(plan) = inputs.action(view) else {
            return self.observe(view);
        };
        match decide::judge_release(&observed, &plan, &evidence) {
            Ok(basis) => self.release_on_request(view, &inputs, plan.request.words(), basis.words()),
            Err(refusal) => self.refuse_release(view, &inputs, refusal),
        }
    }
}

/// Bytes that the driver's words have at least before what a person can do.
const MIN_ANSWER: usize = 128;

/// A failure at a former place, which the driver may refuse for ever, with what a person can do about it: set the annotation to this list of
/// places. A command that has no room is left out.
fn of_former(
    failure: &Failure,
    name: &str,
    place: VolumeOnNode<'_>,
    current: VolumeOnNode<'_>,
    list: Option<&str>,
) -> Failure {
    let (id, handle) = (shown_handle(place.node_id), shown_handle(place.volume_id));
    let what = if place.node_id == current.node_id {
        format!("the PersistentVolume has another handle than was noted, and volume {handle} may be attached too")
    } else {
        format!("node ID {id} is a former one of the node")
    };
    let hint = |help: String| format!("; {what}: if the volume is not attached there, {help}");
    let annotation = NOT_ATTACHED_AT_ANNOTATION;
    let name = command_word(name, "NAME");
    let run = |list| format!("run kubectl annotate volumeattachment {name} {annotation}={list} --overwrite");
    let command = list.map(|list| hint(run(list)));
    let add = format!("add the place to annotation {annotation} of the VolumeAttachment");
    let hint = command
        .filter(|hint| hint.len() <= MAX_WHOLE_ERROR - MIN_ANSWER)
        .unwrap_or_else(|| hint(add));
    let message = cut(&failure.message, MAX_WHOLE_ERROR.saturating_sub(hint.len()));
    Failure {
        message: format!("{message}{hint}"),
        code: failure.code,
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::with_trace_id;
    use super::*;
    use crate::decide::MAX_ERROR_BYTES;
    use crate::findings::FailureNote;
    use crate::objects::Operation;
    use std::time::Duration;

    /// A command that is cut names another place, and a person may paste it.
    #[test]
    fn a_command_is_whole_or_left_out() {
        let (long, longest) = ("h".repeat(256), "h".repeat(2_000));
        let list = format!("{},worker-12", "i".repeat(160));
        let too_long = [&*list; 3].join(",");
        // Of the former place the handle and node ID, and what the annotation has to be set to.
        let rows = [
            ("handle", "worker-12", Some("worker-12"), true),
            ("handle", &*long, Some("ID"), true),
            ("handle", "worker-12", Some(&*list), true),
            ("handle", "worker-12", Some(&*too_long), false),
            ("handle", &*long, None, false),
            ("other", "id1", Some("other@id1"), true),
            (&*longest, "id1", Some("HANDLE@id1"), true),
            (&*longest, "id1", None, false),
        ];
        let current = VolumeOnNode::new("handle", "id1").unwrap();
        let failure = Failure::plain("no such instance".repeat(100));
        let (name, node) = (format!("csi-{}", "0".repeat(64)), "n".repeat(253));
        for (handle, node_id, list, is_shown) in rows {
            let place = VolumeOnNode::new(handle, node_id).unwrap();
            let told = of_former(&failure, &name, place, current, list).message;
            assert!(told.starts_with(&"no such instance".repeat(8)), "{told}");
            let end = if is_shown {
                let list = list.unwrap();
                format!(
                    "run kubectl annotate volumeattachment {name} attacher.csi.dev/not-attached-at={list} --overwrite"
                )
            } else {
                "add the place to annotation attacher.csi.dev/not-attached-at of the VolumeAttachment".to_owned()
            };
            assert!(told.ends_with(&end), "{told}");
            assert_eq!(told.contains("kubectl"), is_shown, "{told}");
            // Nor is it cut off by what others write beside it.
            let traced = with_trace_id(&Failure::plain(&*told), Some("0".repeat(32))).message;
            let event = FailureNote {
                volume: Some(&longest),
                attempt: 1_000,
                operation: Operation::Detach,
                node: &node,
                uncertain: false,
                delay: Duration::from_mins(5),
                message: &told,
            };
            let event = event.to_string();
            for text in [&*traced, &*event] {
                assert!(text.len() <= MAX_ERROR_BYTES && text.contains(&end), "{text}");
            }
        }
    }
}
