//! The Secret of a call, which is gone since.

use serde_json::json;

use super::{Cluster, PROVISIONER, Play, UNWANTED, call_fails, error, failed, save_fails, status};
use crate::answer::ApiErrorKind;
use crate::objects::SecretReference;
use crate::provision::SecretFamily;
use crate::provision::attempt::{ClaimEvent, ClaimNote, ClaimStep, Verdict};

/// Of a class that names a Secret.
fn with_secret() -> Play {
    let mut play = Play::of(Cluster::new());
    play.cluster.policy.hold_deletions = false;
    play.cluster.name_secret();
    play
}

/// What could not be had while somebody wanted the volume is asked for again: what the call was made with may take its place now.
#[test]
fn the_secret_of_an_open_call_is_asked_for_again_when_nobody_wants_its_volume() {
    for make_unwanted in UNWANTED {
        let mut play = with_secret();
        play.does_with(call_fails(4), "secret patch create");
        let mut asked = Vec::new();
        let verdict = play.attempt(|step, cluster| match step {
            ClaimStep::Secret(secret) => {
                asked.push(secret.is_wanted);
                make_unwanted(cluster);
                secret
                    .is_wanted
                    .then(|| ClaimEvent::Read(Err(error(ApiErrorKind::NotFound))))
            }
            ClaimStep::Delete(_) => Some(ClaimEvent::Deleted(Ok(()))),
            _ => None,
        });
        assert_eq!((asked, verdict), (vec![true, false], Verdict::Done));
        let done = ["secret", "secret", "create", "read volume", "delete", "patch"];
        assert_eq!(play.take_done(), done);
        assert!(!play.cluster.carries_marker());
    }
}

/// Another process repeats the call while the claim is another driver's. It is planned again once the claim has its driver again, with what
/// its PersistentVolume names.
#[test]
fn a_secret_that_was_left_out_is_named_where_the_volume_is_wanted_again() {
    for is_answered in [false, true] {
        let mut play = with_secret();
        let parameters = &mut play.cluster.class.as_mut().unwrap()["parameters"];
        parameters["csi.storage.k8s.io/node-stage-secret-name"] = json!("${pvc.annotations['team']}");
        parameters["csi.storage.k8s.io/node-stage-secret-namespace"] = json!("ns");
        play.cluster.set("/metadata/annotations/team", json!("red"));
        play.attempt(call_fails(4));
        play.restart("2-3-csi.test");
        let annotations = play.cluster.claim.as_mut().unwrap()["metadata"]["annotations"].as_object_mut();
        annotations.unwrap().remove("team");
        play.cluster.set(PROVISIONER, json!("other.test"));
        let mut named = Vec::new();
        // Its volume is found, and not deleted for now; or not even that is known.
        play.cluster.policy.hold_deletions = true;
        play.attempt(|step, _| {
            let ClaimStep::Create(create) = step else { return None };
            named.push(create.volume.secrets.contains_key(&SecretFamily::NodeStage));
            (!is_answered).then(|| failed(4))
        });
        play.cluster.set("/metadata/annotations/team", json!("red"));
        play.cluster.set(PROVISIONER, json!("csi.test"));
        play.attempt(|step, _| {
            let ClaimStep::Create(create) = step else { return None };
            named.push(create.volume.secrets.contains_key(&SecretFamily::NodeStage));
            None
        });
        assert_eq!(named, [false, true], "{is_answered}");
        let saved = play.cluster.volume.as_ref().unwrap();
        assert_eq!(saved["spec"]["csi"]["nodeStageSecretRef"]["name"], "red");
    }
}

/// As the volume of a PersistentVolume. It is told.
#[test]
fn a_volume_that_nobody_wants_is_undone_without_a_secret_that_is_gone() {
    for make_unwanted in UNWANTED {
        let mut play = with_secret();
        play.attempt(save_fails(status(500)));
        play.take_done();
        make_unwanted(&mut play.cluster);
        let mut deleted_with = Vec::new();
        let verdict = play.attempt(|step, _| match step {
            ClaimStep::Secret(_) => Some(ClaimEvent::Read(Err(error(ApiErrorKind::NotFound)))),
            ClaimStep::Delete(deletion) => {
                deleted_with.push(deletion.secret.clone());
                Some(ClaimEvent::Deleted(Ok(())))
            }
            _ => None,
        });
        assert_eq!((deleted_with, verdict), (vec![None], Verdict::Done));
        let done = ["read volume", "secret", "read volume", "delete", "patch"];
        assert_eq!(play.take_done(), done);
        let missing = SecretReference {
            namespace: "ns".into(),
            name: "s".into(),
        };
        assert!(play.notes.contains(&ClaimNote::WithoutSecret(missing)));
        assert!(!play.cluster.carries_marker());
    }
}
