//! The explorer on graphs that are written down.

use crate::explorer::{Limits, Next, STABLE, World, explore};

const LIMITS: Limits = Limits {
    states: 1000,
    stability: true,
};

/// Edges by state: where to, calm, acts, and what is violated.
type Edge = (u8, bool, bool, Option<&'static str>);

struct Graph {
    edges: Vec<Vec<Edge>>,
    restless: Vec<u8>,
}

impl World for Graph {
    type State = u8;

    fn first(&mut self) -> u8 {
        0
    }

    fn next(&mut self, state: &u8, found: &mut Vec<Next<u8>>) {
        let next = |(state, calm, acts, violation): &Edge| Next {
            state: *state,
            calm: *calm,
            acts: *acts,
            violation: *violation,
        };
        found.extend(self.edges[usize::from(*state)].iter().map(next));
    }

    fn unrest(&mut self, state: &u8) -> Option<(&'static str, String)> {
        self.restless.contains(state).then(|| ("rests", String::new()))
    }
}

fn calm(to: u8) -> Edge {
    (to, true, false, None)
}

fn acting(to: u8) -> Edge {
    (to, true, true, None)
}

fn explored(edges: Vec<Vec<Edge>>, restless: &[u8]) -> (usize, Option<(String, Vec<u16>)>) {
    let mut graph = Graph {
        edges,
        restless: restless.to_vec(),
    };
    let explored = explore(&mut graph, LIMITS);
    (
        explored.states,
        explored.found.map(|found| (found.property, found.steps)),
    )
}

#[test]
fn the_shortest_way_to_a_violation_is_shown() {
    let bad = |to| (to, false, false, Some("never"));
    let edges = vec![vec![calm(1), calm(2)], vec![calm(3)], vec![bad(3)], vec![bad(0)]];
    assert_eq!(explored(edges, &[]).1, Some(("never".to_owned(), vec![1, 0])));
}

#[test]
fn what_is_left_again_need_not_be_at_rest() {
    // A cycle that calls, with a way out, and an end that is at rest.
    let edges = vec![vec![acting(1)], vec![acting(0), calm(2)], vec![]];
    assert_eq!(explored(edges, &[0, 1]), (3, None));
}

#[test]
fn a_cycle_that_is_never_left_must_be_quiet() {
    let quiet = vec![vec![calm(1)], vec![calm(2)], vec![calm(1)]];
    assert_eq!(explored(quiet, &[0]).1, None);
    let busy = vec![vec![calm(1)], vec![calm(2)], vec![acting(1)]];
    assert_eq!(explored(busy, &[]).1, Some((STABLE.to_owned(), vec![0, 0])));
}

#[test]
fn an_end_that_is_not_at_rest_is_found_behind_a_state_that_two_ways_reach() {
    // Two ways lead to 3, one of them over a state that is at rest: what a judgement by paths may miss.
    let edges = vec![vec![calm(1), calm(2)], vec![calm(3)], vec![calm(3)], vec![]];
    assert_eq!(explored(edges, &[0, 1, 3]).1, Some(("rests".to_owned(), vec![0, 0])));
}

#[test]
fn faults_lead_to_states_and_are_no_way_out() {
    // Out of 1 there is a fault alone.
    let edges = vec![vec![(1, false, false, None)], vec![(2, false, false, None)], vec![]];
    assert_eq!(explored(edges, &[1]).1, Some(("rests".to_owned(), vec![0])));
}

#[test]
fn what_was_cut_short_is_not_exhausted() {
    let edges = (0..100_u8).map(|state| vec![calm((state + 1) % 100)]).collect();
    let mut graph = Graph {
        edges,
        restless: Vec::new(),
    };
    let few = explore(&mut graph, Limits { states: 50, ..LIMITS });
    assert!(!few.exhausted && few.found.is_none() && few.states == 50);
    assert!(explore(&mut graph, LIMITS).exhausted);
}
