//! What comes from outside while a claim is worked on: odd answers of the driver, changes during a call, markers that others write.

use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::builders::{MARKER, NAME, answered_volume, class_json};
use super::{Cluster, PROVISIONER, Play, answered, call_fails, error, failed, save_fails, status};
use crate::answer::ApiErrorKind;
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::Failure;
use crate::provision::attempt::{
    CLASS_TIMEOUT, ClaimAttempt, ClaimEvent, ClaimMemory, ClaimNote, ClaimStep, Verdict, WaitsFor,
};
use crate::provision::{AnsweredVolume, ClaimReason, Creation, OrphanVolumePolicy, ProvisionRefusal, RolePhase};

fn small(handle: &str) -> ClaimEvent {
    ClaimEvent::Created(Ok(Some(AnsweredVolume {
        handle: handle.into(),
        capacity_bytes: 1,
        ..AnsweredVolume::default()
    })))
}

fn undoing() -> Play {
    let mut play = Play::of(Cluster::new());
    play.cluster.policy.hold_deletions = false;
    play
}

fn undo(step: &ClaimStep) -> Option<ClaimEvent> {
    matches!(step, ClaimStep::Delete(_)).then(|| ClaimEvent::Deleted(Ok(())))
}

fn creates(step: &ClaimStep) -> bool {
    matches!(step, ClaimStep::Create(_))
}

/// A driver that never answers a large enough volume is asked once for each backoff.
#[test]
fn a_volume_that_is_too_small_is_undone_and_asked_for_after_a_backoff() {
    let mut play = undoing();
    for round in ["patch create", "create"] {
        let verdict = play.attempt(|step, _| creates(step).then(|| small("vol-1")).or_else(|| undo(step)));
        assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
        assert_eq!(play.take_done().join(" "), format!("{round} read volume delete"));
    }
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 1);
}

/// While the volume is deleted: no other one is asked for, and the marker goes at once.
#[test]
fn a_volume_that_is_too_small_is_undone_for_good_where_nobody_wants_another_one() {
    for make_unwanted in super::UNWANTED {
        let mut play = undoing();
        let verdict = play.attempt(|step, cluster| {
            if matches!(step, ClaimStep::Delete(_)) {
                make_unwanted(cluster);
            }
            creates(step).then(|| small("vol-1")).or_else(|| undo(step))
        });
        assert_eq!(verdict, Verdict::Done);
        assert_eq!(play.take_done(), ["patch", "create", "read volume", "delete", "patch"]);
        assert!(!play.cluster.carries_marker());
    }
}

/// Somebody may have deleted the volume in the storage system, or the ID is wrong: no PersistentVolume will tell of it.
#[test]
fn a_not_found_that_counts_as_deleted_is_told_of_a_volume_that_nobody_wants() {
    for is_found in [true, false] {
        let mut play = undoing();
        play.cluster.policy.orphans = OrphanVolumePolicy::TreatNotFoundAsDeleted;
        let failure = Failure {
            message: "no such volume".to_owned(),
            code: Some(5),
        };
        play.attempt(|step, cluster| {
            if creates(step) {
                cluster.delete();
            }
            let answer = if is_found {
                Ok(())
            } else {
                Err(CallEnd::Failed(failure.clone()))
            };
            matches!(step, ClaimStep::Delete(_)).then(|| ClaimEvent::Deleted(answer))
        });
        let told = ClaimNote::Undone("vol-1".into(), Some(failure).filter(|_| !is_found));
        assert!(play.notes.contains(&told), "{:?}", play.notes);
        assert!(!play.cluster.carries_marker());
    }
}

/// A claim that is deleted is not held by an answer of which no PersistentVolume can be made: its ID says what is to be deleted.
#[test]
fn a_volume_with_too_large_an_answer_is_undone_and_its_claim_goes() {
    let context: BTreeMap<String, String> = [("k".to_owned(), "x".repeat(1 << 20))].into();
    let large = AnsweredVolume {
        context: context.into(),
        ..answered_volume()
    };
    let mut play = undoing();
    play.attempt(|step, cluster| {
        if creates(step) {
            cluster.delete();
            return Some(ClaimEvent::Created(Ok(Some(large.clone()))));
        }
        undo(step)
    });
    assert_eq!(play.take_done(), ["patch", "create", "read volume", "delete", "patch"]);
    assert!(!play.cluster.carries_marker() && !play.memory.holds_volume());
}

