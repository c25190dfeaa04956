//! Any order of requests, answers and requests that are given up: nobody waits while there is a place.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::*;
use crate::apiserver::flow::slots::SlotAnswer;

const KINDS: [SlotKind; 3] = [VOLUME, ATTACHMENT, STATUS];

#[derive(Clone, Copy)]
struct Asked {
    driver: usize,
    kind: usize,
    can_wait: bool,
}

#[derive(Default)]
struct History {
    waiting: Vec<(Asked, Option<BoxFuture<'static, RequestSlot>>)>,
    held: Vec<(Asked, RequestSlot)>,
}

impl History {
    /// Takes what was given.
    fn look(&mut self) {
        for (asked, waiting) in &mut self.waiting {
            if let Some(place) = waiting.as_mut().and_then(futures::FutureExt::now_or_never) {
                *waiting = None;
                self.held.push((*asked, place));
            }
        }
        self.waiting.retain(|(_, waiting)| waiting.is_some());
    }

    fn count(&self, has: impl Fn(&Asked) -> bool) -> usize {
        self.held.iter().filter(|(asked, _)| has(asked)).count()
    }

    fn check(&self, slots: &RequestSlots) {
        let (running, limit) = running_and_limit(slots);
        assert_eq!(running, self.held.len());
        for (asked, _) in &self.waiting {
            let is_same = |other: &Asked| {
                (other.driver, other.kind, other.can_wait) == (asked.driver, asked.kind, asked.can_wait)
            };
            let first_of = if asked.can_wait {
                self.count(|other| other.driver == asked.driver)
            } else {
                self.count(is_same)
            };
            assert!(first_of > 0, "waits though it would be the first");
            let of_kind = self.count(|other| other.kind == asked.kind);
            let has_place = running < limit && of_kind < (limit * 3).div_ceil(4);
            assert!(!has_place, "waits though there is a place");
        }
    }
}

fn history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let slots = RequestSlots::new(SlotLimits {
        min: random.usize(1..4),
        max: random.usize(4..12),
    });
    let mut history = History::default();
    for _ in 0..300 {
        match random.usize(0..10) {
            0..5 => {
                let asked = Asked {
                    driver: random.usize(0..4),
                    kind: random.usize(0..3),
                    can_wait: random.usize(0..4) == 0,
                };
                let (driver, node) = (name(&asked.driver.to_string()), name(&random.u8(0..3).to_string()));
                let (slots, has_node) = (slots.clone(), random.bool());
                let waiting = async move {
                    let request = SlotRequest {
                        driver: &driver,
                        node: has_node.then_some(&node),
                        kind: KINDS[asked.kind],
                        can_wait: asked.can_wait,
                    };
                    slots.acquire(request).await
                };
                history.waiting.push((asked, Some(waiting.boxed())));
            }
            5..9 if !history.held.is_empty() => {
                let (_, place) = history.held.swap_remove(random.usize(0..history.held.len()));
                match random.usize(0..4) {
                    0 => drop(place),
                    1 => place.finish(SlotAnswer::Overloaded),
                    _ => place.finish(SlotAnswer::Served),
                }
            }
            9 if !history.waiting.is_empty() => {
                drop(history.waiting.swap_remove(random.usize(0..history.waiting.len())));
            }
            _ => {}
        }
        // Sometimes several things happen before anybody looks.
        if random.usize(0..3) > 0 {
            history.look();
            history.check(&slots);
        }
    }
    while !history.held.is_empty() || !history.waiting.is_empty() {
        history.look();
        let held = history.held.pop();
        assert!(held.is_some(), "seed {seed}: all wait, and nothing is in flight");
    }
    assert!(is_idle(&slots), "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_while_there_is_a_place() {
    for seed in 0..300 {
        history(seed);
        tokio::time::advance(Duration::from_secs(seed)).await;
    }
}
