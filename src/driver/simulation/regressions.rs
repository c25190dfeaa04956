//! Courses of events that have shown a defect once. A seed means another history whenever the world changes; these stay.

use std::time::Duration;

use super::scenario::{Busy, Disk, Event, Lease, Scenario};

/// In how many ways each is run: with other latencies and delays of the watches.
pub const WAYS: u64 = 60;

/// What went wrong, and what led there.
pub fn all() -> Vec<(&'static str, Scenario)> {
    use Event::{Attach, DeleteVolume, Detach, DriverLeaves, ForceAttachment, HandOver, NodeReborn, WatchBreaks};
    vec![
        (
            "a volume was not released at once after a write from a stale copy",
            of(
                4_000,
                &[(0, Attach(0, 0)), (6_000, Detach(0, 0)), (1_000, DeleteVolume(0))],
            ),
        ),
        (
            "a replica took over with watches that were behind, and released a volume that was attached",
            of(
                4_000,
                &[
                    (0, Attach(0, 0)),
                    (5_000, DeleteVolume(0)),
                    (0, WatchBreaks(0)),
                    (0, HandOver),
                ],
            ),
        ),
        (
            "a Publish for an attachment whose deletion became known while a former place was taken back",
            of(5, &[(0, Attach(0, 0)), (60, NodeReborn(0)), (150, Detach(0, 0))]),
        ),
        (
            "an attachment vanished during Publish and came back unclaimed, and its volume stayed behind",
            of(
                500,
                &[
                    (0, Attach(0, 0)),
                    (250, ForceAttachment(0, 0)),
                    (0, Attach(0, 0)),
                    (100, DriverLeaves(0)),
                    (6_000, Detach(0, 0)),
                ],
            ),
        ),
    ]
}

/// A world without faults and two replicas, in which watches are up to so many milliseconds behind.
fn of(lag: u64, events: &[(u64, Event)]) -> Scenario {
    Scenario {
        seed: 0,
        faultless: true,
        drivers: 1,
        disks: vec![Disk::plain(0)],
        nodes: 1,
        events: events
            .iter()
            .map(|(pause, event)| (Duration::from_millis(*pause), *event))
            .collect(),
        replicas: 2,
        lease: Some(Lease {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(4),
        }),
        api_faults: 0,
        lies: 0,
        call_faults: 0,
        lag: Duration::from_millis(lag),
        busy: Busy::Waits,
        concurrency: 0,
        lists: None,
        max_faults: usize::MAX,
    }
}
