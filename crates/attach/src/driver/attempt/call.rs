//! The two calls that move a volume, and what surrounds them: one call at a time for a volume and node, places of earlier
//! tries, the compensation of a Publish that nobody wants any more.

use super::super::shared_context::SharedContext;
use super::cause::FailureCause;
use super::detach_waits::longest_hold;
use super::in_flight::{CallInFlight, InFlightGuard};
use super::publish_guard::PublishGuard;
use super::state::{Attempt, FailureNote, StepResult};
use super::undo::{self, UndoRun};
use super::{events, report};
use crate::api::names::NOT_ATTACHED_AT_ANNOTATION;
use crate::api::validated::Timeouts;
use crate::cache::Snapshot;
use crate::csi::{ControllerPublishVolume, ControllerUnpublishVolume, mode_name};
use crate::decide::{
    self, DetachWait, Failure, MAX_ERROR_BYTES, Neighbours, Observed, Outcome, PublishRequest, UnpublishRequest,
    VolumeAccessType, VolumeOnNode, cut, patch,
};
use crate::objects::{Attachment, StringMap};
use crate::queue::RunResult;
use crate::telemetry::names::attr;
use crate::traces::PublishParameters;
use csi_attacher_runtime::fence::{CallFailure, LeaseLost};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Attempt<'_> {
    /// Calls ControllerPublishVolume and records the answer.
    pub(in crate::driver) async fn publish(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        plan: &PublishRequest<'_>,
    ) -> StepResult {
        if !plan.former.is_empty() && !std::mem::replace(&mut self.retracted, true) {
            for place in &plan.former {
                self.unpublish_former(snapshot, *place).await;
            }
            // That took a while; the attachment may be one to be detached by now.
            return StepResult::Continue;
        }
        let place = plan.place;
        // Kept until the answer is on record, and what vanished meanwhile is taken back: the next call for this place has
        // to know of it, and so has who attaches a volume that can be on one node only at another one.
        let alone = plan.capability.mode.is_for_one_node() && observed.detach_wait == DetachWait::Allowed;
        let taken = self
            .work
            .in_flight
            .begin_publish(place, &snapshot.attachment.name, alone);
        let guard = match taken {
            Ok(guard) => PublishGuard::new(self.work, guard, snapshot, place, self.secrets.clone()),
            Err(occupied) => return self.wait_for_other_call(snapshot, occupied),
        };
        let deadline = self.timeouts().publish;
        let client = self.client.clone();
        self.span.set(attr::TIMEOUT, deadline);
        self.log_call("ControllerPublishVolume", snapshot, place, deadline);
        self.keep_publish_parameters(plan);
        let call = ControllerPublishVolume {
            request: plan,
            secrets: self.secrets.as_ref(),
        };
        let answer = client.call(&call, deadline, &self.span).await;
        let answer = match answer {
            Err(CallFailure::Lease(lost)) => return self.end_without_lease(snapshot, lost),
            Err(CallFailure::Driver(error)) => Err(Failure::from(&error)),
            Ok(context) => checked(context),
        };
        let (step, is_on_record, may_be_unseen) = match answer {
            Ok(context) => {
                let step = self.record_published(snapshot, observed, context).await;
                let is_on_record = matches!(step, StepResult::Continue | StepResult::Finish(RunResult::Done));
                (step, is_on_record, !is_on_record)
            }
            Err(failure) => {
                let refused = failure.code.is_some_and(decide::is_final);
                let step = self
                    .record_failure(snapshot, observed, failure, FailureCause::Other)
                    .await;
                // A failure that was not to be written is tried again: a driver that fails for thousands must not cost the API
                // server a read for each of the writes that it is spared.
                let may_be_unseen = self.noted == FailureNote::Failed && !refused;
                (step, self.noted == FailureNote::Written, may_be_unseen)
            }
        };
        undo::unpublish_if_deleted(guard, &self.span, &self.calls, !may_be_unseen, UndoRun::OfQueue).await;
        // What the driver refused says nothing of a record before that was not answered.
        if is_on_record {
            self.work.context.unfinished.end_record(&snapshot.attachment);
        }
        step
    }

    /// Records the success of a Publish. Until the API server has answered, a pod may use the volume.
    async fn record_published(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        context: StringMap,
    ) -> StepResult {
        let SharedContext { store, unfinished, .. } = &self.work.context;
        let exists = |name: &str| store.attachment(name).is_some();
        self.may_be_on_record = unfinished.begin_record(&snapshot.attachment, exists);
        let step = self
            .record_success(snapshot, observed, &Outcome::Published(context))
            .await;
        if !self.may_be_on_record {
            unfinished.end_record(&snapshot.attachment);
        }
        step
    }

    /// Calls ControllerUnpublishVolume for each place and records that all are free of the volume.
    pub(in crate::driver) async fn unpublish(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        plan: &UnpublishRequest<'_>,
    ) -> StepResult {
        events::node_gone(self, snapshot, &plan.places);
        // The places that were taken are free again when another one is occupied: that other call may be waiting for them.
        let places = plan.places.iter().map(|place| self.work.in_flight.acquire(*place));
        let _guards: Vec<InFlightGuard> = match places.collect() {
            Ok(guards) => guards,
            Err(occupied) => return self.wait_for_other_call(snapshot, occupied),
        };
        for other in &plan.renew {
            if !self.work.client().may_start() {
                return self.end_without_lease(snapshot, LeaseLost::NotStarted);
            }
            if let Some(step) = self.renew_claim(snapshot, observed, other).await {
                return step;
            }
        }
        let deadline = self.timeouts().unpublish;
        self.span.set(attr::TIMEOUT, deadline);
        for place in &plan.places {
            let client = self.client.clone();
            self.log_call("ControllerUnpublishVolume", snapshot, *place, deadline);
            let call = ControllerUnpublishVolume {
                place: *place,
                secrets: self.secrets.as_ref(),
            };
            let answer = match client.call(&call, deadline, &self.span).await {
                Err(CallFailure::Lease(lost)) => return self.end_without_lease(snapshot, lost),
                Err(CallFailure::Driver(error)) => Err(Failure::from(&error)),
                Ok(()) => Ok(()),
            };
            match decide::unpublished(observed.policy, answer) {
                Ok(None) => {}
                Ok(Some(orphan)) => report::report_orphaned(self, snapshot, *place, &orphan),
                Err(failure) => {
                    let former = plan.places.first() != Some(place);
                    let (failure, cause) = if former {
                        let failure = of_former(&failure, &snapshot.attachment.name, *place);
                        (failure, FailureCause::FormerNode)
                    } else {
                        (failure, FailureCause::Other)
                    };
                    return self.record_failure(snapshot, observed, failure, cause).await;
                }
            }
        }
        for place in &plan.confirmed {
            report::confirmed(self, snapshot, *place);
        }
        if let Some(lifecycle) = &self.lifecycle {
            lifecycle.lock().confirmed = true;
        }
        self.record_success(snapshot, observed, &Outcome::Unpublished).await
    }

    /// Renews the claim of another attachment for a place that this detach holds. Nobody publishes it there meanwhile, and what was
    /// sent about it before is void. Answers how the attempt goes on when that did not work.
    async fn renew_claim(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        other: &Arc<Attachment>,
    ) -> Option<StepResult> {
        let write = patch::renew(other)?;
        let copy = Snapshot {
            attachment: other.clone(),
            volume: None,
            node: None,
            neighbours: Neighbours::default(),
        };
        let error = self.write(&self.work.context.requests, &copy, &write).await.err()?;
        let what = format!("could not renew the claim of VolumeAttachment {}", other.name);
        Some(
            self.handle_prepared_error(snapshot, observed, (&copy, &write), &what, error)
                .await,
        )
    }

    /// Keeps what is asked of the driver for the root of the trace.
    fn keep_publish_parameters(&self, plan: &PublishRequest<'_>) {
        if let Some(lifecycle) = &self.lifecycle {
            let fs_type = match &plan.capability.access {
                VolumeAccessType::Mount { fs_type, .. } => Some(Box::from(&**fs_type)),
                VolumeAccessType::Block => None,
            };
            lifecycle.lock().plan = Some(PublishParameters {
                read_only: plan.read_only,
                access_mode: mode_name(plan.capability.mode),
                fs_type,
            });
        }
    }

    /// Takes a volume back from where an earlier try may have left it. That this fails holds nothing up: the node may be
    /// gone for good, the driver knows better than we do whether the volume can be elsewhere, and the place stays noted
    /// for the detach.
    async fn unpublish_former(&self, snapshot: &Snapshot, place: VolumeOnNode<'_>) {
        // Another PersistentVolume of the same handle may be attached there.
        if self.work.context.store.is_claimed(&self.work.facts, snapshot, place) {
            return;
        }
        let Ok(_in_flight) = self.work.in_flight.acquire(place) else {
            return;
        };
        let deadline = self.timeouts().unpublish;
        self.log_call("ControllerUnpublishVolume", snapshot, place, deadline);
        let call = ControllerUnpublishVolume {
            place,
            secrets: self.secrets.as_ref(),
        };
        let answer = self.client.call(&call, deadline, &self.span).await;
        traced!(
            info,
            self.span,
            driver = &*self.work.facts.name,
            VolumeAttachment = &*snapshot.attachment.name,
            volumeHandle = place.volume_id,
            nodeID = place.node_id,
            error = answer.err().map(|error| error.to_string()),
            "unpublished the volume from the node of an earlier attempt"
        );
    }

    /// Ends the attempt as [`Attempt::without_lease`] does.
    fn end_without_lease(&mut self, snapshot: &Snapshot, lost: LeaseLost) -> StepResult {
        StepResult::Finish(self.without_lease(&snapshot.attachment.name, lost))
    }

    /// Ends the attempt until another call for the place has ended, when everything is observed again. It does not
    /// wait inside the attempt: that other call may hang and be of the other lane, whose trouble is not to fill this one.
    /// A call at another node is waited for as long as a detach from there would be, and no longer: that node may be dead.
    pub(in crate::driver) fn wait_for_other_call(&self, snapshot: &Snapshot, occupied: CallInFlight) -> StepResult {
        let (work, name, timeouts) = (self.work, &snapshot.attachment.name, self.timeouts());
        let rest = match &occupied.elsewhere {
            None => timeouts.publish.max(timeouts.unpublish),
            Some(other) => {
                let exists = |name: &str| work.context.store.attachment(name).is_some();
                let rest = work.waits.holds.start(name, longest_hold(&timeouts), exists);
                report::report_detach_wait(work, snapshot, other, "attached to", rest);
                rest
            }
        };
        work.waits.calls.wait(name, occupied, work.queue.clone());
        StepResult::Finish(RunResult::RequeueAfter(rest))
    }

    /// The deadlines for a call that is made now: a change counts from the next call on, not from the next attempt.
    pub(in crate::driver) fn timeouts(&self) -> Timeouts {
        self.work.config.borrow().timeouts.clone()
    }

    /// Logs that a call is made, and counts it for `callsPerSecond`.
    pub(in crate::driver) fn log_call(
        &self,
        method: &str,
        snapshot: &Snapshot,
        place: VolumeOnNode<'_>,
        deadline: Duration,
    ) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        traced!(
            debug,
            self.span,
            driver = &*self.work.facts.name,
            VolumeAttachment = &*snapshot.attachment.name,
            volumeHandle = place.volume_id,
            nodeID = place.node_id,
            attempt = self.run.attempt(),
            timeout_seconds = deadline.as_secs_f64(),
            "calling {method}"
        );
    }
}

/// A failure at a former node ID, which the driver may refuse for ever, with what a person can do about it.
fn of_former(failure: &Failure, name: &str, place: VolumeOnNode<'_>) -> Failure {
    let hint = format!(
        "; node ID {id} is a former one of the node: if the volume is not attached there, run kubectl annotate volumeattachment \
         {name} {NOT_ATTACHED_AT_ANNOTATION}={id}",
        id = place.node_id
    );
    let message = cut(&failure.message, MAX_ERROR_BYTES.saturating_sub(hint.len()));
    Failure {
        message: format!("{message}{hint}"),
        code: failure.code,
    }
}

/// A publish context that the API server can never store is a failure of the driver, to be seen by people.
fn checked(context: StringMap) -> Result<StringMap, Failure> {
    decide::check_publish_context(&context).map(|()| context)
}
