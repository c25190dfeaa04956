//! Repairs that change nothing: a driver that lists a volume otherwise than it answers.

use crate::decide::reconcile::{DesiredState, Expectation, Mismatches, REPAIRS_IN_A_ROW, Repairs};

/// Passes that go by at most: an hour of passes of a minute.
const LONGEST_REST: u32 = 59;

fn expected(name: &str) -> Expectation {
    Expectation {
        name: name.into(),
        uid: "u".into(),
        handle: "h".into(),
        node_id: "n".into(),
        former_node_id: None,
        wanted: DesiredState::Published,
    }
}

fn contradicted(mismatches: &mut Mismatches) -> Repairs {
    mismatches.pass(vec![expected("a")], &[], |_| true, LONGEST_REST)
}

/// The passes, of so many in a row that contradict the same attachment, in which it is repaired.
fn repaired(mismatches: &mut Mismatches, passes: usize) -> Vec<usize> {
    (1..=passes)
        .filter(|_| !contradicted(mismatches).due.is_empty())
        .collect()
}

#[test]
fn repairs_that_change_nothing_come_more_and_more_rarely() {
    let mut mismatches = Mismatches::default();
    let repaired = repaired(&mut mismatches, 400);
    let pauses: Vec<usize> = repaired.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(repaired[0], 2);
    assert_eq!(pauses, [1, 1, 2, 3, 5, 9, 17, 33, 60, 60, 60, 60, 60]);
}

/// People are told that the driver agrees again, if they were told of a repair.
#[test]
fn what_was_repaired_is_told_when_the_driver_agrees() {
    let agreed = |mismatches: &mut Mismatches| {
        mismatches
            .pass(vec![], &[expected("a")], |_| true, LONGEST_REST)
            .repaired
    };
    for (passes, is_told) in [(0, false), (1, false), (2, true), (3, true), (20, true)] {
        let mut mismatches = Mismatches::default();
        repaired(&mut mismatches, passes);
        let told = if is_told { vec![expected("a")] } else { Vec::new() };
        assert_eq!(agreed(&mut mismatches), told, "after {passes} passes");
        assert_eq!(agreed(&mut mismatches), [], "once");
    }
    // A pass that does not compare it ends the history, and so does what is wanted by now.
    let mut mismatches = Mismatches::default();
    repaired(&mut mismatches, 3);
    mismatches.pass(vec![], &[], |_| true, LONGEST_REST);
    contradicted(&mut mismatches);
    assert_eq!(agreed(&mut mismatches), []);
    repaired(&mut mismatches, 3);
    let gone = Expectation {
        wanted: DesiredState::Unpublished,
        ..expected("a")
    };
    assert_eq!(mismatches.pass(vec![], &[gone], |_| true, LONGEST_REST).repaired, []);
}

/// Whoever waited for its answer has forgotten it, and the next one begins after two passes as the first did.
#[test]
fn a_repair_does_not_count_once_its_attachment_is_not_compared() {
    let mut mismatches = Mismatches::default();
    for _ in 0..2 * REPAIRS_IN_A_ROW {
        let due: Vec<usize> = (0..2).map(|_| contradicted(&mut mismatches).due.len()).collect();
        assert_eq!(due, [0, 1]);
        mismatches.pass(vec![], &[], |_| true, LONGEST_REST);
    }
    assert!(!mismatches.lasts("a"));
}

#[test]
fn that_they_change_nothing_is_found_once_and_shown_until_the_driver_agrees() {
    let mut mismatches = Mismatches::default();
    let mut found = Vec::new();
    for pass in 1..50 {
        let repairs = contradicted(&mut mismatches);
        found.extend(
            repairs
                .found_lasting
                .iter()
                .map(|expected| (pass, expected.name.to_string())),
        );
        let lasting = repairs.lasting.map(|lasting| (lasting.count, lasting.example));
        assert_eq!(lasting, (pass >= 5).then(|| (1, expected("a"))), "pass {pass}");
        assert_eq!(mismatches.lasts("a"), pass >= 5);
    }
    assert_eq!(found, [(2 + REPAIRS_IN_A_ROW, "a".to_owned())]);

    // A pass that says nothing changes nothing.
    let silent = mismatches.pass(vec![], &[], |_| true, LONGEST_REST);
    assert!(silent.due.is_empty() && silent.lasting.is_some());
    let agreed = mismatches.pass(vec![], &[expected("a")], |_| true, LONGEST_REST);
    assert_eq!(agreed, Repairs::default());
    assert_eq!(repaired(&mut mismatches, 5), [2, 3, 4], "it begins again");

    // So does one that is another attachment now, or is wanted elsewhere.
    let moved = Expectation {
        node_id: "m".into(),
        ..expected("a")
    };
    let repairs = mismatches.pass(vec![moved], &[], |_| true, LONGEST_REST);
    assert_eq!(repairs, Repairs::default());
    mismatches.retain(|_| false);
    assert!(!mismatches.lasts("a"));
}

#[test]
fn a_repair_that_is_not_answered_with_ok_is_none_that_changes_nothing() {
    let mut mismatches = Mismatches::default();
    for pass in 1..50 {
        let repairs = mismatches.pass(vec![expected("a")], &[], |_| false, LONGEST_REST);
        assert_eq!((repairs.due.len(), repairs.lasting), (usize::from(pass > 1), None));
    }
}

/// An interval of an hour is long enough.
#[test]
fn without_a_rest_each_pass_repairs() {
    let mut mismatches = Mismatches::default();
    let due = (1..20).map(|_| mismatches.pass(vec![expected("a")], &[], |_| true, 0).due.len());
    assert_eq!(due.sum::<usize>(), 18);
}
