//! The same worlds with a process that does at once what it can do, as the engine of production does. What is left to chance is what
//! its surroundings do, so that a path can be replayed with that engine.

use csi_attacher_model::objects::StringMap;

use super::event::Event;
use super::objects::Kind;
use super::state::{NONE, Phase, Replica, Request, State};
use super::universe::context_of;
use super::world::User;
use super::{Core, Rules, Setting, Traced, bit};
use crate::explorer::{Next, World};
use crate::replay::{self, DriverAnswer, History, ObjectKind, Seen, Step, Stored};

/// A world in which processes wait for nothing but their surroundings.
pub struct Eager {
    core: Core,
    /// How many steps were left out because it matters in which order a process looks at two keys.
    pub ambiguous: usize,
}

/// A state in which the process rests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EagerState {
    state: State,
    /// The keys that were held back for as long as is good. They stay so until they are settled.
    expired: u8,
}

/// One step of the surroundings, and what the process does because of it.
#[derive(Clone)]
struct Move {
    to: EagerState,
    traced: Vec<Traced>,
    calm: bool,
    acts: bool,
    violation: Option<&'static str>,
}

impl EagerState {
    fn leader(&self) -> Option<&Replica> {
        self.state.replicas.get(usize::from(self.state.leader))
    }

    /// A key whose wait has ended waits for nothing.
    fn forget_ended(mut self) -> Self {
        self.expired &= self.leader().map_or(0, |leader| leader.waited);
        self
    }

    /// The keys that are held back still; none while an attempt at one of them runs, which would see the end of its wait too.
    fn held_back(&self) -> u8 {
        let Some(leader) = self.leader() else { return 0 };
        let runs = leader.attempts.iter().any(|(slot, _)| leader.waited & bit(*slot) != 0);
        if runs { 0 } else { leader.waited & !self.expired }
    }
}

/// What the replay leaves to the surroundings of a process.
fn is_of_surroundings(event: Event) -> bool {
    !matches!(
        event,
        Event::Looks { .. } | Event::LosesTheLease { .. } | Event::Capable { .. } | Event::Lies { .. }
    )
}

impl Eager {
    /// See [`Core::new`].
    pub fn new(setting: Setting, rules: Rules) -> Self {
        Self {
            core: Core::new(setting, rules),
            ambiguous: 0,
        }
    }

    /// What the surroundings can do.
    fn moves(&mut self, from: &EagerState) -> Vec<Move> {
        let mut found = Vec::new();
        let traced = self.core.traced(|core| core.next(&from.state, &mut found));
        let steps = found.into_iter().zip(traced);
        let mut begun: Vec<Move> = steps
            .filter(|(_, traced)| is_of_surroundings(traced.event))
            .map(|(next, traced)| Move::of(next, traced, from.expired))
            .collect();
        if from.held_back() != 0 {
            let to = EagerState {
                expired: from.expired | from.held_back(),
                ..from.clone()
            };
            begun.push(Move {
                to,
                traced: vec![Traced::of(Event::Waits)],
                calm: true,
                acts: false,
                violation: None,
            });
        }
        begun.into_iter().filter_map(|begun| self.settled(begun)).collect()
    }

    /// A step, with all that the process does after it; none when it matters in which order it does that.
    fn settled(&mut self, begun: Move) -> Option<Move> {
        let (mut open, mut known, mut ends) = (vec![begun], Vec::new(), Vec::new());
        while let Some(at) = open.pop() {
            if known.contains(&at.to) {
                continue;
            }
            known.push(at.to.clone());
            let looks = self.looks(&at);
            if looks.is_empty() {
                ends.push(at);
            } else {
                open.extend(looks);
            }
        }
        self.ambiguous += usize::from(ends.len() != 1);
        ends.pop().filter(|_| ends.is_empty())
    }