/// Their watch is refused. After a row of rests that has grown to 10 seconds it is told, once, and the claim goes as soon as they are known.
#[test]
fn a_volume_that_cannot_be_undone_as_lists_are_not_known_is_told() {
    for unknown in ["PersistentVolumes", "VolumeAttachments"] {
        let mut play = undoing();
        play.cluster.unknown = unknown;
        play.call(None, Cluster::delete);
        let is_of_kind = |note: &ClaimNote| match note {
            ClaimNote::Waits(ClaimReason::Unconfirmed, cause) => cause.to_string().starts_with(unknown),
            _ => false,
        };
        let told = [0; 8].map(|_| {
            assert!(matches!(play.attempt(|_, _| None), Verdict::Rest(_)));
            play.told(is_of_kind)
        });
        assert_eq!(told, [0, 0, 0, 0, 0, 1, 1, 1], "{:?}", play.notes);
        assert_eq!(play.waits_for(), Some(ClaimReason::Unconfirmed));
        play.cluster.unknown = "";
        play.attempt(|step, _| undo(step));
        assert!(!play.cluster.carries_marker());
    }
}

/// A class may be deleted and made again with other parameters while its watch is broken. A list that began after the claim came says what
/// it is, for one call; a call that is open is repeated as it was.
#[test]
fn the_first_call_waits_for_lists_while_a_watch_is_broken() {
    for has_topology in [false, true] {
        let mut play = Play::of(Cluster::new());
        play.cluster.is_watched = false;
        if has_topology {
            play.cluster.driver.capabilities.accessibility_constraints = true;
            play.cluster.nodes = vec![super::super::builders::node("n1", &[("zone", "a")])];
        }
        for milliseconds in [200, 400] {
            let rest = Verdict::Rest(Duration::from_millis(milliseconds));
            assert_eq!(play.attempt(|_, _| None), rest);
        }
        assert!(play.take_done().is_empty());
        play.cluster.set_class("parameters", json!({"pool": "new"}));
        play.cluster.lists += 1;
        play.attempt(|step, _| match step {
            ClaimStep::Create(call) => {
                assert_eq!(call.parameters.get("pool"), Some("new"));
                Some(failed(11))
            }
            _ => None,
        });
        assert_eq!(play.take_done(), ["patch", "create"]);
        // Refused: the next call is a first one again.
        assert!(matches!(play.does_with(call_fails(4), ""), Verdict::Rest(_)));
        play.cluster.wait(Duration::from_secs(10));
        // It is told once, and the list that comes then wakes nobody.
        let soon = Verdict::Rest(Duration::from_millis(200));
        assert_eq!(play.attempt(call_fails(4)), soon);
        assert_eq!(play.waits_for(), Some(ClaimReason::Unconfirmed));
        play.take_done();
        let (later, told) = (Verdict::Rest(Duration::from_millis(400)), play.notes.len());
        assert_eq!(play.attempt(call_fails(4)), later);
        assert_eq!(play.notes.len(), told);
        play.cluster.lists += 1;
        play.attempt(call_fails(4));
        play.take_done();
        // Of this one nobody knows what it did.
        play.attempt(|_, _| None);
        assert_eq!((play.take_done(), play.saved()), (vec!["create", "save"], 1));
    }
}

/// A VolumeAttachment names the volume, or the PersistentVolume that it would have: it goes on when that is gone.
#[test]
fn a_volume_that_is_attached_is_not_undone() {
    let mut play = undoing();
    play.cluster.attached_to = Some("n1".into());
    let answer = |step: &ClaimStep, _: &mut Cluster| creates(step).then(|| small("vol-1"));
    assert!(matches!(play.attempt(answer), Verdict::Waits(_)));
    assert_eq!(play.waits_for(), Some(ClaimReason::StillAttached));
    assert!(play.cluster.carries_marker());
    assert_eq!(play.take_done(), ["patch", "create", "read volume"]);
    play.cluster.attached_to = None;
    play.does_with(|step, _| undo(step), "read volume delete");
}

/// Nobody wants it: the deletion of its PersistentVolume waits for the detach, and the claim need not.
#[test]
fn a_volume_that_is_attached_and_not_wanted_is_recorded() {
    let mut play = undoing();
    play.cluster.attached_to = Some("n1".into());
    play.call(None, Cluster::delete);
    assert_eq!(play.take_done(), ["patch", "create", "read volume", "save", "patch"]);
    assert_eq!((play.saved(), play.recorded()), (0, vec![ClaimReason::UndoVolume]));
    assert!(!play.cluster.carries_marker());
}

