//! What is read of objects, and what decides about a hold.

use serde_json::json;
use std::mem::size_of_val;

use super::builders::{ClaimWorld, VolumeWorld, claim_of, node, volume_of, volume_world, world};
use crate::objects::{Claim, ClaimAccessMode, ClaimPhase, DeletionSecret, VolumePhase};
use crate::provision::attempt::RetryRequests;
use crate::provision::{claim_fingerprint, volume_fingerprint};

#[test]
fn a_claim_keeps_what_is_read() {
    let claim = claim_of(
        &world()
            .annotate("volume.beta.kubernetes.io/storage-class", "old")
            .annotate("volume.kubernetes.io/selected-node", "")
            .annotate("x/y", "z")
            .set("/metadata/managedFields", json!([{"manager": "kubectl"}]))
            .claim,
    );
    assert_eq!((&*claim.namespace, &*claim.name, &*claim.class), ("web", "data", "old"));
    let wanted = (ClaimPhase::Pending, &[ClaimAccessMode::ReadWriteOnce][..]);
    assert_eq!((claim.phase, &*claim.access_modes), wanted);
    assert_eq!((claim.selected_node, claim.requested.as_deref()), (None, Some("1Gi")));
    assert_eq!(claim.annotations.get("x/y"), Some("z"));
    assert!(claim.has_annotations && claim.annotations_left_out == 0 && !claim.has_selector);
    assert!(!claim.bind_completed);
    let both = claim_of(
        &world()
            .annotate("volume.beta.kubernetes.io/storage-provisioner", "beta")
            .claim,
    );
    let wanted = Some(super::builders::DRIVER);
    assert_eq!(both.provisioner.as_deref(), wanted, "the current key counts");
    let source = json!({"kind": "PersistentVolumeClaim", "name": "other"});
    let source = claim_of(&world().set("/spec/dataSourceRef", source).claim)
        .data_source
        .unwrap();
    assert_eq!((&*source.group, &*source.kind), ("", "PersistentVolumeClaim"));
}

/// Under 1 KiB for a claim: the record and what it points to, but for names that are shared.
#[test]
fn a_bound_claim_is_small() {
    let claim = claim_of(&world().annotate("noise", &"x".repeat(8000)).bound("pvc-1").claim);
    let texts = claim.uid.len() + claim.namespace.len() + claim.name.len() + 200;
    assert!(
        size_of_val::<Claim>(&claim) + texts < 800,
        "{}",
        size_of_val::<Claim>(&claim)
    );
}

#[test]
fn a_volume_keeps_what_is_read() {
    let read = |world: VolumeWorld| volume_of(&world.volume).lifecycle;
    let lifecycle = read(volume_world());
    let wanted = (VolumePhase::Released, Some(&[1][..]));
    assert_eq!((lifecycle.phase, lifecycle.finalizer_at.as_deref()), wanted);
    assert_eq!(lifecycle.deletion_secret, DeletionSecret::None);
    assert_eq!(
        read(volume_world().set("/metadata/annotations", json!({"a": "b"}))).deletion_secret,
        DeletionSecret::Unrecorded
    );
    let half = volume_world().annotate("volume.kubernetes.io/provisioner-deletion-secret-name", "s");
    assert_eq!(read(half).deletion_secret, DeletionSecret::None, "nobody can read that");
    let many: Vec<String> = (0..3000)
        .map(|at| format!("finalizer/{at}"))
        .chain([super::builders::FINALIZER.to_owned()])
        .collect();
    assert_eq!(
        read(volume_world().set("/metadata/finalizers", json!(many)))
            .finalizer_at
            .as_deref(),
        Some(&[3000][..])
    );
}

