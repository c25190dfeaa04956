//! Visits every state that a world can reach, and looks at what each of them leads to when nothing goes wrong any more.
//!
//! It is ours and not `stateright`, which was looked at first. Its properties of the kind "eventually" are judged at the ends of paths
//! alone: its documentation says that a cycle, and a state that two paths reach, can hide a counterexample. What has to hold here is
//! a property of cycles: each bottom component of the graph without faults is to be at rest. That needs the edges, which it does not
//! keep. So this explorer is a breadth-first search over fingerprints, with the edges of calm steps, and Tarjan's algorithm over them.
//! Counterexamples are the shortest there are.

use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::hash::{FastMap, fingerprint};

/// A world.
pub trait World {
    /// A state.
    type State: Clone + Hash;

    /// The first state.
    fn first(&mut self) -> Self::State;

    /// What tells states apart. Of states with the same fingerprint, one alone is visited: what can follow of them, and whether it is
    /// right, must be the same, up to states with the same fingerprints.
    fn fingerprint(&mut self, state: &Self::State) -> u128 {
        fingerprint(state)
    }

    /// Adds what can happen next. The number of a step is its place.
    fn next(&mut self, state: &Self::State, found: &mut Vec<Next<Self::State>>);

    /// Why a state is not one that may last, and which property says so; none when it may.
    fn unrest(&mut self, _state: &Self::State) -> Option<(&'static str, String)> {
        None
    }
}

/// A world that can say what happens.
pub trait Told: World {
    /// Where [`World::next`] puts the words of each step that it finds; there when somebody will read them.
    fn words(&mut self) -> &mut Option<Vec<String>>;
}

/// The steps from a state on as people read them, one line each.
pub fn story<W: Told>(world: &mut W, mut state: W::State, steps: &[u16]) -> Vec<String> {
    let (mut story, mut found) = (Vec::new(), Vec::new());
    for step in steps {
        let step = usize::from(*step);
        found.clear();
        *world.words() = Some(Vec::new());
        world.next(&state, &mut found);
        let mut words = world.words().take().unwrap_or_default();
        story.push(words.swap_remove(step));
        state = found.swap_remove(step).state;
    }
    if let Some((property, why)) = world.unrest(&state) {
        story.push(format!("and so it stays: {property}: {why}"));
    }
    story
}

/// A wrong operator.
pub struct Wrong<S> {
    /// What is wrong with it.
    pub what: &'static str,
    /// The world in which it is looked for.
    pub world: S,
    /// The properties that it violates, each of which is as good.
    pub violates: &'static [&'static str],
    /// Whether random histories find it too seldom, so that the model checker alone looks for it.
    pub is_rare: bool,
}

impl<S> Wrong<S> {
    /// One that is not rare.
    pub fn new(what: &'static str, world: S, violates: &'static [&'static str]) -> Self {
        Self {
            what,
            world,
            violates,
            is_rare: false,
        }
    }
}

/// One thing that can happen.
pub struct Next<S> {
    /// What comes of it.
    pub state: S,
    /// Nobody's fault and nobody's wish: what happens when faults have ended and people are content.
    pub calm: bool,
    /// It calls the driver or changes an object.
    pub acts: bool,
    /// What must not have happened.
    pub violation: Option<&'static str>,
}

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// States.
    pub states: usize,
    /// Whether what each state leads to is looked at.
    pub stability: bool,
}

/// Something that is wrong, and the steps that lead there, as numbers.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The property.
    pub property: String,
    /// The numbers of the steps from the first state on.
    pub steps: Vec<u16>,
}

/// What an exploration came to.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// States.
    pub states: usize,
    /// Transitions.
    pub transitions: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// Whether all states were visited.
    pub exhausted: bool,
    /// Bottom components of the graph of calm steps.
    pub resting: usize,
    /// How long it took.
    pub took: Duration,
    /// The first thing that is wrong.
    pub found: Option<Counterexample>,
}

/// The name of the property that is judged by cycles.
pub const STABLE: &str = "what the objects demand is reached, and stays";

/// Room for the calm edge of a state that calls or writes.
const ACTS: u32 = 1 << 31;

struct Graph {
    parents: Vec<(u32, u16)>,
    edges: Vec<u32>,
    starts: Vec<u64>,
    /// Numbers of the properties that say so, from 1 on.
    unrest: Vec<u8>,
}

