//! What is told of claims that nobody wants any more, and of volumes that two of them have.

use super::*;
use crate::key::ClaimKey;
use crate::provision::OrphanVolumePolicy;
use crate::role::{ProvisionRole, RoleLinks};
use crate::runtime::Role as _;

/// A world in which claim "a" is deleted during its CreateVolume, with other settings from then on.
async fn deleted_during_the_call(change: impl FnOnce(&World, &mut DriverConfig)) -> World {
    let world = World::calling().await;
    world.configure(|settings| change(&world, settings));
    world.delete_claim("a");
    pass(20).await;
    assert!(!world.is_marked("a"));
    world
}

/// What was told of claim "a" for a reason.
fn told(world: &World, reason: &str) -> Vec<String> {
    world.told("PersistentVolumeClaim", "a", reason)
}

/// Whether a volume was counted as provisioned.
fn is_counted(world: &World) -> bool {
    let metrics = world.context.metrics.encode_prometheus();
    let mut lines = metrics.lines();
    lines.any(|line| line.starts_with("controller_persistentvolumeclaim_provision_total{"))
}

/// One of several API servers does not know us, or the token was replaced: the next attempt goes over another connection.
#[tokio::test(start_paused = true)]
async fn an_answer_401_is_told_once_it_lasts() {
    for (refusals, is_told) in [(1, false), (100, true)] {
        let world = World::started(&json!({}));
        *world.api.refusals.lock() = vec![401; refusals];
        world.claim("a", "good");
        pass(60).await;
        let failed = told(&world, "ProvisioningFailed");
        let names_cause = failed.iter().any(|text| text.contains("credentials of the operator"));
        assert_eq!((names_cause, failed.is_empty()), (is_told, !is_told), "{failed:?}");
        assert_eq!(world.saved(), usize::from(!is_told));
    }
}

/// An old one without a finalizer: the answer to its DELETE is the object, and nothing in that says that it goes.
#[tokio::test(start_paused = true)]
async fn a_persistent_volume_that_nobody_holds_is_deleted_by_one_request() {
    let world = World::started(&json!({}));
    world.released("good", "Delete", &[]);
    pass(60).await;
    assert_eq!((world.saved(), world.driver.deleted.lock().len()), (0, 1));
    assert_eq!(world.api.asked("DELETE", VOLUMES), 1);
}

/// The driver of these worlds does not announce PUBLISH_UNPUBLISH_VOLUME.
#[tokio::test(start_paused = true)]
async fn a_volume_of_a_driver_that_attaches_nothing_is_not_told_as_one_that_cannot_be_attached() {
    let world = World::started(&json!({}));
    world.claim("a", "good");
    world.change_claim("a", |claim| {
        claim["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadOnlyMany"]);
    });
    pass(1).await;
    let succeeded = told(&world, "ProvisioningSucceeded");
    assert_eq!(succeeded.len(), 1, "{succeeded:?}");
    assert!(!succeeded[0].contains("cannot be attached"), "{succeeded:?}");
}

/// A webhook changes it: nobody would take it for the claim's afterwards.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_saved_for_another_driver_is_no_success() {
    let world = World::started(&json!({}));
    world.api.gives_away.store(true, Ordering::Relaxed);
    world.claim("a", "good");
    pass(20).await;
    assert_eq!(world.saved(), 1);
    assert!(told(&world, "ProvisioningSucceeded").is_empty() && !is_counted(&world));
    let taken = told(&world, "ProvisioningNameTaken");
    assert!(
        taken.first().is_some_and(|told| told.contains("pvc-uid-a")),
        "{taken:?}"
    );
}

/// Its PersistentVolume is there so that its volume goes: nothing was provisioned.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_saved_for_its_deletion_is_no_success() {
    let world = deleted_during_the_call(|_, settings| {
        settings.provisioning.as_mut().unwrap().policy.hold_deletions = true;
    })
    .await;
    assert_eq!(world.saved(), 1);
    let cancelled = told(&world, "ProvisioningCancelled");
    assert_eq!(cancelled.len(), 1, "{cancelled:?}");
    assert!(
        cancelled[0].contains("saved PersistentVolume pvc-uid-a"),
        "{cancelled:?}"
    );
    assert!(told(&world, "ProvisioningSucceeded").is_empty() && !is_counted(&world));
}