/// A request for a Secret may wait for long: the live look comes after it.
#[test]
fn a_volume_is_undone_after_a_look_that_no_request_follows() {
    let mut play = undoing();
    play.cluster.name_secret();
    let asks_later = |step: &ClaimStep| {
        matches!(step, ClaimStep::ReadVolume(_)).then(|| ClaimEvent::Read(Err(error(ApiErrorKind::Unknown))))
    };
    play.attempt(|step, _| creates(step).then(|| small("vol-1")).or_else(|| asks_later(step)));
    assert_eq!(play.take_done(), ["secret", "patch", "create", "read volume"]);
    play.does_with(|step, _| undo(step), "read volume secret read volume delete");
}

/// A Secret that the settings do not list any more is not read, whatever a call was made with before.
#[test]
fn a_secret_that_is_taken_off_the_list_is_not_read_for_an_open_call() {
    for is_deleted in [false, true] {
        let mut play = Play::of(Cluster::new());
        play.cluster.name_secret();
        play.does_with(call_fails(4), "secret patch create");
        let listed = std::mem::take(&mut play.cluster.policy.secrets);
        if is_deleted {
            play.cluster.delete();
        }
        assert!(matches!(play.does(""), Verdict::Waits(_)));
        let is_told = |note: &ClaimNote| format!("{note:?}").contains("SecretNotAllowed");
        assert!(play.notes.iter().any(is_told));
        play.cluster.policy.secrets = listed;
        play.attempt(|_, _| None);
        assert_eq!(play.take_done()[..2], ["secret", "create"]);
    }
}

/// The ID of a PersistentVolume, and too small: nothing is deleted, and the driver is asked again.
#[test]
fn a_volume_of_another_that_cannot_be_used_is_asked_for_again() {
    let mut play = undoing();
    play.cluster.owner = Some("pv-2".into());
    let answer = |step: &ClaimStep, _: &mut Cluster| creates(step).then(|| small("vol-2"));
    assert!(matches!(play.attempt(answer), Verdict::Failed(_)));
    assert_eq!(play.waits_for(), Some(ClaimReason::HandleShared));
    // Its PersistentVolume goes; the volume was somebody's all the same.
    play.cluster.owner = None;
    let verdict = play.does_with(answer, "patch create create");
    assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
    assert!(play.cluster.carries_marker());
    play.attempt(|_, _| None);
    assert_eq!((play.take_done(), play.saved()), (vec!["create", "save"], 1));
}

#[test]
fn a_volume_of_another_is_kept_when_the_claim_goes() {
    let mut play = undoing();
    play.cluster.owner = Some("pv-2".into());
    play.attempt(|step, _| creates(step).then(|| small("vol-2")));
    play.take_done();
    play.cluster.delete();
    let told = |play: &Play| play.told(|note| matches!(note, ClaimNote::LeftAlone(_)));
    play.attempt(|step, _| match step {
        ClaimStep::Create(_) => Some(answered("vol-2")),
        ClaimStep::Patch(_) => Some(ClaimEvent::Patched(Err(status(403)))),
        _ => None,
    });
    let wanted = (vec!["create", "patch"], 0);
    assert_eq!((play.take_done(), told(&play)), wanted, "it is found out");
    play.attempt(|_, _| None);
    assert_eq!((play.take_done(), told(&play)), (vec!["patch"], 1), "and let go");
    assert!(!play.cluster.carries_marker());
}

