//! Shares that become fair, and then stay.

use std::collections::{BTreeMap, VecDeque};

use tokio::time::Instant;

use super::seconds;
use crate::lease::Board;

const PERIOD: std::time::Duration = seconds(2);

/// Replicas, each with a picture of its own that may be behind, and who really holds which Lease.
struct World {
    boards: Vec<Board>,
    /// Which Leases each replica could hold.
    reaches: Vec<Vec<bool>>,
    holders: Vec<usize>,
    /// What each replica has still to see.
    news: Vec<VecDeque<(usize, usize)>>,
    /// Who asks for a Lease.
    notes: BTreeMap<usize, usize>,
    moves: usize,
    now: Instant,
    random: fastrand::Rng,
}

fn replica(number: usize) -> String {
    format!("replica-{number}")
}

fn lease(number: usize) -> String {
    format!("lease-{number}")
}

impl World {
    /// So many replicas and Leases; each replica reaches a driver with this probability, the first one each.
    fn new(random: fastrand::Rng, replicas: usize, leases: usize, reaches: f64) -> Self {
        let mut world = Self {
            boards: (0..replicas).map(|_| Board::default()).collect(),
            reaches: Vec::new(),
            holders: vec![0; leases],
            news: vec![VecDeque::new(); replicas],
            notes: BTreeMap::new(),
            moves: 0,
            now: Instant::now(),
            random,
        };
        for number in 0..replicas {
            let row = (0..leases).map(|_| number == 0 || world.random.f64() < reaches);
            world.reaches.push(row.collect());
        }
        for number in 0..leases {
            world.tell(number, 0);
        }
        world
    }

    fn tell(&mut self, number: usize, holder: usize) {
        self.holders[number] = holder;
        for news in &mut self.news {
            news.push_back((number, holder));
        }
    }

    /// A retry period passes; each replica sees some of what is new, in its order.
    fn pass(&mut self) {
        self.now += PERIOD;
        for number in 0..self.boards.len() {
            let seen = self.random.usize(0..=self.news[number].len());
            for (what, holder) in self.news[number].drain(..seen) {
                self.boards[number].shows(&lease(what), Some(&replica(holder)));
            }
        }
        for number in 0..self.boards.len() {
            for what in 0..self.holders.len() {
                let could = self.reaches[number][what] && self.holders[what] != number;
                if !could || self.notes.contains_key(&what) {
                    continue;
                }
                if self.boards[number].should_ask(&lease(what), &replica(number), PERIOD, self.now) {
                    if self.news[number].iter().any(|(about, _)| *about == what) {
                        // Its write comes too late.
                        self.boards[number].failed(&lease(what));
                        continue;
                    }
                    assert!(
                        !self.notes.values().any(|asking| *asking == number),
                        "one request at a time"
                    );
                    self.notes.insert(what, number);
                }
            }
        }
        // The holders renew, each when it likes.
        let asked: Vec<_> = self.notes.iter().map(|(what, to)| (*what, *to)).collect();
        for (what, to) in asked {
            if self.random.bool() {
                continue;
            }
            self.notes.remove(&what);
            let holder = self.holders[what];
            if self.boards[holder].should_give(&lease(what), &replica(holder), &replica(to)) {
                self.moves += 1;
                self.tell(what, to);
            } else {
                self.boards[to].refused(&lease(what), self.now);
            }
        }
    }

    fn shares(&self) -> Vec<usize> {
        let count = |number| self.holders.iter().filter(|holder| **holder == number).count();
        (0..self.boards.len()).map(count).collect()
    }
}

#[test]
fn shares_become_fair_and_then_nothing_moves() {
    let mut total = 0;
    for seed in 0..60 {
        fastrand::seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let (replicas, leases) = (random.usize(1..7), random.usize(0..31));
        let everywhere = random.bool();
        let mut world = World::new(random, replicas, leases, if everywhere { 1.0 } else { 0.6 });
        for _ in 0..600 {
            world.pass();
        }
        let (moves, shares) = (world.moves, world.shares());
        // No share can be made fair with fewer moves than this, nor should it take many more.
        assert!(moves <= leases * 2, "{moves} moves for {leases} Leases, seed {seed}");
        for _ in 0..200 {
            world.pass();
        }
        assert_eq!(world.moves, moves, "it is quiet, seed {seed}: {shares:?}");
        if everywhere && leases > 0 {
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{shares:?}, seed {seed}");
        }
        // Whatever a replica could lead, it leads no less than two fewer than who leads it.
        for (what, holder) in world.holders.iter().enumerate() {
            for (number, share) in shares.iter().enumerate() {
                if world.reaches[number][what] {
                    assert!(shares[*holder] < share + 2, "{shares:?}, seed {seed}");
                }
            }
        }
        total += moves;
    }
    assert!(total > 200, "{total}");
}

#[test]
fn who_does_not_answer_is_left_alone() {
    let (board, me) = (Board::default(), "me");
    let begun = Instant::now();
    let asks = |second: u64| board.should_ask("a", me, PERIOD, begun + seconds(second));
    for name in ["a", "b"] {
        board.shows(name, Some("other"));
    }
    assert!(!asks(0), "not before the picture is at rest");
    assert!(asks(13));
    assert!(board.has_asked("a") && !board.has_asked("b"));
    assert!(!board.should_ask("b", me, PERIOD, begun + seconds(60)), "one at a time");
    assert!(!asks(134), "asked in vain");
    assert!(!asks(600));
    assert!(asks(13 + 120 + 602));
    // It is taken over by another one.
    board.shows("a", Some("third"));
    assert!(!board.has_asked("a"));
}

#[test]
fn one_with_a_sidecar_or_nearly_as_much_is_not_asked() {
    let board = Board::default();
    let later = Instant::now() + seconds(100);
    board.shows("a", Some("other"));
    assert!(!board.should_ask("unknown", "me", PERIOD, later));
    assert!(!board.should_ask("a", "me", PERIOD, later + seconds(100)), "1 to 0");
    board.shows("b", Some("other"));
    board.shows("c", Some("me"));
    assert!(!board.should_ask("a", "me", PERIOD, later + seconds(200)));
    assert!(!board.should_ask("a", "me", PERIOD, later + seconds(300)), "2 to 1");
    // And does not give.
    assert!(!board.should_give("a", "other", "me"));
    board.shows("d", Some("other"));
    assert!(!board.should_give("c", "other", "me"), "not its own");
    assert!(board.should_give("a", "other", "me"));
    assert!(!board.should_give("b", "other", "me"), "2 to 2 now");
}