    /// The attempts that the process can begin, each after what it did before.
    fn looks(&mut self, after: &Move) -> Vec<Move> {
        let mut found = Vec::new();
        let traced = self.core.traced(|core| {
            let leader = usize::from(after.to.state.leader);
            if leader < after.to.state.replicas.len() {
                core.steps_of_process(&after.to.state, leader, &mut found);
            }
        });
        let due = |event| match event {
            Event::Looks { at, expired } => (after.to.expired & bit(at.slot) != 0) == expired,
            _ => false,
        };
        let looks = found.into_iter().zip(traced).filter(|(_, traced)| due(traced.event));
        looks
            .map(|(next, traced)| {
                let look = Move::of(next, traced, after.to.expired);
                Move {
                    traced: after.traced.iter().cloned().chain(look.traced).collect(),
                    calm: after.calm,
                    acts: after.acts || look.acts,
                    violation: after.violation.or(look.violation),
                    to: look.to,
                }
            })
            .collect()
    }

    /// A history from the first state on: `choose` picks a step by the events that can happen, until it picks none.
    fn history(&mut self, choose: &mut dyn FnMut(&[Event]) -> Option<usize>) -> History {
        let mut at = self.first();
        let mut history = History {
            world: replay::World {
                name: self.core.setting.name.to_owned(),
                wrong: None,
                violates: None,
                objects: self.stored(&at.state),
            },
            steps: Vec::new(),
        };
        loop {
            let mut moves = self.moves(&at);
            let events: Vec<Event> = moves.iter().map(|made| made.traced[0].event).collect();
            let Some(number) = choose(&events) else { return history };
            let made = moves.swap_remove(number);
            history.steps.push(self.step(&made));
            at = made.to;
        }
    }

    /// A random path with at most so many steps.
    pub fn path(&mut self, seed: u64, most: usize) -> History {
        let mut rng = fastrand::Rng::with_seed(seed);
        // How fast the watches are, and people, differs from path to path.
        let (watch, people) = (
            rng.choice([4, 16, 64]).unwrap_or(4),
            rng.choice([1, 4, 16]).unwrap_or(1),
        );
        let mut left = most;
        self.history(&mut |events| {
            left = left.checked_sub(1)?;
            let weight = |event: &Event| match event {
                Event::Shows { .. } => watch,
                // Not much happens after that.
                Event::Does(User::DeleteVolume(_)) => 1,
                Event::Does(_) => people,
                Event::Dies { .. } => 2,
                _ => 16,
            };
            let total: u32 = events.iter().map(weight).sum();
            let mut drawn = (total > 0).then(|| rng.u32(0..total))?;
            events.iter().position(|event| {
                let weight = weight(event);
                let hit = drawn < weight;
                drawn = drawn.wrapping_sub(weight);
                hit
            })
        })
    }

    /// The history of a counterexample.
    pub fn counterexample(&mut self, steps: &[u16]) -> History {
        let mut steps = steps.iter();
        self.history(&mut |_| steps.next().map(|step| usize::from(*step)))
    }

    fn step(&self, made: &Move) -> Step {
        let words = made.traced.iter().map(|traced| self.core.told(traced)).collect();
        let mut calls: Vec<_> = made.traced.iter().flat_map(|traced| traced.calls.clone()).collect();
        calls.sort();
        Step {
            words,
            event: self.event(made),
            then: Seen {
                calls,
                ..self.seen(&made.to)
            },
        }
    }

