//! Requests to release an attachment without the driver's confirmation. Each row but a few is a refusal.

use serde_json::{Value, json};
use std::sync::Arc;

use super::builders::{ATTACHMENT_UID, DELETED_AT, FINALIZER, NODE_ID, Va, attachment};
use super::world::{DecideModel, NOW, ready};
use crate::api::names::{NOT_ATTACHED_AT_ANNOTATION, RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION};
use crate::decide::patch::{refuse_release, release_on_request};
use crate::decide::{
    Action, ListedEvidence, ListingDoubt, Observed, ReleaseBasis, ReleaseEvidence, ReleaseRefusal, SecretState,
    attachment as decide, judge_release, observe, release_answer,
};

const AT: &str = "2026-02-03T04:00:00Z";

fn request() -> Value {
    json!({"uid": ATTACHMENT_UID, "deleted": DELETED_AT, "at": AT, "by": "jane", "reason": "scrapped"})
}

/// A deleted attachment that was attached, and whose detach failed once.
fn stuck() -> Va {
    attachment()
        .finalizers(&[FINALIZER])
        .noted_node(NODE_ID)
        .attached()
        .deleting()
        .set(
            "/status/detachError",
            json!({"message": "no", "time": "2026-02-03T00:00:00Z"}),
        )
}

/// The same; somebody took our finalizer off, while another one keeps the object.
fn lost() -> Va {
    stuck().finalizers(&["a/b"])
}

fn asked(attachment: Va, request: &str) -> DecideModel {
    ready().va(attachment.annotation(RELEASE_ANNOTATION, request))
}

fn without_volume(mut world: DecideModel) -> DecideModel {
    world.volume = None;
    world
}

/// What is decided, in one word, with the reason of a refusal.
fn decided(world: &DecideModel) -> String {
    let snapshot = world.snapshot().unwrap();
    let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
    match decide(&observed) {
        Action::JudgeRelease(plan) => format!("judge {} places", plan.places.len()),
        Action::RefuseRelease(refusal) => format!("refuse {}", refusal.reason()),
        Action::Unpublish(_) => "unpublish".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn which_requests_count() {
    let with = |key: &str, value: Value| {
        let mut request = request();
        request[key] = value;
        asked(stuck(), &request.to_string())
    };
    let good = |va: Va| asked(va, &request().to_string());
    let answer = |at: &str| json!({"request": at, "reason": "NoProof", "message": "m"}).to_string();
    let answered = |at: &str| stuck().annotation(RELEASE_REFUSED_ANNOTATION, &answer(at));
    let (earlier, unreadable) = ("2026-02-03T03:59:59Z", "refuse Unreadable");
    let rows = [
        ("a request", good(stuck()), "judge 1 places"),
        (
            "the driver was not asked yet",
            good(stuck().set("/status/detachError", Value::Null)),
            "unpublish",
        ),
        ("another UID", with("uid", "other".into()), "refuse OtherObject"),
        ("no UID", with("uid", "".into()), "refuse OtherObject"),
        (
            "another deletion",
            with("deleted", "2026-01-02T03:04:04Z".into()),
            "refuse OtherDeletion",
        ),
        ("no JSON", asked(stuck(), "true"), "refuse Unreadable"),
        ("a proof that nobody knows", with("proof", "Rumour".into()), unreadable),
        ("a deletion missing", with("deleted", Value::Null), "refuse Unreadable"),
        ("answered", good(answered(AT)), "unpublish"),
        ("an older one was answered", good(answered(earlier)), "judge 1 places"),
        ("answered, unreadable", asked(answered("true"), "true"), "unpublish"),
        (
            "an answer that is none",
            good(stuck().annotation(RELEASE_REFUSED_ANNOTATION, "x")),
            "judge 1 places",
        ),
        ("our finalizer was taken off", good(lost()), "judge 1 places"),
        ("taken off, no JSON", asked(lost(), "true"), "refuse Unreadable"),
        (
            "taken off, answered",
            good(answered(AT).finalizers(&["a/b"])),
            "unpublish",
        ),
        (
            "not ours",
            good(attachment().finalizers(&["a/b"]).attached().deleting()),
            "Ignore(NothingToDetach)",
        ),
        ("no volume, no note", without_volume(good(stuck())), "judge 0 places"),
    ];
    for (name, world, expected) in rows {
        assert_eq!(decided(&world), expected, "{name}");
    }
}

/// A request is answered once, whatever it says and however long the reason is: an answer that is too long to be read again would be
/// given for ever, and hold up the detach.
#[test]
fn an_answer_can_be_read_again() {
    let node_id = || ReleaseRefusal::ListedAtNode("\"\u{1}".repeat(2048));
    let of_request = |world: &DecideModel| {
        let snapshot = world.snapshot().unwrap();
        match decide(&observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded)) {
            Action::RefuseRelease(refusal) => refusal,
            _ => node_id(),
        }
    };
    let requests = [
        request().to_string(),
        format!("\"{}\"", "a".repeat(4094)),
        json!("\"".repeat(2040)).to_string(),
        json!("\\".repeat(2040)).to_string(),
        json!({"uid": "\"\u{1}".repeat(400), "deleted": DELETED_AT, "at": AT}).to_string(),
        json!({"uid": ATTACHMENT_UID, "deleted": DELETED_AT, "at": AT, "proof": "\"\\".repeat(900)}).to_string(),
        "\u{1}".repeat(4096),
        "\"\u{1}é".repeat(1000),
    ];
    for request in requests {
        let world = asked(stuck(), &request);
        let attachment = world.snapshot().unwrap().attachment;
        assert!(attachment.release.is_some(), "{} bytes are read", request.len());
        for refusal in [of_request(&world), node_id()] {
            let answer = release_answer(&attachment, &refusal).unwrap();
            let answered = asked(stuck().annotation(RELEASE_REFUSED_ANNOTATION, &answer), &request);
            let wanted = "unpublish";
            assert_eq!(decided(&answered), wanted, "{} bytes of {request:.40}", answer.len());
            let text = refusal.to_string();
            let is_listed = matches!(refusal, ReleaseRefusal::ListedAtNode(_));
            assert!(is_listed || text.len() < 1000, "{} bytes in an Event", text.len());
        }
    }
}

/// What was refused in this attempt, and cannot be answered on the object, is neither judged nor refused again: the detach goes on.
#[test]
fn a_request_that_counts_as_answered_is_left() {
    for request in [request().to_string(), "true".to_owned()] {
        let world = asked(stuck(), &request);
        let snapshot = world.snapshot().unwrap();
        let observed = Observed {
            release_answered: true,
            ..observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded)
        };
        assert!(matches!(decide(&observed), Action::Unpublish(_)), "{request}");
    }
}

