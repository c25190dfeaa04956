//! Whether a limit of `spec.concurrency` makes work wait: from the figures of a queue to the condition Saturated. Pure.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use crate::api::condition::{ConditionReason, ConditionType, ConditionUpdate};
use crate::api::validated::DriverConfig;
use crate::cache::{ATTACH, AttacherKey, DETACH};
use crate::queue::{LaneStats, Stats};

/// How long a shortage that is over is shown at least, so that the condition does not change with every burst.
const MIN_CALM: Duration = Duration::from_secs(5);
/// How long it is shown at most, however long the backoff is.
const MAX_CALM: Duration = Duration::from_mins(1);

/// What is at its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SaturatedLimit {
    Attach,
    Detach,
    Rate,
    /// `concurrency.perNode`; this is the node whose volumes wait longest.
    Node(Arc<str>),
}

/// Work that waits because of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DelayedWork {
    pub bound: SaturatedLimit,
    pub limit: usize,
    pub waiting: usize,
    /// How long the first of it waits.
    pub oldest: Duration,
}

/// Which limits have delayed work lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Saturation {
    shown: Vec<DelayedWork>,
    seen: Option<Instant>,
    /// Until when nothing was handed out: what waited then, waited for something else.
    paused: Option<Instant>,
}

impl Saturation {
    /// Observes the figures of a queue.
    pub fn observe(&mut self, stats: &Stats<AttacherKey>, config: &DriverConfig, now: Instant) {
        if stats.paused {
            self.paused = Some(now);
        }
        let shortages = shortages(stats, config, self.paused, now);
        let calm = config.backoff.initial.clamp(MIN_CALM, MAX_CALM);
        if !shortages.is_empty() {
            (self.shown, self.seen) = (shortages, Some(now));
        } else if self.seen.is_some_and(|seen| now.duration_since(seen) >= calm) {
            *self = Self {
                paused: self.paused,
                ..Self::default()
            };
        }
    }

    /// The reasons for the condition, the first of which names it.
    pub fn reasons(&self) -> impl Iterator<Item = ConditionReason> {
        self.shown.iter().map(DelayedWork::reason)
    }

    pub fn condition(&self) -> ConditionUpdate {
        let kind = ConditionType::Saturated;
        let Some(reason) = self.reasons().next() else {
            let message = "no limit of spec.concurrency delays attaches or detaches";
            return ConditionUpdate::new(kind, false, ConditionReason::NotSaturated, message);
        };
        let messages: Vec<String> = self.shown.iter().map(DelayedWork::message).collect();
        ConditionUpdate::new(kind, true, reason, messages.join("; "))
    }
}

impl DelayedWork {
    fn reason(&self) -> ConditionReason {
        match self.bound {
            SaturatedLimit::Attach | SaturatedLimit::Detach => ConditionReason::LaneFull,
            SaturatedLimit::Rate => ConditionReason::RateLimited,
            SaturatedLimit::Node(_) => ConditionReason::NodeLimit,
        }
    }

    fn message(&self) -> String {
        let limit = self.limit;
        let (what, field) = match &self.bound {
            SaturatedLimit::Attach => (
                format!("the attach lane is full: {limit} in flight, as spec.concurrency.attach allows"),
                "attach",
            ),
            SaturatedLimit::Detach => (
                format!("the detach lane is full: {limit} in flight, as spec.concurrency.detach allows"),
                "detach",
            ),
            SaturatedLimit::Rate => (
                format!("{limit} calls start in a second, as spec.concurrency.callsPerSecond allows"),
                "callsPerSecond",
            ),
            SaturatedLimit::Node(node) => (
                format!("node {node} has {limit} calls in flight, as spec.concurrency.perNode allows"),
                "perNode",
            ),
        };
        format!(
            "{what}; waiting: {}, the longest for {}; raise spec.concurrency.{field} if the storage can handle more in parallel",
            rounded(self.waiting),
            rounded_time(self.oldest)
        )
    }
}

