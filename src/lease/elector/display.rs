//! Where a candidate stands, as the process and its metrics show it.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease::LeaseHealth;
use crate::lease::candidate::{Holder, Standing};
use crate::telemetry::Metrics;

/// What a candidate shows by.
#[derive(Clone)]
pub(super) struct Display {
    pub lease: String,
    pub health: LeaseHealth,
    pub metrics: Metrics,
    pub elects: bool,
    pub standing: watch::Sender<Standing>,
}

impl Display {
    pub fn show(&self, standing: Standing) {
        // Another candidate of this process may compete while this one only watches.
        if self.elects && !matches!(standing, Standing::Unknown | Standing::Observing { .. }) {
            let leads = matches!(standing, Standing::Leading(_));
            self.metrics.leading(&self.lease, leads);
            if matches!(standing, Standing::Lost { .. }) {
                self.health.gone(&self.lease);
            }
        }
        self.standing.send_if_modified(|known| {
            let differs = *known != standing;
            *known = standing;
            differs
        });
    }

    /// Shows for whom we wait; a Lease that was lost stays shown as lost until its time is over.
    pub fn wait_for(&self, holder: Option<Holder>) {
        let still_lost = matches!(*self.standing.borrow(), Standing::Lost { until } if until > Instant::now());
        if !still_lost {
            self.show(Standing::Waiting { holder });
        }
    }
}
