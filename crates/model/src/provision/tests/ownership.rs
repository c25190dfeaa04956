//! Whose a claim and a PersistentVolume is, and which of them need work: tables of the sidecar's library.

use serde_json::{Value, json};

use super::builders::{
    ClaimWorld, DRIVER, FINALIZER, NAME, VolumeWorld, claim_of, driver, volume_of, volume_world, world,
};
use super::tally;
use crate::decide::patch::protect_volume;
use crate::provision::{
    ClaimAction, ProvisionedVolumeAction, ProvisionerFacts, VolumeReason, is_of_volume, is_own_volume, is_released,
    may_be_asked_for, needs_claim_work, needs_volume_work, patch,
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// TestShouldProvision of the library. Where it says no without an error, no call follows here.
#[test]
fn which_claims_are_provisioned() {
    const BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
    const KEY: &str = "volume.kubernetes.io/storage-provisioner";
    let plain = || world().set("/metadata/annotations", json!({}));
    let ours = || plain().annotate(BETA, DRIVER);
    let delayed = |world: ClaimWorld| world.class("/volumeBindingMode", "WaitForFirstConsumer");
    let in_tree = |world: &mut ClaimWorld| world.driver.in_tree = Some("kubernetes.io/x".into());
    let rows: [(&str, ClaimWorld, bool); 13] = [
        ("ours", ours(), true),
        // There any additional name counts. Here the in-tree name counts together with the annotation of the migration.
        (
            "by its in-tree name",
            plain()
                .annotate(BETA, "kubernetes.io/x")
                .annotate("pv.kubernetes.io/migrated-to", DRIVER)
                .class("/provisioner", "kubernetes.io/x")
                .with(in_tree),
            true,
        ),
        ("names a volume", ours().set("/spec/volumeName", "foo"), false),
        ("no such class", plain().without_class(), false),
        (
            "another driver's",
            plain()
                .annotate(BETA, "abc.def/ghi")
                .class("/provisioner", "abc.def/ghi"),
            false,
        ),
        ("another driver's, beta", plain().annotate(BETA, "abc.def/ghi"), false),
        ("nobody's", plain(), false),
        ("another driver's, current", plain().annotate(KEY, "abc.def/ghi"), false),
        // The qualifier there is ShouldProvision of the sidecar: no for what a populator provisions.
        (
            "a populator's",
            ours().set("/spec/dataSource", json!({"kind": "Foo", "name": "x", "apiGroup": "x"})),
            false,
        ),
        ("nothing against it", ours().set("/spec/volumeMode", "Filesystem"), true),
        ("delayed, no node", delayed(ours()), false),
        (
            "delayed, a node",
            delayed(ours()).annotate("volume.kubernetes.io/selected-node", "node1"),
            true,
        ),
        (
            "delayed, a node, current",
            delayed(plain().annotate(KEY, DRIVER)).annotate("volume.kubernetes.io/selected-node", "node1"),
            true,
        ),
    ];
    for (name, world, is_provisioned) in &rows {
        let action = world.decide().action;
        let is_marked = matches!(action, ClaimAction::Mark(_));
        assert_eq!(is_marked, *is_provisioned, "{name}: {action:?}");
    }
    tally("library TestShouldProvision", rows.len());
}

fn plain(annotations: Value) -> VolumeWorld {
    volume_world().set("/metadata/annotations", annotations)
}

fn in_tree(annotations: Value) -> VolumeWorld {
    let spec = json!({"persistentVolumeReclaimPolicy": "Delete", "nfs": {}, "claimRef": {"name": "c", "namespace": "n", "uid": "u"}});
    plain(annotations).set("/spec", spec)
}

/// TestIsProvisionerForVolume of the library.
#[test]
fn whose_a_volume_is() {
    let by = json!({"pv.kubernetes.io/provisioned-by": DRIVER});
    let to = json!({"pv.kubernetes.io/migrated-to": DRIVER});
    let both = json!({"pv.kubernetes.io/provisioned-by": DRIVER, "pv.kubernetes.io/migrated-to": DRIVER});
    let rows: [(&str, VolumeWorld, &str, bool); 11] = [
        ("dynamic in-tree", in_tree(by.clone()), DRIVER, true),
        ("dynamic in-tree, migrated", in_tree(both.clone()), DRIVER, true),
        ("dynamic in-tree of another", in_tree(by.clone()), "other", false),
        ("dynamic in-tree, migrated, of another", in_tree(both), "other", false),
        ("dynamic", plain(by.clone()), DRIVER, true),
        ("dynamic of another", plain(by), "other", false),
        ("static", plain(json!({})), DRIVER, true),
        ("static of another", plain(json!({})), "other", false),
        ("static in-tree", in_tree(json!({})), DRIVER, false),
        ("static in-tree, migrated", in_tree(to.clone()), DRIVER, true),
        ("static in-tree, migrated, of another", in_tree(to), "other", false),
    ];
    for (name, world, of, is_own) in &rows {
        let volume = volume_of(&world.volume);
        let driver = ProvisionerFacts {
            name: (*of).into(),
            ..driver()
        };
        assert_eq!(is_own_volume(&volume, &driver), *is_own, "{name}");
    }
    tally("library TestIsProvisionerForVolume", rows.len());
}

/// kube-controller-manager takes a claim for bound that has an annotation, and writes the phase later: a claim that is restored from a dump
/// has the annotation, and no phase. kubelet goes by the phase.
#[test]
fn which_claims_may_use_a_volume() {
    let volume = volume_of(&volume_world().volume);
    let restored = || world().set("/metadata/uid", "restored");
    let named = |volume: &str| restored().set("/spec/volumeName", volume);
    let completed = |world: ClaimWorld, value: &str| world.annotate(BIND_COMPLETED, value);
    let long = "x".repeat(9 << 10);
    let rows: [(&str, ClaimWorld, bool); 11] = [
        ("its own", world(), true),
        ("its own, bound elsewhere", world().bound("static"), false),
        ("another one", restored(), false),
        ("named by a person", named(NAME), false),
        ("bound", restored().bound(NAME), true),
        ("lost", named(NAME).set("/status/phase", "Lost"), true),
        ("taken for bound", completed(named(NAME), "yes"), true),
        ("taken for bound, whatever it says", completed(named(NAME), ""), true),
        ("taken for bound, however long", completed(named(NAME), &long), true),
        ("taken for bound elsewhere", completed(named("static"), "yes"), false),
        ("taken for bound, and names none", completed(restored(), "yes"), false),
    ];
    for (name, world, is_its) in &rows {
        assert_eq!(is_of_volume(&claim_of(&world.claim), &volume), *is_its, "{name}");
    }
}

/// TestShouldDelete and TestShouldDeleteWithFinalizer of the library.
#[test]
fn which_volumes_are_deleted() {
    let pv = volume_world;
    let retain = |world: VolumeWorld| world.set("/spec/persistentVolumeReclaimPolicy", "Retain");
    let migrated = || {
        pv().annotate("pv.kubernetes.io/provisioned-by", "kubernetes.io/x")
            .annotate("pv.kubernetes.io/migrated-to", DRIVER)
    };
    let rows: [(&str, VolumeWorld, bool); 7] = [
        ("released", pv().unprotected(), true),
        // Here a failed one is deleted as well, once a live 404 names its claim: no call before that.
        ("failed", pv().unprotected().phase("Failed"), false),
        ("bound", pv().unprotected().phase("Bound"), false),
        ("Retain", retain(pv().unprotected()), false),
        (
            "in deletion, without the finalizer",
            pv().unprotected().deleting(),
            false,
        ),
        ("not in deletion", pv().unprotected(), true),
        ("migrated", migrated(), true),
    ];
    let with_finalizer: [(&str, VolumeWorld, bool); 4] = [
        ("released", pv(), true),
        ("in deletion", pv().deleting(), true),
        ("bound", pv().phase("Bound"), false),
        ("Retain", retain(pv().unprotected()), false),
    ];
    for (name, world, is_deleted) in rows.iter().chain(&with_finalizer) {
        let action = world.decide().action;
        let found = matches!(action, ProvisionedVolumeAction::Delete(_));
        assert_eq!(found, *is_deleted, "{name}: {action:?}");
    }
    tally("library TestShouldDelete", rows.len());
    tally("library TestShouldDeleteWithFinalizer", with_finalizer.len());
}

/// TestAddFinalizer and TestRemoveFinalizer of the library, on objects.
#[test]
fn the_finalizer_of_a_volume() {
    let with = |list: Value| volume_world().set("/metadata/finalizers", list);
    let list = |volume: &Value| volume["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let added: [(Value, &[&str]); 4] = [
        (json!([FINALIZER]), &[FINALIZER]),
        (json!(null), &[FINALIZER]),
        (json!([]), &[FINALIZER]),
        (json!(["dummy"]), &["dummy", FINALIZER]),
    ];
    for (before, after) in &added {
        let mut volume = with(before.clone()).volume;
        let record = volume_of(&volume);
        if record.lifecycle.finalizer_at.is_none() {
            super::patches::apply(&mut volume, &protect_volume(&record, FINALIZER).body).unwrap();
        }
        assert_eq!(list(&volume), *after);
    }
    tally("library TestAddFinalizer", added.len());
    let removed: [(Value, &[&str], bool); 5] = [
        (json!([FINALIZER]), &[], true),
        (json!(["dummy"]), &["dummy"], false),
        (json!(["dummy", FINALIZER]), &["dummy"], true),
        (json!([]), &[], false),
        (json!(null), &[], false),
    ];
    for (before, after, is_written) in &removed {
        let mut volume = with(before.clone()).volume;
        let record = volume_of(&volume);
        let write = patch::release_volume(&record);
        assert_eq!(write.is_some(), *is_written);
        if let Some(write) = write {
            super::patches::apply(&mut volume, &write.body).unwrap();
        }
        assert_eq!(list(&volume), *after);
    }
    tally("library TestRemoveFinalizer", removed.len());
}

/// What is settled is not queued at a start.
#[test]
fn what_needs_no_work() {
    let claim = |world: ClaimWorld| needs_claim_work(&claim_of(&world.claim), &driver());
    assert!(claim(world()) && claim(world().marked()) && claim(world().marked().deleting()));
    assert!(claim(world().marked().bound("x")) && claim(world().marked_with(&json!("{"))));
    assert!(!claim(world().bound("x")) && !claim(world().deleting()));
    let other = || world().annotate("volume.kubernetes.io/storage-provisioner", "other");
    assert!(!claim(other()) && !claim(other().marked_with(&json!("{"))) && claim(other().marked()));
    let of_another = || world().marked_with(&json!({"driver": "other"}));
    assert!(claim(of_another()) && claim(of_another().deleting()), "it is told why");
    assert!(!claim(of_another().bound("x")));
    // kube-controller-manager asks nobody for the volume of a claim without a class. One with a marker may have a volume.
    let classless = |world: ClaimWorld| world.set("/spec/storageClassName", "");
    assert!(!claim(classless(world())) && claim(classless(world().marked())));
    let beta = "volume.beta.kubernetes.io/storage-class";
    assert!(claim(classless(world()).annotate(beta, "fast")));
    // Nor for one that it takes for bound, which is told why; but for one whose phase alone says that it lost its volume.
    let asked_for = |world: ClaimWorld| may_be_asked_for(&claim_of(&world.claim));
    let taken = || world().annotate(BIND_COMPLETED, "");
    assert!(claim(taken()) && !asked_for(taken()) && !claim(classless(taken())));
    assert!(asked_for(world()) && asked_for(world().set("/status/phase", "Lost")));

    let volume = |world: VolumeWorld| {
        let volume = volume_of(&world.volume);
        let needed = needs_volume_work(&volume, &driver());
        let action = world.decide().action;
        assert!(needed || action == ProvisionedVolumeAction::Ignore, "{action:?}");
        let held = world.clone().with(|world| world.policy.hold_deletions = true).decide();
        let wanted = held.reason == VolumeReason::Held;
        assert_eq!(is_released(&volume, &driver()), wanted, "{held:?}");
        needed
    };
    let pv = volume_world;
    let by_hand = || pv().set("/metadata/annotations", json!({}));
    assert!(volume(by_hand()) && volume(by_hand().unprotected()) && volume(pv().phase("Failed")));
    assert!(volume(pv()) && volume(pv().deleting()) && volume(pv().phase("Bound").unprotected()));
    assert!(
        volume(pv().set("/spec/persistentVolumeReclaimPolicy", "Retain")) && volume(pv().phase("Available").deleting())
    );
    assert!(!volume(pv().phase("Bound")) && !volume(pv().unprotected().deleting()));
    assert!(!volume(
        pv().unprotected().set("/spec/persistentVolumeReclaimPolicy", "Retain")
    ));
    assert!(!volume(pv().annotate("pv.kubernetes.io/provisioned-by", "other")));
}
