//! The rules about a PersistentVolume, in their order: a row or more for each.

use serde_json::json;

use super::builders::{DRIVER, UID, VolumeWorld, another_claim, volume_of, volume_world as pv};
use super::table::secret_state;
use crate::provision::{
    Deletion, OrphanVolumePolicy, OwningClaim, ProvisionedVolumeAction as Action, ProvisionerSecrets, delete_answer,
    event, volume_fingerprint,
};

const PLUG_IN: &str = "kubernetes.io/aws-ebs";

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
        Action::Remove(uid) => format!("remove {uid}"),
        Action::Release(write) => format!("release {}", write.body.as_array().map_or(0, |all| (all.len() - 1) / 2)),
    }
}

pub fn play(table: &'static str) -> usize {
    super::table::play(table, pv, happen, |world| {
        let decision = world.decide();
        format!("{}: {}", decision.reason.as_str(), word(&decision.action))
    })
}

/// A migrated volume that the driver of its plug-in cannot take.
fn untranslated(world: VolumeWorld) -> VolumeWorld {
    world
        .set("/spec/csi", json!(null))
        .set("/spec/awsElasticBlockStore", json!({"volumeID": "aws://zone/disk"}))
}

fn with_secret(world: VolumeWorld, state: &str) -> VolumeWorld {
    world
        .annotate("volume.kubernetes.io/provisioner-deletion-secret-name", "s")
        .annotate("volume.kubernetes.io/provisioner-deletion-secret-namespace", "ns")
        .with(|world| world.secret = secret_state(state))
}

/// With this parameter in the class.
fn parameter(world: VolumeWorld, key: &str, value: &str) -> VolumeWorld {
    world.with(|world| world.class.as_mut().unwrap()["parameters"][key] = json!(value))
}

/// Of a class that names the Secret.
fn class_names(world: VolumeWorld, name: &str) -> VolumeWorld {
    let named = parameter(world, "csi.storage.k8s.io/provisioner-secret-name", name);
    let namespace = "csi.storage.k8s.io/provisioner-secret-namespace";
    parameter(named, namespace, "${pvc.namespace}")
}

/// What these words of a table say.
fn happen(world: VolumeWorld, words: &'static str) -> VolumeWorld {
    if let Some(what) = words.strip_prefix("unknown ") {
        return world.with(|world| world.unknown = what);
    }
    if let Some(state) = words.strip_prefix("secret ") {
        return with_secret(world, state);
    }
    if let Some(name) = words.strip_prefix("class names ") {
        return class_names(world, name);
    }
    let provisioned_by_us = json!({"pv.kubernetes.io/provisioned-by": DRIVER});
    match words {
        "as it is" => world,
        "Available" | "Bound" | "Failed" | "Pending" => world.phase(words),
        "Recycle" | "Retain" => world.set("/spec/persistentVolumeReclaimPolicy", words),
        "no policy" => world.set("/spec/persistentVolumeReclaimPolicy", json!(null)),
        "no claim" => world.set("/spec/claimRef", json!(null)),
        "deleting" => world.deleting(),
        "unprotected" => world.unprotected(),
        "static" => world.set("/metadata/annotations", json!({})),
        "provisioned by another" => world.annotate("pv.kubernetes.io/provisioned-by", "other"),
        "another driver's" => world.set("/spec/csi/driver", "other.test"),
        "blank handle" => world.set("/spec/csi/volumeHandle", " "),
        "untranslated" => untranslated(world),
        "nfs" => world.set("/spec/csi", json!(null)).set("/spec/nfs", json!({})),
        "migrated" => world
            .set("/metadata/annotations", json!({"pv.kubernetes.io/migrated-to": DRIVER}))
            .set("/spec/csi", json!(null))
            .set("/spec/nfs", json!({})),
        "made by a plug-in" => world.set(
            "/metadata/annotations",
            json!({"pv.kubernetes.io/provisioned-by": PLUG_IN, "pv.kubernetes.io/migrated-to": DRIVER}),
        ),
        "decided" => world.annotate("attacher.csi.dev/reclaim", "Delete"),
        "decided otherwise" => world.annotate("attacher.csi.dev/reclaim", "Retain"),
        "no recorded Secret" => world.set("/metadata/annotations", provisioned_by_us),
        "class of an annotation" => world
            .annotate("volume.beta.kubernetes.io/storage-class", "standard")
            .set("/spec/storageClassName", "other"),
        "half a default Secret" => parameter(world, "csi.storage.k8s.io/secret-name", "x"),
        "half a Secret of nodes" => parameter(world, "csi.storage.k8s.io/node-stage-secret-name", "x"),
        "half an old Secret" => parameter(world, "csiProvisionerSecretName", "x"),
        "key that nobody knows" => parameter(world, "csi.storage.k8s.io/unknown", "x"),
        _ => world.with(|world| observe(world, words)),
    }
}

