//! When the condition Saturated holds, and what it says.

use std::time::Duration;
use tokio::time::Instant;

use crate::api::condition::{ConditionStatus, ConditionUpdate};
use crate::api::{AttacherConfigSpec, DriverConfig, ProvisioningSpec};
use crate::cache::AttacherKey;
use crate::queue::{LaneStats, Stats};
use crate::supervisor::saturation::{RoleLimits, Saturation};

type Lane = LaneStats<AttacherKey>;

const SECOND: Duration = Duration::from_secs(1);

/// Limits of 5 attaches, 2 detaches, 1 for a node and 10 calls in a second; a backoff of one second.
fn config() -> DriverConfig {
    let mut spec = AttacherConfigSpec::new("unix:///csi.sock");
    let limits = &mut spec.concurrency;
    (limits.attach, limits.detach, limits.per_node, limits.calls_per_second) = (5, 2, 1, 10);
    DriverConfig::try_from(&spec).unwrap()
}

/// A lane in which `waiting` wait since a time and `running` run.
fn lane(running: usize, waiting: usize, since: Instant) -> Lane {
    Lane {
        running,
        ready: waiting,
        oldest_ready_since: (waiting > 0).then_some(since),
        oldest_unblocked_since: (waiting > 0).then_some(since),
        ..Lane::default()
    }
}

/// A lane in which as many wait for the node n1.
fn at_node(waiting: usize, since: Instant) -> Lane {
    Lane {
        running: 1,
        ready: waiting,
        blocked: waiting,
        oldest_ready_since: Some(since),
        oldest_blocked: Some(("n1".into(), since)),
        ..Lane::default()
    }
}

fn stats(attach: Lane, detach: Lane) -> Stats<AttacherKey> {
    Stats {
        lanes: vec![attach, detach],
        lacks_token: false,
        paused: false,
        closed: false,
    }
}

fn lacking_token(stats: Stats<AttacherKey>) -> Stats<AttacherKey> {
    Stats {
        lacks_token: true,
        ..stats
    }
}

