//! What becomes of the volume of a PersistentVolume.

use crate::api::EventType;
use crate::provision::event::ProvisionEventReason;
use crate::provision::tests::builders::{VolumeWorld, volume_world};
use crate::provision::tests::tally;
use crate::provision::tests::volume_rows::{play, word};
use crate::provision::{Deletion, OrphanVolumePolicy, delete_answer};

fn found(world: &VolumeWorld) -> String {
    let decision = world.decide();
    format!("{}: {}", decision.reason.as_str(), word(&decision.action))
}

/// TestDelete. Two more rows there are of distributed provisioning, and one has no PersistentVolume at all.
#[test]
fn which_call_is_made() {
    let rows = play(
        "
        NotCsi: ...
            no CSI volume | nfs
        SecretForbidden: tell ...
            of the class, and needs an annotation | no recorded Secret, class names static-${pvc.annotations['akey']}
        StillAttached: ...
            attached | class names static-${pv.name}, attached
            named by an attachment that is not attached | class names static-${pv.name}, attached
            named by an attachment that is being deleted | class names static-${pv.name}, attached
        // There also without a claim; here a person decides about a volume that no claim is bound to.
        Delete: delete vol-1
            plain | as it is
            another one is attached | as it is
            with its claim | as it is
            no Secret | as it is
            no Secret and no class | no class
            a Secret that is not there | secret missing
        Delete: delete vol-1 with s
            a Secret | class names s, secret loaded
            a Secret and no class | no class, secret loaded
            a Secret, and the class names another one now | class names modified, secret loaded
            a Secret of the class | no recorded Secret, class names s, loaded
        ",
    );
    tally("TestDelete", rows);
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
