//! IDs that the driver answers again: it makes them of the name of the claim, and a claim of that name is made again while the volume of
//! the former one is being deleted. What it answers then is the volume that goes.

use super::*;
use crate::key::ClaimKey;
use crate::provision::Deletion;

/// How long DeleteVolume takes, and how long one looks that nothing is saved meanwhile.
const DELETION: Duration = Duration::from_secs(5);
const MEANWHILE: Duration = Duration::from_millis(4_800);

/// With a driver that has one ID for all volumes, and a PersistentVolume of it, whose deletion is under way.
async fn deleting(takes: Duration, failures: &[tonic::Code]) -> World {
    let world = World::started(&json!({}));
    *world.driver.only_id.lock() = Some("h".to_owned());
    *world.driver.deletion.lock() = takes;
    world.driver.undo_failures.lock().extend(failures);
    world.released(
        "good",
        "Delete",
        &["external-provisioner.volume.kubernetes.io/finalizer"],
    );
    tokio::time::sleep(REQUEST * 10).await;
    assert_eq!(*world.driver.deleted.lock(), ["h"]);
    world
}

/// How many calls were made for a claim, and whether its PersistentVolume is saved.
fn progress(world: &World, claim: &str) -> (usize, bool) {
    let calls = world.driver.calls.lock();
    let calls = calls
        .iter()
        .filter(|(name, _)| *name == format!("pvc-uid-{claim}"))
        .count();
    let is_saved = world
        .api
        .objects
        .lock()
        .contains_key(&format!("{VOLUMES}pvc-uid-{claim}"));
    (calls, is_saved)
}

/// A claim is made during the deletion: it gets its volume by the first call after that.
async fn waits_for_the_deletion(world: &World) {
    world.claim("b", "good");
    tokio::time::sleep(MEANWHILE).await;
    let (calls, is_saved) = progress(world, "b");
    assert!(calls > 0 && !is_saved, "{calls} calls");
    pass(20).await;
    assert_eq!(progress(world, "b"), (calls + 1, true));
}

#[tokio::test(start_paused = true)]
async fn what_is_being_deleted_is_nobodys_new_volume() {
    let world = deleting(DELETION, &[]).await;
    waits_for_the_deletion(&world).await;
    assert_eq!(*world.driver.deleted.lock(), ["h"], "nobody deletes it again");
    let told = world.told("PersistentVolumeClaim", "b", "ProvisioningUncertain");
    assert!(told.iter().any(|note| note.contains("PersistentVolume pv")), "{told:?}");
}

/// The driver looked for the volume before it was gone, and is slow to say so.
#[tokio::test(start_paused = true)]
async fn what_went_during_the_call_is_no_new_volume() {
    let world = deleting(CALL * 3, &[]).await;
    world.driver.is_slow.store(true, Ordering::Relaxed);
    world.claim("b", "good");
    tokio::time::sleep(CALL * 22).await;
    assert!(!world.api.objects.lock().contains_key(&format!("{VOLUMES}pv")));
    assert_eq!(progress(&world, "b"), (1, false));
    pass(10).await;
    assert_eq!(progress(&world, "b"), (2, true));
}

/// A deletion that nobody knows the end of may go on in the driver.
#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_of_its_deletion_counts_until_it_is_known() {
    // The last one comes first.
    let world = deleting(CALL, &[tonic::Code::DeadlineExceeded; 3]).await;
    *world.driver.deletion.lock() = Duration::ZERO;
    tokio::time::sleep(CALL).await;
    world.claim("b", "good");
    let mut deletions = 1;
    while deletions < 4 {
        tokio::time::sleep(CALL).await;
        assert!(!progress(&world, "b").1, "after {deletions} deletions");
        deletions = world.driver.deleted.lock().len();
    }
    pass(30).await;
    assert!(progress(&world, "b").1);
    assert_eq!(world.driver.deleted.lock().len(), 4);
}

/// Whoever keeps the volume of the former claim gives it to the new one, as drivers that share one volume mean it.
#[tokio::test(start_paused = true)]
async fn what_is_not_deleted_after_all_may_be_shared() {
    let world = deleting(CALL, &[tonic::Code::FailedPrecondition]).await;
    tokio::time::sleep(CALL * 2).await;
    world.claim("b", "good");
    pass(20).await;
    assert!(progress(&world, "b").1);
    assert_eq!(world.driver.deleted.lock().len(), 1, "it is b's now");
}

