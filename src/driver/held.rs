//! What a driver's task keeps from one connection to the next: the engine at work, the candidate for the driver's Lease,
//! and the claim to the driver.
//!
//! The Lease is given up with the driver that cannot be reached, so that a replica that reaches it can take over. An engine
//! never outlives the Lease it works under.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::engine::Engine;
use crate::claims::{Claim, Verdict};
use crate::lease::Candidate;

/// How long a driver may be away before its Lease is given up. One that restarts is mostly back by then; another replica
/// that took over meanwhile would gain nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the right moment for a hand-over is waited for: one without running calls, as nothing new is begun until the
/// last one has ended.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Held {
    // In the order in which they must end if the task is cut off.
    pub engine: Option<Engine>,
    pub candidate: Option<Candidate>,
    pub claim: Option<Claim>,
    away_since: Option<Instant>,
}

impl Held {
    /// The connection is lost. What runs is let go on; a candidate that does not lead must not begin to.
    pub async fn away(&mut self) {
        if let Some(engine) = &self.engine {
            engine.pause();
        }
        self.away_since = Some(Instant::now());
        if self.engine.is_none() {
            self.stand_down().await;
        }
    }

    /// The driver answers again.
    pub fn back(&mut self) {
        self.away_since = None;
    }

    /// Resolves when the engine must be given up: the Lease is lost, an older AttacherConfig claims the driver, or the
    /// driver was away for too long. Never without an engine.
    pub async fn overdue(&self) {
        if self.engine.is_none() {
            return std::future::pending().await;
        }
        let away = async {
            match self.away_since {
                // Without an election nobody else could work for the driver.
                Some(since) if self.candidate.is_some() => sleep_until(since + PATIENCE).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.deposed() => {}
            () = self.outranked() => {}
            () = away => {}
        }
    }

    /// Resolves when the engine may not work any more; never without an election.
    pub async fn deposed(&self) {
        match &self.candidate {
            Some(candidate) => candidate.not_leading().await,
            None => std::future::pending().await,
        }
    }

    /// Resolves when an older AttacherConfig claims the driver.
    pub async fn outranked(&self) {
        match &self.claim {
            Some(claim) => claim.refused().await,
            None => std::future::pending().await,
        }
    }

    /// Resolves when the driver should be handed over to a replica that leads fewer, and no call runs, or for so long that
    /// it cannot be waited for any more.
    pub async fn asked_for(&self) {
        let (Some(candidate), Some(engine)) = (&self.candidate, &self.engine) else {
            return std::future::pending().await;
        };
        candidate.should_hand_over().await;
        // A driver that is never at rest is handed over all the same.
        let _idle = tokio::time::timeout(HAND_OVER_PATIENCE, engine.queue().drained()).await;
    }

    /// Whether an older AttacherConfig claims the driver.
    pub fn is_outranked(&self) -> bool {
        let claim = self.claim.as_ref();
        claim.is_some_and(|claim| matches!(claim.verdict(), Verdict::Refused(_)))
    }

    /// Lets the runs in flight end, and drops the engine; tells whose it was. What still runs when another may take the
    /// Lease is cut off: two replicas calling at once would be worse than a call whose answer is not known.
    pub async fn drain(&mut self) -> Option<Arc<str>> {
        let engine = self.engine.take()?;
        let driver = engine.facts().name.clone();
        let succeeded = async {
            match &self.candidate {
                Some(candidate) => candidate.succeeded_by_another().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = engine.drain() => {}
            () = succeeded => {
                tracing::warn!(driver = &*driver, "calls still ran when the Lease was over; they were cut off");
            }
        }
        Some(driver)
    }

    /// Releases the Lease and goes on watching who holds it. The claim stays, and another may be granted meanwhile.
    pub async fn stand_down(&mut self) {
        if let Some(candidate) = self.candidate.take()
            && candidate.stand_down().await
        {
            // One that could not release the Lease in time ends here: it must not release it later, when another candidate
            // of this process may hold it.
            self.candidate = Some(candidate);
        }
        if let Some(claim) = &self.claim {
            claim.step_back();
        }
    }

    /// Releases the Lease, watches it no more, and gives up the claim.
    pub async fn resign(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            candidate.resign().await;
        }
        self.claim = None;
    }
}