/// Somebody writes over the marker of a call that is open.
#[test]
fn a_marker_that_is_overwritten_does_not_stop_what_was_begun() {
    for code in [4, 0] {
        let mut play = Play::of(Cluster::new());
        // Not answered in time; or created, and not saved.
        play.attempt(|step, _| match step {
            ClaimStep::Create(_) if code != 0 => Some(failed(code)),
            ClaimStep::Save(_) => Some(ClaimEvent::Saved(Err(error(ApiErrorKind::Unknown)))),
            ClaimStep::ReadVolume(_) => Some(ClaimEvent::Read(Err(error(ApiErrorKind::NotFound)))),
            _ => None,
        });
        play.cluster.annotate(MARKER, r#"{"driver": "other.test"}"#);
        play.cluster.wait(Duration::from_mins(1));
        play.attempt(|_, _| None);
        assert_eq!(play.saved(), 1, "{code}: {:?}", play.notes);
    }
}

/// With this in the marker.
fn rewrite(cluster: &mut Cluster, field: &str, value: serde_json::Value) {
    let mut marker = super::marker_of(cluster);
    marker[field] = value;
    cluster.annotate(MARKER, &marker.to_string());
}

/// Users of a namespace can write it. An admission webhook that takes the annotation off alone writes nothing.
#[test]
fn what_somebody_else_wrote_into_the_marker_is_told_once() {
    type Change = fn(&mut Cluster);
    let rows: [(&str, Change, usize); 8] = [
        ("nothing", |_| {}, 0),
        ("a prefix", |cluster| rewrite(cluster, "prefix", json!("../evil")), 1),
        ("a UID", |cluster| rewrite(cluster, "uid", json!("of another claim")), 1),
        (
            "a Secret",
            |cluster| rewrite(cluster, "secret", json!({"namespace": "ns", "name": "s"})),
            1,
        ),
        ("no JSON", |cluster| cluster.annotate(MARKER, "{"), 1),
        ("150 KiB", |cluster| cluster.annotate(MARKER, &"[".repeat(150 << 10)), 1),
        (
            "no annotation",
            |cluster| {
                let annotations = &mut cluster.claim.as_mut().unwrap()["metadata"]["annotations"];
                annotations.as_object_mut().unwrap().remove(MARKER);
                cluster.renew();
            },
            0,
        ),
        (
            "no JSON, on the claim of another driver",
            |cluster| {
                cluster.annotate(MARKER, "{");
                cluster.set(PROVISIONER, json!("other.test"));
            },
            0,
        ),
    ];
    for (name, change, wanted) in rows {
        let mut play = Play::of(Cluster::new());
        play.attempt(call_fails(4));
        change(&mut play.cluster);
        // Another process knows what the marker says, and nothing else.
        play.restart("2-3-csi.test");
        for _ in 0..2 {
            play.attempt(call_fails(4));
        }
        let told = play.told(|note| *note == ClaimNote::MarkerIgnored);
        assert_eq!(told, wanted, "{name}: {:?}", play.notes);
    }
}

/// The class is made anew for another driver, and kube-controller-manager has not corrected the claim yet.
#[test]
fn a_claim_of_a_class_of_another_driver_gets_no_volume_of_ours() {
    let mut play = undoing();
    play.attempt(call_fails(4));
    play.take_done();
    let class = play.cluster.class.as_mut().unwrap();
    class["provisioner"] = json!("other.test");
    class["metadata"]["uid"] = json!("class-2");
    assert!(matches!(play.does(""), Verdict::Rest(_)));
    play.cluster.wait(Duration::from_secs(10));
    play.attempt(|_, _| None);
    assert_eq!(play.waits_for(), Some(ClaimReason::ClassMismatch));
    play.cluster.set(PROVISIONER, json!("other.test"));
    play.does_with(|step, _| undo(step), "create read volume delete patch");
    assert!(!play.cluster.carries_marker());
}

#[test]
fn an_undo_that_was_cut_off_may_have_deleted_the_volume_and_one_that_was_not_begun_has_not() {
    for (lost, is_usable) in [(LeaseLost::Cancelled, false), (LeaseLost::NotStarted, true)] {
        let mut play = undoing();
        let verdict = play.attempt(|step, cluster| match step {
            ClaimStep::Create(_) => {
                cluster.set(PROVISIONER, json!("other.test"));
                None
            }
            ClaimStep::Delete(_) => Some(ClaimEvent::Deleted(Err(CallEnd::LeaseLost(lost)))),
            _ => None,
        });
        assert_eq!(verdict, Verdict::LeaseLost);
        assert!(play.done.contains(&"delete"), "{:?}", play.done);
        let known = play.memory.creation();
        assert!(
            matches!(known, Some(Creation::Created(volume)) if volume.is_usable() == is_usable),
            "{lost:?}: {known:?}"
        );
    }
}

#[test]
fn a_volume_that_was_created_is_not_saved_for_a_class_of_another_driver() {
    let mut play = undoing();
    play.call(None, |cluster| {
        cluster.set_class("provisioner", json!("other.test"));
    });
    assert_eq!(play.take_done(), ["patch", "create"]);
    play.cluster.set(PROVISIONER, json!("other.test"));
    play.does_with(|step, _| undo(step), "read volume delete patch");
}

/// It is about to end, and nobody else knows of the volume.
#[test]
fn a_volume_that_was_created_is_saved_by_a_role_that_ends() {
    let mut play = undoing();
    play.call(None, |cluster| {
        cluster.set_class("provisioner", json!("other.test"));
    });
    play.cluster.role = RolePhase::Stopping;
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 1);
}

/// Its topology is never read.
#[test]
fn a_driver_that_creates_no_volumes_is_told_whatever_its_topology() {
    let mut play = undoing();
    play.cluster.driver.capabilities.create_delete_volume = false;
    play.cluster.driver.capabilities.accessibility_constraints = true;
    play.cluster.nodes_are_known = false;
    assert!(matches!(play.attempt(|_, _| None), Verdict::Waits(_)));
    assert_eq!(play.waits_for(), Some(ClaimReason::Invalid));
}