/// What these words of a table say of one thing that is observed.
fn observe(world: &mut VolumeWorld, words: &str) {
    match words {
        "attached" => world.attached_to = Some("n1".into()),
        "away" => world.is_away = true,
        "held" => world.policy.hold_deletions = true,
        "shared" => world.sharer = Some("pv-2".into()),
        "left" => (world.sharer, world.heir) = (Some("pv-1".into()), Some("pv-1".into())),
        "heir not read" => world.heir_is_live = false,
        "unread" => world.lacks_read = true,
        "not live" => world.is_live = false,
        "claim cached" => world.claim = OwningClaim::Cached,
        "claim gone" => world.claim = OwningClaim::LiveGone,
        "claim live" => world.claim = OwningClaim::Live,
        "claim unknown" => world.claim = OwningClaim::Unknown,
        "bound by another" => world.bound = Some(another_claim()),
        "that is live" => world.bound_is_live = true,
        "deleted" => world.deletion = Deletion::Deleted,
        "perhaps deleted" => world.deletion = Deletion::Uncertain,
        "failed" => world.deletion = delete_answer(Some(13), OrphanVolumePolicy::Retry),
        "no class" => world.class = None,
        "another's class" => world.class.as_mut().unwrap()["provisioner"] = json!("other.test"),
        "class of the plug-in" => world.class.as_mut().unwrap()["provisioner"] = json!(PLUG_IN),
        "unlisted" => world.policy.secrets = ProvisionerSecrets::default(),
        "loaded" => world.secret = secret_state(words),
        "incapable" => world.driver.capabilities.create_delete_volume = false,
        _ => panic!("no such words: {words}"),
    }
}

#[test]
fn rows_1_to_6_whose_it_is_and_whether_it_is_released() {
    play(
        "
        NotOwn: ignore
            1 another provisioner's | provisioned by another
            1 another driver's, without the annotation | static, another driver's
        Delete: delete vol-1
            1 static, ours | static
            4 decided | no claim, Available, deleting, decided
        Retained: release 1
            2 Retain | Retain
            2 Recycle | Recycle
            2 Retain, bound | Retain, Bound
            2 Retain, perhaps deleted | Retain, perhaps deleted
        NotReleased: ignore
            2 Retain, without the finalizer | Retain, unprotected
            3 bound, without the finalizer, in deletion | Bound, unprotected, deleting
            3 bound, without the finalizer, and the driver deletes no volumes | Bound, unprotected, incapable
            4 decided, not in deletion | no claim, Available, decided
            5 bound | Bound
            5 bound, in deletion | Bound, deleting
            5 pending | Pending
            5 no policy | no policy
            5 in deletion without the finalizer | unprotected, deleting
        Protect: protect
            3 bound, without the finalizer | Bound, unprotected
            3 bound, without the finalizer, deletions held | Bound, unprotected, held
        NeedsDecision: wait
            4 Available, in deletion | Available, deleting
            4 no claim, in deletion | no claim, deleting
            4 decided otherwise | no claim, Available, deleting, decided otherwise
        Held: wait
            6 held | held
        ",
    );
}

