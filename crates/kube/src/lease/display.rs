//! The state of a candidate, as the process and its metrics show it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Term;
use super::health::LeaseHealthEntry;
use super::state::{LeaderState, LeaseHolder};
use crate::telemetry::Metrics;

/// Where a candidate shows its state.
#[derive(Clone)]
pub(super) struct Display {
    pub lease: String,
    pub health: Arc<LeaseHealthEntry>,
    pub metrics: Metrics,
    /// Whether metrics show the state; that of one candidate of several is shown by their group.
    pub has_metrics: bool,
    pub state: watch::Sender<LeaderState>,
}

impl Display {
    pub fn show(&self, state: LeaderState) {
        // Another candidate of this process may compete while this one only watches.
        if self.has_metrics && state.competes() {
            self.metrics.leading(&self.lease, state.term().is_some());
        }
        if matches!(state, LeaderState::Lost { .. }) {
            self.health.remove();
        }
        self.state.send_if_modified(|known| {
            let differs = *known != state;
            *known = state;
            differs
        });
    }

    /// It does not compete any more, and had shown that it did.
    pub fn forget(&self) {
        self.health.remove();
        if self.has_metrics && self.state.borrow().competes() {
            self.metrics.forget_lease(&self.lease);
        }
    }

    /// Whether this term was shown last.
    pub fn leads(&self, term: &Term) -> bool {
        self.state.borrow().term() == Some(term)
    }

    /// Shows for whom we wait; a Lease that was lost stays shown as lost until its time is over.
    pub fn wait_for(&self, holder: Option<LeaseHolder>) {
        let still_lost = matches!(*self.state.borrow(), LeaderState::Lost { until } if until > Instant::now());
        if !still_lost {
            self.show(LeaderState::Waiting { holder });
        }
    }
}
