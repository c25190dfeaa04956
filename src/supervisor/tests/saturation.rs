//! When the condition Saturated holds, and what it says.

use std::time::Duration;
use tokio::time::Instant;

use super::drivers::context;
use crate::api::condition::ConditionUpdate;
use crate::api::{AttacherConfigSpec, DriverConfig, ProvisioningSpec};
use crate::cache::{AttacherKey, Store};
use crate::queue::{LaneStats, Stats};
use crate::supervisor::gauges;
use crate::supervisor::provisioning_state::PendingWork;
use crate::supervisor::saturation::{RoleLimits, Saturation};
use csi_attacher_provision::WorkKey;

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

/// Figures that are looked at again and again.
#[derive(Default)]
struct Watched(Saturation);

impl Watched {
    fn at(&mut self, now: Instant, stats: &Stats<AttacherKey>, limits: &RoleLimits) -> ConditionUpdate {
        self.0.observe(stats, Some(limits), now);
        Saturation::condition(Some(&self.0), None)
    }

    /// The reason by the limits of [`config`].
    fn reason(&mut self, now: Instant, stats: &Stats<AttacherKey>) -> &'static str {
        self.at(now, stats, &RoleLimits::attaching(&config())).reason.as_str()
    }
}

fn seen(stats: &Stats<AttacherKey>, now: Instant) -> ConditionUpdate {
    Watched::default().at(now, stats, &RoleLimits::attaching(&config()))
}

/// What is seen twelve seconds after the start.
#[tokio::test(start_paused = true)]
async fn each_limit_has_its_reason() {
    let start = Instant::now();
    let (none, early, late) = (|| lane(0, 0, start), start + 8 * SECOND, start + 9 * SECOND);
    let unlimited = "no limit of spec.concurrency delays attaches or detaches".to_owned();
    let limited = |what: &str, field: &str, waiting: &str, seconds: u8| {
        let field = format!("spec.concurrency.{field}");
        let waiting = format!("waiting: {waiting}, the longest for at least {seconds}s");
        format!("{what}, as {field} allows; {waiting}; raise {field} if the storage can handle more in parallel")
    };
    let attach = |waiting, seconds| limited("the attach lane is full: 5 in flight", "attach", waiting, seconds);
    let detach = |waiting| limited("the detach lane is full: 2 in flight", "detach", waiting, 10);
    let of_rate = |waiting| limited("10 calls start in a second", "callsPerSecond", waiting, 10);
    let of_node = |waiting| limited("node n1 has 1 call in flight", "perNode", waiting, 10);
    let many = stats(none(), lane(2, 730, start));
    let scarce = lacking_token(stats(lane(1, 3, late), lane(0, 4, start)));
    let nodes = stats(at_node(2, early), at_node(1, start));
    for (stats, condition, message) in [
        (stats(none(), none()), "False NotSaturated", unlimited.clone()),
        (stats(lane(5, 0, start), none()), "False NotSaturated", unlimited),
        (stats(lane(5, 3, start), none()), "True LaneFull", attach("3", 10)),
        (many, "True LaneFull", detach("at least 500")),
        (scarce, "True RateLimited", of_rate("at least 5")),
        (nodes, "True NodeLimit", of_node("3")),
        // The slot of a call that just ended is about to be taken.
        (stats(lane(4, 1, late), none()), "True LaneFull", attach("1", 2)),
    ] {
        let seen = seen(&stats, start + 12 * SECOND);
        let shown = format!("{} {}", seen.status.as_str(), seen.reason.as_str());
        assert_eq!((&*shown, seen.message), (condition, message));
    }
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
    let message = &condition.message;
    for field in ["attach", "detach", "perNode"] {
        let words = format!("raise spec.concurrency.{field} ");
        assert!(message.contains(&words), "{message}");
    }
    assert!(message.contains("waiting: 4, "), "{message}");
    assert!(!message.contains("callsPerSecond"), "full lanes need no token");
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
    let waiting = stats(lane(9, 9, start), lane(9, 9, start));
    let limits = RoleLimits::attaching(&DriverConfig::try_from(&spec).unwrap());
    let condition = Watched::default().at(start + 9 * SECOND, &waiting, &limits);
    assert_eq!(condition.reason.as_str(), "NotSaturated");
}

