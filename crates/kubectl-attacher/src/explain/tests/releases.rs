//! PersistentVolumes that are being deleted.

use serde_json::json;

use super::builders::{FINALIZER, attachment, before, claimed, config, volume, with};
use super::rows::{all_words, no_command_destroys};
use crate::explain::{Case, volume_release};
use crate::observed::{Lookup, Scene};

fn deleting(finalizers: &[&str], more: impl FnOnce(&mut Scene)) -> Scene {
    let edit = json!({"metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": finalizers}});
    with(|scene| {
        scene.volume = volume(edit);
        scene.volume_deleting = Some(before(3_600));
        more(scene);
    })
}

fn nobody(scene: &mut Scene) {
    scene.driver.config = Lookup::Missing;
    scene.driver.leases = Lookup::Missing;
}

#[test]
fn what_keeps_a_volume() {
    let claim = json!({"spec": {"claimRef": {"namespace": "shop", "name": "data", "uid": "u"}}});
    let rows = vec![
        (
            "attached",
            deleting(&[FINALIZER], |_| {}),
            1,
            Case::VolumeInUse,
            "csi-1 (node node1)",
        ),
        (
            "about to go",
            deleting(&[FINALIZER], |_| {}),
            0,
            Case::Detaching,
            "within moments",
        ),
        (
            "nobody",
            deleting(&[FINALIZER], nobody),
            0,
            Case::OrphanFinalizer,
            "kubectl attacher release pv pv1",
        ),
        (
            "renamed",
            deleting(&["external-attacher/old"], |_| {}),
            0,
            Case::OrphanFinalizer,
            "not that of its driver",
        ),
        (
            "other",
            deleting(&["x/y"], |_| {}),
            0,
            Case::ForeignFinalizer,
            "finalizer x/y keeps",
        ),
        (
            "our provisioning",
            deleting(&["external-provisioner.volume.kubernetes.io/finalizer"], |scene| {
                scene.driver.config = config(&[], &json!({"driverName": "ssd.csi.test", "provisioning": {}}));
            }),
            0,
            Case::ForeignFinalizer,
            "kubectl describe pv pv1",
        ),
        (
            "claim",
            with(|scene| {
                let mut edit = claim;
                edit["metadata"] =
                    json!({"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": ["kubernetes.io/pv-protection"]});
                scene.volume = volume(edit);
            }),
            0,
            Case::VolumeInUse,
            "kubectl describe pvc data --namespace shop",
        ),
    ];
    for (name, mut scene, count, case, says) in rows {
        scene.naming = Lookup::Found((0..count).map(|_| attachment(claimed())).collect());
        let chain = volume_release(&scene).unwrap();
        assert_eq!(chain.diagnosis.case, case, "{name}: {}", all_words(&chain));
        assert!(all_words(&chain).contains(says), "{name}: {}", all_words(&chain));
        no_command_destroys(name, &chain);
    }
}

/// What is at stake when somebody deletes the claim.
#[test]
fn the_reclaim_policy_is_named() {
    let claim = json!({
        "metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"claimRef": {"namespace": "shop", "name": "data", "uid": "u"}},
    });
    for (policy, says) in [
        (Some("Delete"), "whoever deletes the claim deletes the disk"),
        (Some("Retain"), "its reclaim policy is Retain: the disk stays"),
        (None, "read its persistentVolumeReclaimPolicy first"),
    ] {
        let scene = with(|scene| {
            scene.volume = volume(claim.clone());
            scene.reclaim_policy = policy.map(str::to_owned);
        });
        let chain = volume_release(&scene).unwrap();
        assert!(all_words(&chain).contains(says), "{policy:?}: {}", all_words(&chain));
        no_command_destroys("claim", &chain);
    }
}

#[test]
fn what_could_not_be_listed_is_not_taken_for_nothing() {
    let scene = deleting(&[FINALIZER], nobody);
    let chain = volume_release(&scene).unwrap();
    assert_eq!(chain.diagnosis.case, Case::NotVisible);
}

#[test]
fn a_live_volume_waits_for_nothing() {
    assert!(volume_release(&with(|_| {})).is_none());
}