/// By force, while nobody knows what became of a call.
#[test]
fn a_marker_that_is_taken_off_by_force_is_told_once_and_the_volume_undone() {
    let mut play = undoing();
    play.attempt(call_fails(4));
    play.cluster.claim = None;
    play.attempt(call_fails(4));
    play.attempt(|step, _| undo(step));
    let is_leak = |note: &ClaimNote| matches!(note, ClaimNote::PossiblyLeaked(name, _) if **name == *NAME);
    assert_eq!(play.told(is_leak), 1);
    assert_eq!(play.take_done().last(), Some(&"delete"));
}

/// What the marker said goes as well: nothing of it is left on a claim that is served.
#[test]
fn what_is_left_of_a_marker_that_was_taken_off_by_force_goes_with_the_binding() {
    let mut play = Play::of(Cluster::new());
    play.call(None, |cluster| {
        cluster.set("/metadata/finalizers", json!(["kubernetes.io/pvc-protection"]));
    });
    assert_eq!((play.take_done(), play.saved()), (vec!["patch", "create", "save"], 1));
    play.cluster.bind();
    assert_eq!(play.does("patch"), Verdict::Done);
    let annotations = &play.cluster.claim.as_ref().unwrap()["metadata"]["annotations"];
    assert!(annotations.get(MARKER).is_none(), "{annotations}");
    assert_eq!(play.does(""), Verdict::Done);
}

/// An input that changes while the driver works is one that was not tried.
#[test]
fn what_changes_during_a_call_is_tried_at_once() {
    let mut play = Play::of(Cluster::new());
    play.call(Some(3), |cluster| {
        cluster.class.as_mut().unwrap()["metadata"]["uid"] = json!("class-2");
    });
    play.take_done();
    play.attempt(|_, _| None);
    let wanted = ["patch", "create", "save"];
    assert_eq!(play.take_done(), wanted, "INVALID_ARGUMENT was about the former class");
}

#[test]
fn the_end_of_the_marker_of_another_driver_is_a_change() {
    let mut play = Play::of(Cluster::new());
    play.cluster.set("/metadata/finalizers", json!([MARKER]));
    play.cluster.annotate(MARKER, r#"{"driver": "other.test"}"#);
    let Verdict::Waits(fingerprint) = play.attempt(|_, _| None) else {
        panic!()
    };
    let is_other = |note: &ClaimNote| matches!(note, ClaimNote::Waits(_, cause) if matches!(**cause, ProvisionRefusal::MarkerOfAnotherDriver(_)));
    assert!(play.notes.iter().any(is_other));
    play.cluster.set("/metadata/finalizers", json!([]));
    let annotations = super::world().claim["metadata"]["annotations"].clone();
    play.cluster.set("/metadata/annotations", annotations);
    assert_ne!(fingerprint, play.print());
}

/// The PersistentVolume is deleted before the claim is bound to it, and the claim gets another volume.
#[test]
fn a_second_volume_of_a_claim_is_told_as_well() {
    let mut play = Play::of(Cluster::new());
    play.attempt(|_, _| None);
    play.attempt(|_, _| None);
    play.cluster.volume = None;
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 2, "{:?}", play.take_done());
}

/// A slow driver holds up calls, and nothing else.
#[test]
fn what_needs_no_call_is_known() {
    let may_call = |play: &Play| {
        let claim = super::claim_of(play.cluster.claim.as_ref().unwrap());
        crate::provision::attempt::may_call(&play.cluster, &claim, play.memory.creation())
    };
    let mut play = undoing();
    assert!(may_call(&play), "never called for");
    play.attempt(call_fails(4));
    assert!(may_call(&play), "uncertain");
    play.attempt(save_fails(status(500)));
    assert!(!may_call(&play), "to be saved");
    play.cluster.delete();
    assert!(may_call(&play), "to be undone");

    let mut play = undoing();
    play.attempt(|_, _| None);
    assert!(!may_call(&play), "saved");
    play.memory = ClaimMemory::default();
    assert!(!may_call(&play), "saved, and the process is a new one");

    let mut play = undoing();
    play.attempt(call_fails(9));
    assert!(may_call(&play), "refused");
    play.cluster.delete();
    assert!(!may_call(&play), "the marker goes");
}

