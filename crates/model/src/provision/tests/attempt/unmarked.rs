//! Calls that are made without a marker: what one of them has left open is marked before anything is waited for.

use serde_json::json;

use super::super::builders::{MARKER, NAME, answered_volume, claim_of};
use super::{Cluster, Play, call_fails, failed, save_fails, status};
use crate::provision::attempt::{ClaimAttempt, ClaimEvent, ClaimMemory, ClaimStep, Verdict};
use crate::provision::{AnsweredVolume, LeakProtection, RolePhase};

fn unmarked(protection: LeakProtection) -> Play {
    let mut play = Play::of(Cluster::new());
    play.cluster.policy.leak_protection = protection;
    play
}

/// Another process goes on, with other settings of names, and saves the volume under the name that the call had.
#[track_caller]
fn restarts(play: &mut Play) {
    play.restart("2-3-csi.test");
    play.cluster.policy.volume_name_prefix = "other".into();
    play.attempt(|_, _| None);
    assert_eq!(play.cluster.volume.as_ref().unwrap()["metadata"]["name"], NAME);
}

/// The specification: after the first uncertain answer. The next call may be far away, as the driver may be.
#[test]
fn a_call_that_is_left_open_is_marked_in_its_own_attempt() {
    let nothing: fn(&mut Cluster) = |_| {};
    let meanwhile: [fn(&mut Cluster); 4] = [
        nothing,
        |cluster| cluster.is_away = true,
        |cluster| cluster.role = RolePhase::Stopping,
        |cluster| cluster.role = RolePhase::Disabled,
    ];
    for meanwhile in meanwhile {
        let mut play = unmarked(LeakProtection::WhenUncertain);
        let verdict = play.call(Some(4), meanwhile);
        assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
        assert_eq!(play.take_done(), ["read claim", "create", "patch"]);
        assert!(play.cluster.carries_marker());
        (play.cluster.is_away, play.cluster.role) = (false, RolePhase::Serving);
        restarts(&mut play);
    }
}

#[test]
fn what_cannot_be_marked_then_is_marked_before_anything_is_waited_for() {
    let lost = |step: &ClaimStep, _: &mut Cluster| match step {
        ClaimStep::Create(_) => Some(failed(4)),
        ClaimStep::Patch(_) => Some(ClaimEvent::Patched(Err(status(500)))),
        _ => None,
    };
    let waits: [fn(&mut Cluster); 3] = [
        |cluster| cluster.is_away = true,
        |cluster| cluster.role = RolePhase::Stopping,
        |cluster| cluster.set_class("provisioner", json!("other.test")),
    ];
    for waits in waits {
        let mut play = unmarked(LeakProtection::WhenUncertain);
        let verdict = play.attempt(lost);
        assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
        assert_eq!(play.take_done(), ["read claim", "create", "patch"]);
        assert!(!play.cluster.carries_marker());
        waits(&mut play.cluster);
        play.does("patch");
        assert!(play.cluster.carries_marker());
    }
}

/// Nobody but this process knows of the volume for as long as the PersistentVolume is refused.
#[test]
fn a_volume_that_cannot_be_saved_is_marked() {
    for code in [403, 422, 503] {
        let mut play = unmarked(LeakProtection::WhenUncertain);
        let verdict = play.attempt(save_fails(status(code)));
        assert!(matches!(verdict, Verdict::Rest(_)), "{verdict:?}");
        assert!(play.cluster.carries_marker(), "{code}: {:?}", play.take_done());
        restarts(&mut play);
    }
}

