//! The rules about a PersistentVolume, in their order: a row or more for each.

use serde_json::json;

use super::builders::{DRIVER, UID, VolumeWorld, another_claim, volume_of, volume_world as pv};
use super::table::{Decided, Row};
use crate::provision::{
    Deletion, OwningClaim, ProvisionedVolumeAction as Action, ProvisionerSecretState, event, volume_fingerprint,
};

/// The action in a word.
pub fn word(action: &Action) -> String {
    match action {
        Action::Ignore => "ignore".into(),
        Action::Wait(None) => "wait".into(),
        Action::Wait(Some(cause)) => format!("tell {}", cause.reason()),
        Action::Protect(_) => "protect".into(),
        Action::ReadClaim(claim) => format!("read claim {}/{}", claim.namespace, claim.name),
        Action::ReadVolume => "read volume".into(),
        Action::ReadHeir(name) => format!("read {name}"),
        Action::LoadCredentials(secret) => format!("secret {}/{}", secret.namespace, secret.name),
        Action::Delete(plan) => match &plan.secret {
            None => format!("delete {}", plan.handle),
            Some(secret) => format!("delete {} with {}", plan.handle, secret.name),
        },
        Action::Remove { uid } => format!("remove {uid}"),
        Action::Release(write) => format!("release {}", write.body.as_array().map_or(0, |all| (all.len() - 1) / 2)),
    }
}

/// Of a driver that announces no CREATE_DELETE_VOLUME.
fn incapable(world: VolumeWorld) -> VolumeWorld {
    world.with(|world| world.driver.capabilities.create_delete_volume = false)
}