#[tokio::test(start_paused = true)]
async fn it_ends_after_a_calm() {
    let start = Instant::now();
    let mut watched = Watched::default();
    let mut at = |second: u32, stats: &Stats<AttacherKey>| watched.reason(start + second * SECOND, stats);
    let full = stats(lane(5, 1, start), Lane::default());
    let calm = stats(lane(1, 0, start), Lane::default());
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
    let mut watched = Watched::default();
    let full = || stats(lane(5, 90, start), lane(0, 0, start));
    let paused = Stats { paused: true, ..full() };
    let mut at = |second: u32, stats: &Stats<AttacherKey>| watched.reason(start + second * SECOND, stats);
    assert_eq!(at(30, &paused), "NotSaturated");
    assert_eq!(at(31, &full()), "NotSaturated");
    assert_eq!(at(32, &full()), "LaneFull", "two seconds after the pause");
}

/// The same of the gauge, which an alert reads as the delay by a limit.
#[tokio::test(start_paused = true)]
async fn the_time_in_a_pause_of_the_queue_is_not_shown_as_a_delay() {
    let start = Instant::now();
    let context = context(Store::default());
    let mut saturations = [Saturation::default(), Saturation::default()];
    let mut shown = |second: u32, paused: bool| {
        let now = start + second * SECOND;
        let attaching = stats(lane(0, 1, start), lane(0, 1, start + 31 * SECOND));
        let attaching = Stats { paused, ..attaching };
        let waiting = |since| LaneStats {
            ready: 1,
            oldest_ready_since: Some(since),
            ..LaneStats::default()
        };
        let provisioning: Stats<WorkKey> = Stats {
            lanes: vec![waiting(start), waiting(start + 31 * SECOND)],
            lacks_token: false,
            paused,
            closed: false,
        };
        let [of_attaching, of_provisioning] = &mut saturations;
        let config = config();
        of_attaching.observe(&attaching, Some(&RoleLimits::attaching(&config)), now);
        gauges::set(&context, "d", &attaching, &config, of_attaching);
        // The section is gone, and the engine finishes its work.
        of_provisioning.observe(&provisioning, None, now);
        let (metrics, pending) = (&context.metrics, PendingWork::default());
        gauges::set_provisioning(metrics, "d", &provisioning, &pending, &config, of_provisioning);
        let text = metrics.encode_prometheus();
        ["attach", "detach", "provision", "delete"].map(|operation| {
            let series =
                format!("csi_attacher_lane_oldest_waiting_seconds{{driver_name=\"d\",operation=\"{operation}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&series));
            value.map(str::to_owned).unwrap_or_default()
        })
    };
    assert_eq!(shown(5, false), ["5.0", "0.0", "5.0", "0.0"]);
    assert_eq!(shown(30, true), ["0.0"; 4]);
    assert_eq!(
        shown(40, false),
        ["10.0", "9.0", "10.0", "9.0"],
        "since the pause, or since then"
    );
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
    let idle = Lane::default;
    let scarce = lacking_token(stats(lane(1, 3, start), idle()));
    let in_class = "StorageClass n1 has 1 call in flight, as ";
    let rows = [
        (stats(lane(5, 3, start), idle()), "ProvisioningLaneFull", "", "create"),
        (stats(idle(), lane(2, 3, start)), "ProvisioningLaneFull", "", "delete"),
        (scarce, "ProvisioningRateLimited", "", "callsPerSecond"),
        (stats(at_node(3, start), idle()), "ClassLimit", in_class, "perClass"),
    ];
    let mut attaching = Watched::default();
    let full = stats(lane(5, 3, start), idle());
    attaching.reason(start + 10 * SECOND, &full);
    for (stats, reason, what, field) in rows {
        let words = &*format!("{what}spec.provisioning.concurrency.{field}");
        let mut provisioning = Watched::default();
        let alone = provisioning.at(start + 10 * SECOND, &stats, &provisioning_limits());
        assert_eq!(alone.reason.as_str(), reason);
        assert!(alone.message.contains(words), "{}", alone.message);
        let both = Saturation::condition(Some(&attaching.0), Some(&provisioning.0));
        assert_eq!(both.reason.as_str(), "LaneFull");
        assert!(both.message.contains(words) && both.message.contains("spec.concurrency.attach"));
    }
    let idle = Saturation::default();
    let none = Saturation::condition(Some(&idle), Some(&idle));
    assert_eq!(none.reason.as_str(), "NotSaturated");
    for section in ["spec.concurrency", "spec.provisioning.concurrency"] {
        assert!(none.message.contains(section), "{}", none.message);
    }
}