/// The driver is away for long, and another engine of the process goes on: with the arguments of the open call, though the class has others by
/// now; but not where somebody else has marked the claim since, and may have called.
#[test]
fn the_next_engine_repeats_the_open_call_with_its_arguments() {
    let uncertain = || {
        let mut play = Play::of(Cluster::new());
        play.attempt(call_fails(14));
        play.cluster.set_class("mountOptions", json!(["other"]));
        play.take_done();
        play
    };
    let continued = |play: &Play, writer: &str| {
        let claim = super::claim_of(play.cluster.claim.as_ref().unwrap());
        play.memory.continued(&claim, &play.cluster.driver.name, writer)
    };
    let options = |play: &mut Play| {
        let mut options = None;
        play.attempt(|step, _| {
            if let ClaimStep::Create(plan) = step {
                options = Some(plan.volume.mount_options.clone());
            }
            None
        });
        options.unwrap()
    };
    let mut play = uncertain();
    let identity = play.cluster.policy.identity.clone();
    play.memory = continued(&play, &identity).unwrap();
    play.cluster.policy.identity = "next".into();
    let before = options(&mut play);
    assert!(!before.iter().any(|option| **option == *"other"), "{before:?}");
    let wanted = ["patch", "create", "save"];
    assert_eq!(play.take_done(), wanted, "it marks the claim first");
    // The next engine ended before its first call: the marker is still that of the first one.
    let mut play = uncertain();
    play.memory = continued(&play, &identity).unwrap();
    play.memory = continued(&play, "next").unwrap();
    play.cluster.policy.identity = "third".into();
    assert_eq!(options(&mut play), before);
    let play = uncertain();
    assert!(continued(&play, "another").is_none());
    // Of a claim for which no call is open nothing is kept.
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(9));
    assert!(continued(&play, &identity).is_none());
}

/// The contents of a Secret may be what the driver refuses. What only says that the driver could not answer waits for the backoff.
#[test]
fn a_refused_call_waits_for_its_secret() {
    let secret = |code: Option<i32>| {
        let mut cluster = Cluster::new();
        cluster.name_secret();
        let mut play = Play::of(cluster);
        play.attempt(|step, _| creates(step).then(|| code.map_or_else(|| answered("vol-1"), failed)));
        let first = ClaimAttempt::new(play.memory.clone()).needed_secret().cloned();
        // A look that makes no call, as while it is held, forgets nothing.
        play.cluster.class = None;
        play.attempt(|_, _| None);
        let second = ClaimAttempt::new(play.memory.clone()).needed_secret().cloned();
        assert_eq!(first, second);
        first.map(|secret| secret.name)
    };
    for code in [16, 7, 3, 9, 13] {
        assert_eq!(secret(Some(code)).as_deref(), Some("s"), "{code}");
    }
    for code in [Some(14), Some(4), Some(1), Some(10), None] {
        assert_eq!(secret(code), None, "{code:?}");
    }
}

/// It is not kept for the end of a call that may take minutes.
#[test]
fn a_request_to_let_go_is_refused_during_a_call() {
    let mut cluster = Cluster::new();
    let mut attempt = ClaimAttempt::new(ClaimMemory::default());
    let step = cluster.marked(&mut attempt, ClaimEvent::Begin);
    assert!(creates(&step), "{step:?}");
    cluster.wait(Duration::from_mins(11));
    cluster.ask_to_let_go();
    assert!(attempt.refused_release(&cluster).is_none(), "it is wanted");
    cluster.delete();
    let (write, refusal) = attempt.refused_release(&cluster).unwrap();
    assert_eq!(refusal.reason(), "CallUnderWay");
    cluster.leads = false;
    assert!(attempt.refused_release(&cluster).is_none());
    cluster.leads = true;
    cluster.patch(&write.body).unwrap();
    assert!(attempt.refused_release(&cluster).is_none(), "it is answered once");
    // Nor is it granted after the call: it is to be asked for again.
    cluster.marked(&mut attempt, failed(14));
    let notes = attempt.take_notes();
    assert!(!notes.iter().any(|note| matches!(note, ClaimNote::LetGo(..))));
}

/// The marker may be from before a call that was refused: nothing was unknown meanwhile.
#[test]
fn a_request_to_let_go_counts_from_the_call_whose_outcome_is_not_known() {
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(5));
    assert!(play.cluster.carries_marker());
    play.cluster.wait(Duration::from_mins(11));
    play.attempt(call_fails(14));
    play.cluster.delete();
    for is_granted in [false, true] {
        play.cluster.ask_to_let_go();
        play.notes.clear();
        play.attempt(call_fails(14));
        let is_let_go = play.told(|note| matches!(note, ClaimNote::LetGo(..))) > 0;
        let is_refused = play.told(|note| matches!(note, ClaimNote::ReleaseRefused(..))) > 0;
        assert_eq!((is_let_go, is_refused), (is_granted, !is_granted), "{:?}", play.notes);
        play.cluster.wait(Duration::from_mins(11));
    }
}

