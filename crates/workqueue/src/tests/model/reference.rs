//! The rules of the queue in the plainest form: one flat map, every question answered by looking at all keys.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::super::super::{AddResult, Group, Item, Lane, QueueLimits, Run, RunResult, Trigger};

/// What the queue must do. Asserts on what it does.
pub(super) struct Model {
    keys: BTreeMap<u8, Known>,
    pub(super) limits: QueueLimits,
    pub(super) paused: bool,
    rate: f64,
    tokens: f64,
    refilled: Instant,
    /// Counts arrivals in a lane and holds, so that equals keep their order.
    clock: u64,
    /// How often a group was started while the key with this arrival headed another group of the lane and could run.
    overtaken: HashMap<(u64, Option<Group>), u32>,
    /// How often a lane (second) was started while another (first) could start something too, since that one had its turn.
    lane_overtaken: HashMap<(Lane, Lane), u32>,
}

#[derive(Clone)]
struct Known {
    lane: Lane,
    group: Option<Group>,
    fingerprint: u64,
    failures: u32,
    /// Whether these are waits.
    waits: bool,
    failed: u64,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Ready {
        arrived: u64,
        trigger: Trigger,
    },
    Held {
        until: Instant,
        order: u64,
        failure: bool,
    },
    Running {
        lane: Lane,
        group: Option<Group>,
        added: bool,
        woken: bool,
        forgotten: bool,
    },
}

impl Known {
    /// New inputs void failures with other ones.
    fn observe(&mut self, fingerprint: u64) -> bool {
        self.fingerprint = fingerprint;
        let changed = self.failures > 0 && self.failed != fingerprint;
        if changed {
            self.failures = 0;
        }
        changed
    }
}

