//! PersistentVolumes that have one handle: who goes on when another one changes.

use super::*;
use crate::provision::VolumeReason;

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// One of them, in this phase.
pub(super) fn shared(world: &World, name: &str, phase: &str) {
    shared_handle(world, name, phase, "h");
}

/// With this handle.
fn shared_handle(world: &World, name: &str, phase: &str, handle: &str) {
    world.volume(json!({
        "metadata": {
            "name": name, "uid": format!("{name}-uid"), "finalizers": [FINALIZER],
            "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
        },
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "good",
            "csi": {"driver": DRIVER, "volumeHandle": handle},
            "claimRef": {"namespace": "web", "name": name, "uid": format!("uid-{name}")},
        },
        "status": {"phase": phase},
    }));
}

/// The watch brings which PersistentVolumes are gone.
fn bring_deletions(world: &World) {
    let volumes = &world.context.volumes;
    let mut known: Vec<Arc<Volume>> = Vec::new();
    volumes.for_each(&mut |volume| known.push(volume.clone()));
    for volume in known {
        let path = format!("{VOLUMES}{}", volume.name);
        let is_there = world.api.objects.lock().contains_key(&path);
        if !is_there {
            volumes.is_gone(&volume.name, &volume.uid);
        }
    }
}

/// What PersistentVolumes wait for.
fn waits(world: &World) -> Vec<VolumeReason> {
    let mut waits = Vec::new();
    let queue = world.engine().queue();
    queue.remember_all(|_, memory| waits.extend(memory.waits()));
    waits
}

/// Each of them would be looked at again only after minutes.
#[tokio::test(start_paused = true)]
async fn the_last_one_that_is_released_lets_all_go_and_the_volume_is_deleted_once() {
    let world = World::started(&json!({}));
    for (name, phase) in [("c", "Bound"), ("a", "Released"), ("b", "Released")] {
        shared(&world, name, phase);
    }
    pass(10).await;
    assert_eq!((waits(&world), world.saved()), (vec![VolumeReason::HandleShared; 2], 3));
    shared(&world, "c", "Released");
    for _ in 0..3 {
        if world.saved() > 1 {
            pass(1).await;
            assert!(world.driver.deleted.lock().is_empty(), "{} are left", world.saved());
            bring_deletions(&world);
        }
    }
    assert_eq!((world.saved(), world.api.asked("DELETE", VOLUMES)), (1, 2));
    assert!(world.api.objects.lock().contains_key(&format!("{VOLUMES}a")));
    pass(1).await;
    bring_deletions(&world);
    assert_eq!(*world.driver.deleted.lock(), ["h"]);
    assert_eq!(world.saved(), 0);
}

/// A VolumeAttachment noted the handle and names a PersistentVolume that is gone: one of those that share the handle is told of when it
/// goes, which another VolumeAttachment names.
#[tokio::test(start_paused = true)]
async fn all_that_wait_for_one_attachment_go_on_when_it_is_gone_and_an_event_asks_for_it_once() {
    const ALL: usize = 20;
    let world = World::started(&json!({}));
    let attached = |names: &[&str]| {
        *world.volumes.attached.lock() = names.iter().copied().map(String::from).collect();
    };
    let told_of_first = || {
        let Seen::Here(first) = world.volumes.volume("pv0") else {
            panic!("there is no pv0")
        };
        world.volumes.note_looks.store(0, Ordering::Relaxed);
        world.volumes.tell(&first);
        world.volumes.note_looks.load(Ordering::Relaxed)
    };
    attached(&["h", "pv0"]);
    for number in 0..ALL {
        shared(&world, &format!("pv{number}"), "Released");
    }
    pass(10).await;
    let waiting = waits(&world);
    let still_attached = waiting.iter().filter(|waits| **waits == VolumeReason::StillAttached);
    assert_eq!((still_attached.count(), waiting.len()), (ALL - 1, ALL));
    let looks = told_of_first();
    assert!(looks < 5, "{looks} looks for one event");
    attached(&["pv0"]);
    told_of_first();
    for _ in 0..3 {
        pass(5).await;
        bring_deletions(&world);
    }
    assert_eq!(world.saved(), 1);
    assert!(world.api.objects.lock().contains_key(&format!("{VOLUMES}pv0")));
    assert!(world.driver.deleted.lock().is_empty(), "it is attached yet");
}

/// Its PersistentVolume cannot be saved, and the volume is somebody else's: it is left alone once nobody wants it. Nothing else tells of that.
#[tokio::test(start_paused = true)]
async fn a_claim_that_lets_go_of_a_handle_lets_its_volume_be_deleted() {
    const HANDLE: &str = "handle of pvc-uid-a";
    let world = World::started(&json!({}));
    world.api.fails_to_save.store(true, Ordering::Relaxed);
    world.claim("a", "good");
    pass(1).await;
    shared_handle(&world, "pv", "Released", HANDLE);
    pass(1).await;
    assert_eq!(waits(&world), [VolumeReason::HandleShared]);
    world.delete_claim("a");
    pass(5).await;
    assert!(!world.is_marked("a"));
    assert_eq!(*world.driver.deleted.lock(), [HANDLE]);
}