/// The volume that is undone is that of another claim.
#[tokio::test(start_paused = true)]
async fn what_is_undone_is_nobodys_new_volume() {
    let world = World::started(&json!({}));
    *world.driver.only_id.lock() = Some("h".to_owned());
    *world.driver.deletion.lock() = DELETION;
    world.claim("a", "good");
    tokio::time::sleep(CALL / 2).await;
    world.delete_claim("a");
    tokio::time::sleep(CALL).await;
    assert_eq!(*world.driver.deleted.lock(), ["h"]);
    waits_for_the_deletion(&world).await;
}

/// Until it is known, the first one keeps it: its next deletion tells.
#[tokio::test(start_paused = true)]
async fn what_was_perhaps_undone_is_nobodys_new_volume() {
    let world = World::started(&json!({}));
    *world.driver.only_id.lock() = Some("h".to_owned());
    world.driver.undo_failures.lock().push(tonic::Code::DeadlineExceeded);
    world.api.fails_to_save.store(true, Ordering::Relaxed);
    world.claim("a", "good");
    tokio::time::sleep(CALL / 2).await;
    world.delete_claim("a");
    tokio::time::sleep(CALL).await;
    assert_eq!(*world.driver.deleted.lock(), ["h"]);
    world.claim("b", "good");
    tokio::time::sleep(CALL * 3).await;
    let unsaved = &world.engine().work().unsaved;
    let [a, b] = keys();
    assert!(unsaved.of_handle("h", Some(&b)).is_some(), "that of a");
    assert!(unsaved.of_handle("h", Some(&a)).is_none(), "b has none");
    assert_eq!(progress(&world, "b").0, 1);
}

/// It is let go, and waits for nobody: what the driver answers is somebody else's.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_deleted_does_not_wait_for_the_deletion_of_anothers_volume() {
    let world = deleting(DELETION * 100, &[]).await;
    world.claim("b", "good");
    tokio::time::sleep(CALL * 5).await;
    assert!(world.is_marked("b"));
    world.delete_claim("b");
    pass(20).await;
    assert!(!world.is_marked("b"));
    assert_eq!(*world.driver.deleted.lock(), ["h"]);
}

/// Two claims that are made at once share it, as ever.
#[tokio::test(start_paused = true)]
async fn one_volume_for_two_claims_is_saved_for_both() {
    let world = World::started(&json!({}));
    *world.driver.only_id.lock() = Some("h".to_owned());
    world.claim("a", "good");
    world.claim("b", "good");
    pass(1).await;
    assert_eq!([progress(&world, "a"), progress(&world, "b")], [(1, true); 2]);
}

fn keys() -> [ClaimKey; 2] {
    ["a", "b"].map(|name| ClaimKey {
        name: format!("web/{name}").into(),
        uid: format!("uid-{name}").into(),
    })
}

/// The claim was answered it after the deletion had looked for claims that were.
#[tokio::test(start_paused = true)]
async fn what_a_claim_has_just_got_is_not_deleted() {
    let world = World::started(&json!({}));
    let unsaved = &world.engine().work().unsaved;
    let [a, b] = keys();
    let creating = unsaved.begin_create();
    assert!(creating.take(&a, "pvc-a", "h"));
    assert_eq!(unsaved.begin_delete("h", None).err().as_deref(), Some("pvc-a"));
    assert_eq!(unsaved.begin_delete("h", Some(&b)).err().as_deref(), Some("pvc-a"));
    let mut deleting = unsaved.begin_delete("h", Some(&a)).unwrap();
    assert!(!unsaved.begin_create().take(&b, "pvc-b", "h"), "it is undone");
    deleting.ended(Deletion::Deleted);
    drop(deleting);
    assert!(!creating.take(&b, "pvc-b", "h"), "it was, during the call");
    assert!(unsaved.begin_create().take(&b, "pvc-b", "h"));
    assert!(creating.take(&b, "pvc-b", "another"));
    drop(creating);
    assert_eq!(unsaved.deletions(), 0);
}

/// A CreateVolume may take longer than the pause between two deletions that are refused: none of its answers would be taken.
#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_refused_during_the_call_says_nothing_of_its_answer() {
    let world = World::started(&json!({}));
    let unsaved = &world.engine().work().unsaved;
    let [a, _] = keys();
    for (outcome, is_taken) in [
        (Deletion::NotDeleted, true),
        (Deletion::Uncertain, false),
        (Deletion::Deleted, false),
    ] {
        let creating = unsaved.begin_create();
        let mut deleting = unsaved.begin_delete("h", None).unwrap();
        deleting.ended(outcome);
        drop(deleting);
        assert_eq!(creating.take(&a, "pvc-a", "h"), is_taken, "{outcome:?}");
        unsaved.set(&a, None);
    }
    assert_eq!(unsaved.deletions(), 0);
}