/// A process whose clock was ahead has written it, or a user of the namespace: nobody waits until then.
#[test]
fn a_marker_of_a_time_to_come_does_not_keep_a_claim_for_longer() {
    let changes: [fn(&mut Play); 2] = [
        |play| play.cluster.now = super::now(),
        |play| {
            let mut marker = super::marker_of(&play.cluster);
            marker["since"] = json!("9999-01-01T00:00:00Z");
            play.cluster.annotate(MARKER, &marker.to_string());
        },
    ];
    for (row, change) in changes.iter().enumerate() {
        let mut play = Play::of(Cluster::new());
        play.cluster.wait(Duration::from_hours(24));
        play.attempt(call_fails(14));
        play.cluster.delete();
        change(&mut play);
        for is_granted in [false, true] {
            play.cluster.ask_to_let_go();
            play.attempt(call_fails(14));
            let is_let_go = play.told(|note| matches!(note, ClaimNote::LetGo(..))) > 0;
            assert_eq!(is_let_go, is_granted, "{row}: {:?}", play.notes);
            assert!(play.memory.uncertain_since() <= Some(play.cluster.now), "{row}");
            play.cluster.wait(Duration::from_mins(11));
        }
    }
}

/// A marker stands for a volume that its driver may have made: another driver neither writes over it nor takes it off, though the claim was
/// given to it, and back, while its own call was open.
#[test]
fn the_marker_of_another_driver_is_not_written_over_by_an_open_call() {
    let other = r#"{"driver": "other.test"}"#;
    let is_kept = |play: &Play| {
        let claim = play.cluster.claim.as_ref().unwrap();
        play.cluster.carries_marker() && claim["metadata"]["annotations"][MARKER] == other
    };
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(14));
    play.cluster.annotate(MARKER, other);
    play.take_done();
    play.attempt(|_, _| None);
    assert_eq!(play.take_done(), ["create", "save"], "what was begun goes on");
    assert!(is_kept(&play));
    // It comes while the call runs: the volume is saved, and the marker stays.
    let mut play = Play::of(Cluster::new());
    play.call(None, |cluster| cluster.annotate(MARKER, other));
    play.cluster.bind();
    play.attempt(|_, _| None);
    assert!(play.saved() == 1 && is_kept(&play));
}

/// The counter and the Events are about volumes, and not about how often one is looked at.
#[test]
fn one_possible_leak_is_told_once() {
    let leaks = |play: &Play| play.told(ClaimNote::is_possible_leak);
    let unsaved = |step: &ClaimStep, _: &mut Cluster| match step {
        ClaimStep::Save(_) => Some(ClaimEvent::Saved(Err(status(422)))),
        ClaimStep::Delete(_) => Some(ClaimEvent::Deleted(Err(crate::attempt::CallEnd::Failed(
            crate::decide::Failure {
                message: "no".to_owned(),
                code: Some(9),
            },
        )))),
        _ => None,
    };
    // The marker was taken off by force while the call was open; the volume can neither be undone nor saved.
    let mut play = Play::of(Cluster::new());
    play.cluster.policy.hold_deletions = false;
    play.attempt(call_fails(14));
    play.cluster.claim = None;
    for _ in 0..4 {
        play.attempt(unsaved);
        play.cluster.wait(Duration::from_mins(1));
    }
    assert_eq!(leaks(&play), 1, "{:?}", play.notes);
    // The same during the save.
    let mut play = Play::of(Cluster::new());
    play.attempt(|step, cluster| {
        if matches!(step, ClaimStep::Save(_)) {
            cluster.claim = None;
        }
        unsaved(step, cluster)
    });
    for _ in 0..4 {
        play.cluster.wait(Duration::from_mins(1));
        play.attempt(unsaved);
    }
    assert_eq!(leaks(&play), 1, "{:?}", play.notes);
}

/// Nothing of it is written, and no Secret is read.
#[test]
fn a_driver_that_is_away_is_not_called() {
    let mut play = Play::of(Cluster::new());
    play.cluster.is_away = true;
    assert!(matches!(play.attempt(|_, _| None), Verdict::Rest(_)));
    assert!(play.take_done().is_empty() && play.notes.is_empty());
    play.cluster.is_away = false;
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 1);
}