#[test]
fn rows_7_to_10_whether_it_may_be_used() {
    play(
        "
        HandleShared: tell handle_shared
            7 shared | shared
        LeftToAnother: remove pv-uid
            7 shared, and all of them go | left
            7 shared, and all of them go, and the driver deletes no volumes | left, incapable
        Confirm: read pv-1
            7 shared, and the other one was not read | left, heir not read
        NotCsi: wait
            7 shared, of another driver | left, another driver's
        Confirm: read volume
            7 shared, and all of them go, not read yet | left, not live
            7 not known before a read | unknown sharer, unread
            8 not known before a read | unknown attached, unread
            10 not looked at | not live
        LeftToAnother: release 1
            7 shared, and all of them go, in deletion | left, deleting
        StillAttached: wait
            7 shared, and all of them go, attached | left, attached
            8 attached | attached
            8 attached, whatever lacks | attached, unread
        ReleasedWhileBound: wait
            7 shared, and all of them go, in use | left, claim live
            9 there | claim live
            9 another claim is bound to it, and there | bound by another, that is live
            9 another claim is bound to it, its own is there | bound by another, claim live
        Held: wait
            7 shared, and all of them go, held | left, held
        Syncing: wait
            7 not known | unknown sharer
            8 not known | unknown attached
            9 not known | claim unknown
            9 not known whether another one is bound | unknown bound
        ReleasedWhileBound: read claim web/data
            9 cached | claim cached
            9 failed, not looked at | Failed
        Delete: delete vol-1
            9 gone | claim gone
            9 failed, gone | claim gone, Failed
        ReleasedWhileBound: read claim web/moved
            9 another claim is bound to it | bound by another
            9 another claim is bound to it, failed, its own gone | bound by another, claim gone, Failed
            9 another one is bound to it, and it names none: decided | bound by another, no claim, deleting, decided
        ",
    );
}

/// Its volume is there: who deletes the PersistentVolume first loses it.
#[test]
fn an_in_tree_volume_that_cannot_be_translated_is_not_told_to_have_no_volume() {
    let world = untranslated(pv());
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
    let other = world.observe(volume_fingerprint);
    assert_ne!(other, translated.observe(volume_fingerprint));
}

#[test]
fn rows_11_to_13_the_deletion() {
    play(
        "
        Delete: delete vol-1
            11 | as it is
            11 in deletion | deleting
            11 perhaps deleted | perhaps deleted
            11 without the finalizer, not in deletion | unprotected
            11 Secret gone | secret missing
            11 no class | no recorded Secret, no class
            11 static, a class of another driver | static, class names s, another's class
            11 static, a class of another driver with a template that is wrong | static, class names ${x}, another's class
            11 the class made anew for another driver | no recorded Secret, class names s, another's class
        LoadSecret: secret ns/s
            11 Secret, not read | secret not loaded
        Delete: delete vol-1 with s
            11 Secret read | secret loaded
        SecretForbidden: tell secret_forbidden
            11 Secret not readable | secret unreadable
        SecretForbidden: tell secret_not_allowed
            11 Secret not listed | secret not loaded, unlisted
        LoadSecret: secret web/s
            11 Secret of the class | no recorded Secret, class names s
            11 Secret of the class, half of other calls | no recorded Secret, class names s, half a Secret of nodes
            11 Secret of the class, half of the default | no recorded Secret, class names s, half a default Secret
            11 Secret of the class, a key that is not known | no recorded Secret, class names s, key that nobody knows
            11 Secret of the class, static | static, class names s
            11 Secret of the class of the in-tree plug-in that made it | made by a plug-in, class names s, class of the plug-in
            11 Secret of the class that an annotation names | no recorded Secret, class names s, class of an annotation
        SecretForbidden: tell invalid_class
            11 Secret of the class, half of it under an old key | no recorded Secret, class names s, half an old Secret
            11 Secret of an annotation | no recorded Secret, class names ${pvc.annotations['a']}
        Syncing: wait
            11 class not known | no recorded Secret, unknown class
        NotCsi: wait
            11 blank handle | blank handle
            11 provisioned by us, another driver's | another driver's
        NotCsi: tell invalid_spec
            11 in-tree, and cannot be translated | untranslated
        DriverAway: wait
            11 the driver is away | away
            11 the driver deletes no volumes, and is away | incapable, away
        NotSupported: tell capability_missing
            11 the driver deletes no volumes | incapable
            11 the driver deletes no volumes, in deletion | incapable, deleting
        StillAttached: wait
            11 the driver deletes no volumes, attached | incapable, attached
        RemoveVolume: remove pv-uid
            12 the driver deletes no volumes any more | deleted, incapable
            12 | deleted
            12 Retain since | deleted, Retain
            12 held since | deleted, held
        Release: release 1
            13 the driver is away | deleting, deleted, away
            13 | deleting, deleted
        Release: ignore
            13 without the finalizer | deleting, unprotected, deleted
        ",
    );
    assert_eq!(pv().volume["spec"]["claimRef"]["uid"], UID);
}
