//! Courses of events that have shown a defect once. A seed means another history whenever the world changes; these stay.

use std::time::Duration;

use super::invariants::{
    ALLOWED_SECRET, ATTACHES, DETACHED_AND_GONE, HELD_WHILE_PUBLISHED, NO_FORGOTTEN_WAIT, NOT_UNDER_A_LIVE_ONE,
    ONLY_WITH_THE_LEASE, PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED,
};
use super::mutants::{Flaw, Mutant, deciding, forgets_attachments, stale, with};
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

/// These events in a world without faults, in which watches are up to so many milliseconds behind.
fn regression(what: &'static str, lag: u64, events: &[(u64, Event)]) -> Regression {
    Regression {
        what,
        scenario: of(lag, events),
        defect: None,
    }
}

impl Regression {
    /// In another world.
    fn amid(mut self, change: impl FnOnce(&mut Scenario)) -> Self {
        change(&mut self.scenario);
        self
    }

    fn shown_by(self, mutant: Mutant, invariants: &'static [&'static str]) -> Self {
        let defect = Some((mutant, invariants));
        Self { defect, ..self }
    }
}

fn of_volumes() -> Vec<Regression> {
    use Event::{
        Attach, Crash, DeleteVolume, Detach, DriverLeaves, ForceAttachment, HandOver, NodeReborn, RemakeVolume,
        SidecarComes, WatchBreaks,
    };
    vec![
        regression(
            "a volume was not released at once after a write from a stale copy (seed 469)",
            4_000,
            &[(0, Attach(0, 0)), (6_000, Detach(0, 0)), (1_000, DeleteVolume(0))],
        ),
        regression(
            "a replica took over with watches that were behind, and released a volume that was attached (seed 4996)",
            4_000,
            &[
                (0, Attach(0, 0)),
                (4_000, Detach(0, 0)),
                (3_000, Attach(0, 0)),
                (2_500, DeleteVolume(0)),
                (0, WatchBreaks(0)),
                (0, HandOver),
            ],
        )
        .shown_by(stale(), &[PROTECTED_WHILE_PUBLISHED]),
        regression(
            "a Publish for an attachment whose deletion became known while a former place was taken back (seed 356)",
            5,
            &[(0, Attach(0, 0)), (60, NodeReborn(0)), (150, Detach(0, 0))],
        ),
        regression(
            "an attachment vanished during Publish and came back unclaimed, and its volume stayed behind (seed 4963)",
            500,
            &[
                (0, Attach(0, 0)),
                (250, ForceAttachment(0, 0)),
                (0, Attach(0, 0)),
                (100, DriverLeaves(0)),
                (6_000, Detach(0, 0)),
            ],
        ),
        regression(
            "a refusal was taken for a word about the calls before it, and a former place was forgotten (seed 321)",
            50,
            &[
                (0, Attach(0, 0)),
                (300, Crash),
                (2_000, NodeReborn(0)),
                (4_000, Detach(0, 0)),
            ],
        )
        .amid(|it| (it.faultless, it.call_faults, it.busy) = (false, 50, Busy::Aborts)),
        regression(
            "a late write of an operator that had died told of a call that did not count any more (seed 133500)",
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
        .amid(|it| (it.faultless, it.api_faults, it.call_faults) = (false, 50, 20)),
        regression(
            "a sidecar was ended in the call for a PersistentVolume that had been made again, and the detach went by the note (seed 360)",
            5,
            &[
                (0, Attach(0, 0)),
                (1_000, RemakeVolume(0)),
                (1_000, SidecarComes),
                (3_000, Detach(0, 0)),
            ],
        )
        .amid(|it| (it.faultless, it.call_faults, it.replicas, it.lease) = (false, 50, 1, None))
        .shown_by(deciding(go_by_the_note), &[HELD_WHILE_PUBLISHED]),
    ]
}

/// Two PersistentVolumes, or one and an in-line volume, of one handle.
fn of_twins() -> Vec<Regression> {
    use Event::{Attach, DeleteVolume, Detach, ForceVolume, NodeReborn};
    let twins = |inline: bool| {
        move |scenario: &mut Scenario| {
            scenario.disks.push(Disk {
                handle: "disk0".to_owned(),
                inline,
                ..Disk::plain(1)
            });
        }
    };
    vec![
        regression(
            "a detach took an in-line volume away with the PersistentVolume of its handle (seed 19645)",
            50,
            &[(0, Attach(0, 0)), (0, Attach(1, 0)), (6_000, Detach(0, 0))],
        )
        .amid(twins(true))
        .shown_by(deciding(forget_twin), &[NOT_UNDER_A_LIVE_ONE]),
        regression(
            "a detach took a volume away from its twin after its PersistentVolume was removed by force (seed 81615)",
            50,
            &[
                (0, Attach(0, 0)),
                (0, Attach(1, 0)),
                (6_000, DeleteVolume(0)),
                (100, ForceVolume(0)),
                (1_000, Detach(0, 0)),
            ],
        )
        .amid(twins(false))
        .shown_by(deciding(forget_twin), &[NOT_UNDER_A_LIVE_ONE]),
        regression(
            "a former place was taken back where the twin of the volume was attached (seed 40045)",
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
        .amid(twins(false)),
    ]
}

/// Processes that stand still, Leases that move, an API server that goes back, drivers that lose a capability.
fn of_processes() -> Vec<Regression> {
    use Event::{Attach, CapabilityGoes, Detach, DriverLeaves, HandOver, LeaseMoves, Restore, StandStill, Suspend};
    let of_short_leases = |scenario: &mut Scenario| {
        scenario.faultless = false;
        scenario.lease = Some(Lease {
            duration: Duration::from_secs(6),
            renew_deadline: Duration::from_secs(4),
            retry_period: Duration::from_secs(2),
        });
    };
    vec![
        regression(
            "a process that had stood still called without the Lease (seed 906 of the world of issue 14)",
            5,
            &[(0, Attach(0, 0)), (250, StandStill(3, 9_000)), (9_000, Attach(0, 0))],
        )
        .amid(of_short_leases)
        .shown_by(with(Flaw::Unfenced), &[ONLY_WITH_THE_LEASE]),
        regression(
            "a process whose machine had been suspended called without the Lease",
            5,
            &[(0, Attach(0, 0)), (250, Suspend(3, 9_000)), (9_000, Attach(0, 0))],
        )
        .amid(of_short_leases)
        .shown_by(with(Flaw::OneClock), &[ONLY_WITH_THE_LEASE]),
        regression(
            "a process had stood still in a Publish, another one attached the volume, the API server went back to before its \
             attachment, and the first one led again and took back what a pod used (chaos, seed 401)",
            5,
            &[
                (0, Attach(0, 0)),
                (250, StandStill(3, 9_000)),
                (14_000, Restore(25, false)),
                (1_000, HandOver),
            ],
        )
        .amid(of_short_leases),
        regression(
            "two replicas were in calls for one volume while the Lease moved (seed 148)",
            5,
            &[
                (0, Attach(0, 0)),
                (3_700, LeaseMoves(1)),
                (3_000, Detach(0, 0)),
                (9_000, Attach(0, 0)),
            ],
        ),
        regression(
            "a Lease that moved back was not waited for (seed 133)",
            5,
            &[
                (0, LeaseMoves(1)),
                (3_000, Attach(0, 0)),
                (8_000, LeaseMoves(0)),
                (0, Detach(0, 0)),
            ],
        ),
        regression(
            "after a restore of the API server what had been attached was not attached again (seed 156)",
            5,
            &[(0, Attach(0, 0)), (9_000, Restore(4, true))],
        )
        .amid(|it| it.faultless = false)
        .shown_by(with(Flaw::Forward), &[ATTACHES]),
        regression(
            "a restore with lower revisions was not noticed",
            5,
            &[(0, Attach(0, 0)), (9_000, Restore(4, false))],
        )
        .amid(|it| it.faultless = false)
        .shown_by(with(Flaw::Forward), &[ATTACHES]),
        regression(
            "an attachment that a restore had brought back as attached, to a node without the driver by then, was taken for one \
             whose error had to go: the error is true (seed 36221547957075)",
            5,
            &[
                (0, Attach(0, 0)),
                (4_000, Detach(0, 0)),
                (4_000, Restore(2, false)),
                (0, DriverLeaves(0)),
            ],
        )
        .amid(|it| (it.faultless, it.lists) = (false, Some(Duration::from_secs(5)))),
        regression(
            "a driver lost PUBLISH_UNPUBLISH, and what was published was released (seed 318)",
            5,
            &[
                (0, Attach(0, 0)),
                (2_700, CapabilityGoes(0)),
                (2_000, Detach(0, 0)),
                (5_000, Attach(0, 0)),
            ],
        )
        .amid(|it| it.faultless = false)
        .shown_by(with(Flaw::Unattached), &[HELD_WHILE_PUBLISHED]),
    ]
}

/// Answers that are not true, Secrets that nobody waits for any more or that are another driver's.
fn of_answers() -> Vec<Regression> {
    use Event::{Attach, DeleteVolume, Detach, EditVolume, SecretGoes};
    const UNPROTECTED: &[&str] = &[PROTECTED_WHILE_PUBLISHED, PROTECTED_WHILE_NAMED];
    let of_lies = |it: &mut Scenario| (it.faultless, it.api_faults, it.lies) = (false, 50, 60);
    vec![
        regression(
            "a 404 that was not true had a volume in use detached (seeds 25 and 35)",
            5,
            &[(0, Attach(0, 0)), (9_000, EditVolume(0))],
        )
        .amid(of_lies)
        .shown_by(with(Flaw::Believing), &[NOT_UNDER_A_LIVE_ONE]),
        regression(
            "a 404 that was not true had a PersistentVolume in use released (seeds 397 and 764)",
            5,
            &[(0, Attach(0, 0)), (2_000, DeleteVolume(0))],
        )
        .amid(of_lies)
        .shown_by(with(Flaw::Believing), UNPROTECTED),
        regression(
            "an answer about another object was taken for a write that was stored (seed 893)",
            5,
            &[(0, Attach(0, 0)), (300, Detach(0, 0))],
        )
        .amid(of_lies)
        .shown_by(with(Flaw::Believing), &[DETACHED_AND_GONE]),
        regression(
            "a Secret was waited for after its attachment had gone (seed 698)",
            5,
            &[(0, Attach(0, 0)), (0, SecretGoes(0)), (4_000, Detach(0, 0))],
        )
        .amid(|it| it.disks[0].secret = Secret::Own)
        .shown_by(forgets_attachments(), &[NO_FORGOTTEN_WAIT]),
        regression(
            "a driver was sent a Secret that it may not have (seed 8)",
            5,
            &[(0, Attach(0, 0))],
        )
        .amid(|it| it.disks[0].secret = Secret::Forbidden)
        .shown_by(with(Flaw::Generous), &[ALLOWED_SECRET]),
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
