//! What is not asked for, and why; and what is known after a call without a volume.

use serde_json::{Value, json};

use crate::provision::tests::builders::{claim_of, plan_of, world};
use crate::provision::tests::claim_rows::play;
use crate::provision::tests::codes::settle;
use crate::provision::tests::tally;
use crate::provision::{AnsweredVolume, ClaimAction, CreateOutcome, Creation, created};

/// The rows of TestProvision in which nothing is provisioned.
#[test]
fn what_is_not_asked_for() {
    let rows = play(
        "
        Invalid: refuse...
            two keys of the file system | file system twice
            // There it changes nothing that is known of an open call. Here no refusal does.
            a Secret without its namespace | half a Secret
            a template whose annotation is not there | Secret of an annotation
            a selector | selector
            // There a claim without a UID has no name; the API server makes none.
            a name that is too long | long prefix
            // A later slice serves what the driver can modify.
            attributes, and MODIFY_VOLUME is missing | attributes class
            attributes of a class that is missing | attributes class
            attributes of another driver's class | attributes class
        SecretForbidden: tell...
            a Secret that cannot be read | secret unreadable
        Populator: ...
            of a populator | populator
        NodeGone: reschedule
            a selected node that is not there | delayed, no CSINode, waited for node
        ",
    );
    let answered = |code: i32| settle(&world(), &Creation::Never, Some(code)).0;
    assert_eq!(answered(16), Creation::Refused, "a final error");
    assert!(answered(4).is_uncertain(), "a transient error");
    let small = AnsweredVolume {
        handle: "test-volume-id".into(),
        capacity_bytes: (1 << 30) - 1,
        ..AnsweredVolume::default()
    };
    let settled = created(
        &Creation::Never,
        &plan_of(&world()),
        Ok(Some(small)),
        &claim_of(&world().claim),
    );
    let is_faulty = matches!(settled.1, CreateOutcome::Faulty(_));
    assert!(is_faulty, "less capacity: {settled:?}");
    tally("TestProvision", rows + 3);
}

/// TestCanProvision of the library. A driver says itself whether it has block volumes: what is asked for reaches it. The 6 rows of
/// programs that have none are left out.
#[test]
fn every_volume_mode_reaches_the_driver() {
    let rows = [Value::Null, json!("Filesystem"), json!("Block")];
    for mode in &rows {
        let action = world().set("/spec/volumeMode", mode.clone()).decide().action;
        assert!(matches!(action, ClaimAction::Mark(_)), "{mode}: {action:?}");
    }
    tally("library TestCanProvision", rows.len());
}

/// TestTopologyParams of the library: whether the class allows one zone, and whether a node is selected.
#[test]
fn what_topology_is_made_of() {
    let rows = [(false, false), (true, false), (false, true), (true, true)];
    for (allowed, selected) in rows {
        let mut world = world().delayed();
        if !selected {
            world = world
                .class("/volumeBindingMode", "Immediate")
                .annotate("volume.kubernetes.io/selected-node", "");
        }
        if allowed {
            let term = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]);
            world = world.class("/allowedTopologies", term);
        }
        let plan = plan_of(&world);
        assert_eq!(plan.node.as_deref(), selected.then_some("n1"), "{allowed} {selected}");
        let terms = plan.accessibility.as_ref().map_or(0, |it| it.requisite.len());
        assert_eq!(terms, if allowed { 1 } else { 2 }, "{allowed} {selected}");
    }
    tally("library TestTopologyParams", rows.len());
}

/// TestInfeasibleRetry of the library: the code, whether the time of the hold is over, and whether there is a second call.
#[test]
fn what_is_infeasible_is_held() {
    let rows = [(13, false, true), (3, false, false), (3, true, true)];
    for (code, is_over, is_called) in rows {
        let first = world().marked();
        let settled = settle(&first, &Creation::Never, Some(code));
        let is_held = settled.1 == CreateOutcome::Infeasible && !is_over;
        let again = first.creation(settled.0).with(|world| world.infeasible = is_held);
        // The marker is written with what is planned now, if it says something else.
        let action = again.decide().action;
        let goes_on = matches!(action, ClaimAction::Create(_) | ClaimAction::Mark(_));
        assert_eq!(goes_on, is_called, "{code} {is_over}: {action:?}");
    }
    tally("library TestInfeasibleRetry", rows.len());
}