/// It is too small, and wanted: it is not deleted for now, and nobody but this process knows of it until then.
#[test]
fn a_volume_that_cannot_be_used_is_marked_before_its_deletion_is_waited_for() {
    let small = AnsweredVolume {
        capacity_bytes: 1,
        ..answered_volume()
    };
    let waits: [fn(&mut Cluster); 3] = [
        |cluster| cluster.policy.hold_deletions = true,
        |cluster| cluster.attached_to = Some("n1".into()),
        |cluster| cluster.is_away = true,
    ];
    for (protection, is_marked) in [(LeakProtection::WhenUncertain, true), (LeakProtection::Never, false)] {
        for waits in waits {
            let mut play = unmarked(protection);
            play.cluster.policy.hold_deletions = false;
            play.attempt(|step, cluster| {
                let is_call = matches!(step, ClaimStep::Create(_));
                if is_call {
                    waits(cluster);
                }
                is_call.then(|| ClaimEvent::Created(Ok(Some(small.clone()))))
            });
            let marks = play.take_done().into_iter().filter(|done| *done == "patch").count();
            let wanted = (usize::from(is_marked), is_marked);
            assert_eq!((marks, play.cluster.carries_marker()), wanted);
            play.attempt(|_, _| None);
            assert!(!play.take_done().contains(&"patch"), "once");
            if is_marked {
                (play.cluster.is_away, play.cluster.attached_to) = (false, None);
                restarts(&mut play);
            }
        }
    }
}

/// That it cannot be marked either keeps it from nothing: the PersistentVolume is a better record than a marker.
#[test]
fn a_volume_is_saved_also_where_its_claim_cannot_be_marked() {
    for role in [RolePhase::Serving, RolePhase::Stopping] {
        let mut play = unmarked(LeakProtection::WhenUncertain);
        let mut saves = 0;
        let mut refused = |step: &ClaimStep, cluster: &mut Cluster| match step {
            ClaimStep::Save(_) => {
                saves += 1;
                cluster.role = role;
                (saves == 1).then(|| ClaimEvent::Saved(Err(status(503))))
            }
            ClaimStep::Patch(_) => Some(ClaimEvent::Patched(Err(status(403)))),
            _ => None,
        };
        let verdict = play.attempt(&mut refused);
        assert!(matches!(verdict, Verdict::Rest(_)), "{verdict:?}");
        assert_eq!(play.take_done().last(), Some(&"patch"));
        play.cluster.wait(std::time::Duration::from_secs(30));
        play.attempt(&mut refused);
        assert_eq!(play.cluster.volume.as_ref().unwrap()["metadata"]["name"], NAME);
        assert!(play.take_done().contains(&"save"));
    }
}

/// A sidecar leaves no marker, nor does an engine that is to write none; and the driver may still work on what it was asked.
#[test]
fn a_refusal_says_nothing_of_a_call_that_somebody_else_may_have_made() {
    let refused = |play: &mut Play, code| {
        play.attempt(call_fails(code));
        play.memory.is_uncertain()
    };
    for protection in [
        LeakProtection::Always,
        LeakProtection::WhenUncertain,
        LeakProtection::Never,
    ] {
        for (code, wanted) in [
            (2, [true, false]),
            (8, [true, false]),
            (9, [true, false]),
            (13, [true, false]),
            // Without a marker it cannot be held.
            (6, [true, protection != LeakProtection::Never]),
            (7, [false, false]),
            (3, [false, false]),
            (11, [false, false]),
        ] {
            let mut play = unmarked(protection);
            play.memory.expect_calls_of_others();
            let found = [(); 2].map(|()| refused(&mut play, code));
            assert_eq!(found, wanted, "{code} {protection:?}");
            let mut play = unmarked(protection);
            assert!(!refused(&mut play, code), "{code} {protection:?}");
            // What this engine knows is known, also when all claims are looked at again.
            play.memory.expect_calls_of_others();
            assert!(!refused(&mut play, code), "{code} {protection:?}");
        }
    }
}

/// Who lets nobody in says nothing of what another call may have made, also once everybody is let in.
#[test]
fn the_first_answer_of_a_driver_that_lets_us_in_is_that_of_a_call_that_may_be_open() {
    let mut play = unmarked(LeakProtection::Always);
    play.memory.expect_calls_of_others();
    let found = [7, 13, 13].map(|code| {
        play.attempt(call_fails(code));
        play.memory.holds_volume()
    });
    assert_eq!(found, [false, true, false]);
}

/// The volume exists, made with other settings than those of now: these can be corrected.
#[test]
fn a_volume_that_somebody_else_made_is_asked_for_with_the_settings_of_now() {
    let mut play = unmarked(LeakProtection::Always);
    play.memory.expect_calls_of_others();
    let mut asked = Vec::new();
    for is_corrected in [false, true] {
        play.cluster.policy.create_metadata = is_corrected;
        play.attempt(|step, _| {
            let ClaimStep::Create(creation) = step else { return None };
            asked.push(creation.parameters.get("csi.storage.k8s.io/pvc/name").is_some());
            (!is_corrected).then(|| failed(6))
        });
    }
    assert_eq!(asked, [false, true]);
}