/// What waits for longer than one backoff interval because of a limit. `not_before` is the end of a pause of the queue.
fn shortages(
    stats: &Stats<AttacherKey>,
    config: &DriverConfig,
    not_before: Option<Instant>,
    now: Instant,
) -> Vec<DelayedWork> {
    if stats.paused {
        return Vec::new();
    }
    let tolerated = config.backoff.initial;
    let limits = &config.concurrency;
    let age = |since: Instant| now.saturating_duration_since(not_before.map_or(since, |earliest| since.max(earliest)));
    let is_late = |since: &Instant| age(*since) > tolerated;
    let lanes = [
        (ATTACH, SaturatedLimit::Attach, limits.attach),
        (DETACH, SaturatedLimit::Detach, limits.detach),
    ];
    let mut found = Vec::new();
    let mut rate: Option<DelayedWork> = None;
    let mut node: Option<DelayedWork> = None;
    for (lane, bound, limit) in lanes {
        let Some(figures) = stats.lanes.get(lane.index()) else {
            continue;
        };
        let limit = limit.map_or(0, std::num::NonZeroUsize::get);
        let free = free_waiting(figures);
        if let Some(since) = figures.oldest_unblocked_since.filter(is_late) {
            // A call that just ended and whose place is about to be taken leaves the lane full.
            let room = limit.saturating_sub(figures.running);
            let full = limit > 0 && (room == 0 || (!stats.lacks_token && room <= 1 + limit / 8));
            if full {
                found.push(shortage(bound, limit, free, age(since)));
            } else if let Some(calls) = limits.calls_per_second.filter(|_| stats.lacks_token) {
                let calls = usize::try_from(calls.get()).unwrap_or(usize::MAX);
                merge(&mut rate, shortage(SaturatedLimit::Rate, calls, free, age(since)));
            }
        }
        if let (Some((name, since)), Some(limit)) = (&figures.oldest_blocked, limits.per_node)
            && is_late(since)
        {
            let bound = SaturatedLimit::Node(name.clone());
            merge(&mut node, shortage(bound, limit.get(), figures.blocked, age(*since)));
        }
    }
    found.extend(rate);
    found.extend(node);
    found
}

fn shortage(bound: SaturatedLimit, limit: usize, waiting: usize, oldest: Duration) -> DelayedWork {
    DelayedWork {
        bound,
        limit,
        waiting,
        oldest,
    }
}

/// Ready keys that their node does not keep from running.
fn free_waiting(lane: &LaneStats<AttacherKey>) -> usize {
    lane.ready.saturating_sub(lane.blocked)
}

/// Adds up what waits for one limit in both lanes; the longest wait names the node.
fn merge(known: &mut Option<DelayedWork>, other: DelayedWork) {
    *known = Some(match known.take() {
        None => other,
        Some(known) => {
            let waiting = known.waiting + other.waiting;
            let longer = if other.oldest > known.oldest { other } else { known };
            DelayedWork { waiting, ..longer }
        }
    });
}

/// A number to one digit of 1, 2 and 5, downwards. With exact figures the status would be written again and again.
fn rounded(count: usize) -> String {
    const EXACT: usize = 5;
    if count <= EXACT {
        return count.to_string();
    }
    let mut power = 1_usize;
    while power.saturating_mul(10) <= count {
        power *= 10;
    }
    let step = [5, 2, 1].map(|digit| power.saturating_mul(digit));
    let step = step.into_iter().find(|step| *step <= count).unwrap_or(power);
    format!("at least {step}")
}

/// A time in coarse steps, downwards.
fn rounded_time(time: Duration) -> String {
    const STEPS: [(u64, &str); 14] = [
        (86_400, "a day"),
        (21_600, "6h"),
        (3_600, "1h"),
        (1_800, "30m"),
        (600, "10m"),
        (300, "5m"),
        (120, "2m"),
        (60, "1m"),
        (30, "30s"),
        (20, "20s"),
        (10, "10s"),
        (5, "5s"),
        (2, "2s"),
        (1, "1s"),
    ];
    let step = STEPS.iter().find(|(seconds, _)| time.as_secs() >= *seconds);
    step.map_or_else(|| "less than 1s".to_owned(), |(_, text)| format!("at least {text}"))
}
