//! AttacherConfigs that are deleted.

use serde_json::{Value, json};

use super::status::{condition, driver, failed, fresh_with, shows};
use crate::api::AttacherConfigObject;
use crate::api::condition::ConditionReason;
use crate::api::validated::CapabilityLost;
use crate::runtime::DriverPhase;
use crate::supervisor::deletion::{
    DeletionState, MetadataChange, Remaining, is_served, is_waiting, kept_by, patch, withdraw_confirmation,
};

const OURS: &str = "attacher.csi.dev/wait-for-detach";

fn object(policy: &Value, deleting: bool, finalizers: &[&str]) -> AttacherConfigObject {
    let mut object = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "finalizers": finalizers},
        "spec": {"endpoint": "unix:///a", "deletionPolicy": policy},
    });
    if deleting {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    serde_json::from_value(object).expect("readable")
}

/// Policy, being deleted, finalizers, nothing waited for | finalizers written, served, waiting.
type Row<'a> = (&'a Value, bool, &'a [&'a str], bool, Option<&'a [&'a str]>, bool, bool);

#[test]
fn the_finalizer_is_there_while_it_is_needed() {
    let (orphan, wait, unreadable) = (json!("Orphan"), json!("WaitForDetach"), json!(["?"]));
    let rows: &[Row<'_>] = &[
        (&orphan, false, &[], false, None, true, false),
        (&orphan, false, &["a", OURS, "b"], false, Some(&["a", "b"]), true, false),
        (&orphan, true, &["a/b"], false, None, false, false),
        (&orphan, true, &[OURS], false, Some(&[]), false, false),
        (&wait, false, &[], true, Some(&[OURS]), true, false),
        (&wait, false, &["a/b"], false, Some(&["a/b", OURS]), true, false),
        (&wait, false, &[OURS], true, None, true, false),
        (&wait, true, &[OURS], false, None, true, true),
        (&wait, true, &[OURS, "a/b"], true, Some(&["a/b"]), true, true),
        // Too late for a finalizer: the API server takes no new ones.
        (&wait, true, &["a/b"], false, None, false, false),
        (&unreadable, false, &[], false, None, true, false),
        (&unreadable, false, &[OURS], false, None, true, false),
        (&unreadable, true, &[OURS], false, None, true, true),
        (&unreadable, true, &[OURS], true, Some(&[]), true, true),
    ];
    for (policy, deleting, finalizers, done, written, served, waiting) in rows {
        let object = object(policy, *deleting, finalizers);
        let expected =
            written.map(|list| json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": list}}));
        let row = format!("{policy} {deleting} {finalizers:?} {done}");
        let (change, patched) = patch(&object, *done).unzip();
        assert_eq!(patched, expected, "{row}");
        assert_eq!((is_served(&object), is_waiting(&object)), (*served, *waiting), "{row}");
        if let Some(change) = change {
            let protects = written.is_some_and(|list| list.contains(&OURS));
            let expected = match (protects, *deleting) {
                (true, _) => MetadataChange::Protect,
                (false, true) => MetadataChange::LetGo,
                (false, false) => MetadataChange::Unprotect,
            };
            assert_eq!(change, expected, "{row}");
            let lets_go = change == MetadataChange::LetGo && is_waiting(&object);
            assert_eq!(lets_go, *waiting && *done, "{row}");
        }
    }
}

#[test]
fn what_others_keep_is_told_when_nothing_is_served_any_more() {
    let (orphan, wait) = (json!("Orphan"), json!("WaitForDetach"));
    let rows: &[(&Value, bool, &[&str], Option<&str>)] = &[
        (&orphan, false, &["a/b"], None),
        (&orphan, true, &["a/b"], Some("a/b")),
        (&orphan, true, &[OURS, "a/b", "c/d"], Some("a/b, c/d")),
        (&orphan, true, &[OURS], None),
        (&wait, true, &[OURS, "a/b"], None),
        (&wait, true, &["a/b"], Some("a/b")),
    ];
    for (policy, deleting, finalizers, expected) in rows {
        let kept = kept_by(&object(policy, *deleting, finalizers));
        assert_eq!(kept.as_deref(), *expected, "{policy} {deleting} {finalizers:?}");
    }
}

#[test]
fn what_is_waited_for_is_told() {
    for (attachments, volumes, told) in [
        (0, vec![], "the operator has verified that nothing is left to detach"),
        (1, vec![], "1 VolumeAttachment is detached"),
        (7, vec![], "7 VolumeAttachments are detached"),
        (0, vec!["a"], "1 PersistentVolume that is being deleted (a) is released"),
        (
            2,
            vec!["a", "b"],
            "2 VolumeAttachments are detached and 2 PersistentVolumes that are being deleted (a for one) are released",
        ),
    ] {
        let volumes = volumes.into_iter().map(Into::into).collect();
        let remaining = Remaining {
            attachments,
            volumes,
            ..Remaining::nothing()
        };
        assert_eq!(remaining.words(), told);
        assert_eq!(remaining.is_empty(), told.starts_with("the operator has verified"));
    }
    for (claims, told) in [
        (None, "the PersistentVolumeClaims can be read"),
        (Some(1), "the volume of 1 PersistentVolumeClaim is created or not"),
        (Some(3), "the volumes of 3 PersistentVolumeClaims are created or not"),
    ] {
        let remaining = Remaining {
            claims,
            ..Remaining::nothing()
        };
        assert_eq!((&*remaining.words(), remaining.is_empty()), (told, false));
    }
}

#[test]
fn a_confirmation_goes_when_the_driver_publishes() {
    let mut confirmed = object(&json!("Orphan"), false, &["a/b"]);
    assert_eq!(withdraw_confirmation(&confirmed, true), None, "there is none");
    let key = "attacher.csi.dev/confirm-capability-lost";
    confirmed.metadata.annotations = Some([(key.to_owned(), "a.test".to_owned())].into());
    assert_eq!(withdraw_confirmation(&confirmed, false), None, "it is needed");
    let expected = json!({"metadata": {"uid": "u", "resourceVersion": "7", "annotations": {key: null}}});
    let wanted = Some((MetadataChange::WithdrawConfirmation, expected));
    assert_eq!(withdraw_confirmation(&confirmed, true), wanted);
    assert!(!confirmed.config().unwrap().leaving);
    let leaving = object(&json!("WaitForDetach"), true, &[OURS]);
    confirmed.metadata.deletion_timestamp = leaving.metadata.deletion_timestamp;
    let config = confirmed.config().unwrap();
    assert!(config.leaving);
    let confirmed_for = Some("a.test".to_owned());
    assert_eq!(config.capability_lost, CapabilityLost::Stall { confirmed_for });
}

#[test]
fn a_deletion_policy_that_is_not_in_effect_is_told() {
    let running = driver(DriverPhase::Running);
    let deletion = DeletionState {
        problem: Some("cannot add its finalizer".to_owned()),
        ..DeletionState::default()
    };
    let told = fresh_with(Some(&running), |input| input.deletion = deletion.clone());
    assert_eq!(shows(&told, "Ready"), "True Running", "it is served all the same");
    assert_eq!(shows(&told, "Stalled"), "True FinalizerNotWritten");
    assert_eq!(condition(&told, "Stalled").message, "cannot add its finalizer");
    // What keeps the driver from being served is shown first.
    let stalled = driver(failed(ConditionReason::CapabilityLost, true));
    let told = fresh_with(Some(&stalled), |input| input.deletion = deletion);
    assert_eq!(shows(&told, "Stalled"), "True CapabilityLost");
}
