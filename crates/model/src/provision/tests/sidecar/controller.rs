//! TestController of the library: what is done next about claims and PersistentVolumes. Two of its 41 rows are left out: every program
//! here has block volumes and finalizers.

use serde_json::json;

use crate::provision::tests::builders::{ClaimWorld, DRIVER, FINALIZER, NAME, claim_of, driver, node_with_keys, world};
use crate::provision::tests::claim_rows::{self, new_volume, uncertain};
use crate::provision::tests::codes::settle;
use crate::provision::tests::{tally, volume_rows};
use crate::provision::{Creation, ProvisionerSecretState, persistent_volume};

fn next(world: &ClaimWorld) -> String {
    let decision = world.decide();
    format!("{}: {}", decision.reason.as_str(), claim_rows::word(&decision.action))
}

fn play(rows: &[(&str, String, &str)]) {
    for (name, found, wanted) in rows {
        assert_eq!(found, wanted, "{name}");
    }
    tally("library TestController", rows.len());
}

#[test]
fn claims() {
    let others = |world: ClaimWorld| {
        world
            .annotate("volume.kubernetes.io/storage-provisioner", "abc.def/ghi")
            .class("/provisioner", "abc.def/ghi")
    };
    let in_tree = world()
        .annotate("volume.kubernetes.io/storage-provisioner", "kubernetes.io/x")
        .annotate("pv.kubernetes.io/migrated-to", DRIVER)
        .class("/provisioner", "kubernetes.io/x")
        .with(|world| world.driver.in_tree = Some("kubernetes.io/x".into()));
    let populator = || world().set("/spec/dataSource", json!({"kind": "Foo", "name": "x", "apiGroup": "x"}));
    play(&[
        (
            "ours, and not another's",
            next(&world()) + " " + &next(&others(world())),
            "Mark: mark NotOwn: ignore",
        ),
        (
            "its PersistentVolume is there",
            next(&world().saved()),
            "WaitForBinding: wait",
        ),
        (
            "its class names the driver by another name",
            next(&in_tree),
            "Mark: mark",
        ),
        ("bound", next(&world().bound("volume-1")), "Cancelled: ignore"),
        ("no such class", next(&world().without_class()), "ClassMissing: wait"),
        ("ignored", next(&populator()), "Populator: wait"),
        (
            "one of two is ignored",
            next(&world()) + " " + &next(&populator()),
            "Mark: mark Populator: wait",
        ),
    ]);
}

#[test]
fn calls_and_what_is_known_then() {
    let first = world().marked();
    let known = |before: &Creation, code: i32| settle(&first, before, Some(code)).0.as_str().to_owned();
    let open = uncertain(&world());
    let never = world().with_secret(ProvisionerSecretState::Missing);
    let still_open = never.clone().marked().creation(uncertain(&never));
    let is_open = |world: &ClaimWorld| if world.creation.is_some() { "open" } else { "never" };
    let gone = world().marked().deleting().creation(open.clone());
    play(&[
        ("it fails", known(&Creation::Never, 2), "refused"),
        ("a final error", known(&Creation::Never, 9), "refused"),
        ("an error that leaves it open", known(&Creation::Never, 4), "uncertain"),
        (
            "an error before the call",
            format!("{} {}", next(&never), is_open(&never)),
            "SecretMissing: tell secret_missing never",
        ),
        ("a final error after an open call", known(&open, 5), "refused"),
        ("an open call stays open", known(&open, 4), "uncertain"),
        (
            "an error before the next call leaves it open",
            format!("{} {}", next(&still_open), is_open(&still_open)),
            "SecretMissing: tell secret_missing open",
        ),
        // There the volume of a claim that is gone gets a PersistentVolume, which is then released. Here it is undone.
        (
            "an open call of a claim that is being deleted",
            next(&gone),
            "FindOut: create",
        ),
    ]);
}

#[test]
fn persistent_volumes_of_claims() {
    let with = |world: &ClaimWorld| {
        world
            .clone()
            .marked()
            .creation(Creation::Created(Box::new(new_volume(world))))
    };
    let made = |world: &ClaimWorld| persistent_volume(&claim_of(&world.claim), &new_volume(world), &driver(), "i");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let retain = world().class("/reclaimPolicy", "Retain");
    let failed = with(&world()).with(|world| world.save_failed = true);
    play(&[
        ("it is saved", next(&with(&world())), "SaveVolume: save"),
        ("it cannot be saved", next(&failed), "SaveVolume: save"),
        ("it waits to be saved", next(&failed), "SaveVolume: save"),
        (
            "it was saved at last",
            next(&with(&world()).saved()),
            "WaitForBinding: wait",
        ),
        (
            "Retain",
            text(&made(&retain)["spec"]["persistentVolumeReclaimPolicy"]),
            "Retain",
        ),
        ("its name", text(&made(&world())["metadata"]["name"]), NAME),
        (
            "its finalizer",
            text(&made(&world())["metadata"]["finalizers"][0]),
            FINALIZER,
        ),
    ]);
}

#[test]
fn selected_nodes() {
    let delayed = || world().delayed().marked();
    let settled = |code: i32| {
        let outcome = settle(&delayed(), &Creation::Never, Some(code)).1;
        format!("{outcome:?}")
            .split(['(', '{'])
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let unlabelled = world()
        .delayed()
        .with(|world| world.nodes[0] = node_with_keys("n1", &["zone"], &[]));
    play(&[
        ("no room", settled(8), "Rescheduled"),
        ("a final error", settled(9), "Failed"),
        (
            "nothing is known of a topology",
            next(&unlabelled),
            "TopologyMissing: tell topology_missing",
        ),
        ("it goes on", settled(4), "Uncertain"),
    ]);
}

#[test]
fn volumes_of_persistent_volumes() {
    volume_rows::play("NotOwn: ignore\nnot another's | provisioned by another");
    let rows = volume_rows::play(
        "
        Delete: delete vol-1
            ours, and not another's | unprotected
            the driver fails | unprotected, failed
            with the finalizer | as it is
            in deletion, with the finalizer | deleting
            the driver fails, with the finalizer | failed
        NotReleased: ignore
            bound | Bound
            Retain | unprotected, Retain
            in deletion, without the finalizer | unprotected, deleting
            // A later slice serves the volumes of in-tree plug-ins.
            in-tree and migrated | migrated, Bound, unprotected
            in-tree, migrated and bound | migrated, Bound, unprotected
        RemoveVolume: remove pv-uid
            DELETE fails | unprotected, deleted
            DELETE fails, with the finalizer | deleted
        Retained: release 1
            Retain, with the finalizer | Retain, Bound
        Protect: protect
            static | static, Bound, unprotected
        ",
    );
    tally("library TestController", rows);
}
