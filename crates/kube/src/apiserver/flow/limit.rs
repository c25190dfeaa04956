//! How many requests may be in flight, as the API server's answers have it.
//!
//! A request that waits in the API server, behind others of ours, is answered later and no sooner than one that waits here. So
//! the limit is where answers take 1.7 times as long as with few requests in flight: more of them would only wait there, and
//! make everybody else wait too. For each kind of request, the time with few in flight (the baseline) is learned while there
//! are few; when there have been many for half a minute, the limit is the lowest one until the baseline is known again.
//!
//! Times are averaged as logarithms, so that one answer after 10 s among many after 10 ms weighs as little as it should.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

use super::slots::SlotKind;

/// Between which numbers the limit of requests in flight is.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    /// The API server has answers for so many at a time however busy it is. The baseline is what they take.
    pub min: usize,
    /// What a busy API server has answers for is far less.
    pub max: usize,
}

impl Default for SlotLimits {
    fn default() -> Self {
        Self { min: 6, max: 100 }
    }
}

/// How a request ended, for the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum SlotAnswer {
    Served,
    /// There was no answer, or one that says that the API server has too much to do.
    Overloaded,
    /// It says nothing about time: what is refused is refused without a write.
    Other,
}

/// The natural logarithm of 1.7: how much longer than the baseline answers may take.
const TOLERATED: f64 = 0.53;
/// How much longer than usual an answer counts as at most, as a logarithm: four times. One that says that there is too much
/// to do counts so.
const LONGEST_DEVIATION: f64 = 1.386;
/// The weight of one answer in the average of recent ones, and in the baseline.
const WEIGHT: f64 = 1.0 / 32.0;
const BASELINE_WEIGHT: f64 = 1.0 / 16.0;
/// How fast the limit changes, for as many answers as it is high: by half at first, then in proportion to what answers lack.
const FAST_STEP: f64 = 0.5;
const STEP: f64 = 0.3;
/// How old a baseline may be: half a minute, or as long as so many answers one after the other take where these are slow, so that
/// learning it again takes a small part of the time only; and how old it may be however slow these are.
const BASELINE_AGE: Duration = Duration::from_secs(30);
const BASELINE_AGE_ANSWERS: f64 = 256.0;
const MAX_BASELINE_AGE: Duration = Duration::from_mins(10);
/// So many answers make a baseline.
const BASELINE_ANSWERS: u32 = 48;
/// No answer counts as faster, in seconds.
const SHORTEST_ANSWER: f64 = 0.000_1;

/// A limit that follows answers.
#[derive(Debug)]
pub(super) struct AdaptiveLimit {
    limits: SlotLimits,
    current: f64,
    kinds: HashMap<SlotKind, AnswerTimes>,
    /// When the baseline was last known to hold, and how many answers say so since.
    baseline_at: Instant,
    baseline_answers: u32,
}

/// How long answers to requests of one kind take: logarithms of seconds.
#[derive(Clone, Copy, Debug)]
struct AnswerTimes {
    recent: f64,
    /// With few requests in flight.
    baseline: f64,
}

impl AnswerTimes {
    /// Takes an answer in. Whatever the number in flight, the baseline is not above what answers take.
    fn record(&mut self, answer: f64, teaches_baseline: bool) {
        let deviation = |average: f64| (answer - average).clamp(-LONGEST_DEVIATION, LONGEST_DEVIATION);
        self.recent += deviation(self.recent) * WEIGHT;
        if teaches_baseline {
            self.baseline += deviation(self.baseline) * BASELINE_WEIGHT;
        }
        self.baseline = self.baseline.min(self.recent);
    }

    /// How much longer answers may take; negative when they take too long.
    fn headroom(&self) -> f64 {
        TOLERATED - (self.recent - self.baseline)
    }
}

impl AdaptiveLimit {
    pub fn new(limits: SlotLimits) -> Self {
        let min = limits.min.max(1);
        let max = limits.max.max(min);
        Self {
            limits: SlotLimits { min, max },
            current: min as f64,
            kinds: HashMap::new(),
            baseline_at: Instant::now(),
            baseline_answers: 0,
        }
    }

    pub fn min(&self) -> usize {
        self.limits.min
    }

    /// How many may be in flight now.
    pub fn now(&self) -> usize {
        if self.is_baseline_old() {
            return self.limits.min;
        }
        // Between `min` and `max`, which are counts.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let current = self.current as usize;
        current.clamp(self.limits.min, self.limits.max)
    }

    /// Whether it has to be learned again.
    fn is_baseline_old(&self) -> bool {
        self.baseline_at.elapsed() > self.baseline_age()
    }

    fn baseline_age(&self) -> Duration {
        let slowest = self.kinds.values().map(|times| times.recent).reduce(f64::max);
        let age = slowest.map_or(0.0, f64::exp) * BASELINE_AGE_ANSWERS;
        let (min, max) = (BASELINE_AGE.as_secs_f64(), MAX_BASELINE_AGE.as_secs_f64());
        Duration::from_secs_f64(age.clamp(min, max))
    }

    /// Takes an answer in. `few` says that the request was sent with no more than the least in flight, `is_wanted` that more
    /// requests could be sent if the limit was higher.
    pub fn record(&mut self, kind: SlotKind, elapsed: Duration, answer: SlotAnswer, few: bool, is_wanted: bool) {
        let is_overloaded = match answer {
            SlotAnswer::Served => false,
            SlotAnswer::Overloaded => true,
            SlotAnswer::Other => return,
        };
        let mut sample = elapsed.as_secs_f64().max(SHORTEST_ANSWER).ln();
        let teaches_baseline = few && !is_overloaded;
        let headroom = if is_overloaded && !self.kinds.contains_key(&kind) {
            // How long answers take is not known yet.
            -LONGEST_DEVIATION
        } else {
            let times = self.kinds.entry(kind).or_insert(AnswerTimes {
                recent: sample,
                baseline: sample,
            });
            if is_overloaded {
                sample = sample.max(times.baseline + LONGEST_DEVIATION);
            }
            times.record(sample, teaches_baseline);
            times.headroom()
        };
        if teaches_baseline {
            self.baseline_answers += 1;
            if self.baseline_answers >= BASELINE_ANSWERS {
                (self.baseline_answers, self.baseline_at) = (0, Instant::now());
            }
        }
        // The lowest limit, under which a baseline is learned, proves nothing of a higher one.
        if headroom < 0.0 || (is_wanted && !self.is_baseline_old()) {
            self.step(headroom);
        }
    }

    fn step(&mut self, headroom: f64) {
        let step = if headroom > TOLERATED / 2.0 {
            FAST_STEP
        } else {
            STEP * headroom.max(-LONGEST_DEVIATION)
        };
        // Far below what a float holds exactly.
        let (min, max) = (self.limits.min as f64, self.limits.max as f64);
        self.current = (self.current * (step / self.current).exp()).clamp(min, max);
    }
}