/// Each failed at nothing, and goes on as soon as what it waits for is there.
#[test]
fn who_waits_has_not_failed() {
    let refused: [fn(&mut Cluster); 5] = [
        |cluster| cluster.set("/spec/selector", json!({"matchLabels": {"a": "b"}})),
        |cluster| cluster.annotate("pv.kubernetes.io/bind-completed", "yes"),
        |cluster| cluster.set_class("parameters", json!({"csi.storage.k8s.io/other": "1"})),
        |cluster| cluster.driver.capabilities.create_delete_volume = false,
        |cluster| {
            cluster.set(
                "/spec/dataSource",
                json!({"kind": "PersistentVolumeClaim", "name": "c"}),
            );
        },
    ];
    for change in refused {
        let mut play = Play::of(Cluster::new());
        change(&mut play.cluster);
        let verdict = play.attempt(|_, _| None);
        let waits = matches!(verdict, Verdict::Waits(_));
        assert!(waits, "{verdict:?}: {:?}", play.notes);
    }
    for status in [404, 403] {
        let mut play = Play::of(Cluster::new());
        play.cluster.name_secret();
        let absent = |step: &ClaimStep, _: &mut Cluster| {
            matches!(step, ClaimStep::Secret(_)).then(|| ClaimEvent::Read(Err(super::status(status))))
        };
        assert!(matches!(play.attempt(absent), Verdict::Waits(_)), "{status}");
        play.attempt(|_, _| None);
        assert_eq!(play.saved(), 1);
    }
}

/// What is told of a claim is not what it waited for before.
#[test]
fn what_a_claim_waited_for_is_not_told_any_more_when_it_waits_for_the_driver() {
    let mut play = Play::of(Cluster::new());
    let class = play.cluster.class.take();
    play.attempt(|_, _| None);
    play.cluster.wait(Duration::from_secs(11));
    play.attempt(|_, _| None);
    assert!(play.memory.trouble().is_some());
    (play.cluster.class, play.cluster.is_away) = (class, true);
    play.attempt(|_, _| None);
    assert_eq!(play.memory.trouble(), None);
}

/// Its class is made again, or the watch of classes was broken for a while. Each look shows that nothing is missing, told or not.
#[test]
fn what_a_claim_of_a_volume_populator_waited_for_is_over_when_it_is_there() {
    type Change = fn(&mut Cluster);
    let rows: [(ClaimReason, Change, Change); 2] = [
        (
            ClaimReason::ClassMissing,
            |cluster| cluster.class = None,
            |cluster| cluster.class = Some(class_json()),
        ),
        (
            ClaimReason::Unconfirmed,
            |cluster| cluster.is_watched = false,
            |cluster| cluster.is_watched = true,
        ),
    ];
    for (reason, begins, ends) in rows {
        let mut play = Play::of(Cluster::new());
        let source = json!({"apiGroup": "x.io", "kind": "Foo", "name": "x"});
        play.cluster.set("/spec/dataSourceRef", source);
        play.does("");
        begins(&mut play.cluster);
        play.does("");
        play.cluster.wait(CLASS_TIMEOUT);
        play.does("");
        assert_eq!(play.waits_now(), Some(reason));
        assert!(play.memory.trouble().is_some(), "{reason:?}");
        ends(&mut play.cluster);
        play.does("");
        assert_eq!(play.memory.trouble(), None, "{reason:?}");
        let told = play.told(|note| *note == ClaimNote::Populator);
        assert_eq!(told, 1, "{reason:?}");
        let mut attempt = ClaimAttempt::new(play.memory.clone());
        attempt.next(&play.cluster, ClaimEvent::Begin);
        assert_eq!(attempt.waits_for(), Some(WaitsFor::Populator));
    }
}

/// The outcome of the call is looked for after a request that is refused, though the answer is denied or dropped.
#[test]
fn a_refusal_that_cannot_be_written_holds_up_no_call() {
    let is_answer = |step: &ClaimStep| match step {
        ClaimStep::Patch(write) => write.body.to_string().contains("release-refused"),
        _ => false,
    };
    for written in [
        Ok(()),
        Err(ApiErrorKind::Forbidden),
        Err(ApiErrorKind::Refused),
        Err(ApiErrorKind::Unknown),
        Err(ApiErrorKind::Stale),
    ] {
        let mut play = Play::of(Cluster::new());
        play.attempt(call_fails(14));
        play.cluster.delete();
        play.cluster.annotate("attacher.csi.dev/release", "true");
        for attempt in ["first", "second"] {
            play.take_done();
            play.notes.clear();
            play.attempt(|step, cluster| {
                let dropped = written.map(|()| cluster.stored());
                let answer = is_answer(step).then(|| ClaimEvent::Patched(dropped.map_err(error)));
                answer.or_else(|| creates(step).then(|| failed(14)))
            });
            let done = play.take_done();
            assert!(done.contains(&"create"), "{written:?}, {attempt} attempt: {done:?}");
            let told = play.told(|note| matches!(note, ClaimNote::ReleaseRefused(_)));
            assert_eq!(told, 1, "{written:?}, {attempt} attempt");
        }
    }
}
