//! What a driver's task keeps from one connection to the next: the engine at work, and the candidate for the driver's
//! Lease.
//!
//! The Lease is given up with the driver that cannot be reached, so that a replica that reaches it can take over. An engine
//! never outlives the Lease it works under.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::engine::Engine;
use crate::lease::Candidate;

/// How long a driver may be away before its Lease is given up. One that restarts is mostly back by then; another replica
/// that took over meanwhile would gain nothing.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Held {
    pub engine: Option<Engine>,
    pub candidate: Option<Candidate>,
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
            self.resign().await;
        }
    }

    /// The driver answers again.
    pub fn back(&mut self) {
        self.away_since = None;
    }

    /// Resolves when everything must be given up: the Lease is lost, or the driver was away for too long.
    pub async fn overdue(&self) {
        let Some(candidate) = &self.candidate else {
            return std::future::pending().await;
        };
        let away = async {
            match self.away_since {
                Some(since) => sleep_until(since + PATIENCE).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = candidate.not_leading() => {}
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
            () = engine.drain() => {}
            () = succeeded => {
                tracing::warn!(driver = &*driver, "calls still ran when the Lease was over; they were cut off");
            }
        }
        Some(driver)
    }

    /// Releases the Lease and competes no more.
    pub async fn resign(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            candidate.resign().await;
        }
    }
}