fn seen(stats: &Stats<AttacherKey>, now: Instant) -> ConditionUpdate {
    let mut saturation = Saturation::default();
    saturation.observe(stats, &RoleLimits::attaching(&config()), now);
    Saturation::condition(std::iter::once(&saturation))
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_its_reason() {
    let start = Instant::now();
    for (stats, reason, message) in rows(start) {
        let condition = seen(&stats, start + 12 * SECOND);
        assert_eq!((condition.reason.as_str(), condition.message), (reason, message));
        let holds = if reason == "NotSaturated" {
            ConditionStatus::False
        } else {
            ConditionStatus::True
        };
        assert_eq!(condition.status, holds);
    }
}

/// Figures of twelve seconds after `start`, with the reason and the message for them.
fn rows(start: Instant) -> [(Stats<AttacherKey>, &'static str, String); 7] {
    let none = || lane(0, 0, start);
    let raise = "if the storage can handle more in parallel";
    [
        (
            stats(none(), none()),
            "NotSaturated",
            "no limit of spec.concurrency delays attaches or detaches".to_owned(),
        ),
        (
            stats(lane(5, 0, start), none()),
            "NotSaturated",
            "no limit of spec.concurrency delays attaches or detaches".to_owned(),
        ),
        (
            stats(lane(5, 3, start), none()),
            "LaneFull",
            format!(
                "the attach lane is full: 5 in flight, as spec.concurrency.attach allows; waiting: 3, the longest for at \
                 least 10s; raise spec.concurrency.attach {raise}"
            ),
        ),
        (
            stats(none(), lane(2, 730, start)),
            "LaneFull",
            format!(
                "the detach lane is full: 2 in flight, as spec.concurrency.detach allows; waiting: at least 500, the \
                 longest for at least 10s; raise spec.concurrency.detach {raise}"
            ),
        ),
        (
            lacking_token(stats(lane(1, 3, start + 9 * SECOND), lane(0, 4, start))),
            "RateLimited",
            format!(
                "10 calls start in a second, as spec.concurrency.callsPerSecond allows; waiting: at least 5, the longest \
                 for at least 10s; raise spec.concurrency.callsPerSecond {raise}"
            ),
        ),
        (
            stats(at_node(2, start + 8 * SECOND), at_node(1, start)),
            "NodeLimit",
            format!(
                "node n1 has 1 calls in flight, as spec.concurrency.perNode allows; waiting: 3, the longest for at least \
                 10s; raise spec.concurrency.perNode {raise}"
            ),
        ),
        // The slot of a call that just ended is about to be taken.
        (
            stats(lane(4, 1, start + 9 * SECOND), none()),
            "LaneFull",
            format!(
                "the attach lane is full: 5 in flight, as spec.concurrency.attach allows; waiting: 1, the longest for at \
                 least 2s; raise spec.concurrency.attach {raise}"
            ),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_shortage_is_named() {
    let start = Instant::now();
    let both = Lane {
        ready: 7,
        blocked: 3,
        oldest_blocked: Some(("n1".into(), start)),
        ..lane(5, 7, start)
    };
    let condition = seen(&lacking_token(stats(both, lane(2, 1, start))), start + 3 * SECOND);
    assert_eq!(condition.reason.as_str(), "LaneFull");
    let named = [
        "spec.concurrency.attach",
        "spec.concurrency.detach",
        "spec.concurrency.perNode",
    ];
    for field in named {
        assert!(
            condition.message.contains(&format!("raise {field} ")),
            "{}",
            condition.message
        );
    }
    assert!(condition.message.contains("waiting: 4, "), "{}", condition.message);
    assert!(
        !condition.message.contains("callsPerSecond"),
        "full lanes need no token"
    );
}

#[tokio::test(start_paused = true)]
async fn one_backoff_interval_is_no_saturation() {
    let start = Instant::now();
    for (waited, reason) in [(SECOND, "NotSaturated"), (SECOND + SECOND / 10, "LaneFull")] {
        for full in [
            stats(lane(5, 1, start), lane(0, 0, start)),
            stats(lane(0, 0, start), lane(2, 1, start)),
        ] {
            assert_eq!(seen(&full, start + waited).reason.as_str(), reason);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_nothing_is_full() {
    let start = Instant::now();
    let mut spec = AttacherConfigSpec::new("unix:///csi.sock");
    (spec.concurrency.attach, spec.concurrency.detach) = (0, 0);
    let mut saturation = Saturation::default();
    let waiting = stats(lane(9, 9, start), lane(9, 9, start));
    let limits = RoleLimits::attaching(&DriverConfig::try_from(&spec).unwrap());
    saturation.observe(&waiting, &limits, start + 9 * SECOND);
    assert_eq!(
        Saturation::condition(std::iter::once(&saturation)).reason.as_str(),
        "NotSaturated"
    );
}

#[tokio::test(start_paused = true)]
async fn it_ends_after_a_calm() {
    let start = Instant::now();
    let mut saturation = Saturation::default();
    let mut at = |second: u32, stats: &Stats<AttacherKey>| {
        saturation.observe(stats, &RoleLimits::attaching(&config()), start + second * SECOND);
        Saturation::condition(std::iter::once(&saturation)).reason.as_str()
    };
    let (full, calm) = (
        stats(lane(5, 1, start), lane(0, 0, start)),
        stats(lane(1, 0, start), lane(0, 0, start)),
    );
    assert_eq!(at(2, &full), "LaneFull");
    assert_eq!(at(3, &calm), "LaneFull");
    assert_eq!(at(6, &full), "LaneFull");
    assert_eq!(at(10, &calm), "LaneFull", "4 s since it was full");
    assert_eq!(at(11, &calm), "NotSaturated");
    assert_eq!(at(12, &full), "LaneFull");
}

/// What piles up while the driver is away waits for the driver, not for a limit.
#[tokio::test(start_paused = true)]
async fn a_pause_of_the_queue_is_no_saturation() {
    let start = Instant::now();
    let mut saturation = Saturation::default();
    let full = || stats(lane(5, 90, start), lane(0, 0, start));
    let paused = Stats { paused: true, ..full() };
    let mut at = |second: u32, stats: &Stats<AttacherKey>| {
        saturation.observe(stats, &RoleLimits::attaching(&config()), start + second * SECOND);
        Saturation::condition(std::iter::once(&saturation)).reason.as_str()
    };
    assert_eq!(at(30, &paused), "NotSaturated");
    assert_eq!(at(31, &full()), "NotSaturated");
    assert_eq!(at(32, &full()), "LaneFull", "two seconds after the pause");
}

/// A status is written when it differs: figures that change all the time must not make it differ.
#[tokio::test(start_paused = true)]
async fn a_queue_that_moves_changes_the_message_seldom() {
    let start = Instant::now();
    let mut messages = std::collections::BTreeSet::new();
    for second in 0..600 {
        let waiting = 1_000 + usize::try_from(second % 37).unwrap();
        let stats = stats(lane(5, waiting, start), lane(0, 0, start));
        messages.insert(seen(&stats, start + second * SECOND).message);
    }
    assert!(messages.len() <= 10, "{messages:#?}");
}

/// Limits of 5 calls of CreateVolume, 2 of DeleteVolume, 1 for a class and 10 calls in a second; a backoff of one second.
fn provisioning_limits() -> RoleLimits {
    let mut spec = AttacherConfigSpec::new("unix:///csi.sock");
    spec.driver_name = Some("a.test".to_owned());
    let mut provisioning: ProvisioningSpec = serde_json::from_value(serde_json::json!({})).unwrap();
    let limits = &mut provisioning.concurrency;
    (limits.create, limits.delete, limits.per_class, limits.calls_per_second) = (5, 2, 1, 10);
    spec.provisioning = Some(provisioning);
    let config = DriverConfig::try_from(&spec).unwrap();
    RoleLimits::provisioning(config.provisioning.as_ref().unwrap())
}

/// Provisioning has limits of its own, which are named as such beside those of attaching.
#[tokio::test(start_paused = true)]
async fn the_limits_of_provisioning_are_shown_beside_those_of_attaching() {
    let start = Instant::now();
    let limits = provisioning_limits();
    let seen = |lanes: [Lane; 2], lacks_token| {
        let mut saturation = Saturation::default();
        let [create, delete] = lanes;
        let stats = Stats {
            lacks_token,
            ..stats(create, delete)
        };
        saturation.observe(&stats, &limits, start + 10 * SECOND);
        saturation
    };
    let idle = Lane::default;
    let rows = [
        (
            [lane(5, 3, start), idle()],
            false,
            "ProvisioningLaneFull",
            "spec.provisioning.concurrency.create",
        ),
        (
            [idle(), lane(2, 3, start)],
            false,
            "ProvisioningLaneFull",
            "spec.provisioning.concurrency.delete",
        ),
        (
            [lane(1, 3, start), idle()],
            true,
            "ProvisioningRateLimited",
            "spec.provisioning.concurrency.callsPerSecond",
        ),
        (
            [at_node(3, start), idle()],
            false,
            "ClassLimit",
            "StorageClass n1 has 1 calls in flight, as spec.provisioning.concurrency.perClass",
        ),
    ];
    let mut attaching = Saturation::default();
    let full = stats(lane(5, 3, start), Lane::default());
    let limits = RoleLimits::attaching(&super::saturation::config());
    attaching.observe(&full, &limits, start + 10 * SECOND);
    for (lanes, lacks_token, reason, field) in rows {
        let saturation = seen(lanes, lacks_token);
        let alone = Saturation::condition([&saturation].into_iter());
        assert_eq!(alone.reason.as_str(), reason);
        assert!(alone.message.contains(field), "{}", alone.message);
        let both = Saturation::condition([&attaching, &saturation].into_iter());
        assert_eq!(both.reason.as_str(), "LaneFull");
        assert!(both.message.contains(field) && both.message.contains("spec.concurrency.attach"));
    }
}