/// What is wanted is never released, whatever is written on it.
#[test]
fn a_live_attachment_is_never_released() {
    let live = attachment()
        .claimed()
        .noted_volume(&json!({"handle": "handle1"}))
        .attached();
    assert_eq!(decided(&asked(live, &request().to_string())), "Ignore(AlreadyAttached)");
    let waiting = decided(&asked(attachment().claimed(), &request().to_string()));
    assert!(waiting.starts_with("Claim"), "{waiting}");
}

fn evidence(listed: ListedEvidence) -> ReleaseEvidence {
    ReleaseEvidence {
        now: NOW.parse().unwrap(),
        listed,
        here: None,
        elsewhere: None,
    }
}

fn judged(world: &DecideModel, evidence: &ReleaseEvidence) -> Result<ReleaseBasis, &'static str> {
    let snapshot = world.snapshot().unwrap();
    let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
    let Action::JudgeRelease(plan) = decide(&observed) else {
        panic!("not judged: {}", decided(world));
    };
    judge_release(&observed, &plan, evidence).map_err(|refusal| refusal.reason())
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_the_evidence_allows() {
    use ListingDoubt::{Contradicts, Disabled, Translated};
    use ReleaseBasis::{Confirmed, Listing, OutOfServiceTaint};
    let with = |proof: Option<&str>, va: Va| {
        let mut request = request();
        if let Some(proof) = proof {
            request["proof"] = proof.into();
        }
        asked(va, &request.to_string())
    };
    let (none, taint, confirmed) = (None, Some("OutOfServiceTaint"), Some("Confirmed"));
    let uncertain = || stuck().set("/status/attached", false);
    let repaired = || stuck().set("/status/attachError", json!({"message": "late"}));
    let other: Option<Arc<str>> = Some("other".into());
    let here = |listed| ReleaseEvidence {
        here: other.clone(),
        ..evidence(listed)
    };
    let elsewhere = |listed| ReleaseEvidence {
        elsewhere: other.clone(),
        ..evidence(listed)
    };
    let (cannot, silent, not_there) = (
        ListedEvidence::CannotList,
        ListedEvidence::Silent,
        ListedEvidence::NotThere,
    );
    let failed = || ListedEvidence::Failed("no answer".to_owned());
    let unknown = || ListedEvidence::AtUnknown("node/1".to_owned());
    let doubtful = ListedEvidence::NotThereDoubtful;
    let contradicts = || Contradicts("other".into());
    let replaced = || stuck().noted_node("id-of-yesterday");
    let replaced_and_confirmed = || replaced().annotation(NOT_ATTACHED_AT_ANNOTATION, "id-of-yesterday");
    let at = || ListedEvidence::At(NODE_ID.to_owned());
    let rows = [
        (none, stuck(), evidence(not_there.clone()), Ok(Listing)),
        (none, stuck(), elsewhere(not_there.clone()), Ok(Listing)),
        (none, uncertain(), evidence(not_there.clone()), Err("NoProof")),
        (none, repaired(), evidence(not_there.clone()), Err("NoProof")),
        (none, stuck(), evidence(silent.clone()), Err("NoProof")),
        (none, stuck(), evidence(failed()), Err("NoProof")),
        (none, stuck(), evidence(cannot.clone()), Err("NoProof")),
        (none, stuck(), evidence(at()), Err("ListedAtNode")),
        (taint, stuck(), evidence(cannot.clone()), Ok(OutOfServiceTaint)),
        (taint, uncertain(), evidence(failed()), Ok(OutOfServiceTaint)),
        (taint, stuck(), evidence(at()), Err("ListedAtNode")),
        (taint, stuck(), here(cannot.clone()), Err("InUseOnNode")),
        (confirmed, stuck(), evidence(cannot.clone()), Ok(Confirmed)),
        (confirmed, uncertain(), evidence(silent.clone()), Ok(Confirmed)),
        (confirmed, stuck(), evidence(at()), Err("ListedAtNode")),
        (confirmed, stuck(), elsewhere(cannot.clone()), Err("AttachedElsewhere")),
        (confirmed, stuck(), here(not_there.clone()), Err("InUseOnNode")),
        (none, stuck(), evidence(unknown()), Err("NoProof")),
        (taint, stuck(), evidence(unknown()), Ok(OutOfServiceTaint)),
        (none, stuck(), evidence(doubtful(contradicts())), Err("NoProof")),
        (taint, stuck(), evidence(doubtful(contradicts())), Ok(OutOfServiceTaint)),
        (none, stuck(), evidence(doubtful(Disabled)), Err("NoProof")),
        (none, stuck(), evidence(doubtful(Translated)), Err("NoProof")),
        (confirmed, stuck(), evidence(doubtful(Translated)), Ok(Confirmed)),
        // The taint is that of the machine which has the name now.
        (taint, replaced(), evidence(cannot.clone()), Err("OtherMachine")),
        (
            taint,
            replaced_and_confirmed(),
            evidence(cannot.clone()),
            Ok(OutOfServiceTaint),
        ),
        (confirmed, replaced(), evidence(cannot.clone()), Ok(Confirmed)),
        (none, replaced(), evidence(not_there.clone()), Ok(Listing)),
    ];
    for (number, (proof, va, evidence, expected)) in rows.into_iter().enumerate() {
        let found = judged(&with(proof, va), &evidence);
        assert_eq!(found, expected, "row {number}: {proof:?} {evidence:?}");
    }
}

