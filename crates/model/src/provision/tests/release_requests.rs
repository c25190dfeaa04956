//! A person asks to let a claim go.

use serde_json::{Value, json};

use super::builders::{ClaimWorld, DELETED_AT, NOW, UID, claim_of, now, world};
use crate::decide::ReleaseRefusal;
use crate::provision::release_request::{ClaimRelease, judge};
use crate::provision::{ClaimAction, Waited};

fn asked(change: impl FnOnce(&mut Value)) -> ClaimWorld {
    let mut request = json!({"uid": UID, "deleted": DELETED_AT, "at": NOW, "by": "ann", "reason": "driver\nis gone"});
    change(&mut request);
    let stuck = Waited {
        stuck: true,
        ..Waited::default()
    };
    let world = world().marked().deleting().with(|world| world.waited = stuck);
    world.annotate("attacher.csi.dev/release", &request.to_string())
}

fn refusal(world: &ClaimWorld) -> (ReleaseRefusal, Value) {
    let ClaimAction::RefuseRelease(write, refusal) = world.decide().action else {
        panic!("{:?}", world.decide())
    };
    let answer = write.body.as_array().unwrap().last().unwrap()["value"]
        .as_str()
        .unwrap()
        .to_owned();
    (refusal, serde_json::from_str(&answer).unwrap())
}

#[test]
fn it_is_granted_for_this_object_and_this_deletion() {
    let ClaimAction::LetGo(_, words) = asked(|_| {}).decide().action else {
        panic!()
    };
    assert_eq!(words, "requested by ann: driver is gone");
    let rows = [
        (asked(|request| request["uid"] = json!("other")), "OtherObject"),
        (asked(|request| request["deleted"] = json!(NOW)), "OtherDeletion"),
        (
            asked(|request| request["at"] = json!(DELETED_AT)).with(|world| world.waited.stuck = false),
            "TooEarly",
        ),
        (
            asked(|request| request["at"] = json!("2026-01-02T02:49:04Z")),
            "Expired",
        ),
        (
            asked(|request| request["at"] = json!("2026-01-02T03:19:06Z")),
            "Expired",
        ),
        (asked(|request| *request = json!("please")), "Unreadable"),
    ];
    for (world, reason) in rows {
        let (refusal, answer) = refusal(&world);
        assert_eq!((refusal.reason(), &answer["reason"]), (reason, &json!(reason)));
        // It is answered once, and the call goes on.
        let told = world.annotate("attacher.csi.dev/release-refused", &answer.to_string());
        assert!(matches!(told.decide().action, ClaimAction::Create(_)), "{reason}");
        let again = told.annotate("attacher.csi.dev/release", "{}");
        let is_refused = matches!(again.decide().action, ClaimAction::RefuseRelease(..));
        assert!(is_refused, "another request");
    }
}

/// As one for a VolumeAttachment: what names no UID names no object, not even one that is shown without a UID.
#[test]
fn a_request_without_a_uid_is_refused() {
    let world = asked(|request| request["uid"] = json!("")).set("/metadata/uid", json!(""));
    let judged = judge(&claim_of(&world.claim), None, now());
    let is_refused = matches!(judged, ClaimRelease::Refused(ReleaseRefusal::OtherObject(..), _));
    assert!(is_refused, "{judged:?}");
}

/// Nothing is let go that is wanted, was not called for, or is known.
#[test]
fn it_counts_only_where_nobody_knows() {
    let wanted = asked(|_| {}).set("/metadata/deletionTimestamp", json!(null));
    assert!(matches!(wanted.decide().action, ClaimAction::Create(_)));
    let elsewhere = wanted.bound("static");
    assert_eq!(refusal(&elsewhere).0, ReleaseRefusal::NotDeleted);
    let refused = asked(|_| {}).creation(crate::provision::Creation::Refused);
    assert!(matches!(refused.decide().action, ClaimAction::Unmark(_)));
    let saved = asked(|_| {}).saved();
    assert!(matches!(saved.decide().action, ClaimAction::Unmark(_)));
}

#[test]
fn what_it_says_is_bounded() {
    let long = asked(|request| request["uid"] = json!("x".repeat(7000)));
    let (_, answer) = refusal(&long);
    assert!(answer.to_string().len() < 1000);
    let unreadable = world()
        .marked()
        .deleting()
        .annotate("attacher.csi.dev/release", &"\u{7}é".repeat(2000));
    let (_, answer) = refusal(&unreadable);
    assert!(answer.to_string().len() < 1000 && !answer.to_string().contains("\\u0007"));
}
