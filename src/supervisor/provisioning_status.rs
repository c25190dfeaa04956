//! From what a queue of provisioning shows to `status.provisioning`. Pure.

use jiff::Timestamp;

use super::last_failure::later;
use super::provisioning_state::{PendingWork, ProvisioningState};
use crate::api::condition::{shorten_message, truncate_to_seconds};
use crate::api::provisioning_status::{
    FailedClaim, OldestClaim, OldestVolume, PendingClaims, PendingVolumes, ProvisioningFailure, ProvisioningStatus,
};
use crate::api::status::count;
use crate::runtime::FailureRecord;

/// What this replica says of provisioning; `known` is what was said before. What another one says stays.
pub(super) fn of(
    state: &ProvisioningState,
    this_replica: &str,
    known: Option<&ProvisioningStatus>,
    now: Timestamp,
) -> Option<ProvisioningStatus> {
    if state.is_elsewhere {
        return known.cloned();
    }
    let pending = state.pending.as_ref();
    // The Lease has the name of the driver: another one that was provisioned for before the spec was changed says nothing of this one.
    let is_this = |known: &&ProvisioningStatus| {
        let leases = known.lease.as_ref().zip(state.lease.as_ref());
        leases.is_none_or(|(known, own)| known.name == own.name)
    };
    let known_failure = known.filter(is_this).and_then(|known| known.last_failure.clone());
    Some(ProvisioningStatus {
        holder: state.task.phase.worker(this_replica),
        lease: state.lease.clone(),
        persistent_volume_claims: pending.map(claims),
        persistent_volumes: pending.map(volumes),
        last_failure: later(
            state.task.last_failure.as_ref().map(failure),
            known_failure,
            |failure| failure.time.0,
            now,
        ),
    })
}

/// Whether people wait for this change.
pub(super) fn is_urgent(known: Option<&ProvisioningStatus>, wanted: Option<&ProvisioningStatus>) -> bool {
    let who = |status: Option<&ProvisioningStatus>| status.map(|status| (status.holder.clone(), status.lease.clone()));
    who(known) != who(wanted)
}

fn claims(pending: &PendingWork) -> PendingClaims {
    let claims = &pending.claims;
    let oldest = claims.oldest.as_ref().and_then(|(name, since)| {
        let (namespace, name) = name.split_once('/')?;
        Some(OldestClaim {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            pending_since_time: truncate_to_seconds(*since),
        })
    });
    PendingClaims {
        pending: count(claims.count),
        uncertain: count(pending.uncertain),
        failing: count(claims.failing),
        oldest_pending: oldest,
    }
}

fn volumes(pending: &PendingWork) -> PendingVolumes {
    let volumes = &pending.volumes;
    let oldest = volumes.oldest.as_ref().map(|(name, since)| OldestVolume {
        name: name.to_string(),
        pending_since_time: truncate_to_seconds(*since),
    });
    PendingVolumes {
        deleting: count(volumes.count),
        failing: count(volumes.failing),
        held: count(pending.kept.held),
        oldest_pending: oldest,
    }
}

/// The name of a claim has a slash, and that of a PersistentVolume has none.
fn failure(record: &FailureRecord) -> ProvisioningFailure {
    let claim = record.attachment.split_once('/').map(|(namespace, name)| FailedClaim {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    });
    let operation = match record.operation {
        "delete" => "Delete",
        _ => "Provision",
    };
    let volume = claim.is_none().then(|| record.attachment.clone());
    ProvisioningFailure {
        time: truncate_to_seconds(record.at),
        operation: operation.to_owned(),
        persistent_volume_claim: claim,
        persistent_volume: volume,
        code: record.code.clone(),
        message: shorten_message(&record.message),
        trace_id: record.trace_id.clone(),
    }
}
