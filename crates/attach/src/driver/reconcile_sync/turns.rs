//! One listing of a driver at a time for the requests to release, of which there may be a hundred at once. The comparison is not counted: it
//! may last for hours, and a request has a place among the detaches meanwhile.
//!
//! Requests that wait share the next listing. It begins after each of them asked, so that it is as good as one of its own.

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, oneshot};

use super::list::{ListError, ListLimits, ListProgress, PageCall, list};
use crate::decide::ListedEvidence;
use crate::decide::reconcile::Listing;
use csi_attacher_runtime::fence::{CallFailure, LeaseLost};

/// What the driver lists about what one request is for. An error is that the Lease was lost.
type Evidence = Result<ListedEvidence, LeaseLost>;

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

    /// What the driver lists about what this listing is about, when it is made from now on.
    pub async fn evidence(&self, listing: Listing, page_call: impl Fn() -> PageCall, limits: ListLimits) -> Evidence {
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
            self.list_for_those_who_wait(&page_call, limits).await;
            drop(turn);
            if let Ok(evidence) = answered.try_recv() {
                return evidence;
            }
        }
    }

    /// Makes one listing for all requests that wait.
    async fn list_for_those_who_wait(&self, page_call: impl Fn() -> PageCall, limits: ListLimits) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let (mut listings, answers): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .filter(|waiting| !waiting.answer.is_closed())
            .map(|waiting| (waiting.listing, waiting.answer))
            .unzip();
        if listings.is_empty() {
            return;
        }
        let ended = list(page_call, limits, &mut listings, &mut ListProgress::default()).await;
        for (listing, answer) in listings.iter().zip(answers) {
            let evidence = match &ended {
                Ok(()) => Ok(listing.evidence()),
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