/// Visits all states of a world.
pub fn explore<W: World>(world: &mut W, limits: Limits) -> Explored {
    let began = Instant::now();
    let mut explored = Explored::default();
    let mut graph = Graph {
        parents: vec![(u32::MAX, 0)],
        edges: Vec::new(),
        starts: Vec::new(),
        unrest: Vec::new(),
    };
    let first = world.first();
    // Keys of four words take a third less room than one of 128 bits.
    let mut known: FastMap<[u32; 4], u32> = FastMap::default();
    known.insert(words(world.fingerprint(&first)), 0);
    let mut layer = vec![first];
    let mut properties: Vec<&'static str> = Vec::new();
    let (mut number, mut found) = (0_u32, Vec::new());
    let mut cut = false;
    'all: while !layer.is_empty() && !cut {
        let mut following = Vec::new();
        for state in layer {
            if limits.stability {
                graph.starts.push(graph.edges.len() as u64);
                let unrest = world.unrest(&state).map(|(property, _)| {
                    let known = properties.iter().position(|known| *known == property);
                    known.unwrap_or_else(|| {
                        properties.push(property);
                        properties.len() - 1
                    })
                });
                graph.unrest.push(unrest.map_or(0, |number| number as u8 + 1));
            }
            found.clear();
            world.next(&state, &mut found);
            for (step, next) in (0_u16..).zip(found.drain(..)) {
                explored.transitions += 1;
                if let Some(property) = next.violation {
                    let mut steps = graph.way_to(number);
                    steps.push(step);
                    let property = property.to_owned();
                    explored.found = Some(Counterexample { property, steps });
                    break 'all;
                }
                let fresh = known.len() as u32;
                let at = *known.entry(words(world.fingerprint(&next.state))).or_insert(fresh);
                if at == fresh {
                    graph.parents.push((number, step));
                    following.push(next.state);
                }
                if next.calm && limits.stability {
                    graph.edges.push(at | if next.acts { ACTS } else { 0 });
                }
            }
            number += 1;
            cut |= known.len() >= limits.states;
            if cut {
                break 'all;
            }
        }
        layer = following;
        explored.depth += usize::from(!layer.is_empty());
    }
    explored.states = known.len();
    drop(known);
    explored.exhausted = !cut && explored.found.is_none();
    if explored.exhausted && limits.stability {
        graph.starts.push(graph.edges.len() as u64);
        let (resting, restless) = graph.bottoms();
        explored.resting = resting;
        explored.found = restless.map(|state| Counterexample {
            property: match graph.unrest[state as usize] {
                0 => STABLE.to_owned(),
                number => properties[usize::from(number) - 1].to_owned(),
            },
            steps: graph.way_to(state),
        });
    }
    explored.took = began.elapsed();
    explored
}

fn words(fingerprint: u128) -> [u32; 4] {
    std::array::from_fn(|at| (fingerprint >> (32 * at)) as u32)
}

impl Graph {
    fn way_to(&self, mut state: u32) -> Vec<u16> {
        let mut steps = Vec::new();
        while state != 0 {
            let (parent, step) = self.parents[state as usize];
            steps.push(step);
            state = parent;
        }
        steps.reverse();
        steps
    }

    fn edges_of(&self, state: u32) -> &[u32] {
        let at = state as usize;
        let (from, to) = (self.starts[at], self.starts[at + 1]);
        &self.edges[usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0)]
    }

    /// How many bottom components there are, and the first state of one that is not at rest: that is not what the objects demand,
    /// or in which something is called or written for ever. Tarjan's algorithm, with a stack of its own.
    fn bottoms(&self) -> (usize, Option<u32>) {
        const NONE: u32 = u32::MAX;
        let count = self.parents.len();
        let (mut index, mut low) = (vec![NONE; count], vec![0_u32; count]);
        // Which states are in a component that is complete: its number, or none yet.
        let mut component = vec![NONE; count];
        let (mut open, mut calls): (Vec<u32>, Vec<(u32, u32)>) = (Vec::new(), Vec::new());
        let (mut next, mut components, mut resting) = (0, 0, 0);
        let mut restless: Option<u32> = None;
        for root in 0..count as u32 {
            if index[root as usize] != NONE {
                continue;
            }
            calls.push((root, 0));
            while let Some((state, edge)) = calls.pop() {
                let at = state as usize;
                if edge == 0 {
                    index[at] = next;
                    low[at] = next;
                    next += 1;
                    open.push(state);
                }
                let edges = self.edges_of(state);
                let mut edge = edge as usize;
                let mut deeper = false;
                while edge < edges.len() {
                    let target = (edges[edge] & !ACTS) as usize;
                    edge += 1;
                    if index[target] == NONE {
                        calls.push((state, edge as u32));
                        calls.push((target as u32, 0));
                        deeper = true;
                        break;
                    }
                    if component[target] == NONE {
                        low[at] = low[at].min(low[target]);
                    }
                }
                if deeper {
                    continue;
                }
                if low[at] == index[at] {
                    let from = open.iter().rposition(|known| *known == state).unwrap_or(0);
                    let members = open.split_off(from);
                    for member in &members {
                        component[*member as usize] = components;
                    }
                    let leaves = |member: &u32| {
                        let mut edges = self.edges_of(*member).iter();
                        edges.any(|target| component[(target & !ACTS) as usize] != components)
                    };
                    if !members.iter().any(leaves) {
                        resting += 1;
                        let acts = |member: &u32| self.edges_of(*member).iter().any(|target| target & ACTS != 0);
                        let is_bad = |member: &u32| self.unrest[*member as usize] != 0 || acts(member);
                        let bad = members.iter().copied().filter(|member| is_bad(member)).min();
                        restless = restless.into_iter().chain(bad).min();
                    }
                    components += 1;
                }
                if let Some((caller, _)) = calls.last() {
                    let caller = *caller as usize;
                    low[caller] = low[caller].min(low[at]);
                }
            }
        }
        (resting, restless)
    }
}
