//! The evidence about a request to let an attachment go without the driver's confirmation: what the driver lists, and what other
//! attachments of the volume say. It is collected while no call is in flight for the volume at its node.

use std::sync::Arc;

use super::super::reconcile_sync::list::ListLimits;
use super::super::reconcile_sync::turns::AT_ONCE;
use super::shell::Shell;
use crate::cache::Snapshot;
use crate::clock;
use crate::decide::reconcile::{Listing, may_be_translated, release_expectations};
use crate::decide::{self, Action, ListedEvidence, ListingDoubt, Observed, ReleaseEvidence, ReleasePlan};
use csi_attacher_model::attempt::{Attempt, View};
use csi_attacher_runtime::fence::LeaseLost;

impl Shell<'_> {
    pub async fn evidence(&self, attempt: &Attempt) -> Result<ReleaseEvidence, LeaseLost> {
        let mut evidence = ReleaseEvidence {
            now: clock::now(),
            listed: ListedEvidence::CannotList,
            here: None,
            elsewhere: None,
        };
        let (Some(snapshot), Some(observed)) = (attempt.snapshot(), attempt.observed(self)) else {
            return Ok(evidence);
        };
        if let Action::JudgeRelease(plan) = (self.rules().attachment)(&observed) {
            evidence.listed = self.list_places(&observed, &plan).await?;
            (evidence.here, evidence.elsewhere) = self.other_attachments(snapshot, &plan).await;
        }
        evidence.now = clock::now();
        Ok(evidence)
    }

    /// What the driver lists about the places. An error is that the Lease was lost.
    async fn list_places(&self, observed: &Observed<'_>, plan: &ReleasePlan<'_>) -> Result<ListedEvidence, LeaseLost> {
        let work = self.work;
        if plan.places.is_empty() || !work.facts.capabilities.lists_published_nodes() {
            return Ok(ListedEvidence::CannotList);
        }
        let settings = work.config.borrow().clone();
        let limits = ListLimits::new(settings.reconcile_sync.max_entries, settings.timeouts.list_volumes);
        let listing = Listing::about(release_expectations(observed, &plan.places));
        let listing = listing.with_nodes(work.context.store.node_ids(&work.facts.name));
        let listed = work.list_turns.evidence(listing, || work.page_call(), limits, work);
        // The comparisons know as well how this very attachment was listed while it was wanted.
        let listed = listed.await?.doubted_for(work.status.lasting_mismatch());
        if listed != ListedEvidence::NotThere {
            return Ok(listed);
        }
        let doubt = if !settings.reconcile_sync.enabled {
            ListingDoubt::Disabled
        } else if may_be_translated(observed) {
            ListingDoubt::Translated
        } else {
            return Ok(listed);
        };
        Ok(ListedEvidence::NotThereDoubtful(doubt))
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
