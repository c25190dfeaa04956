//! What is known of open calls, from an engine that has ended to the next one of the same driver and process.
//!
//! A driver that is away for longer than a restart takes ends its engine, and the Lease goes. What its calls were made with is known to
//! this process alone: a class may have been changed or replaced since, and a Secret be gone with its namespace. The marker of a claim says
//! whether that still counts. Whoever calls for the claim writes a marker of its own before: so where the engine's marker is there, nobody
//! has called since. Where it had written none yet, that is not known, and the call is made again: the volume of a claim that is there and
//! not bound is in nobody's use. One that is gone may have been bound meanwhile, and a person have kept its volume.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::context::DriverContext;
use crate::events::of_claim_named;
use crate::key::{ClaimKey, ClaimState, WorkKey};
use crate::provision::event::{ProvisionEventReason, possibly_leaked};
use crate::provision::{ProvisionerFacts, Seen};

/// Where it is kept; of one driver at most.
#[derive(Debug, Default)]
pub struct OpenCalls(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    driver: ProvisionerFacts,
    /// Which engine wrote the markers.
    writer: Arc<str>,
    claims: HashMap<ClaimKey, ClaimState>,
}

impl OpenCalls {
    /// Keeps what an engine knows that ends. Where its runs are cut off, what each knew before its last step.
    pub(crate) fn keep(&self, work: &DriverContext) {
        let mut claims = HashMap::new();
        work.queue.remember_all(|key, memory| {
            if let WorkKey::Claim(key) = key
                && memory.claim.known.holds_volume()
            {
                claims.insert(key.clone(), memory.claim.clone());
            }
        });
        *self.0.lock() = Some(Kept {
            driver: work.driver.clone(),
            writer: work.identity.clone(),
            claims,
        });
    }

    /// Hands it to the next engine, which has nothing in its queue yet.
    pub(crate) fn hand_over(&self, work: &DriverContext) {
        let kept = self.0.lock().take();
        let Some(kept) = kept.filter(|kept| kept.driver.name == work.driver.name) else {
            return;
        };
        let is_same_driver = kept.driver == work.driver;
        for (key, state) in kept.claims {
            work.go_on(&key, state, &kept.writer, is_same_driver);
        }
    }
}

impl DriverContext {
    /// The claim of an open call is gone since the last engine ended: its marker was taken off by force, or another process has finished it.
    /// Which of the two nobody can say, as the Lease was given up: it is told, and nothing is undone.
    pub(crate) fn tell_lost(&self, key: &ClaimKey, state: &ClaimState) {
        let lost = state.known.lost();
        let Some(volume) = lost.filter(|name| matches!(self.context.volumes.volume(name), Seen::Gone)) else {
            return;
        };
        let cause = "its PersistentVolumeClaim has gone while a call was open and this process did not provision for the driver";
        let reason = ProvisionEventReason::VolumePossiblyLeaked;
        let (namespace, name) = key.name.split_once('/').unwrap_or_default();
        self.context.metrics.possible_leak(&self.facts.name);
        let subjects = vec![of_claim_named(namespace, name, &key.uid)];
        self.record(None, reason, volume, possibly_leaked(volume, cause), subjects);
        let (driver, claim) = (&*self.facts.name, &*key.name);
        tracing::error!(
            driver,
            PersistentVolumeClaim = claim,
            volume,
            cause,
            "a volume may be left in the storage system"
        );
    }
}
