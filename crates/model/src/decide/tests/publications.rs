//! What is known of a volume at its node, and what follows from doubt.

use serde_json::json;
use std::collections::BTreeMap;

use super::builders::{FINALIZER, Va, attachment, volume};
use super::table::{Row, done, mended, play, retried};
use super::world::{on_node, ready, world};
use crate::api::OrphanPolicy;
use crate::decide::{self, Failure, is_final};

fn failed_with(code: i32) -> Va {
    attachment()
        .claimed()
        .set("/status/attachError", json!({"message": "no", "errorCode": code}))
}

/// Section 4.10: CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED and UNAVAILABLE leave open what happened.
#[test]
fn codes_after_which_a_call_may_still_be_at_work() {
    let open: Vec<i32> = (1..=16).filter(|code| !is_final(*code)).collect();
    assert_eq!(open, [1, 4, 8, 10, 14]);
}

/// A node that comes back under its name with another ID, or a PersistentVolume with another handle, while a call is in
/// doubt. The sidecar forgets the former place.
fn moved() -> Vec<Vec<Row>> {
    let ready = || world().pv(volume().protected()).node_of(Some("nodeID2"));
    let noted = |va: Va| va.noted_volume(&json!({"handle": "handle1"}));
    let other_handle = || on_node(volume().protected().set("/spec/csi/volumeHandle", "handle2"));
    vec![
        done("NOTE former handle1@nodeID1 | unpub handle1 nodeID1 | pub handle1 nodeID2 rw | ATT").when(vec![
            (
                "taken back before it is published anew, and noted until it is detached",
                ready().va(noted(attachment().claimed())),
            ),
            (
                "that it cannot be taken back holds up nothing",
                ready()
                    .va(noted(attachment().claimed()))
                    .answer(Err(Failure::plain("gone"))),
            ),
            (
                "a place where the driver refused it last may be one from an earlier call",
                ready().va(noted(failed_with(5))),
            ),
        ]),
        done("NOTE former handle1@nodeID1 | unpub handle1 nodeID1 | pub handle2 nodeID1 rw | ATT").when(vec![(
            "another handle",
            other_handle().va(noted(attachment().claimed())),
        )]),
    ]
}

#[test]
fn no_place_is_forgotten() {
    play(moved());
    let mut world = world()
        .pv(volume().protected())
        .node_of(Some("nodeID2"))
        .va(attachment().claimed());
    world.attempt();
    let annotations = &world.attachment.as_ref().unwrap()["metadata"]["annotations"];
    assert_eq!(annotations["csi.alpha.kubernetes.io/node-id"], json!("nodeID2"));
    let wanted = json!(r#"{"handle":"handle1","former":[{"handle":"handle1","nodeID":"nodeID1"}]}"#);
    assert_eq!(annotations["attacher.csi.dev/volume"], wanted);
    world.attachment.as_mut().unwrap()["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    world.log.clear();
    world.attempt();
    let wanted = "unpub handle1 nodeID2 | unpub handle1 nodeID1 | FIN-";
    assert_eq!(world.log.join(" | "), wanted);
}

/// A node that has its former ID again: what was called for the first claim is no result for the third one.
#[test]
fn a_claim_is_told_apart_from_those_before() {
    let claimed = |note: serde_json::Value| attachment().claimed().noted_volume(&note);
    let claim = |va: Va, id: &str| {
        let mut world = world().pv(volume().protected()).node_of(Some(id)).va(va);
        world.advance();
        Va(world.attachment.unwrap())
    };
    let first = claimed(json!({"handle": "handle1"}));
    let third = claim(claim(first.clone(), "nodeID2"), "nodeID1");
    let record = |va: Va| world().va(va).snapshot().unwrap().attachment;
    assert_eq!(record(third.clone()).volume_note.as_ref().unwrap().renewed, 2);
    assert!(!decide::is_same_work(&record(first), &record(third), &world().driver));
}

/// A place that is wanted again is not a former one any more.
#[test]
fn a_node_id_that_comes_back_is_published_to() {
    let noted = json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": "nodeID1"}]});
    let claimed = attachment()
        .finalizers(&[FINALIZER])
        .noted_node("nodeID2")
        .noted_volume(&noted);
    let mut world = ready().va(claimed);
    world.attempt();
    let wanted = "NOTE former handle1@nodeID2 | unpub handle1 nodeID2 | pub handle1 nodeID1 rw | ATT";
    assert_eq!(world.log.join(" | "), wanted);
}

#[test]
fn a_detach_needs_the_answer_of_every_place() {
    let detaching = attachment()
        .claimed()
        .attached()
        .finalizers(&[FINALIZER, "a/b"])
        .deleting();
    let ready = || {
        world()
            .pv(volume().protected())
            .node_of(Some("nodeID2"))
            .va(detaching.clone())
    };
    let no = |code| {
        Err(Failure {
            message: "no".to_owned(),
            code,
        })
    };
    let first = |code| ready().answer(no(code));
    let second = |code| ready().answer(Ok(BTreeMap::default())).answer(no(code));
    play(vec![
        mended(
            "unpub handle1 nodeID2 | DERR(no) | unpub handle1 nodeID2 | unpub handle1 nodeID1 | FIN- | DET",
        )
        .when(vec![
            ("the first may succeed later: UNAVAILABLE", first(Some(14))),
            ("the first has no code", first(None)),
        ]),
        mended(
            "unpub handle1 nodeID2 | unpub handle1 nodeID1 | DERR(no) | unpub handle1 nodeID2 | unpub handle1 nodeID1 | \
             FIN- | DET",
        )
        .when(vec![
            ("the first is refused: INTERNAL", first(Some(13))),
            ("the second is refused: INTERNAL", second(Some(13))),
            ("the second may succeed later: UNAVAILABLE", second(Some(14))),
        ]),
    ]);
}

#[test]
fn not_found_is_detached_only_by_policy() {
    let detaching = || {
        attachment()
            .claimed()
            .attached()
            .finalizers(&[FINALIZER, "a/b"])
            .deleting()
    };
    let answers = |code| {
        on_node(volume().protected()).va(detaching()).answer(Err(Failure {
            message: "gone".to_owned(),
            code: Some(code),
        }))
    };
    let lenient = OrphanPolicy::TreatNotFoundAsDetached;
    play(vec![
        retried("unpub handle1 nodeID1 | DERR(gone)").when(vec![
            ("by default it is an error", answers(5)),
            ("another code is an error all the same", answers(13).orphans(lenient)),
        ]),
        done("unpub handle1 nodeID1 | orphan(gone) | FIN- | DET")
            .when(vec![("by policy it is enough", answers(5).orphans(lenient))]),
    ]);
}