/// Users of a namespace can write the annotation as often as they like.
#[test]
fn a_retry_is_asked_for_now_and_then() {
    let claim = |value: &str| claim_of(&world().annotate("attacher.csi.dev/retry-now", value).claim);
    let at = |seconds: i64| {
        super::builders::now()
            .saturating_add(jiff::SignedDuration::from_secs(seconds))
            .unwrap()
    };
    let mut requests = RetryRequests::default();
    let mut asks = |value: &str, seconds| requests.is_asked(claim(value).retry_now.as_deref(), at(seconds));
    assert!(!asks("1", 0), "that of before this process");
    assert!(asks("2", 1) && !asks("2", 2));
    assert!(!asks("3", 3) && !asks("4", 10), "too often");
    assert!(asks("4", 11) && !asks("4", 30));
    assert!(asks("5", 31) && !asks("6", 32));
    assert!(asks("7", -100), "the clock was set back");
    let mut requests = RetryRequests::default();
    assert!(!requests.is_asked(None, at(0)) && requests.is_asked(Some("1"), at(1)));
    assert!(!requests.is_asked(None, at(60)) && requests.is_asked(Some("1"), at(61)));
}

/// A hold ends early only when something changed that may help.
#[test]
fn echoes_of_our_own_writes_do_not_end_a_hold() {
    let of = |world: &ClaimWorld| world.observe(claim_fingerprint);
    let templates = json!({
        "csi.storage.k8s.io/node-stage-secret-name": "s-${pvc.name}-${pvc.annotations['used/in-template']}",
        "csi.storage.k8s.io/node-stage-secret-namespace": "ns",
    });
    let before = world().delayed().class("/parameters", templates);
    for echo in [
        before.clone().marked(),
        before.clone().set("/metadata/resourceVersion", "99"),
        before.clone().annotate("attacher.csi.dev/release-refused", "x"),
        before.clone().annotate("attacher.csi.dev/retry-now", "1"),
        // Users of a namespace can write it, and it lets go only what is being deleted.
        before.clone().annotate("attacher.csi.dev/release", "1"),
        before.clone().annotate("of/somebody", "1"),
        before
            .clone()
            .with(|world| world.nodes[1].labels = node("x", &[("zone", "c")]).labels),
    ] {
        assert_eq!(of(&echo), of(&before));
    }
    for change in [
        before.clone().deleting(),
        before.clone().bound("x"),
        before.clone().annotate("pv.kubernetes.io/bind-completed", ""),
        before.clone().annotate("volume.kubernetes.io/selected-node", "n2"),
        before.clone().annotate("used/in-template", "1"),
        before.clone().class("/metadata/uid", "new"),
        before.clone().class("/mountOptions", json!(["ro"])),
        before.clone().without_class(),
        before.clone().saved(),
        before.clone().with(|world| world.node_gone = true),
        before
            .clone()
            .with(|world| world.nodes[0].labels = node("x", &[("zone", "c")]).labels),
    ] {
        assert_ne!(of(&change), of(&before), "{change:?}");
    }
    let of = |world: &VolumeWorld| world.observe(volume_fingerprint);
    let before = volume_world();
    for echo in [
        before.clone().unprotected(),
        // It has a limit of its own.
        before.clone().annotate("attacher.csi.dev/retry-now", "1"),
    ] {
        assert_eq!(of(&echo), of(&before));
    }
    for change in [
        before.clone().deleting(),
        before.clone().phase("Bound"),
        before.clone().set("/spec/persistentVolumeReclaimPolicy", "Retain"),
        before.clone().annotate("attacher.csi.dev/reclaim", "Delete"),
        before.clone().with(|world| world.attached_to = Some("n".into())),
        before.clone().with(|world| world.sharer = Some("pv".into())),
        before.clone().with(|world| world.policy.hold_deletions = true),
    ] {
        assert_ne!(of(&change), of(&before), "{change:?}");
    }
}

/// The attempt after it is the one that was asked for, for whatever reason it is made.
#[test]
fn a_request_for_a_retry_is_due_until_an_attempt_is_made() {
    let mut requests = RetryRequests::default();
    let now = super::builders::NOW.parse().unwrap();
    let is_nothing_new = !requests.is_asked(Some("1"), now) && !requests.take_due();
    assert!(is_nothing_new, "what the first look sees is nothing new");
    assert!(requests.is_asked(Some("2"), now));
    assert!(requests.take_due() && !requests.take_due());
    assert!(!requests.is_asked(Some("3"), now) && !requests.take_due(), "too early");
}
