//! The lanes of a driver's queue: what waits for calls, and what does not.

use std::num::{NonZeroU32, NonZeroUsize};

use crate::api::validated::Provisioning;
use crate::objects::{Claim, ReclaimPolicy, Volume, VolumePhase};
use crate::provision::{ProvisionerFacts, is_released};
use crate::queue::{Group, Lane, LaneLimits, QueueLimits};
use crate::runtime::queue_metrics::LaneNames;
use crate::telemetry::names::{QUEUE_CLAIMS, QUEUE_VOLUMES};

/// The lane of claims for which the driver may be called.
pub const CREATE: Lane = Lane::new(0);
/// The lane of PersistentVolumes whose volume is to be deleted: a burst of one kind never holds up the other.
pub const DELETE: Lane = Lane::new(1);
/// The lane of PersistentVolumes that get our finalizer or lose it, without a call.
pub const PROTECT: Lane = Lane::new(2);
/// The lane of claims whose volume is to be saved, or whose marker goes: that waits for no call.
const SAVE: Lane = Lane::new(3);
/// The queues of external-provisioner that the lanes count for.
pub const LANE_NAMES: LaneNames = &[QUEUE_CLAIMS, QUEUE_VOLUMES, QUEUE_VOLUMES, QUEUE_CLAIMS];
/// How many runs that only write are under way at once in a lane.
const WRITES_AT_ONCE: usize = 16;

/// Where a claim waits for its next run: the lane, and the group that `concurrency.perClass` is for.
pub(crate) fn place_of(claim: &Claim, may_call: bool) -> (Lane, Option<Group>) {
    if may_call {
        (CREATE, Some(claim.class.clone()))
    } else {
        (SAVE, None)
    }
}

pub(crate) fn lane_of(volume: &Volume) -> Lane {
    let is_delete = volume.lifecycle.reclaim_policy == Some(ReclaimPolicy::Delete);
    if is_delete && volume.lifecycle.phase != VolumePhase::Bound {
        DELETE
    } else {
        PROTECT
    }
}

/// Whether the volume of a PersistentVolume is to be deleted, as far as it alone says.
pub(crate) fn is_to_delete(volume: &Volume, driver: &ProvisionerFacts) -> bool {
    lane_of(volume) == DELETE && is_released(volume, driver)
}

/// The limits of the queue. A run keeps its slot until its end: the call together with the writes before and after it.
pub(crate) fn limits(settings: &Provisioning) -> QueueLimits {
    let calls = |max: Option<NonZeroUsize>| LaneLimits {
        max_running: max.map_or(0, NonZeroUsize::get),
        rate_limited: true,
    };
    let writes = LaneLimits {
        max_running: WRITES_AT_ONCE,
        rate_limited: false,
    };
    QueueLimits {
        // The order is that of `CREATE`, `DELETE`, `PROTECT`, `SAVE`.
        lanes: vec![calls(settings.create), calls(settings.delete), writes, writes],
        per_group: settings.per_class.map_or(0, NonZeroUsize::get),
        max_running: 0,
        starts_per_second: settings.calls_per_second.map_or(0, NonZeroU32::get).into(),
    }
}
