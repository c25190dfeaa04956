//! Whether a limit of `spec.concurrency` or `spec.provisioning.concurrency` makes work wait: from the figures of a queue to the condition Saturated. Pure.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use crate::api::condition::{ConditionReason, ConditionType, ConditionUpdate};
use crate::api::validated::{DriverConfig, Provisioning};
use crate::cache::{ATTACH, DETACH};
use crate::queue::{Lane, LaneStats, Stats};
use csi_attacher_provision::{CREATE, DELETE};

/// How long a shortage that is over is shown at least, so that the condition does not change with every burst.
const MIN_CALM: Duration = Duration::from_secs(5);
/// How long it is shown at most, however long the backoff is.
const MAX_CALM: Duration = Duration::from_mins(1);

/// The words of the role whose calls a limit is about.
#[derive(Debug, PartialEq, Eq)]
struct LimitedRole {
    /// The section of the spec with its limits.
    section: &'static str,
    /// The noun and the field of what groups its calls.
    group: (&'static str, &'static str),
    /// The reasons of a lane, of the rate and of a group, in this order.
    reasons: [ConditionReason; 3],
}

static ATTACHING: LimitedRole = LimitedRole {
    section: "spec.concurrency",
    group: ("node", "perNode"),
    reasons: ConditionReason::ATTACHING_SATURATED,
};
static PROVISIONING: LimitedRole = LimitedRole {
    section: "spec.provisioning.concurrency",
    group: ("StorageClass", "perClass"),
    reasons: ConditionReason::PROVISIONING_SATURATED,
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum SaturatedLimit {
    /// The lane of this name, which is that of the field.
    Lane(&'static str),
    Rate,
    /// The node or class of this name, for which the work waits longest.
    Group(Arc<str>),
}

pub(super) struct RoleLimits {
    role: &'static LimitedRole,
    /// What waits for longer is late.
    tolerated: Duration,
    lanes: [(Lane, &'static str, Option<NonZeroUsize>); 2],
    per_group: Option<NonZeroUsize>,
    calls_per_second: Option<NonZeroU32>,
}

impl RoleLimits {
    pub fn attaching(config: &DriverConfig) -> Self {
        let limits = &config.concurrency;
        Self {
            role: &ATTACHING,
            tolerated: config.backoff.initial,
            lanes: [(ATTACH, "attach", limits.attach), (DETACH, "detach", limits.detach)],
            per_group: limits.per_node,
            calls_per_second: limits.calls_per_second,
        }
    }

    pub fn provisioning(settings: &Provisioning) -> Self {
        Self {
            role: &PROVISIONING,
            tolerated: settings.backoff.initial,
            lanes: [(CREATE, "create", settings.create), (DELETE, "delete", settings.delete)],
            per_group: settings.per_class,
            calls_per_second: settings.calls_per_second,
        }
    }
}

/// Work that waits because of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DelayedWork {
    role: &'static LimitedRole,
    bound: SaturatedLimit,
    limit: usize,
    waiting: usize,
    /// How long the first of it waits.
    oldest: Duration,
}

/// Which limits have delayed work lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Saturation {
    shown: Vec<DelayedWork>,
    seen: Option<Instant>,
    /// When the figures were looked at last.
    observed: Option<Instant>,
    /// Until when nothing was handed out: what waited then, waited for something else.
    paused: Option<Instant>,
}

impl Saturation {
    /// Looks at the figures of a queue; a role that is being ended has no limits.
    pub fn observe<K>(&mut self, stats: &Stats<K>, limits: Option<&RoleLimits>, now: Instant) {
        self.observed = Some(now);
        if stats.paused {
            self.paused = Some(now);
        }
        let shortages = limits.map(|limits| shortages(stats, limits, |since| self.waited(since)));
        let calm = limits.map_or(MIN_CALM, |limits| limits.tolerated.clamp(MIN_CALM, MAX_CALM));
        if let Some(shortages) = shortages.filter(|shortages| !shortages.is_empty()) {
            (self.shown, self.seen) = (shortages, Some(now));
        } else if self.seen.is_some_and(|seen| now.duration_since(seen) >= calm) {
            (self.shown, self.seen) = (Vec::new(), None);
        }
    }

    /// How long the first that is ready in a lane has waited for its turn when the figures were looked at last; zero when none does.
    pub fn oldest_wait<K>(&self, lane: &LaneStats<K>) -> Duration {
        lane.oldest_ready_since
            .map_or(Duration::ZERO, |since| self.waited(since))
    }

    /// How long what is ready since then has waited for its turn: not while nothing was handed out.
    fn waited(&self, since: Instant) -> Duration {
        let from = self.paused.map_or(since, |end| since.max(end));
        self.observed
            .map_or(Duration::ZERO, |now| now.saturating_duration_since(from))
    }

    /// The reasons for the condition, the first of which names it.
    pub fn reasons(&self) -> impl Iterator<Item = ConditionReason> {
        self.shown.iter().map(DelayedWork::reason)
    }

    /// The condition of a driver from the queues of its roles, of those that this replica works for.
    pub fn condition(attaching: Option<&Self>, provisioning: Option<&Self>) -> ConditionUpdate {
        let kind = ConditionType::Saturated;
        let roles = attaching.into_iter().chain(provisioning);
        let shown: Vec<&DelayedWork> = roles.flat_map(|role| &role.shown).collect();
        let Some(worst) = shown.first() else {
            let mut message = "no limit of spec.concurrency delays attaches or detaches".to_owned();
            if provisioning.is_some() {
                message.push_str(", and none of spec.provisioning.concurrency delays calls");
            }
            return ConditionUpdate::new(kind, false, ConditionReason::NotSaturated, message);
        };
        let messages: Vec<String> = shown.iter().map(|work| work.message()).collect();
        ConditionUpdate::new(kind, true, worst.reason(), messages.join("; "))
    }
}

impl DelayedWork {
    fn reason(&self) -> ConditionReason {
        let [lane, rate, group] = self.role.reasons;
        match self.bound {
            SaturatedLimit::Lane(_) => lane,
            SaturatedLimit::Rate => rate,
            SaturatedLimit::Group(_) => group,
        }
    }

    fn message(&self) -> String {
        let (limit, section, (noun, per_group)) = (self.limit, self.role.section, self.role.group);
        let (what, field) = match &self.bound {
            SaturatedLimit::Lane(lane) => (format!("the {lane} lane is full: {limit} in flight"), *lane),
            SaturatedLimit::Rate if limit == 1 => ("1 call starts in a second".to_owned(), "callsPerSecond"),
            SaturatedLimit::Rate => (format!("{limit} calls start in a second"), "callsPerSecond"),
            SaturatedLimit::Group(name) => {
                let calls = if limit == 1 { "call" } else { "calls" };
                (format!("{noun} {name} has {limit} {calls} in flight"), per_group)
            }
        };
        format!(
            "{what}, as {section}.{field} allows; waiting: {}, the longest for {}; raise {section}.{field} if the storage can handle more in \
             parallel",
            rounded(self.waiting),
            rounded_time(self.oldest)
        )
    }
}

/// What waits for longer than one backoff interval because of a limit. `age` is how long what is ready since then has waited.
fn shortages<K>(stats: &Stats<K>, limits: &RoleLimits, age: impl Fn(Instant) -> Duration) -> Vec<DelayedWork> {
    if stats.paused {
        return Vec::new();
    }
    let is_late = |since: &Instant| age(*since) > limits.tolerated;
    let shortage = |bound, limit, waiting, since| DelayedWork {
        role: limits.role,
        bound,
        limit,
        waiting,
        oldest: age(since),
    };
    let mut found = Vec::new();
    let mut rate: Option<DelayedWork> = None;
    let mut group: Option<DelayedWork> = None;
    for (lane, name, limit) in limits.lanes {
        let Some(figures) = stats.lanes.get(lane.index()) else {
            continue;
        };
        let limit = limit.map_or(0, NonZeroUsize::get);
        // What its group does not keep from running.
        let free = figures.ready.saturating_sub(figures.blocked);
        if let Some(since) = figures.oldest_unblocked_since.filter(is_late) {
            // A call that just ended and whose place is about to be taken leaves the lane full.
            let room = limit.saturating_sub(figures.running);
            let full = limit > 0 && (room == 0 || (!stats.lacks_token && room <= 1 + limit / 8));
            if full {
                found.push(shortage(SaturatedLimit::Lane(name), limit, free, since));
            } else if let Some(calls) = limits.calls_per_second.filter(|_| stats.lacks_token) {
                let calls = usize::try_from(calls.get()).unwrap_or(usize::MAX);
                merge(&mut rate, shortage(SaturatedLimit::Rate, calls, free, since));
            }
        }
        if let (Some((name, since)), Some(limit)) = (&figures.oldest_blocked, limits.per_group)
            && is_late(since)
        {
            let bound = SaturatedLimit::Group(name.clone());
            merge(&mut group, shortage(bound, limit.get(), figures.blocked, *since));
        }
    }
    found.extend(rate);
    found.extend(group);
    found
}

/// Adds up what waits for one limit in both lanes; the longest wait names the group.
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
