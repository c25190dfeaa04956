//! Keeping a Lease that is held.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{LeaderElector, SPREAD};
use crate::clock;
use crate::lease::election::LeaseAction;
use crate::lease::{Moment, Term};

/// Longest pause after a renewal that failed: there is not much time left.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// How a try to renew ended.
enum RenewResult {
    /// It is renewed by a request begun at this time.
    Done(Moment),
    /// Somebody else has it, or may have had it.
    Taken,
    /// Not known; to be tried again.
    Failed,
}

impl LeaderElector {
    /// Renews until that fails for too long, or comes too late by either clock: a process that stood still has lost the Lease
    /// even when nobody took it, as what it knows of the objects may be of before.
    pub(super) async fn keep(&mut self, term: &Term) {
        let period = self.campaign.settings.timing.retry_period;
        loop {
            tokio::select! {
                biased;
                () = sleep(term.until_renewal().min(term.until_deadline())) => {}
                () = term.confirmation_asked() => {}
            }
            loop {
                // Not left to the timers below: they are late when the process stood still.
                if !term.may_start() {
                    return;
                }
                let asked = term.asked();
                let renewal = timeout(term.until_deadline(), self.renew(term)).await;
                match renewal.unwrap_or(RenewResult::Failed) {
                    // It is not enough that the Lease is ours.
                    RenewResult::Done(begun) if term.renew(begun) => {
                        term.confirm(asked);
                        break;
                    }
                    RenewResult::Done(_) => return,
                    RenewResult::Taken => {
                        term.end();
                        return;
                    }
                    RenewResult::Failed => {
                        // Those of other Leases of the process may have failed at the same moment.
                        let pause = period.min(RENEWAL_PAUSE).mul_f64(1.0 - SPREAD * fastrand::f64());
                        sleep(pause.min(term.until_deadline())).await;
                    }
                }
            }
        }
    }

    async fn renew(&mut self, term: &Term) -> RenewResult {
        // A Lease that is ours needs no look: a write that came too late fails by its resource version.
        if let Some(record) = self.election.renewed_record(Instant::now(), clock::now()) {
            match self.write(record).await {
                Ok(renewed) => return RenewResult::Done(renewed),
                Err(error) => debug!(lease = self.name, %error, "looking at the Lease before it is renewed"),
            }
        }
        if !term.may_start() {
            return RenewResult::Failed;
        }
        self.metrics.lease_read_before_renewal(&self.name);
        let renewed = match self.read().await {
            Ok(()) if self.known.is_some() && !self.election.is_ours() => return RenewResult::Taken,
            // Another may have made it meanwhile, and work: that one may be gone, too.
            Ok(()) if self.known.is_none() && !self.display.leads(term) => return RenewResult::Taken,
            Ok(()) => match self.next() {
                LeaseAction::Wait { .. } => return RenewResult::Taken,
                next => self.write_next(next).await,
            },
            Err(error) => Err(error),
        };
        match renewed {
            Ok(renewed) => RenewResult::Done(renewed),
            Err(error) => {
                warn!(lease = self.name, %error, "cannot renew the Lease; retrying");
                RenewResult::Failed
            }
        }
    }
}
