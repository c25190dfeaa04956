//! TestController of the library: what is done next about claims and PersistentVolumes. Two of its 41 rows are left out: every program
//! here has block volumes and finalizers.

use serde_json::json;

use crate::provision::tests::builders::{
    ClaimWorld, DRIVER, FINALIZER, NAME, VolumeWorld, claim_of, driver, node_with_keys, volume_world as pv, world,
};
use crate::provision::tests::claim_rows::{self, new_volume, uncertain};
use crate::provision::tests::codes::settle;
use crate::provision::tests::{tally, volume_rows};
use crate::provision::{
    Creation, Deletion, OrphanVolumePolicy, ProvisionerSecretState, delete_answer, persistent_volume,
};

fn of_claim(world: &ClaimWorld) -> String {
    let decision = world.decide();
    format!("{}: {}", decision.reason.as_str(), claim_rows::word(&decision.action))
}

fn of_volume(world: &VolumeWorld) -> String {
    let decision = world.decide();
    format!("{}: {}", decision.reason.as_str(), volume_rows::word(&decision.action))
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
            of_claim(&world()) + " " + &of_claim(&others(world())),
            "Mark: mark NotOwn: ignore",
        ),
        (
            "its PersistentVolume is there",
            of_claim(&world().saved()),
            "WaitForBinding: wait",
        ),
        (
            "its class names the driver by another name",
            of_claim(&in_tree),
            "Mark: mark",
        ),
        ("bound", of_claim(&world().bound("volume-1")), "Cancelled: ignore"),
        (
            "no such class",
            of_claim(&world().without_class()),
            "ClassMissing: wait",
        ),
        ("ignored", of_claim(&populator()), "Populator: wait"),
        (
            "one of two is ignored",
            of_claim(&world()) + " " + &of_claim(&populator()),
            "Mark: mark Populator: wait",
        ),
    ]);
}

#[test]
fn calls_and_what_is_known_then() {
    let first = world().marked();
    let known = |before: &Creation, code: i32| settle(&first, before, Some(code)).creation.as_str().to_owned();
    let open = uncertain(&world());
    let missing = |world: ClaimWorld| {
        let keys = json!({
            "csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "n",
        });
        let mut world = world.class("/parameters", keys);
        world.secret = ProvisionerSecretState::Missing;
        world
    };
    let never = missing(world());
    let still_open = missing(world()).marked().creation(uncertain(&missing(world())));
    let is_open = |world: &ClaimWorld| if world.creation.is_some() { "open" } else { "never" };
    let gone = world().marked().deleting().creation(open.clone());
    play(&[
        ("it fails", known(&Creation::Never, 2), "refused"),
        ("a final error", known(&Creation::Never, 9), "refused"),
        ("an error that leaves it open", known(&Creation::Never, 4), "uncertain"),
        (
            "an error before the call",
            format!("{} {}", of_claim(&never), is_open(&never)),
            "SecretMissing: tell secret_missing never",
        ),
        ("a final error after an open call", known(&open, 5), "refused"),
        ("an open call stays open", known(&open, 4), "uncertain"),
        (
            "an error before the next call leaves it open",
            format!("{} {}", of_claim(&still_open), is_open(&still_open)),
            "SecretMissing: tell secret_missing open",
        ),
        // There the volume of a claim that is gone gets a PersistentVolume, which is then released. Here it is undone.
        (
            "an open call of a claim that is being deleted",
            of_claim(&gone),
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
        ("it is saved", of_claim(&with(&world())), "SaveVolume: save"),
        ("it cannot be saved", of_claim(&failed), "SaveVolume: save"),
        ("it waits to be saved", of_claim(&failed), "SaveVolume: save"),
        (
            "it was saved at last",
            of_claim(&with(&world()).saved()),
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
        let outcome = settle(&delayed(), &Creation::Never, Some(code)).outcome;
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
            of_claim(&unlabelled),
            "TopologyMissing: tell topology_missing",
        ),
        ("it goes on", settled(4), "Uncertain"),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn volumes_of_persistent_volumes() {
    let bare = |world: VolumeWorld| world.unprotected();
    let bound = |world: VolumeWorld| world.phase("Bound");
    let retain = |world: VolumeWorld| world.set("/spec/persistentVolumeReclaimPolicy", "Retain");
    let others = pv().annotate("pv.kubernetes.io/provisioned-by", "abc.def/ghi");
    let deleted = |world: VolumeWorld| world.with(|world| world.deletion = Deletion::Deleted);
    let migrated = || {
        let spec = json!({"persistentVolumeReclaimPolicy": "Delete", "nfs": {}, "claimRef": {"name": "c", "namespace": "n", "uid": "u"}});
        let annotations = json!({"pv.kubernetes.io/migrated-to": DRIVER});
        bare(bound(pv().set("/metadata/annotations", annotations).set("/spec", spec)))
    };
    let failed = |world: VolumeWorld| {
        let deletion = delete_answer(Some(13), OrphanVolumePolicy::Retry);
        of_volume(&world.with(|world| world.deletion = deletion))
    };
    play(&[
        (
            "ours, and not another's",
            of_volume(&bare(pv())) + " " + &of_volume(&others),
            "Delete: delete vol-1 NotOwn: ignore",
        ),
        ("bound", of_volume(&bound(pv())), "NotReleased: ignore"),
        ("Retain", of_volume(&retain(bare(pv()))), "NotReleased: ignore"),
        ("the driver fails", failed(bare(pv())), "Delete: delete vol-1"),
        (
            "DELETE fails",
            of_volume(&deleted(bare(pv()))),
            "RemoveVolume: remove pv-uid",
        ),
        (
            "Retain, with the finalizer",
            of_volume(&bound(retain(pv()))),
            "Retained: release 1",
        ),
        (
            "in deletion, without the finalizer",
            of_volume(&bare(pv()).deleting()),
            "NotReleased: ignore",
        ),
        ("with the finalizer", of_volume(&pv()), "Delete: delete vol-1"),
        (
            "in deletion, with the finalizer",
            of_volume(&pv().deleting()),
            "Delete: delete vol-1",
        ),
        (
            "the driver fails, with the finalizer",
            failed(pv()),
            "Delete: delete vol-1",
        ),
        (
            "DELETE fails, with the finalizer",
            of_volume(&deleted(pv())),
            "RemoveVolume: remove pv-uid",
        ),
        // A later slice serves the volumes of in-tree plug-ins.
        ("in-tree and migrated", of_volume(&migrated()), "NotReleased: ignore"),
        (
            "in-tree, migrated and bound",
            of_volume(&migrated()),
            "NotReleased: ignore",
        ),
        (
            "static",
            of_volume(&bare(bound(pv().set("/metadata/annotations", json!({}))))),
            "Protect: protect",
        ),
    ]);
}