/// No PersistentVolume tells of it.
#[tokio::test(start_paused = true)]
async fn a_not_found_that_counts_as_deleted_is_told_on_the_claim() {
    let world = deleted_during_the_call(|world, settings| {
        world.driver.undo_failures.lock().push(tonic::Code::NotFound);
        settings.provisioning.as_mut().unwrap().policy.orphans = OrphanVolumePolicy::TreatNotFoundAsDeleted;
    })
    .await;
    assert_eq!((world.driver.deleted.lock().len(), world.saved()), (1, 0));
    let counted = told(&world, "VolumeFailedDelete");
    assert_eq!(counted.len(), 1, "{counted:?}");
    assert!(
        counted[0].contains("counts as deleted") && counted[0].contains("no such volume"),
        "{counted:?}"
    );
}

/// It is told as what it is, with the volume that no object names yet.
#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_before_there_is_a_persistent_volume_is_told_on_the_claim() {
    let world = deleted_during_the_call(|world, _| {
        world.driver.undo_failures.lock().push(tonic::Code::Internal);
    })
    .await;
    assert_eq!((world.driver.deleted.lock().len(), world.saved()), (1, 1));
    let failed = told(&world, "VolumeFailedDelete");
    assert_eq!(failed.len(), 1, "{failed:?}");
    for part in ["DeleteVolume of handle of pvc-uid-a: ", "no such volume", "next retry"] {
        assert!(failed[0].contains(part), "{failed:?}");
    }
    assert!(told(&world, "ProvisioningFailed").is_empty());
    let last = world.state.borrow().last_failure.clone().unwrap();
    assert_eq!((last.operation, &*last.attachment), ("delete", "web/a"));
}

/// It is given to another driver while nobody knows what its call did: that is found out, and nothing is provisioned.
#[tokio::test(start_paused = true)]
async fn a_long_call_for_what_nobody_wants_is_not_told_as_provisioning() {
    for (provisioner, count) in [(DRIVER, 1), ("other.test", 0)] {
        let mut world = World::uncertain(&json!({})).await;
        world.engine.take().unwrap().drain().await;
        world.driver.is_slow.store(true, Ordering::Relaxed);
        world.change_claim("a", |claim| {
            claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = provisioner.into();
        });
        world.start();
        pass(5).await;
        assert_eq!(world.driver.calls.lock().len(), 2);
        assert_eq!(told(&world, "Provisioning").len(), count, "{provisioner}");
    }
}

/// Nobody makes the call again.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_what_nobody_wants_any_more_announces_no_retry() {
    let world = deleted_during_the_call(|world, _| {
        world.driver.failures.lock().push(tonic::Code::FailedPrecondition);
    })
    .await;
    let failed = told(&world, "ProvisioningFailed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(
        failed[0].contains("no room") && !failed[0].contains("next retry"),
        "{failed:?}"
    );
}

/// A driver answers the ID of a volume that a PersistentVolume has: on the claim and on the new one, before either is to be deleted.
#[tokio::test(start_paused = true)]
async fn a_volume_that_another_has_as_well_is_told_when_it_is_saved() {
    let world = World::started(&json!({}));
    world.volume(json!({
        "metadata": {"name": "theirs", "uid": "theirs-uid"},
        "spec": {
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "good",
            "csi": {"driver": DRIVER, "volumeHandle": "handle of pvc-uid-a"},
            "claimRef": {"namespace": "web", "name": "b", "uid": "uid-b"},
        },
        "status": {"phase": "Bound"},
    }));
    world.claim("a", "good");
    pass(20).await;
    assert_eq!((world.saved(), is_counted(&world)), (2, true));
    let on_volume = world.told("PersistentVolume", "pvc-uid-a", "HandleShared");
    assert_eq!(told(&world, "HandleShared"), on_volume);
    assert_eq!(on_volume.len(), 1, "{on_volume:?}");
    assert!(
        on_volume[0].contains("that of PersistentVolume theirs as well"),
        "{on_volume:?}"
    );
}