impl Model {
    pub(super) fn new(limits: QueueLimits, rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate);
        Self {
            keys: BTreeMap::new(),
            limits,
            paused: false,
            rate,
            tokens: rate.max(1.0),
            refilled: now,
            clock: 0,
            overtaken: HashMap::new(),
            lane_overtaken: HashMap::new(),
        }
    }

    pub(super) fn without_rate(&mut self) {
        self.rate = 0.0;
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn failures(&self, key: u8) -> u32 {
        self.keys.get(&key).map_or(0, |known| known.failures)
    }

    pub(super) fn in_a_row(&self, key: u8, waits: bool) -> u32 {
        let known = self.keys.get(&key).filter(|known| known.waits == waits);
        known.map_or(0, |known| known.failures)
    }

    pub(super) fn held_until(&self, key: u8) -> Option<Instant> {
        match self.keys.get(&key)?.place {
            Place::Held { until, .. } => Some(until),
            _ => None,
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn hold_or_ready(&mut self, until: Instant, failure: bool, trigger: Trigger, now: Instant) -> Place {
        let order = self.tick();
        if until > now {
            Place::Held { until, order, failure }
        } else {
            Place::Ready {
                arrived: order,
                trigger,
            }
        }
    }

    pub(super) fn add(&mut self, item: &Item<u8>) -> AddResult {
        let order = self.tick();
        let ready = |trigger| Place::Ready {
            arrived: order,
            trigger,
        };
        let Some(known) = self.keys.get_mut(&item.key) else {
            let (lane, group, fingerprint) = (item.lane, item.group.clone(), item.fingerprint);
            self.keys.insert(
                item.key,
                Known {
                    lane,
                    group,
                    fingerprint,
                    failures: 0,
                    waits: false,
                    failed: 0,
                    place: ready(Trigger::Event),
                },
            );
            return AddResult::Queued;
        };
        let moved = known.lane != item.lane || known.group != item.group;
        (known.lane, known.group) = (item.lane, item.group.clone());
        match &mut known.place {
            Place::Running { added, .. } => {
                *added = true;
                known.fingerprint = item.fingerprint;
                AddResult::Dirty
            }
            Place::Ready { arrived, trigger } => {
                let (arrived, before) = (*arrived, *trigger);
                let changed = known.observe(item.fingerprint);
                known.place = Place::Ready {
                    arrived: if moved { order } else { arrived },
                    trigger: if changed { Trigger::Event } else { before },
                };
                AddResult::Waiting
            }
            Place::Held { failure, .. } => {
                let failed = *failure;
                if !known.observe(item.fingerprint) && failed {
                    return AddResult::Swallowed;
                }
                known.place = ready(Trigger::Event);
                AddResult::Queued
            }
        }
    }

    pub(super) fn wake(&mut self, key: u8) -> bool {
        let arrived = self.tick();
        match self.keys.get_mut(&key).map(|known| &mut known.place) {
            Some(place @ Place::Held { .. }) => {
                *place = Place::Ready {
                    arrived,
                    trigger: Trigger::Wake,
                };
                true
            }
            Some(Place::Running { woken, .. }) => {
                *woken = true;
                true
            }
            _ => false,
        }
    }

    pub(super) fn wake_all(&mut self) -> usize {
        let mut keys: Vec<u8> = self.keys.keys().copied().collect();
        keys.sort_by_key(|key| self.order(*key));
        keys.into_iter().filter(|key| self.wake(*key)).count()
    }

    fn order(&self, key: u8) -> Option<(Instant, u64)> {
        match self.keys[&key].place {
            Place::Held { until, order, .. } => Some((until, order)),
            _ => None,
        }
    }

    pub(super) fn forget(&mut self, key: u8) -> bool {
        match self.keys.get_mut(&key).map(|known| &mut known.place) {
            None => false,
            Some(Place::Running { added, forgotten, .. }) => {
                *added = false;
                *forgotten = true;
                true
            }
            Some(_) => self.keys.remove(&key).is_some(),
        }
    }

    pub(super) fn promote(&mut self, now: Instant) {
        if self.paused {
            return;
        }
        let mut due: Vec<_> = self
            .keys
            .keys()
            .filter_map(|key| Some((self.order(*key)?, *key)))
            .collect();
        due.sort_unstable();
        for ((until, _), key) in due {
            if until <= now {
                let arrived = self.tick();
                let known = self.keys.get_mut(&key).expect("a known key");
                let after_failure = matches!(known.place, Place::Held { failure: true, .. });
                let trigger = if after_failure { Trigger::Retry } else { Trigger::Again };
                known.place = Place::Ready { arrived, trigger };
            }
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.rate.max(1.0));
        self.refilled = now;
    }

    pub(super) fn settle_rate(&mut self, lane: Lane, used: u32, now: Instant) {
        if self.limits.lane(lane).rate_limited {
            self.refill(now);
            self.tokens = (self.tokens + 1.0 - f64::from(used)).min(self.rate.max(1.0));
        }
    }

    fn running(&self, counts: impl Fn(Lane, Option<&Group>) -> bool) -> usize {
        let running = self.keys.values().filter(|known| match &known.place {
            Place::Running { lane, group, .. } => counts(*lane, group.as_ref()),
            _ => false,
        });
        running.count()
    }

    /// Whether a ready key may start, the rate aside.
    fn has_slots(&self, known: &Known) -> bool {
        let lane = self.limits.lane(known.lane).max_running;
        let lane_free = lane == 0 || self.running(|other, _| other == known.lane) < lane;
        let counts = |lane: Lane| self.limits.lane(lane).rate_limited;
        let group_free = self.limits.per_group == 0
            || known.group.is_none()
            || !counts(known.lane)
            || self.running(|lane, other| counts(lane) && other == known.group.as_ref()) < self.limits.per_group;
        lane_free && group_free
    }

    /// Whether the rate allows a start in this lane; `slack` tokens are forgiven.
    fn has_token(&self, lane: Lane, slack: f64) -> bool {
        self.rate == 0.0 || !self.limits.lane(lane).rate_limited || self.tokens >= 1.0 - slack
    }

    fn ready(&self) -> impl Iterator<Item = (u64, &Known)> {
        self.keys.values().filter_map(|known| match known.place {
            Place::Ready { arrived, .. } => Some((arrived, known)),
            _ => None,
        })
    }

    /// The queue started this run.
    pub(super) fn started(&mut self, run: &Run<u8>, now: Instant) {
        self.refill(now);
        assert!(!self.paused, "started while paused");
        let known = self.keys.get(&run.key).expect("a known key").clone();
        let Place::Ready { arrived, trigger } = known.place else {
            panic!("{run:?} was not ready")
        };
        assert_eq!((run.trigger, run.attempt()), (trigger, known.failures + 1), "{run:?}");
        assert!(self.has_slots(&known), "{run:?} passes a limit");
        assert!(self.has_token(run.lane, 1e-6), "{run:?} passes the rate");
        let as_known = (known.lane, known.group.as_ref(), known.fingerprint, known.failures);
        assert_eq!((run.lane, run.group.as_ref(), run.fingerprint, run.failures), as_known);
        let before_it = self
            .ready()
            .filter(|(earlier, other)| *earlier < arrived && (other.lane, &other.group) == (known.lane, &known.group));
        assert_eq!(before_it.count(), 0, "{run:?} is not the first of its group");
        self.check_groups(&known);
        self.check_lanes(run.lane);
        if self.limits.lane(run.lane).rate_limited {
            self.tokens -= 1.0;
        }
        let place = Place::Running {
            lane: known.lane,
            group: known.group,
            added: false,
            woken: false,
            forgotten: false,
        };
        self.keys.get_mut(&run.key).expect("a known key").place = place;
    }

    /// No group may start twice while the head of another group of the lane could run.
    fn check_groups(&mut self, started: &Known) {
        let mut heads: HashMap<&Option<Group>, u64> = HashMap::new();
        for (arrived, known) in self.ready() {
            if known.lane == started.lane && known.group != started.group && self.has_slots(known) {
                let head = heads.entry(&known.group).or_insert(arrived);
                *head = arrived.min(*head);
            }
        }
        for head in heads.into_values().collect::<Vec<_>>() {
            let times = self.overtaken.entry((head, started.group.clone())).or_default();
            *times += 1;
            assert!(
                *times <= 1,
                "group {:?} started again before another had its turn",
                started.group
            );
        }
    }

    /// No lane may start twice when another could start something too, unless that one had its turn between. What it lacked meanwhile, a
    /// token or a place, does not matter.
    fn check_lanes(&mut self, started: Lane) {
        for other in (0..3).map(Lane::new).filter(|other| *other != started) {
            let could = self
                .ready()
                .any(|(_, known)| known.lane == other && self.has_slots(known) && self.has_token(other, -1e-6));
            if could {
                let times = self.lane_overtaken.entry((other, started)).or_default();
                *times += 1;
                assert!(*times <= 1, "{started:?} started again before {other:?} had its turn");
            }
        }
        self.lane_overtaken.retain(|(overtaken, _), _| *overtaken != started);
    }

    /// The queue had nothing to start and wants to be asked again at `at`.
    pub(super) fn nothing_to_start(&mut self, at: Option<Instant>, now: Instant) {
        self.refill(now);
        if self.paused {
            return;
        }
        for (_, known) in self.ready() {
            assert!(
                !self.has_slots(known) || !self.has_token(known.lane, -1e-6),
                "work was left undone"
            );
        }
        let needs_token = self.ready().any(|(_, known)| self.has_slots(known));
        let token_at = needs_token.then(|| now + Duration::from_secs_f64(((1.0 - self.tokens) / self.rate).max(0.0)));
        let hold_ends = self.keys.keys().filter_map(|key| self.held_until(*key)).min();
        match (at, hold_ends.into_iter().chain(token_at).min()) {
            (None, None) => {}
            (Some(at), Some(want)) => {
                let off = at.max(want) - at.min(want);
                assert!(off < Duration::from_micros(10), "wakes {off:?} off its time");
            }
            (at, want) => panic!("wakes at {at:?}, wanted {want:?}"),
        }
    }

    pub(super) fn finish(&mut self, run: &Run<u8>, verdict: RunResult, now: Instant) {
        let mut known = self.keys.remove(&run.key).expect("a known key");
        let Place::Running {
            added,
            woken,
            forgotten,
            ..
        } = known.place.clone()
        else {
            panic!("{run:?} does not run")
        };
        let (until, failure, trigger) = match verdict {
            _ if forgotten || verdict == RunResult::Done => {
                known.failures = 0;
                if !added {
                    return;
                }
                (now, false, Trigger::Event)
            }
            RunResult::Done | RunResult::Requeue | RunResult::RequeueAfter(_) => {
                if added {
                    known.observe(known.fingerprint);
                }
                let again = if added { Trigger::Event } else { Trigger::Again };
                match verdict {
                    RunResult::RequeueAfter(delay) if !added && !woken => (now + delay, false, again),
                    RunResult::RequeueAfter(_) if !added => (now, false, Trigger::Wake),
                    _ => (now, false, again),
                }
            }
            RunResult::Failed | RunResult::FailedWith { .. } | RunResult::Waits { .. } => {
                let (inputs, waits, delay) = match verdict {
                    RunResult::FailedWith { fingerprint } => (fingerprint, false, run.retry_delay),
                    RunResult::Waits { fingerprint } => (fingerprint, true, run.wait_delay),
                    _ => (run.fingerprint, false, run.retry_delay),
                };
                let changed = added && known.fingerprint != inputs;
                if changed {
                    known.failures = 0;
                } else {
                    let before = if known.waits == waits { known.failures } else { 0 };
                    (known.failures, known.waits) = (before + 1, waits);
                    (known.failed, known.fingerprint) = (inputs, inputs);
                }
                match (changed, woken) {
                    (true, _) => (now, false, Trigger::Event),
                    (false, true) => (now, true, Trigger::Wake),
                    (false, false) => (now + delay, true, Trigger::Retry),
                }
            }
        };
        known.place = self.hold_or_ready(until, failure, trigger, now);
        self.keys.insert(run.key, known);
    }
}
