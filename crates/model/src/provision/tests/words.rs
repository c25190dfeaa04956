//! What is told: reasons, notes and messages.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use super::builders::{NAME, claim_of, put, volume_json, volume_of, world};
use crate::api::EventType;
use crate::provision::attempt::RescheduleCause;
use crate::provision::event::{self, MAX_NOTE, ProvisionEventReason};
use crate::provision::{ClaimReason, ProvisionRefusal, TemplateFault, VolumeReason};

fn succeeded(modes: serde_json::Value, attaches: bool) -> String {
    let claim = claim_of(&world().set("/spec/accessModes", modes).claim);
    event::succeeded("pvc-1", &claim, Duration::from_millis(1250), 2, attaches)
}

#[test]
fn a_template_whose_claim_is_gone_is_told_with_the_annotations_of_the_persistent_volume() {
    let wanted = "reads an annotation of the PersistentVolumeClaim, which is gone: name the Secret in the annotations \
                  volume.kubernetes.io/provisioner-deletion-secret-name and \
                  volume.kubernetes.io/provisioner-deletion-secret-namespace of the PersistentVolume";
    assert_eq!(TemplateFault::ClaimNeeded.to_string(), wanted);
}

/// The API server lets nobody change these fields of a PersistentVolumeClaim.
#[test]
fn what_is_fixed_in_a_claim_is_to_be_created_anew() {
    for refusal in [
        ProvisionRefusal::Selector,
        ProvisionRefusal::AccessModes,
        ProvisionRefusal::Size("10E".into()),
    ] {
        let text = refusal.to_string();
        assert!(text.contains(" anew with"), "{text}");
    }
}

#[test]
fn the_notes_that_users_of_the_sidecar_search_for() {
    let wanted = "External provisioner is provisioning volume for claim \"web/data\"";
    assert_eq!(event::provisioning("web", "data"), wanted);
    let both = || json!(["ReadWriteOnce", "ReadOnlyMany"]);
    // A driver that attaches nothing takes any of them.
    for told in [succeeded(json!(["ReadWriteOnce"]), true), succeeded(both(), false)] {
        assert_eq!(told, "Successfully provisioned volume pvc-1 in 1.2 s, attempts: 2");
    }
    assert_eq!(
        succeeded(both(), true),
        "Successfully provisioned volume pvc-1 in 1.2 s, attempts: 2. It cannot be attached: CSI does not support the combination of access \
         modes of this volume: ReadOnlyMany together with ReadWriteOnce"
    );
    let held = event::failed(
        "rpc error: code = InvalidArgument desc = no",
        true,
        1,
        Some(Duration::from_mins(5)),
    );
    assert_eq!(
        held,
        "Volume provisioning failed with infeasible error. Retries will be delayed. rpc error: code = InvalidArgument desc = no (attempt 1, next retry in 300 s)"
    );
    let wanted = "x (attempt 3, next retry in 1 s)";
    assert_eq!(event::failed("x", false, 3, Some(Duration::from_millis(100))), wanted);
    assert_eq!(event::failed("x", true, 3, None), "x (attempt 3)");
    let wanted = "x (attempt 3, next retry in 8 s, or when what it waits for changes)";
    assert_eq!(event::waits("x", 3, Duration::from_secs(8)), wanted);
    assert_eq!(
        event::volume_waits(VolumeReason::StillAttached, &volume_of(&volume_json()), "n1").unwrap(),
        format!("persistentvolume {NAME} is still attached to node n1, waiting for detach")
    );
    assert_eq!(
        event::rescheduled("n1", RescheduleCause::Exhausted),
        "no volume was made for node n1: the driver has no room there (RESOURCE_EXHAUSTED); kube-scheduler selects a node again"
    );
    assert!(event::possibly_leaked("pvc-1", "it was released").contains("pvc-1"));
}

/// It is no volume that anybody got.
#[test]
fn a_volume_that_is_recorded_says_what_becomes_of_it() {
    let told = |reason| event::recorded(reason, "pvc-1");
    assert!(
        told(ClaimReason::UndoVolume).ends_with("saved PersistentVolume pvc-1, so that its volume is deleted with it")
    );
    assert!(told(ClaimReason::KeepVolume).ends_with("so that its volume is kept, as its reclaim policy says"));
}

