//! What becomes of the volume of a PersistentVolume.

use serde_json::json;

use crate::api::EventType;
use crate::provision::event::ProvisionEventReason;
use crate::provision::tests::builders::{VolumeWorld, volume_world};
use crate::provision::tests::tally;
use crate::provision::tests::volume_rows::word;
use crate::provision::{Deletion, OrphanVolumePolicy, ProvisionerSecretState, delete_answer};

const SECRET: &str = "volume.kubernetes.io/provisioner-deletion-secret-";

fn found(world: &VolumeWorld) -> String {
    let decision = world.decide();
    format!("{}: {}", decision.reason.as_str(), word(&decision.action))
}

fn annotated(name: &str, namespace: &str) -> VolumeWorld {
    volume_world()
        .annotate(&format!("{SECRET}name"), name)
        .annotate(&format!("{SECRET}namespace"), namespace)
}

fn class_names(world: VolumeWorld, name: &str, namespace: &str) -> VolumeWorld {
    world.with(|world| {
        let class = world.class.as_mut().unwrap();
        class["parameters"] = json!({
            "csi.storage.k8s.io/provisioner-secret-name": name, "csi.storage.k8s.io/provisioner-secret-namespace": namespace,
        });
    })
}

/// TestDelete. Two more rows there are of distributed provisioning, and one has no PersistentVolume at all.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn which_call_is_made() {
    let loaded = |mut world: VolumeWorld| {
        world.secret = ProvisionerSecretState::Loaded;
        world
    };
    let without_class = |mut world: VolumeWorld| {
        world.class = None;
        world
    };
    let attached = || {
        let world = class_names(volume_world(), "static-${pv.name}", "${pvc.namespace}");
        world.with(|world| world.attached_to = Some("node".to_owned()))
    };
    let unannotated = || {
        volume_world().set(
            "/metadata/annotations",
            json!({"pv.kubernetes.io/provisioned-by": "csi.test"}),
        )
    };
    let rows: [(&str, VolumeWorld, &str); 15] = [
        (
            "no CSI volume",
            volume_world().set("/spec/csi", json!(null)).set("/spec/nfs", json!({})),
            "NotCsi: ",
        ),
        (
            "the Secret of the class needs an annotation of the claim",
            class_names(unannotated(), "static-${pvc.annotations['akey']}", "n"),
            "SecretForbidden: tell ",
        ),
        ("attached", attached(), "StillAttached: "),
        (
            "named by an attachment that is not attached",
            attached(),
            "StillAttached: ",
        ),
        (
            "named by an attachment that is being deleted",
            attached(),
            "StillAttached: ",
        ),
        // There also without a claim; here a person decides about a volume that was never bound.
        ("plain", volume_world(), "Delete: delete vol-1"),
        ("another one is attached", volume_world(), "Delete: delete vol-1"),
        ("with its claim", volume_world(), "Delete: delete vol-1"),
        ("no Secret", annotated("", ""), "Delete: delete vol-1"),
        (
            "no Secret and no class",
            without_class(annotated("", "")),
            "Delete: delete vol-1",
        ),
        (
            "a Secret",
            loaded(class_names(annotated("s", "default"), "s", "default")),
            "Delete: delete vol-1 with s",
        ),
        (
            "a Secret and no class",
            loaded(without_class(annotated("s", "default"))),
            "Delete: delete vol-1 with s",
        ),
        (
            "a Secret, and the class names another one now",
            loaded(class_names(annotated("s", "default"), "modified", "modified")),
            "Delete: delete vol-1 with s",
        ),
        (
            "a Secret that is not there",
            annotated("gone", "default").with(|world| world.secret = ProvisionerSecretState::Missing),
            "Delete: delete vol-1",
        ),
        (
            "a Secret of the class",
            loaded(class_names(unannotated(), "s", "default")),
            "Delete: delete vol-1 with s",
        ),
    ];
    for (name, world, wanted) in &rows {
        let found = found(world);
        let is = if wanted.ends_with(' ') {
            found.starts_with(wanted)
        } else {
            found == *wanted
        };
        assert!(is, "{name}: {found}, want {wanted}");
    }
    tally("TestDelete", rows.len());
}

/// TestDeleteVolumeErrorHandling of the library: what is told.
#[test]
fn what_is_told_of_a_deletion_that_does_not_succeed() {
    let failed = delete_answer(Some(13), OrphanVolumePolicy::Retry);
    assert_eq!(failed, Deletion::NotDeleted, "any error");
    let rows = [
        (
            ProvisionEventReason::VolumeFailedDelete,
            "VolumeFailedDelete",
            EventType::Warning,
        ),
        (ProvisionEventReason::VolumeDelete, "VolumeDelete", EventType::Normal),
    ];
    for (reason, name, level) in &rows {
        assert_eq!((reason.as_str(), reason.level()), (*name, *level));
    }
    let attached = volume_world().with(|world| world.attached_to = Some("node-1".to_owned()));
    assert!(found(&attached).starts_with("StillAttached: "));
    let ignored = volume_world().annotate("pv.kubernetes.io/provisioned-by", "other");
    assert_eq!(found(&ignored), "NotOwn: ignore");
    tally("library TestDeleteVolumeErrorHandling", rows.len() + 1);
}
