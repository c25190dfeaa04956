//! Courses of events that have shown a defect once. A seed means another history whenever the world changes; these stay.

use std::time::Duration;

use super::invariants::{
    ALLOWED_SECRET, ATTACHES, DETACHED_AND_GONE, HELD_WHILE_PUBLISHED, NO_FORGOTTEN_WAIT, NOT_UNDER_A_LIVE_ONE,
    ONLY_WITH_THE_LEASE, PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED,
};
use super::mutants::{Flaw, Mutant, deciding, forgets_attachments, with};
use super::scenario::{Busy, Disk, Event, Lease, Scenario, Secret};
use super::wrong_rules::{forget_twin, go_by_the_note};

/// In how many ways each is run: with other pauses, latencies, delays of the watches and faults.
pub const WAYS: u64 = 60;
/// In so many ways an operator with the defect is noticed at least once.
pub const MANY_WAYS: u64 = 1_000;

/// A course of events.
pub struct Regression {
    /// What went wrong.
    pub what: &'static str,
    pub scenario: Scenario,
    /// An operator with the defect, where one can be made, and the invariants that it violates by the same events still.
    pub defect: Option<Defect>,
}

type Defect = (Mutant, &'static [&'static str]);

/// What went wrong, and what led there.
pub fn all() -> Vec<Regression> {
    let mut all = of_volumes();
    all.extend(of_twins());
    all.extend(of_processes());
    all.extend(of_answers());
    all
}

fn regression(what: &'static str, scenario: Scenario, defect: Option<Defect>) -> Regression {
    Regression { what, scenario, defect }
}

fn of_volumes() -> Vec<Regression> {
    use Event::{
        Attach, Crash, DeleteVolume, Detach, DriverLeaves, ForceAttachment, HandOver, NodeReborn, RemakeVolume,
        SidecarComes, WatchBreaks,
    };
    vec![
        regression(
            "a volume was not released at once after a write from a stale copy (seed 469)",
            of(
                4_000,
                &[(0, Attach(0, 0)), (6_000, Detach(0, 0)), (1_000, DeleteVolume(0))],
            ),
            None,
        ),
        regression(
            "a replica took over with watches that were behind, and released a volume that was attached (seed 4996)",
            of(
                4_000,
                &[
                    (0, Attach(0, 0)),
                    (4_000, Detach(0, 0)),
                    (3_000, Attach(0, 0)),
                    (2_500, DeleteVolume(0)),
                    (0, WatchBreaks(0)),
                    (0, HandOver),
                ],
            ),
            Some((
                Mutant {
                    stale: true,
                    ..Mutant::default()
                },
                &[PROTECTED_WHILE_PUBLISHED],
            )),
        ),
        regression(
            "a Publish for an attachment whose deletion became known while a former place was taken back (seed 356)",
            of(5, &[(0, Attach(0, 0)), (60, NodeReborn(0)), (150, Detach(0, 0))]),
            None,
        ),
        regression(
            "an attachment vanished during Publish and came back unclaimed, and its volume stayed behind (seed 4963)",
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
            None,
        ),
        regression(
            "a refusal was taken for a word about the calls before it, and a former place was forgotten (seed 321)",
            Scenario {
                faultless: false,
                call_faults: 50,
                busy: Busy::Aborts,
                ..of(
                    50,
                    &[
                        (0, Attach(0, 0)),
                        (300, Crash),
                        (2_000, NodeReborn(0)),
                        (4_000, Detach(0, 0)),
                    ],
                )
            },
            None,
        ),
        regression(
            "a late write of an operator that had died told of a call that did not count any more (seed 133500)",
            Scenario {
                faultless: false,
                api_faults: 50,
                call_faults: 20,
                ..of(
                    50,
                    &[
                        (0, Attach(0, 0)),
                        (300, Crash),
                        (1_000, NodeReborn(0)),
                        (1_000, Crash),
                        (3_000, NodeReborn(0)),
                        (9_000, Detach(0, 0)),
                    ],
                )
            },
            None,
        ),
        regression(
            "a sidecar was ended in the call for a PersistentVolume that had been made again, and the detach went by the note (seed 360)",
            Scenario {
                faultless: false,
                call_faults: 50,
                replicas: 1,
                lease: None,
                ..of(
                    5,
                    &[
                        (0, Attach(0, 0)),
                        (1_000, RemakeVolume(0)),
                        (1_000, SidecarComes),
                        (3_000, Detach(0, 0)),
                    ],
                )
            },
            Some((deciding(go_by_the_note), &[HELD_WHILE_PUBLISHED])),
        ),
    ]
}