/// Who puts the class back has to know all that counts.
#[test]
fn a_class_that_was_replaced_is_told_with_all_that_may_differ() {
    let refusal = ProvisionRefusal::ClassReplaced {
        class: "gold".into(),
        volume: "pvc-1".into(),
    };
    let text = refusal.to_string();
    for part in ["provisioner", "parameters", "mountOptions", "allowedTopologies"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// What ends the wait differs by whether the claim ever had the volume.
#[test]
fn a_volume_whose_claim_is_there_is_told_with_what_ends_the_wait() {
    let mut volume = volume_json();
    let said = |volume: &serde_json::Value| {
        event::volume_waits(VolumeReason::ReleasedWhileBound, &volume_of(volume), "web/data").unwrap()
    };
    assert!(said(&volume).contains("is Released, and its PersistentVolumeClaim web/data is there"));
    put(&mut volume, "/status/phase", json!("Pending"));
    put(
        &mut volume,
        "/metadata/deletionTimestamp",
        json!("2026-01-01T00:00:00Z"),
    );
    for words in [
        "was deleted while it was not bound, and its PersistentVolumeClaim web/data is there",
        "delete the PersistentVolumeClaim as well, or set the policy",
    ] {
        assert!(said(&volume).contains(words), "{words}");
    }
}

/// It may have been bound before: a person has removed `spec.claimRef`.
#[test]
fn a_volume_that_a_person_decides_about_is_told_as_it_is() {
    let mut volume = volume_json();
    for (pointer, value) in [
        ("/spec/claimRef", json!(null)),
        ("/status/phase", json!("Available")),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
    ] {
        put(&mut volume, pointer, value);
    }
    let told = event::volume_waits(VolumeReason::NeedsDecision, &volume_of(&volume), "").unwrap();
    let wanted = "is being deleted while no PersistentVolumeClaim is bound to it: its volume may hold data";
    assert!(told.contains(wanted), "{told}");
}

/// A person has to know which two they are, however long their handles are.
#[test]
fn two_volumes_are_told_with_both_handles() {
    let note = event::two_volumes("pvc-1", "vol-1", "vol-2");
    let is_told = ["pvc-1", "vol-1", "vol-2"].iter().all(|word| note.contains(word));
    assert!(is_told, "{note}");
    let long = event::two_volumes("pvc-1", &"a".repeat(5000), &"b".repeat(5000));
    assert!(long.len() <= MAX_NOTE && long.contains("aaa") && long.contains("bbb") && long.ends_with("there"));
}

/// A claim that stays as it is because of a missing permission or a webhook says so.
#[test]
fn what_the_api_server_refuses_is_told() {
    use crate::answer::{ApiError, ApiErrorKind};
    let told = |status: u16| {
        let kind = ApiErrorKind::of_status(status);
        event::request_refused(&ApiError::without_answer(kind, "words of the API server"))
    };
    for status in [400, 403, 409, 422] {
        let text = told(status).expect("told");
        assert!(text.contains("words of the API server"), "{text}");
        assert_eq!(text.contains("patch"), status == 403, "{text}");
    }
    assert_eq!((told(500), told(503), told(429)), (None, None, None));
    let text = event::request_refused(&ApiError::of_answer(401, "Unauthorized")).expect("told");
    let is_told = text.contains("credentials of the operator") && !text.contains("grant") && !text.contains("webhooks");
    assert!(is_told, "no permission is missing: {text}");
}

#[test]
fn notes_keep_within_the_limit_and_say_when_the_next_try_is() {
    let note = event::failed(&"é\n".repeat(5000), true, 7, Some(Duration::from_secs(1)));
    assert!(note.len() <= MAX_NOTE && note.ends_with("next retry in 1 s)") && !note.contains('\n'));
}

#[test]
fn reasons_are_words_and_none_stands_twice() {
    let words = ClaimReason::ALL.iter().map(|reason| reason.as_str());
    assert_eq!(words.collect::<BTreeSet<_>>().len(), ClaimReason::ALL.len());
    let words = VolumeReason::ALL.iter().map(|reason| reason.as_str());
    assert_eq!(words.collect::<BTreeSet<_>>().len(), VolumeReason::ALL.len());
    for reason in ProvisionEventReason::ALL {
        assert!(reason.as_str().chars().all(char::is_alphanumeric));
    }
    let level = |reason: ClaimReason| ProvisionEventReason::of_claim(reason).level();
    assert_eq!(level(ClaimReason::ClassMissing), EventType::Warning);
    assert_eq!(level(ClaimReason::NodeGone), EventType::Normal);
    let wanted = ProvisionEventReason::ProvisioningNameTaken;
    assert_eq!(ProvisionEventReason::of_claim(ClaimReason::NameTaken), wanted);
    assert_eq!(level(ClaimReason::HandleShared), EventType::Warning);
    let wanted = ProvisionEventReason::HandleShared;
    assert_eq!(ProvisionEventReason::of_claim(ClaimReason::HandleShared), wanted);
}

/// The Lease of the sidecar has the driver's name alone.
#[test]
fn the_lease_of_a_driver() {
    use crate::api::names::provisioner_lease_name;
    for (driver, lease) in [
        ("ebs.csi.aws.com", "ebs-csi-aws-com"),
        ("a_b/C", "a-b-c"),
        ("x.", "x-X"),
    ] {
        assert_eq!(provisioner_lease_name(driver), lease);
    }
}