#[test]
fn a_claim_that_is_deleted_after_such_a_refusal_is_held_until_its_volume_is_known() {
    let mut play = unmarked(LeakProtection::Always);
    play.memory.expect_calls_of_others();
    play.attempt(call_fails(13));
    play.cluster.delete();
    play.take_done();
    play.attempt(|_, _| None);
    assert!(play.take_done().contains(&"create"));
    assert_eq!(play.cluster.volume.as_ref().unwrap()["metadata"]["name"], NAME);
}

/// The process may end before the call does, and another replica may decide whether the call is waited for.
#[test]
fn a_role_that_is_off_or_ends_marks_what_is_under_way() {
    for (protection, role, is_marked) in [
        (LeakProtection::Always, RolePhase::Stopping, false),
        (LeakProtection::WhenUncertain, RolePhase::Stopping, true),
        (LeakProtection::WhenUncertain, RolePhase::Disabled, true),
        (LeakProtection::Never, RolePhase::Stopping, false),
        (LeakProtection::Never, RolePhase::Disabled, false),
    ] {
        let mut cluster = unmarked(protection).cluster;
        let mut attempt = ClaimAttempt::new(ClaimMemory::default());
        let mut event = ClaimEvent::Begin;
        loop {
            match attempt.next(&cluster, event) {
                ClaimStep::Create(_) => break,
                ClaimStep::Patch(write) => event = ClaimEvent::Patched(cluster.patch(&write.body)),
                ClaimStep::ReadClaim => event = ClaimEvent::Read(Ok(())),
                step => panic!("{step:?}"),
            }
        }
        assert_eq!(attempt.last_marker(&cluster), None, "it goes on");
        cluster.role = role;
        let write = attempt.last_marker(&cluster);
        assert_eq!(write.is_some(), is_marked, "{protection:?} {role:?}");
        if let Some(write) = write {
            cluster.patch(&write.body).unwrap();
        }
        assert_eq!(attempt.last_marker(&cluster), None, "once");
        assert_eq!(cluster.carries_marker(), protection != LeakProtection::Never);
        cluster.delete();
        assert_eq!(attempt.last_marker(&cluster), None);
    }
}

#[test]
fn nothing_is_marked_where_no_marker_is_asked_for() {
    let mut play = unmarked(LeakProtection::Never);
    play.call(Some(4), |_| {});
    assert_eq!(play.take_done(), ["create"]);
    let mut play = unmarked(LeakProtection::WhenUncertain);
    play.call(Some(4), |cluster| cluster.claim = None);
    assert_eq!(play.take_done(), ["read claim", "create"]);
}

/// Settings of names may be others by then: what is written names the volume of the call all the same.
#[test]
fn a_marker_that_is_written_anew_names_the_volume_of_the_open_call() {
    let force: [fn(&mut Cluster); 2] = [
        |cluster| cluster.set("/metadata/finalizers", json!([])),
        |cluster| {
            cluster.set(
                "/metadata/annotations",
                json!({"volume.kubernetes.io/storage-provisioner": "csi.test"}),
            );
        },
    ];
    for length in [None, Some(16), Some(20)] {
        for force in force {
            let mut play = unmarked(LeakProtection::Always);
            play.call(Some(4), |_| {});
            assert!(play.cluster.carries_marker());
            force(&mut play.cluster);
            play.cluster.policy.volume_name_prefix = "new".into();
            play.cluster.policy.volume_name_uuid_length = length;
            play.call(Some(4), |_| {});
            let claim = claim_of(play.cluster.claim.as_ref().unwrap());
            let marker = claim.marker.as_deref().unwrap_or_default();
            assert!(marker.contains("\"prefix\":\"pvc\""), "{claim:?}");
            assert!(play.cluster.claim.as_ref().unwrap()["metadata"]["annotations"][MARKER].is_string());
            restarts(&mut play);
        }
    }
}