/// Only that a volume is absent is in doubt where the driver contradicts itself.
#[test]
fn a_listing_that_contradicts_an_attachment_is_no_proof_of_absence() {
    let contradicted = || Some("va-other".into());
    let at = ListedEvidence::At(NODE_ID.to_owned());
    assert_eq!(at.clone().doubted_for(contradicted()), at);
    let wanted = ListedEvidence::Silent;
    assert_eq!(ListedEvidence::Silent.doubted_for(contradicted()), wanted);
    assert_eq!(ListedEvidence::NotThere.doubted_for(None), ListedEvidence::NotThere);
    let world = asked(stuck(), &request().to_string());
    let snapshot = world.snapshot().unwrap();
    let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
    let Action::JudgeRelease(plan) = decide(&observed) else {
        panic!("not judged: {}", decided(&world));
    };
    let doubtful = evidence(ListedEvidence::NotThere.doubted_for(contradicted()));
    let refusal = judge_release(&observed, &plan, &doubtful).unwrap_err();
    assert_eq!(refusal.reason(), "NoProof");
    assert!(refusal.to_string().contains("VolumeAttachment va-other"), "{refusal}");
}

/// A neighbour that the cache knows counts as much as one that the effects find.
#[test]
fn a_neighbour_on_the_node_is_a_refusal() {
    let mut confirmed = request();
    confirmed["proof"] = "Confirmed".into();
    let world = asked(stuck(), &confirmed.to_string()).here(&attachment().claimed().attached());
    assert_eq!(judged(&world, &evidence(ListedEvidence::NotThere)), Err("InUseOnNode"));
}

