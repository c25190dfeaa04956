//! One listing of a driver at a time for the requests to release, of which there may be a hundred at once. The comparison is not counted: it
//! may last for hours, and a request has a place among the detaches meanwhile.
//!
//! Requests that wait share the next listing. It begins after each of them asked, so that it is as good as one of its own.
//!
//! Each listing is measured by what is attached to other nodes: one that contradicts any of that proves of no volume that it is not at its
//! node. Comparisons find the same, but only some of them in a row, and not before the first.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, oneshot};

use super::list::{ListError, ListLimits, ListProgress, PageCall, list};
use crate::decide::ListedEvidence;
use crate::decide::reconcile::{Comparison, Expectation, Listing};
use csi_attacher_runtime::fence::{CallFailure, LeaseLost};

/// What the driver lists about what one request is for. An error is that the Lease was lost.
type Evidence = Result<ListedEvidence, LeaseLost>;

/// Attachments that are looked at without a pause.
pub(in crate::driver) const AT_ONCE: usize = 256;

/// The attachments that a listing has to agree with.
pub(in crate::driver) trait Witnesses: Sync {
    /// What the driver should list about them from now on.
    fn expectations(&self) -> impl Future<Output = Vec<Expectation>> + Send;

    /// Whether the same is expected still: what was detached while the driver listed is contradicted by a listing that is right.
    fn is_expected(&self, expected: &Expectation) -> bool;
}

/// The turns of listings for the requests of one driver.
#[derive(Default)]
pub(in crate::driver) struct ListTurns {
    turn: tokio::sync::Mutex<()>,
    /// The requests whose listing has not begun.
    waiting: Mutex<Vec<Waiting>>,
}

struct Waiting {
    listing: Listing,
    answer: oneshot::Sender<Evidence>,
}

impl ListTurns {
    /// Waits until a listing may begin; it may last as long as the answer is kept.
    pub async fn begin(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// What the driver lists about what this listing is about, when it is made from now on, as far as that can be believed.
    pub async fn evidence(
        &self,
        listing: Listing,
        page_call: impl Fn() -> PageCall,
        limits: ListLimits,
        witnesses: &impl Witnesses,
    ) -> Evidence {
        loop {
            let (answer, mut answered) = oneshot::channel();
            self.waiting.lock().push(Waiting {
                listing: listing.clone(),
                answer,
            });
            let turn = tokio::select! {
                biased;
                evidence = &mut answered => match evidence {
                    Ok(evidence) => return evidence,
                    // Whoever listed for it was cancelled.
                    Err(_) => continue,
                },
                turn = self.begin() => turn,
            };
            self.list_for_those_who_wait(&page_call, limits, witnesses).await;
            drop(turn);
            if let Ok(evidence) = answered.try_recv() {
                return evidence;
            }
        }
    }

    /// Makes one listing for all requests that wait.
    async fn list_for_those_who_wait(
        &self,
        page_call: impl Fn() -> PageCall,
        limits: ListLimits,
        witnesses: &impl Witnesses,
    ) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let (mut listings, answers): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .filter(|waiting| !waiting.answer.is_closed())
            .map(|waiting| (waiting.listing, waiting.answer))
            .unzip();
        if listings.is_empty() {
            return;
        }
        // Looked at before the driver is asked: what is attached meanwhile is not expected in an older listing.
        listings.push(Listing::about(witnesses.expectations().await));
        let ended = list(page_call, limits, &mut listings, &mut ListProgress::default()).await;
        let compared = match (&ended, listings.pop()) {
            (Ok(()), Some(of_witnesses)) => of_witnesses.compare(),
            _ => Comparison::default(),
        };
        for (listing, answer) in listings.iter().zip(answers) {
            let evidence = match &ended {
                Ok(()) => {
                    let contradicted = first_contradicted(&compared, listing, witnesses).await;
                    Ok(listing.evidence().doubted_for(contradicted))
                }
                Err(ListError::Call(CallFailure::Lease(lost))) => Err(*lost),
                // It says nothing, and the request is not to be answered by it.
                Err(ListError::Call(CallFailure::Driver(error))) if error.unsent => Err(LeaseLost::NotStarted),
                Err(error) => Ok(ListedEvidence::Failed(error.to_string())),
            };
            // Whoever asked may be gone.
            let _gone = answer.send(evidence);
        }
    }
}

/// A VolumeAttachment that the driver contradicts, of another node than this listing asks about. At the same node the driver may be right: with
/// a machine all that was attached to it is gone, whatever is still wanted there. That counts for a driver that lists what is at other nodes.
async fn first_contradicted(compared: &Comparison, listing: &Listing, witnesses: &impl Witnesses) -> Option<Arc<str>> {
    let is_elsewhere = |expected: &Expectation| !listing.is_about_node(&expected.node_id);
    let lists_others = compared.agreed.iter().any(is_elsewhere);
    // Of many the first one is mostly enough. Where tens of thousands were detached meanwhile, others get their turn.
    for part in compared.contradicted.chunks(AT_ONCE) {
        let mut counting = part.iter().filter(|expected| !lists_others || is_elsewhere(expected));
        if let Some(found) = counting.find(|expected| witnesses.is_expected(expected)) {
            return Some(found.name.clone());
        }
        tokio::task::yield_now().await;
    }
    None
}