/// Two PersistentVolumes, or one and an in-line volume, of one handle.
fn of_twins() -> Vec<Regression> {
    use Event::{Attach, DeleteVolume, Detach, ForceVolume, NodeReborn};
    let twins = |inline: bool| {
        let second = Disk {
            handle: "disk0".to_owned(),
            inline,
            ..Disk::plain(1)
        };
        vec![Disk::plain(0), second]
    };
    vec![
        regression(
            "a detach took an in-line volume away with the PersistentVolume of its handle (seed 19645)",
            Scenario {
                disks: twins(true),
                ..of(50, &[(0, Attach(0, 0)), (0, Attach(1, 0)), (6_000, Detach(0, 0))])
            },
            Some((deciding(forget_twin), &[NOT_UNDER_A_LIVE_ONE])),
        ),
        regression(
            "a detach took a volume away from its twin after its PersistentVolume was removed by force (seed 81615)",
            Scenario {
                disks: twins(false),
                ..of(
                    50,
                    &[
                        (0, Attach(0, 0)),
                        (0, Attach(1, 0)),
                        (6_000, DeleteVolume(0)),
                        (100, ForceVolume(0)),
                        (1_000, Detach(0, 0)),
                    ],
                )
            },
            Some((deciding(forget_twin), &[NOT_UNDER_A_LIVE_ONE])),
        ),
        regression(
            "a former place was taken back where the twin of the volume was attached (seed 40045)",
            Scenario {
                disks: twins(false),
                ..of(
                    50,
                    &[
                        (0, Attach(0, 0)),
                        (60, NodeReborn(0)),
                        (20, Attach(1, 0)),
                        (100, NodeReborn(0)),
                        (4_000, NodeReborn(0)),
                        (3_000, Detach(0, 0)),
                    ],
                )
            },
            None,
        ),
    ]
}