/// Where it is not known what was attached, nothing that is listed is proof.
#[test]
fn without_a_place_a_listing_proves_nothing() {
    let world = without_volume(asked(stuck(), &request().to_string()));
    assert_eq!(judged(&world, &evidence(ListedEvidence::NotThere)), Err("NoProof"));
}

#[test]
fn the_release_is_written_on_conditions() {
    let world = asked(stuck().finalizers(&["a/b", FINALIZER]), &request().to_string());
    let attachment = world.snapshot().unwrap().attachment;
    let write = release_on_request(&attachment, FINALIZER).unwrap();
    assert_eq!(
        write.body,
        json!([
            {"op": "test", "path": "/metadata/uid", "value": ATTACHMENT_UID},
            {"op": "test", "path": "/metadata/annotations/attacher.csi.dev~1release", "value": request().to_string()},
            {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
            {"op": "test", "path": "/metadata/finalizers/1", "value": FINALIZER},
            {"op": "remove", "path": "/metadata/finalizers/1"},
            {"op": "remove", "path": "/metadata/annotations/csi.alpha.kubernetes.io~1node-id"},
        ])
    );
    let refusal = ReleaseRefusal::NoProof("why".to_owned());
    let answer = release_answer(&attachment, &refusal).unwrap();
    let parsed: Value = serde_json::from_str(&answer).unwrap();
    let wanted = (Some(AT), Some("NoProof"));
    assert_eq!((parsed["request"].as_str(), parsed["reason"].as_str()), wanted);
    let write = refuse_release(&attachment, &answer).unwrap();
    assert_eq!(write.body[2]["value"], json!(answer));
}

/// What is let go shows no claim any more, so that it is not detached again. The request on it stays without an answer.
#[test]
fn what_is_released_is_settled_though_another_finalizer_keeps_it() {
    for va in [stuck().finalizers(&["a/b", FINALIZER]), lost()] {
        let va = va.noted_volume(&json!({"handle": "handle1"}));
        let mut world = asked(va, &request().to_string());
        assert_eq!(decided(&world), "judge 1 places");
        let write = release_on_request(&world.snapshot().unwrap().attachment, FINALIZER).unwrap();
        world.write(&write).unwrap();
        let metadata = &world.attachment.as_ref().unwrap()["metadata"];
        assert_eq!(metadata["finalizers"], json!(["a/b"]));
        let wanted = json!({RELEASE_ANNOTATION: request().to_string()});
        assert_eq!(metadata["annotations"], wanted);
        assert_eq!(decided(&world), "Ignore(NothingToDetach)");
    }
}

/// The request wakes an attachment from its backoff, the answer to it does not.
#[test]
fn the_request_is_part_of_the_fingerprint() {
    let without = ready().va(stuck());
    let with = asked(stuck(), "a");
    let answered = asked(stuck().annotation(RELEASE_REFUSED_ANNOTATION, "x"), "a");
    assert_ne!(without.fingerprint(), with.fingerprint());
    assert_ne!(with.fingerprint(), asked(stuck(), "b").fingerprint());
    assert_eq!(with.fingerprint(), answered.fingerprint());
}

/// An old request says nothing about the node as it is now, and a clock that is wrong says nothing at all.
#[test]
fn a_request_expires() {
    for at in ["2026-02-03T03:50:05Z", "2026-02-03T04:20:07Z"] {
        let mut request = request();
        request["at"] = at.into();
        request["proof"] = "OutOfServiceTaint".into();
        let world = asked(stuck(), &request.to_string());
        let wanted = Err("Expired");
        assert_eq!(judged(&world, &evidence(ListedEvidence::NotThere)), wanted, "{at}");
    }
}