    fn event(&self, made: &Move) -> replay::Event {
        let universe = &self.core.universe;
        let key = |slot: u8| universe.name(slot).to_string();
        let stored = |(slot, object): (u8, u32)| Stored {
            kind: kind(universe.kind(slot)),
            object: universe.object(object).value.clone(),
        };
        match made.traced[0].event {
            Event::TakesTheLease { .. } => replay::Event::Starts,
            Event::Dies { .. } => replay::Event::Dies,
            Event::Does(_) => match made.traced[0].stored {
                Some(put) => replay::Event::Stores(stored(put)),
                None => replay::Event::Unnoticed,
            },
            Event::Shows { told, .. } => replay::Event::Shows(kind(universe.kind(told.slot))),
            Event::Takes { at, .. } | Event::Reads { at, .. } => replay::Event::Serves { key: key(at.slot) },
            Event::Answers { at, .. } => replay::Event::Answers { key: key(at.slot) },
            Event::Loses { at, .. } | Event::LosesRead { at } => replay::Event::Loses { key: key(at.slot) },
            Event::ComesLate { write } => replay::Event::ComesLate {
                write: replay::patch(universe.write(write)),
            },
            Event::CallSucceeds { at, call } => {
                let answered = made.to.state.contexts[usize::from(call.place)];
                let context = if answered == 2 { 2 } else { 1 };
                let context = if call.publishes {
                    context_of(context)
                } else {
                    StringMap::default()
                };
                let context = context.iter().map(|(key, value)| (key.to_string(), value.to_string()));
                driver(key(at.slot), DriverAnswer::Ok(context.collect()))
            }
            Event::CallRefused { at, call } => {
                driver(key(at.slot), DriverAnswer::Fails(if call.publishes { 13 } else { 5 }))
            }
            Event::CallHangs { at, .. } => driver(key(at.slot), DriverAnswer::Fails(4)),
            Event::Secret { there } => replay::Event::Secret(there),
            Event::Waits => replay::Event::Waits,
            Event::NeverComes { .. }
            | Event::DoneLate { .. }
            | Event::GivenUp { .. }
            | Event::Looks { .. }
            | Event::Lies { .. }
            | Event::Capable { .. }
            | Event::LosesTheLease { .. } => replay::Event::Unnoticed,
        }
    }

    fn stored(&self, state: &State) -> Vec<Stored> {
        let universe = &self.core.universe;
        let there = (0_u8..).zip(state.objects).filter(|(_, object)| *object != NONE);
        there
            .map(|(slot, object)| Stored {
                kind: kind(universe.kind(slot)),
                object: universe.object(object).value.clone(),
            })
            .collect()
    }

    fn seen(&self, at: &EagerState) -> Seen {
        let universe = &self.core.universe;
        let attempts = at.leader().map(|leader| &leader.attempts[..]).unwrap_or_default();
        let waits = attempts.iter().map(|(slot, attempt)| {
            let (request, what) = match attempt.phase {
                Phase::Write { write, request, .. } => (request, replay::patch(universe.write(write))),
                Phase::Read { slot: of, request, .. } => (request, replay::read(&universe.name(of))),
                Phase::Call { publishes, place, .. } => (Request::Sent, replay::call(publishes, universe.at(place))),
            };
            let what = if request == Request::Sent {
                what
            } else {
                replay::answered(&what)
            };
            (universe.name(*slot).to_string(), what)
        });
        let objects = self.stored(&at.state).into_iter().map(|stored| {
            let name = stored.object["metadata"]["name"].as_str().unwrap_or_default();
            (name.to_owned(), replay::comparable(&stored.object))
        });
        Seen {
            waits: waits.collect(),
            objects: objects.collect(),
            calls: Vec::new(),
        }
    }
}

fn driver(key: String, answer: DriverAnswer) -> replay::Event {
    replay::Event::Driver { key, answer }
}

fn kind(kind: Kind) -> ObjectKind {
    match kind {
        Kind::Attachment => ObjectKind::Attachment,
        Kind::Volume => ObjectKind::Volume,
        Kind::Node => ObjectKind::Node,
    }
}

impl Move {
    fn of(next: Next<State>, traced: Traced, expired: u8) -> Self {
        let to = EagerState {
            state: next.state,
            expired: expired & !traced.ended_waits,
        };
        Self {
            to: to.forget_ended(),
            traced: vec![traced],
            calm: next.calm,
            acts: next.acts,
            violation: next.violation,
        }
    }
}

impl World for Eager {
    type State = EagerState;

    fn first(&mut self) -> EagerState {
        EagerState {
            state: self.core.first(),
            expired: 0,
        }
    }

    fn next(&mut self, state: &EagerState, found: &mut Vec<Next<EagerState>>) {
        let next = |made: Move| Next {
            state: made.to,
            calm: made.calm,
            acts: made.acts,
            violation: made.violation,
        };
        found.extend(self.moves(state).into_iter().map(next));
    }

    fn unrest(&mut self, state: &EagerState) -> Option<(&'static str, String)> {
        self.core.unrest(&state.state)
    }
}