/// Processes that stand still, Leases that move, an API server that goes back, drivers that lose a capability.
fn of_processes() -> Vec<Regression> {
    use Event::{Attach, CapabilityGoes, Detach, DriverLeaves, HandOver, LeaseMoves, Restore, StandStill, Suspend};
    let short = Lease {
        duration: Duration::from_secs(6),
        renew_deadline: Duration::from_secs(4),
        retry_period: Duration::from_secs(2),
    };
    let stopped = |event: Event| Scenario {
        faultless: false,
        lease: Some(short),
        ..of(5, &[(0, Attach(0, 0)), (250, event), (9_000, Attach(0, 0))])
    };
    vec![
        regression(
            "a process that had stood still called without the Lease (seed 906 of the world of issue 14)",
            stopped(StandStill(3, 9_000)),
            Some((with(Flaw::Unfenced), &[ONLY_WITH_THE_LEASE])),
        ),
        regression(
            "a process whose machine had been suspended called without the Lease",
            stopped(Suspend(3, 9_000)),
            Some((with(Flaw::OneClock), &[ONLY_WITH_THE_LEASE])),
        ),
        regression(
            "a process had stood still in a Publish, another one attached the volume, the API server went back to before its \
             attachment, and the first one led again and took back what a pod used (chaos, seed 401)",
            Scenario {
                faultless: false,
                lease: Some(short),
                ..of(
                    5,
                    &[
                        (0, Attach(0, 0)),
                        (250, StandStill(3, 9_000)),
                        (14_000, Restore(25, false)),
                        (1_000, HandOver),
                    ],
                )
            },
            None,
        ),
        regression(
            "two replicas were in calls for one volume while the Lease moved (seed 148)",
            of(
                5,
                &[
                    (0, Attach(0, 0)),
                    (3_700, LeaseMoves(1)),
                    (3_000, Detach(0, 0)),
                    (9_000, Attach(0, 0)),
                ],
            ),
            None,
        ),
        regression(
            "a Lease that moved back was not waited for (seed 133)",
            of(
                5,
                &[
                    (0, LeaseMoves(1)),
                    (3_000, Attach(0, 0)),
                    (8_000, LeaseMoves(0)),
                    (0, Detach(0, 0)),
                ],
            ),
            None,
        ),
        regression(
            "after a restore of the API server what had been attached was not attached again (seed 156)",
            Scenario {
                faultless: false,
                ..of(5, &[(0, Attach(0, 0)), (9_000, Restore(4, true))])
            },
            Some((with(Flaw::Forward), &[ATTACHES])),
        ),
        regression(
            "a restore with lower revisions was not noticed",
            Scenario {
                faultless: false,
                ..of(5, &[(0, Attach(0, 0)), (9_000, Restore(4, false))])
            },
            Some((with(Flaw::Forward), &[ATTACHES])),
        ),
        regression(
            "an attachment that a restore had brought back as attached, to a node without the driver by then, was taken for one \
             whose error had to go: the error is true (seed 36221547957075)",
            Scenario {
                faultless: false,
                lists: Some(Duration::from_secs(5)),
                ..of(
                    5,
                    &[
                        (0, Attach(0, 0)),
                        (4_000, Detach(0, 0)),
                        (4_000, Restore(2, false)),
                        (0, DriverLeaves(0)),
                    ],
                )
            },
            None,
        ),
        regression(
            "a driver lost PUBLISH_UNPUBLISH, and what was published was released (seed 318)",
            Scenario {
                faultless: false,
                ..of(
                    5,
                    &[
                        (0, Attach(0, 0)),
                        (2_700, CapabilityGoes(0)),
                        (2_000, Detach(0, 0)),
                        (5_000, Attach(0, 0)),
                    ],
                )
            },
            Some((with(Flaw::Unattached), &[HELD_WHILE_PUBLISHED])),
        ),
    ]
}

/// Answers that are not true, Secrets that nobody waits for any more or that are another driver's.
fn of_answers() -> Vec<Regression> {
    use Event::{Attach, DeleteVolume, Detach, EditVolume, SecretGoes};
    let lied_to = |events: &[(u64, Event)]| Scenario {
        faultless: false,
        api_faults: 50,
        lies: 60,
        ..of(5, events)
    };
    let with_secret = |secret: Secret, events: &[(u64, Event)]| Scenario {
        disks: vec![Disk {
            secret,
            ..Disk::plain(0)
        }],
        ..of(5, events)
    };
    vec![
        regression(
            "a 404 that was not true had a volume in use detached (seeds 25 and 35)",
            lied_to(&[(0, Attach(0, 0)), (9_000, EditVolume(0))]),
            Some((with(Flaw::Believing), &[NOT_UNDER_A_LIVE_ONE])),
        ),
        regression(
            "a 404 that was not true had a PersistentVolume in use released (seeds 397 and 764)",
            lied_to(&[(0, Attach(0, 0)), (2_000, DeleteVolume(0))]),
            Some((
                with(Flaw::Believing),
                &[PROTECTED_WHILE_PUBLISHED, PROTECTED_WHILE_NAMED],
            )),
        ),
        regression(
            "an answer about another object was taken for a write that was stored (seed 893)",
            lied_to(&[(0, Attach(0, 0)), (300, Detach(0, 0))]),
            Some((with(Flaw::Believing), &[DETACHED_AND_GONE])),
        ),
        regression(
            "a Secret was waited for after its attachment had gone (seed 698)",
            with_secret(
                Secret::Own,
                &[(0, Attach(0, 0)), (0, SecretGoes(0)), (4_000, Detach(0, 0))],
            ),
            Some((forgets_attachments(), &[NO_FORGOTTEN_WAIT])),
        ),
        regression(
            "a driver was sent a Secret that it may not have (seed 8)",
            with_secret(Secret::Forbidden, &[(0, Attach(0, 0))]),
            Some((with(Flaw::Generous), &[ALLOWED_SECRET])),
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
        slow: None,
        steady_watches: false,
        max_faults: usize::MAX,
    }
}