/// Depth, adds and retries, as external-provisioner shows them of its queue.
fn unsaved(world: &World) -> [Option<u64>; 3] {
    let text = world.context.metrics.encode_prometheus();
    ["depth", "adds_total", "retries_total"].map(|name| {
        let series = format!("workqueue_{name}{{driver_name=\"{DRIVER}\",name=\"unsavedpvs\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(series.as_str())?.parse().ok())
    })
}

#[tokio::test(start_paused = true)]
async fn volumes_that_are_not_saved_yet_are_shown_as_a_queue() {
    let mut world = World::started(&json!({}));
    assert_eq!(unsaved(&world), [0, 0, 0].map(Some));
    world.api.fails_to_save.store(true, Ordering::Relaxed);
    world.claim("a", "good");
    world.claim("b", "good");
    pass(1).await;
    let [depth, adds, retries] = unsaved(&world);
    assert_eq!((depth, adds), (Some(2), Some(2)));
    assert!(retries >= Some(2), "{retries:?}");
    world.api.fails_to_save.store(false, Ordering::Relaxed);
    pass(60).await;
    assert_eq!(world.saved(), 2);
    let [depth, adds, _] = unsaved(&world);
    assert_eq!((depth, adds), (Some(0), Some(2)));
    // Who serves the driver next saves it.
    world.api.fails_to_save.store(true, Ordering::Relaxed);
    world.claim("c", "good");
    pass(1).await;
    assert_eq!(unsaved(&world)[..2], [Some(1), Some(3)]);
    world.engine.take().unwrap().drain().await;
    assert_eq!(unsaved(&world)[..2], [Some(0), Some(3)]);
}

/// The driver may be attached for as ever, so that nobody else removes them.
#[tokio::test(start_paused = true)]
async fn the_series_of_an_engine_go_when_it_has_ended() {
    let mut world = World::started(&json!({}));
    let role = ProvisionRole {
        context: world.context.clone(),
        links: RoleLinks::default(),
    };
    *role.links.queue.lock() = Some((DRIVER.into(), world.engine().queue().clone()));
    world.engine.take().unwrap().drain().await;
    assert_eq!(unsaved(&world), [0, 0, 0].map(Some));
    role.ended(&DriverStateSender::new(world.state.clone()));
    assert_eq!(unsaved(&world), [None; 3]);
    assert!(role.links.queue.lock().is_none());
}

/// It is somebody's before a PersistentVolume names it, also for the next engine before that has looked at the claim.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_saved_yet_is_found_by_its_handle() {
    let mut world = World::started(&json!({}));
    world.api.fails_to_save.store(true, Ordering::Relaxed);
    world.claim("a", "good");
    pass(1).await;
    let own = ClaimKey {
        uid: "uid-a".into(),
        name: "web/a".into(),
    };
    let found = |world: &World, except: Option<&ClaimKey>| {
        let unsaved = &world.engine().work().unsaved;
        unsaved.of_handle("handle of pvc-uid-a", except)
    };
    assert_eq!(found(&world, None).as_deref(), Some("pvc-uid-a"));
    assert_eq!(found(&world, Some(&own)), None);
    let ended = world.engine().work().clone();
    world.engine.take().unwrap().drain().await;
    let late = ended.unsaved.of_handle("handle of pvc-uid-a", None);
    assert_eq!(late.as_deref(), Some("pvc-uid-a"), "an attempt may be cut off late");
    world.start();
    assert_eq!(found(&world, None).as_deref(), Some("pvc-uid-a"));
    world.api.fails_to_save.store(false, Ordering::Relaxed);
    pass(60).await;
    assert_eq!((world.saved(), found(&world, None)), (1, None));
}