fn play(table: Vec<Vec<Row<VolumeWorld>>>) {
    super::table::play(table, |world| {
        let decision = world.decide();
        format!("{}: {}", decision.reason.as_str(), word(&decision.action))
    });
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_1_to_6_whose_it_is_and_whether_it_is_released() {
    let policy = |name: &str| pv().set("/spec/persistentVolumeReclaimPolicy", name);
    let unprotected = || pv().phase("Bound").unprotected();
    let claimless = || pv().set("/spec/claimRef", json!(null));
    let reclaim = |world: VolumeWorld| world.annotate("attacher.csi.dev/reclaim", "Delete");
    play(vec![
        Decided("NotOwn: ignore").when(vec![
            (
                "1 another provisioner's",
                pv().annotate("pv.kubernetes.io/provisioned-by", "other"),
            ),
            (
                "1 another driver's, without the annotation",
                pv().set("/metadata/annotations", json!({}))
                    .set("/spec/csi/driver", "other"),
            ),
        ]),
        Decided("Delete: delete vol-1").when(vec![
            ("1 static, ours", pv().set("/metadata/annotations", json!({}))),
            ("4 decided", reclaim(claimless().phase("Available").deleting())),
        ]),
        Decided("Retained: release 1").when(vec![
            ("2 Retain", policy("Retain")),
            ("2 Recycle", policy("Recycle")),
            ("2 Retain, bound", policy("Retain").phase("Bound")),
            (
                "2 Retain, perhaps deleted",
                policy("Retain").with(|world| world.deletion = Deletion::Uncertain),
            ),
        ]),
        Decided("NotReleased: ignore").when(vec![
            ("2 Retain, without the finalizer", policy("Retain").unprotected()),
            ("3 bound, without the finalizer, in deletion", unprotected().deleting()),
            (
                "3 bound, without the finalizer, and the driver deletes no volumes",
                incapable(unprotected()),
            ),
            ("4 decided, not in deletion", reclaim(claimless().phase("Available"))),
            ("5 bound", pv().phase("Bound")),
            ("5 bound, in deletion", pv().phase("Bound").deleting()),
            ("5 pending", pv().phase("Pending")),
            (
                "5 no policy",
                pv().set("/spec/persistentVolumeReclaimPolicy", json!(null)),
            ),
            ("5 in deletion without the finalizer", pv().unprotected().deleting()),
        ]),
        Decided("Protect: protect").when(vec![
            ("3 bound, without the finalizer", unprotected()),
            ("3 bound, without the finalizer, deletions held", unprotected().held()),
        ]),
        Decided("NeedsDecision: wait").when(vec![
            ("4 Available, in deletion", pv().phase("Available").deleting()),
            ("4 no claim, in deletion", claimless().deleting()),
            (
                "4 decided otherwise",
                claimless()
                    .phase("Available")
                    .deleting()
                    .annotate("attacher.csi.dev/reclaim", "Retain"),
            ),
        ]),
        Decided("Held: wait").when(vec![("6 held", pv().held())]),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_7_to_10_whether_it_may_be_used() {
    let claim = |seen| pv().with(|world| world.claim = seen);
    let unknown = |what| pv().with(|world| world.unknown = what);
    let unread = |world: &mut VolumeWorld| world.lacks_read = true;
    let not_live = |world: &mut VolumeWorld| world.is_live = false;
    let bound = |world: VolumeWorld| world.with(|world| world.bound = Some(another_claim()));
    let left = |world: VolumeWorld| {
        world.with(|world| (world.sharer, world.heir) = (Some("pv-1".into()), Some("pv-1".into())))
    };
    play(vec![
        Decided("HandleShared: tell handle_shared").when(vec![(
            "7 shared",
            pv().with(|world| world.sharer = Some("pv-2".into())),
        )]),
        Decided("LeftToAnother: remove pv-uid").when(vec![
            ("7 shared, and all of them go", left(pv())),
            (
                "7 shared, and all of them go, and the driver deletes no volumes",
                incapable(left(pv())),
            ),
        ]),
        Decided("Confirm: read pv-1").when(vec![(
            "7 shared, and the other one was not read",
            left(pv()).with(|world| world.heir_is_live = false),
        )]),
        Decided("NotCsi: wait").when(vec![(
            "7 shared, of another driver",
            left(pv()).set("/spec/csi/driver", "other.test"),
        )]),
        Decided("Confirm: read volume").when(vec![
            ("7 shared, and all of them go, not read yet", left(pv()).with(not_live)),
            ("7 not known before a read", unknown("sharer").with(unread)),
            ("8 not known before a read", unknown("attached").with(unread)),
            ("10 not looked at", pv().with(not_live)),
        ]),
        Decided("LeftToAnother: release 1").when(vec![(
            "7 shared, and all of them go, in deletion",
            left(pv()).deleting(),
        )]),
        Decided("StillAttached: wait").when(vec![
            ("7 shared, and all of them go, attached", left(pv()).attached()),
            ("8 attached", pv().attached()),
            ("8 attached, whatever lacks", pv().attached().with(unread)),
        ]),
        Decided("ReleasedWhileBound: wait").when(vec![
            ("7 shared, and all of them go, in use", left(claim(OwningClaim::Live))),
            ("9 there", claim(OwningClaim::Live)),
            (
                "9 another claim is bound to it, and there",
                bound(pv()).with(|world| world.bound_is_live = true),
            ),
            (
                "9 another claim is bound to it, its own is there",
                bound(claim(OwningClaim::Live)),
            ),
        ]),
        Decided("Held: wait").when(vec![("7 shared, and all of them go, held", left(pv()).held())]),
        Decided("Syncing: wait").when(vec![
            ("7 not known", unknown("sharer")),
            ("8 not known", unknown("attached")),
            ("9 not known", claim(OwningClaim::Unknown)),
            ("9 not known whether another one is bound", unknown("bound")),
        ]),
        Decided("ReleasedWhileBound: read claim web/data").when(vec![
            ("9 cached", claim(OwningClaim::Cached)),
            ("9 failed, not looked at", pv().phase("Failed")),
        ]),
        Decided("Delete: delete vol-1").when(vec![
            ("9 gone", claim(OwningClaim::LiveGone)),
            ("9 failed, gone", claim(OwningClaim::LiveGone).phase("Failed")),
        ]),
        Decided("ReleasedWhileBound: read claim web/moved").when(vec![
            ("9 another claim is bound to it", bound(pv())),
            (
                "9 another claim is bound to it, failed, its own gone",
                bound(claim(OwningClaim::LiveGone).phase("Failed")),
            ),
            (
                "9 a claim is bound to it, and it names none: a person has decided",
                bound(pv().deleting().set("/spec/claimRef", json!(null)))
                    .annotate("attacher.csi.dev/reclaim", "Delete"),
            ),
        ]),
    ]);
}

/// A migrated volume that the driver of its plug-in cannot take.
fn untranslated() -> VolumeWorld {
    pv().set("/spec/csi", json!(null))
        .set("/spec/awsElasticBlockStore", json!({"volumeID": "aws://zone/disk"}))
}

/// Its volume is there: who deletes the PersistentVolume first loses it.
#[test]
fn an_in_tree_volume_that_cannot_be_translated_is_not_told_to_have_no_volume() {
    let world = untranslated();
    let decision = world.decide();
    let Action::Wait(Some(cause)) = decision.action else {
        panic!("{:?}", decision.action)
    };
    let told = event::volume_waits(decision.reason, &volume_of(&world.volume), &cause.to_string()).unwrap();
    for words in [
        "Invalid format for AWS volume",
        "delete the volume in the storage system first",
    ] {
        assert!(told.contains(words), "{told}");
    }
    assert!(!told.contains("has no volumeHandle"), "{told}");
    let translated = world.clone().set("/spec/awsElasticBlockStore/volumeID", "vol-1");
    assert_ne!(
        world.observe(volume_fingerprint),
        translated.observe(volume_fingerprint)
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_11_to_13_the_deletion() {
    use ProvisionerSecretState::{Loaded, Missing, NotLoaded, Unreadable};
    let secret = |state| {
        pv().annotate("volume.kubernetes.io/provisioner-deletion-secret-name", "s")
            .annotate("volume.kubernetes.io/provisioner-deletion-secret-namespace", "ns")
            .with(|world| world.secret = state)
    };
    let unrecorded = || {
        pv().set(
            "/metadata/annotations",
            json!({"pv.kubernetes.io/provisioned-by": DRIVER}),
        )
    };
    let class = |name: &str| {
        let parameters = json!({"csi.storage.k8s.io/provisioner-secret-name": name, "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}"});
        unrecorded().with(|world| world.class.as_mut().unwrap()["parameters"] = parameters)
    };
    let beside =
        |key: &'static str| class("s").with(|world| world.class.as_mut().unwrap()["parameters"][key] = json!("x"));
    let deleted = |world: VolumeWorld| world.with(|world| world.deletion = Deletion::Deleted);
    play(vec![
        Decided("Delete: delete vol-1").when(vec![
            ("11", pv()),
            ("11 in deletion", pv().deleting()),
            (
                "11 perhaps deleted",
                pv().with(|world| world.deletion = Deletion::Uncertain),
            ),
            ("11 without the finalizer, not in deletion", pv().unprotected()),
            ("11 Secret gone", secret(Missing)),
            ("11 no class", unrecorded().with(|world| world.class = None)),
        ]),
        Decided("LoadSecret: secret ns/s").when(vec![("11 Secret, not read", secret(NotLoaded))]),
        Decided("Delete: delete vol-1 with s").when(vec![("11 Secret read", secret(Loaded))]),
        Decided("SecretForbidden: tell secret_forbidden").when(vec![("11 Secret not readable", secret(Unreadable))]),
        Decided("SecretForbidden: tell secret_not_allowed").when(vec![(
            "11 Secret not listed",
            secret(NotLoaded).with(|world| world.policy.secrets = crate::provision::ProvisionerSecrets::default()),
        )]),
        Decided("LoadSecret: secret web/s").when(vec![
            ("11 Secret of the class", class("s")),
            (
                "11 Secret of the class, half a Secret of other calls",
                beside("csi.storage.k8s.io/node-stage-secret-name"),
            ),
            (
                "11 Secret of the class, a key that is not known",
                beside("csi.storage.k8s.io/unknown"),
            ),
            (
                "11 Secret of the class that an annotation names",
                class("s")
                    .annotate("volume.beta.kubernetes.io/storage-class", "standard")
                    .set("/spec/storageClassName", "other"),
            ),
        ]),
        Decided("SecretForbidden: tell invalid_class").when(vec![
            (
                "11 Secret of the class, half of it under an old key",
                beside("csiProvisionerSecretName"),
            ),
            ("11 Secret of an annotation", class("${pvc.annotations['a']}")),
        ]),
        Decided("Syncing: wait").when(vec![(
            "11 class not known",
            unrecorded().with(|world| world.unknown = "class"),
        )]),
        Decided("NotCsi: wait").when(vec![
            ("11 blank handle", pv().set("/spec/csi/volumeHandle", " ")),
            (
                "11 provisioned by us, another driver's",
                pv().set("/spec/csi/driver", "other"),
            ),
        ]),
        Decided("NotCsi: tell invalid_spec").when(vec![("11 in-tree, and cannot be translated", untranslated())]),
        Decided("DriverAway: wait").when(vec![
            ("11 the driver is away", pv().away()),
            ("11 the driver deletes no volumes, and is away", incapable(pv()).away()),
        ]),
        Decided("NotSupported: tell capability_missing").when(vec![
            ("11 the driver deletes no volumes", incapable(pv())),
            (
                "11 the driver deletes no volumes, in deletion",
                incapable(pv().deleting()),
            ),
        ]),
        Decided("StillAttached: wait").when(vec![(
            "11 the driver deletes no volumes, attached",
            incapable(pv()).attached(),
        )]),
        Decided("RemoveVolume: remove pv-uid").when(vec![
            ("12 the driver deletes no volumes any more", incapable(deleted(pv()))),
            ("12", deleted(pv())),
            (
                "12 Retain since",
                deleted(pv().set("/spec/persistentVolumeReclaimPolicy", "Retain")),
            ),
            ("12 held since", deleted(pv()).held()),
        ]),
        Decided("Release: release 1").when(vec![
            ("13 the driver is away", deleted(pv().deleting()).away()),
            ("13", deleted(pv().deleting())),
        ]),
        Decided("Release: ignore").when(vec![(
            "13 without the finalizer",
            deleted(pv().deleting().unprotected()),
        )]),
    ]);
    assert_eq!(pv().volume["spec"]["claimRef"]["uid"], UID);
}
