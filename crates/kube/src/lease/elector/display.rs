//! Where a candidate stands, as the process and its metrics show it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease::Term;
use crate::lease::health::LeaseHealthEntry;
use crate::lease::state::{LeaderState, LeaseHolder};
use crate::telemetry::Metrics;

/// What a candidate shows by.
#[derive(Clone)]
pub(super) struct Display {
    pub lease: String,
    pub health: Arc<LeaseHealthEntry>,
    pub metrics: Metrics,
    pub elects: bool,
    pub standing: watch::Sender<LeaderState>,
}

impl Display {
    pub fn show(&self, standing: LeaderState) {
        // Another candidate of this process may compete while this one only watches.
        if self.elects && !matches!(standing, LeaderState::Unknown | LeaderState::Observing { .. }) {
            let leads = matches!(standing, LeaderState::Leading(_));
            self.metrics.leading(&self.lease, leads);
            if matches!(standing, LeaderState::Lost { .. }) {
                self.health.remove();
            }
        }
        self.standing.send_if_modified(|known| {
            let differs = *known != standing;
            *known = standing;
            differs
        });
    }

    /// It does not compete any more, and had shown that it did.
    pub fn forget(&self) {
        self.health.remove();
        if self.elects
            && !matches!(
                *self.standing.borrow(),
                LeaderState::Unknown | LeaderState::Observing { .. }
            )
        {
            self.metrics.forget_lease(&self.lease);
        }
    }

    /// Whether there is work in a term.
    pub fn leads(&self, term: &Term) -> bool {
        matches!(&*self.standing.borrow(), LeaderState::Leading(known) if known == term)
    }

    /// Shows for whom we wait; a Lease that was lost stays shown as lost until its time is over.
    pub fn wait_for(&self, holder: Option<LeaseHolder>) {
        let still_lost = matches!(*self.standing.borrow(), LeaderState::Lost { until } if until > Instant::now());
        if !still_lost {
            self.show(LeaderState::Waiting { holder });
        }
    }
}
