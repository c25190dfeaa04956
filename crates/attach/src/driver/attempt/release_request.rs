//! A request to let an attachment go without the driver's confirmation: the evidence is collected while no call is in flight for the
//! volume at its node, and the finalizer is removed only where [`decide::judge_release`] allows it.

use std::sync::Arc;

use super::super::reconcile_sync::list::{ListError, ListLimits, ListProgress, list};
use super::events;
use super::in_flight::InFlightGuard;
use super::state::{Attempt, LIST_REST, StepResult};
use crate::cache::Snapshot;
use crate::clock;
use crate::decide::reconcile::{DesiredState, Expectation, Listing};
use crate::decide::{
    self, ListedEvidence, Observed, ReleaseBasis, ReleaseEvidence, ReleasePlan, ReleaseRefusal, Write, patch,
};
use crate::objects::InTreePlugin;
use crate::queue::RunResult;
use crate::telemetry::names::attr;
use crate::traces::AttemptResult;
use csi_attacher_runtime::fence::LeaseLost;

/// Attachments that are examined without a pause.
const AT_ONCE: usize = 256;
/// How many pages' time a listing may take.
const LISTING_PAGES: u32 = 10;

impl Attempt<'_> {
    /// Collects the evidence, and releases the attachment or answers why not.
    pub(in crate::driver) async fn judge_release(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        plan: &ReleasePlan<'_>,
    ) -> StepResult {
        if !self.work.context.store.lists().is_of_one_state() {
            return StepResult::Finish(RunResult::RequeueAfter(LIST_REST));
        }
        // Held until the finalizer is gone: a call that begins meanwhile could put the volume at the node again.
        let mut guards: Vec<InFlightGuard> = Vec::with_capacity(plan.places.len());
        for place in &plan.places {
            match self.work.in_flight.acquire(*place) {
                Ok(guard) => guards.push(guard),
                Err(occupied) => return self.wait_for_other_call(snapshot, occupied),
            }
        }
        let listed = match self.list_places(snapshot, plan).await {
            Ok(listed) => listed,
            Err(lost) => return StepResult::Finish(self.without_lease(&snapshot.attachment.name, lost)),
        };
        let (here, elsewhere) = self.other_attachments(snapshot, plan).await;
        let evidence = ReleaseEvidence {
            now: clock::now(),
            listed,
            here,
            elsewhere,
        };
        match decide::judge_release(observed, plan, &evidence) {
            Ok(basis) => self.release_on_request(snapshot, observed, plan, basis).await,
            Err(refusal) => self.refuse_release(snapshot, observed, &refusal).await,
        }
    }

    /// Removes the finalizer, if the object is still the one that was judged.
    async fn release_on_request(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        plan: &ReleasePlan<'_>,
        basis: ReleaseBasis,
    ) -> StepResult {
        let Some(write) = patch::release_on_request(&snapshot.attachment, &self.work.facts.finalizer) else {
            return StepResult::Continue;
        };
        // The judgement took a while. Whoever leads the driver now has judged for itself, or has not.
        if !self.work.client().may_start() {
            return StepResult::Finish(self.without_lease(&snapshot.attachment.name, LeaseLost::NotStarted));
        }
        let outcome = self.write(&self.work.context.requests, snapshot, &write).await;
        if let Err(error) = outcome {
            let what = "could not remove the finalizer on request";
            return self
                .handle_prepared_error(snapshot, observed, (snapshot, &write), what, error)
                .await;
        }
        let (request, basis) = (plan.request.words(), basis.words());
        events::released_on_request(self, snapshot, &request, basis);
        self.span.set(attr::FINALIZER_ACTION, "removed");
        self.ended = AttemptResult::Succeeded;
        traced!(
            warn,
            self.span,
            driver = &*self.work.facts.name,
            VolumeAttachment = &*snapshot.attachment.name,
            volumeHandle = snapshot.volume_handle(),
            node = &*snapshot.attachment.node,
            request,
            basis,
            "released without the driver's confirmation, as a person asked"
        );
        StepResult::Finish(RunResult::Done)
    }

    /// Answers on the object that a request is refused. The detach goes on as if there were none.
    pub(in crate::driver) async fn refuse_release(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        refusal: &ReleaseRefusal,
    ) -> StepResult {
        let attachment = &snapshot.attachment;
        let answer = decide::release_answer(attachment, refusal);
        let write: Option<Write> = answer.and_then(|answer| patch::refuse_release(attachment, &answer));
        let Some(write) = write else {
            return StepResult::Continue;
        };
        let outcome = self.write(&self.work.context.requests, snapshot, &write).await;
        if let Err(error) = outcome {
            let what = "could not answer the request to release the volume";
            return self
                .handle_prepared_error(snapshot, observed, (snapshot, &write), what, error)
                .await;
        }
        events::release_refused(self, snapshot, refusal);
        traced!(
            warn,
            self.span,
            driver = &*self.work.facts.name,
            VolumeAttachment = &*attachment.name,
            volumeHandle = snapshot.volume_handle(),
            node = &*attachment.node,
            reason = refusal.reason(),
            %refusal,
            "not released on request"
        );
        StepResult::Continue
    }

    /// What the driver lists about the places. An error is that the Lease was lost.
    async fn list_places(&self, snapshot: &Snapshot, plan: &ReleasePlan<'_>) -> Result<ListedEvidence, LeaseLost> {
        let (work, attachment) = (self.work, &snapshot.attachment);
        let able = work.facts.capabilities;
        // The handle of a migrated volume may be listed in more than one form.
        let comparable = InTreePlugin::of_driver(&work.facts.name).is_none();
        if plan.places.is_empty() || !able.list_volumes || !able.list_volumes_published_nodes || !comparable {
            return Ok(ListedEvidence::CannotList);
        }
        let expectations = plan.places.iter().map(|place| Expectation {
            name: attachment.name.clone(),
            uid: attachment.uid.clone(),
            handle: place.volume_id.into(),
            node_id: place.node_id.into(),
            former_node_id: None,
            wanted: DesiredState::Unpublished,
        });
        let mut listing = Listing::about(expectations.collect());
        let settings = work.config.borrow().clone();
        let deadline = settings.timeouts.list_volumes;
        let limits = ListLimits {
            max_entries: settings.reconcile_sync.max_entries,
            deadline,
            whole: deadline.saturating_mul(LISTING_PAGES),
        };
        let mut progress = ListProgress::default();
        match list(|| work.client(), limits, &mut listing, &mut progress).await {
            Ok(()) => Ok(listing.evidence()),
            Err(ListError::Lease(lost)) => Err(lost),
            Err(error) => Ok(ListedEvidence::Failed(error.to_string())),
        }
    }

    /// Other attachments of the volume that are claimed or attached: one on the same machine, and one on another node.
    async fn other_attachments(
        &self,
        snapshot: &Snapshot,
        plan: &ReleasePlan<'_>,
    ) -> (Option<Arc<str>>, Option<Arc<str>>) {
        let (store, facts) = (&self.work.context.store, &self.work.facts);
        let (mut here, mut elsewhere) = (None, None);
        for names in store.attachments_of(&facts.name).chunks(AT_ONCE) {
            for name in names.iter().filter(|name| **name != snapshot.attachment.name) {
                let Some(other) = store.attachment(name) else { continue };
                let is_there = other.attachment.attached || decide::is_claimed(&other.attachment, facts);
                if !is_there || !is_same_volume(snapshot, plan, &other) {
                    continue;
                }
                let registered = other.node.as_ref().and_then(|node| node.node_id(&facts.name));
                let known = [other.attachment.node_id.as_deref(), registered];
                let same_id = plan.places.iter().any(|place| known.contains(&Some(place.node_id)));
                if same_id || other.attachment.node == snapshot.attachment.node {
                    here = Some(name.clone());
                } else {
                    elsewhere = Some(name.clone());
                }
            }
            tokio::task::yield_now().await;
        }
        (here, elsewhere)
    }
}

/// Whether another attachment is of the same volume, or of one that may be at the places of the plan.
fn is_same_volume(snapshot: &Snapshot, plan: &ReleasePlan<'_>, other: &Snapshot) -> bool {
    let noted = other.attachment.volume_note.as_ref().map(|note| &*note.handle);
    let handles = [other.volume_handle(), noted];
    let at_places = |handle: &str| plan.places.iter().any(|place| place.volume_id == handle);
    let this = (&*snapshot.attachment, snapshot.volume.as_deref());
    decide::is_same_volume(this, (&other.attachment, other.volume.as_deref()))
        || handles.into_iter().flatten().any(at_places)
}
