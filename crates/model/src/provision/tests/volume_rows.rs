//! The rules about a PersistentVolume, in their order: a row or more for each.

use serde_json::json;
use std::collections::BTreeSet;

use super::builders::{DRIVER, UID, VolumeWorld, another_claim, volume_of, volume_world as pv};
use crate::provision::{
    Deletion, OwningClaim, ProvisionedVolumeAction as Action, ProvisionerSecretState, event, volume_fingerprint,
};

struct Row(&'static str, VolumeWorld, &'static str);

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

fn play(rows: Vec<Row>) {
    let names: BTreeSet<_> = rows.iter().map(|row| row.0).collect();
    assert_eq!(names.len(), rows.len(), "a name is used twice");
    for Row(name, world, wanted) in rows {
        let decision = world.decide();
        let found = format!("{}: {}", decision.reason.as_str(), word(&decision.action));
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_1_to_6_whose_it_is_and_whether_it_is_released() {
    let policy = |name: &str| pv().set("/spec/persistentVolumeReclaimPolicy", name);
    let claimless = || pv().set("/spec/claimRef", json!(null));
    let reclaim = |world: VolumeWorld| world.annotate("attacher.csi.dev/reclaim", "Delete");
    play(vec![
        Row(
            "1 another provisioner's",
            pv().annotate("pv.kubernetes.io/provisioned-by", "other"),
            "NotOwn: ignore",
        ),
        Row(
            "1 another driver's, without the annotation",
            pv().set("/metadata/annotations", json!({}))
                .set("/spec/csi/driver", "other"),
            "NotOwn: ignore",
        ),
        Row(
            "1 static, ours",
            pv().set("/metadata/annotations", json!({})),
            "Delete: delete vol-1",
        ),
        Row("2 Retain", policy("Retain"), "Retained: release 1"),
        Row("2 Recycle", policy("Recycle"), "Retained: release 1"),
        Row(
            "2 Retain, bound",
            policy("Retain").phase("Bound"),
            "Retained: release 1",
        ),
        Row(
            "2 Retain, without the finalizer",
            policy("Retain").unprotected(),
            "NotReleased: ignore",
        ),
        Row(
            "2 Retain, perhaps deleted",
            policy("Retain").with(|world| world.deletion = Deletion::Uncertain),
            "Retained: release 1",
        ),
        Row(
            "3 bound, without the finalizer",
            pv().phase("Bound").unprotected(),
            "Protect: protect",
        ),
        Row(
            "3 the same, in deletion",
            pv().phase("Bound").unprotected().deleting(),
            "NotReleased: ignore",
        ),
        Row(
            "3 the same, deletions held",
            pv().phase("Bound")
                .unprotected()
                .with(|world| world.policy.hold_deletions = true),
            "Protect: protect",
        ),
        Row(
            "4 Available, in deletion",
            pv().phase("Available").deleting(),
            "NeedsDecision: wait",
        ),
        Row("4 no claim, in deletion", claimless().deleting(), "NeedsDecision: wait"),
        Row(
            "4 decided",
            reclaim(claimless().phase("Available").deleting()),
            "Delete: delete vol-1",
        ),
        Row(
            "4 decided otherwise",
            claimless()
                .phase("Available")
                .deleting()
                .annotate("attacher.csi.dev/reclaim", "Retain"),
            "NeedsDecision: wait",
        ),
        Row(
            "4 decided, not in deletion",
            reclaim(claimless().phase("Available")),
            "NotReleased: ignore",
        ),
        Row("5 bound", pv().phase("Bound"), "NotReleased: ignore"),
        Row(
            "5 bound, in deletion",
            pv().phase("Bound").deleting(),
            "NotReleased: ignore",
        ),
        Row("5 pending", pv().phase("Pending"), "NotReleased: ignore"),
        Row(
            "5 no policy",
            pv().set("/spec/persistentVolumeReclaimPolicy", json!(null)),
            "NotReleased: ignore",
        ),
        Row(
            "5 in deletion without the finalizer",
            pv().unprotected().deleting(),
            "NotReleased: ignore",
        ),
        Row(
            "6 held",
            pv().with(|world| world.policy.hold_deletions = true),
            "Held: wait",
        ),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_7_to_10_whether_it_may_be_used() {
    let claim = |seen| pv().with(|world| world.claim = seen);
    let unknown = |what| pv().with(|world| world.unknown = what);
    let bound = |world: VolumeWorld| world.with(|world| world.bound = Some(another_claim()));
    let left = |world: VolumeWorld| {
        world.with(|world| (world.sharer, world.heir) = (Some("pv-1".into()), Some("pv-1".into())))
    };
    play(vec![
        Row(
            "7 shared",
            pv().with(|world| world.sharer = Some("pv-2".into())),
            "HandleShared: tell handle_shared",
        ),
        Row(
            "7 shared, and all of them go",
            left(pv()),
            "LeftToAnother: remove pv-uid",
        ),
        Row(
            "7 shared, and the other one was not read",
            left(pv()).with(|world| world.heir_is_live = false),
            "Confirm: read pv-1",
        ),
        Row(
            "7 shared, of another driver",
            left(pv()).set("/spec/csi/driver", "other.test"),
            "NotCsi: wait",
        ),
        Row(
            "7 the same, not read yet",
            left(pv()).with(|world| world.is_live = false),
            "Confirm: read volume",
        ),
        Row(
            "7 the same, in deletion",
            left(pv()).deleting(),
            "LeftToAnother: release 1",
        ),
        Row(
            "7 the same, attached",
            left(pv()).with(|world| world.attached_to = Some("n1".into())),
            "StillAttached: wait",
        ),
        Row(
            "7 the same, in use",
            left(claim(OwningClaim::Live)),
            "ReleasedWhileBound: wait",
        ),
        Row(
            "7 the same, held",
            left(pv()).with(|world| world.policy.hold_deletions = true),
            "Held: wait",
        ),
        Row("7 not known", unknown("sharer"), "Syncing: wait"),
        Row(
            "8 attached",
            pv().with(|world| world.attached_to = Some("n1".into())),
            "StillAttached: wait",
        ),
        Row("8 not known", unknown("attached"), "Syncing: wait"),
        Row(
            "7 not known before a read",
            unknown("sharer").with(|world| world.lacks_read = true),
            "Confirm: read volume",
        ),
        Row(
            "8 not known before a read",
            unknown("attached").with(|world| world.lacks_read = true),
            "Confirm: read volume",
        ),
        Row(
            "8 attached, whatever lacks",
            pv().with(|world| (world.attached_to, world.lacks_read) = (Some("n1".into()), true)),
            "StillAttached: wait",
        ),
        Row(
            "9 cached",
            claim(OwningClaim::Cached),
            "ReleasedWhileBound: read claim web/data",
        ),
        Row("9 there", claim(OwningClaim::Live), "ReleasedWhileBound: wait"),
        Row("9 gone", claim(OwningClaim::LiveGone), "Delete: delete vol-1"),
        Row("9 not known", claim(OwningClaim::Unknown), "Syncing: wait"),
        Row(
            "9 failed, not looked at",
            pv().phase("Failed"),
            "ReleasedWhileBound: read claim web/data",
        ),
        Row(
            "9 failed, gone",
            claim(OwningClaim::LiveGone).phase("Failed"),
            "Delete: delete vol-1",
        ),
        Row(
            "9 another claim is bound to it",
            bound(pv()),
            "ReleasedWhileBound: read claim web/moved",
        ),
        Row(
            "9 another claim is bound to it, failed, its own gone",
            bound(claim(OwningClaim::LiveGone).phase("Failed")),
            "ReleasedWhileBound: read claim web/moved",
        ),
        Row(
            "9 another claim is bound to it, and there",
            bound(pv()).with(|world| world.bound_is_live = true),
            "ReleasedWhileBound: wait",
        ),
        Row(
            "9 another claim is bound to it, its own is there",
            bound(claim(OwningClaim::Live)),
            "ReleasedWhileBound: wait",
        ),
        Row(
            "9 a claim is bound to it, and it names none: a person has decided",
            bound(pv().deleting().set("/spec/claimRef", json!(null))).annotate("attacher.csi.dev/reclaim", "Delete"),
            "ReleasedWhileBound: read claim web/moved",
        ),
        Row(
            "9 not known whether another one is bound",
            unknown("bound"),
            "Syncing: wait",
        ),
        Row(
            "10 not looked at",
            pv().with(|world| world.is_live = false),
            "Confirm: read volume",
        ),
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
    let secret = |name: &str| {
        pv().annotate("volume.kubernetes.io/provisioner-deletion-secret-name", name)
            .annotate("volume.kubernetes.io/provisioner-deletion-secret-namespace", "ns")
    };
    let state = |state| move |world: &mut VolumeWorld| world.secret = state;
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
        Row("11", pv(), "Delete: delete vol-1"),
        Row("11 in deletion", pv().deleting(), "Delete: delete vol-1"),
        Row(
            "11 perhaps deleted",
            pv().with(|world| world.deletion = Deletion::Uncertain),
            "Delete: delete vol-1",
        ),
        Row(
            "11 without the finalizer, not in deletion",
            pv().unprotected(),
            "Delete: delete vol-1",
        ),
        Row("11 Secret, not read", secret("s"), "LoadSecret: secret ns/s"),
        Row(
            "11 Secret read",
            secret("s").with(state(ProvisionerSecretState::Loaded)),
            "Delete: delete vol-1 with s",
        ),
        Row(
            "11 Secret gone",
            secret("s").with(state(ProvisionerSecretState::Missing)),
            "Delete: delete vol-1",
        ),
        Row(
            "11 Secret not readable",
            secret("s").with(state(ProvisionerSecretState::Unreadable)),
            "SecretForbidden: tell secret_forbidden",
        ),
        Row(
            "11 Secret not listed",
            secret("s").with(|world| world.policy.secrets = crate::provision::ProvisionerSecrets::default()),
            "SecretForbidden: tell secret_not_allowed",
        ),
        Row("11 Secret of the class", class("s"), "LoadSecret: secret web/s"),
        Row(
            "11 Secret of the class, half a Secret of other calls",
            beside("csi.storage.k8s.io/node-stage-secret-name"),
            "LoadSecret: secret web/s",
        ),
        Row(
            "11 Secret of the class, a key that is not known",
            beside("csi.storage.k8s.io/unknown"),
            "LoadSecret: secret web/s",
        ),
        Row(
            "11 Secret of the class, half of it under an old key",
            beside("csiProvisionerSecretName"),
            "SecretForbidden: tell invalid_class",
        ),
        Row(
            "11 Secret of the class that an annotation names",
            class("s")
                .annotate("volume.beta.kubernetes.io/storage-class", "standard")
                .set("/spec/storageClassName", "other"),
            "LoadSecret: secret web/s",
        ),
        Row(
            "11 Secret of an annotation",
            class("${pvc.annotations['a']}"),
            "SecretForbidden: tell invalid_class",
        ),
        Row(
            "11 no class",
            unrecorded().with(|world| world.class = None),
            "Delete: delete vol-1",
        ),
        Row(
            "11 class not known",
            unrecorded().with(|world| world.unknown = "class"),
            "Syncing: wait",
        ),
        Row(
            "11 blank handle",
            pv().set("/spec/csi/volumeHandle", " "),
            "NotCsi: wait",
        ),
        Row(
            "11 in-tree, and cannot be translated",
            untranslated(),
            "NotCsi: tell invalid_spec",
        ),
        Row(
            "11 provisioned by us, another driver's",
            pv().set("/spec/csi/driver", "other"),
            "NotCsi: wait",
        ),
        Row(
            "11 the driver is away",
            pv().with(|world| world.is_away = true),
            "DriverAway: wait",
        ),
        Row(
            "13 the driver is away",
            deleted(pv().deleting()).with(|world| world.is_away = true),
            "Release: release 1",
        ),
        Row("12", deleted(pv()), "RemoveVolume: remove pv-uid"),
        Row(
            "12 Retain since",
            deleted(pv().set("/spec/persistentVolumeReclaimPolicy", "Retain")),
            "RemoveVolume: remove pv-uid",
        ),
        Row(
            "12 held since",
            deleted(pv()).with(|world| world.policy.hold_deletions = true),
            "RemoveVolume: remove pv-uid",
        ),
        Row("13", deleted(pv().deleting()), "Release: release 1"),
        Row(
            "13 without the finalizer",
            deleted(pv().deleting().unprotected()),
            "Release: ignore",
        ),
    ]);
    assert_eq!(pv().volume["spec"]["claimRef"]["uid"], UID);
}
