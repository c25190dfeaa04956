//! Who is woken by what. Nothing here takes time: the clock is paused.

use super::*;
use crate::cache::DETACH;
use crate::decide::patch::WriteTarget;

fn deleted_volume(version: u64, finalizers: &[&str]) -> Volume {
    let mut record = volume("pv1", version);
    record.deleting = true;
    record.finalizers = Finalizers::new(finalizers.iter().copied());
    record
}

#[tokio::test(start_paused = true)]
async fn an_attachment_goes_to_its_driver() {
    let (store, queue, _registration) = served();
    let other = with(attachment("b", 1), |it| it.attacher = "nobody.test".into());
    store.apply(attachment("a", 1));
    store.apply(other);
    assert_eq!(woken(&queue), ["a"]);
    store.apply(detaching("a", 2));
    let ticket = next(&queue).unwrap();
    assert_eq!((ticket.lane, ticket.group.as_deref()), (DETACH, Some("n1")));
    ticket.finish(RunResult::Done);
}

#[tokio::test(start_paused = true)]
async fn what_needs_no_work_is_forgotten() {
    let (store, queue, _registration) = served();
    store.apply(attachment("a", 1));
    fail_next(&queue);
    assert_eq!(queue.len(), 1);
    store.apply(attached("a", 2));
    assert!(queue.is_empty(), "and so are its failures");
    let mut released = detaching("a", 3);
    released.finalizers = Finalizers::new(["a/b"]);
    store.apply(released);
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_appears_wakes_who_waits_for_it_and_nobody_else() {
    let (store, queue, _registration) = served();
    let elsewhere = with(attachment("b", 1), |it| it.node = "n2".into());
    for record in [attachment("a", 1), elsewhere] {
        store.apply(record);
        fail_next(&queue);
    }
    store.apply(node("n1", 5, &[("b.test", "x")]));
    assert_eq!(woken(&queue), ["a"], "a CSINode without the driver is news as well");
    store.apply(node("n1", 6, &[("b.test", "y")]));
    assert_eq!(woken(&queue), [""; 0], "another driver's registration is none of ours");
    store.seed(DRIVER);
    fail_next(&queue);
    store.apply(node("n1", 7, &[("b.test", "y"), (DRIVER, "id")]));
    assert_eq!(woken(&queue), ["a"]);
    assert!(queue.is_held(&AttacherKey::Attachment("b".into())));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_appears_wakes_who_waits_for_it() {
    let (store, queue, _registration) = served();
    store.apply(attachment("a", 1));
    fail_next(&queue);
    store.apply(volume("pv2", 2));
    assert_eq!(woken(&queue), [""; 0]);
    store.apply(volume("pv1", 3));
    assert_eq!(woken(&queue), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn the_echo_of_our_own_writes_wakes_nobody() {
    let (store, queue, _registration) = served();
    store.apply(volume("pv1", 1));
    store.apply(attachment("a", 2));
    let ticket = next(&queue).unwrap();
    // Our writes during the run, as answers and again as the watch brings them.
    let mut protected = volume("pv1", 3);
    protected.finalizers = Finalizers::new([FINALIZER]);
    let claimed = with(held(attachment("a", 4)), |it| it.node_id = Some("id".into()));
    let mut failed = claimed.clone();
    failed.resource_version.0 = 5;
    failed.attach_error = Some(volume_error().into());
    store.apply_response(protected.clone());
    store.apply_response(claimed.clone());
    store.apply_response(failed.clone());
    let fingerprint = ticket.fingerprint;
    ticket.finish(RunResult::FailedWith { fingerprint });
    let key = AttacherKey::Attachment("a".into());
    assert!(queue.is_held(&key));
    store.apply(protected);
    store.apply(claimed);
    store.apply(failed.clone());
    assert!(queue.is_held(&key) && queue.failures(&key) == 1);
    // Somebody else's change of what decides nothing, too.
    failed.resource_version.0 = 6;
    failed.finalizers = Finalizers::new([FINALIZER, "a/b"]);
    store.apply(failed.clone());
    assert!(queue.is_held(&key));
    failed.resource_version.0 = 7;
    failed.retry_now = Some("1".into());
    store.apply(failed);
    assert_eq!(woken(&queue), ["a"], "but a person's wish is heard");
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_comes_back_does_not_inherit_a_backoff() {
    let (store, queue, _registration) = served();
    store.apply(attachment("a", 1));
    fail_next(&queue);
    removed(&store, "a");
    assert!(queue.is_empty());
    let mut back = attachment("a", 9);
    back.uid = "another".into();
    store.apply(back.clone());
    fail_next(&queue);
    // And when the end of the first was missed.
    (back.resource_version.0, back.uid) = (10, "a third".into());
    store.apply(back);
    assert_eq!(woken(&queue), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_attachment_wakes_its_volume_for_every_driver_that_holds_it() {
    let (store, queue, _registration) = served();
    let second = route("b.test");
    let (second_queue, third) = (second.queue.clone(), route("c.test"));
    let third_queue = third.queue.clone();
    let _others = [store.register(second).unwrap(), store.register(third).unwrap()];
    store.apply(attachment("a", 1));
    woken(&queue);
    store.apply(volume("pv1", 2));
    removed(&store, "a");
    assert_eq!(woken(&queue), [""; 0], "a live volume is left alone");
    store.apply(attachment("a", 3));
    store.apply(deleted_volume(4, &[FINALIZER, "external-attacher/b-test"]));
    woken(&queue);
    woken(&second_queue);
    removed(&store, "a");
    assert_eq!(woken(&queue), ["volume pv1"]);
    // Whoever the attachment belonged to.
    assert_eq!(woken(&second_queue), ["volume pv1"]);
    assert_eq!(woken(&third_queue), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_seen_first_in_the_answer_to_our_write_is_not_lost() {
    let (store, queue, _registration) = served();
    store.apply(deleted_volume(1, &[FINALIZER]));
    store.apply(detaching("a", 2));
    assert_eq!(store.volume("pv1").map(|(_, attachments)| attachments), Some(1));
    woken(&queue);
    store.apply_response(let_go("a", 3));
    assert!(store.attachment("a").is_none());
    assert_eq!(store.volume("pv1").map(|(_, attachments)| attachments), Some(0));
    assert_eq!(woken(&queue), ["volume pv1"]);
    // Late copies of the watch, up to its report.
    store.apply(detaching("a", 2));
    store.apply(let_go("a", 3));
    assert!(store.attachment("a").is_none() && woken(&queue).is_empty());
    removed(&store, "a");
    assert_eq!(store.inner.index.read().attachments.tombstones(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_end_brings_nothing_back() {
    let (store, queue, _registration) = served();
    store.apply(volume("pv1", 1));
    store.apply(attachment("a", 2));
    woken(&queue);
    removed(&store, "a");
    store.apply_response(attached("a", 3));
    store.apply_response(let_go("a", 4));
    assert!(store.attachment("a").is_none() && woken(&queue).is_empty());
    let index = store.inner.index.read();
    assert_eq!((index.volume("pv1").unwrap().1, index.attachments.tombstones()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_404_is_about_the_object_that_was_asked_for() {
    let (store, queue, _registration) = served();
    store.apply(attachment("a", 1));
    store.apply(with(attachment("a", 5), |it| it.uid = "another".into()));
    woken(&queue);
    let target = WriteTarget::AttachmentStatus("a".into());
    store.mark_deleted(&target, "a-uid");
    assert_eq!(&*store.attachment("a").unwrap().attachment.uid, "another");
    store.mark_deleted(&target, "another");
    assert!(store.attachment("a").is_none());
    store.apply(volume("pv1", 1));
    store.mark_deleted(&WriteTarget::Volume("pv1".into()), "not it");
    assert!(store.volume("pv1").is_some());
    store.mark_deleted(&WriteTarget::Volume("pv1".into()), "pv1-uid");
    assert!(store.volume("pv1").is_none() && store.version(&WriteTarget::Volume("pv1".into())).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_goes_wakes_its_attachments() {
    let (store, queue, _registration) = served();
    store.apply(deleted_volume(1, &[FINALIZER]));
    store.apply(attachment("a", 2));
    while let Some(ticket) = next(&queue) {
        let fingerprint = ticket.fingerprint;
        ticket.finish(RunResult::FailedWith { fingerprint });
    }
    store.apply_response(deleted_volume(3, &[]));
    assert!(store.volume("pv1").is_none());
    // Its error changes from 'deleted' to 'not found'.
    let ticket = next(&queue).unwrap();
    assert_eq!(label(&ticket.key), "a");
    ticket.finish(RunResult::Done);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_was_replaced_in_a_gap_frees_its_old_volume() {
    let (store, queue, _registration) = served();
    store.apply(attachment("a", 1));
    store.apply(deleted_volume(2, &[FINALIZER]));
    woken(&queue);
    let back = of_volume(attachment("a", 9), "pv2");
    store.apply(with(back, |it| it.uid = "another".into()));
    assert_eq!(woken(&queue), ["a", "volume pv1"]);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_registers_gets_what_piled_up_and_one_that_leaves_nothing_more() {
    let store = Store::default();
    store.apply(attachment("a", 1));
    store.apply(deleted_volume(1, &[FINALIZER]));
    let first = route(DRIVER);
    let queue = first.queue.clone();
    let registration = store.register(first).unwrap();
    assert_eq!(woken(&queue), ["a", "volume pv1"]);
    drop(registration);
    store.apply(attachment("a", 2));
    assert!(queue.is_empty());
    let again = route(DRIVER);
    let queue = again.queue.clone();
    let _registration = store.register(again).unwrap();
    assert_eq!(woken(&queue), ["a", "volume pv1"]);
}

/// A live volume of an in-tree plug-in goes to the driver that holds it when migration is taken back: by a change, at the
/// end of its last attachment, and when the driver registers.
#[tokio::test(start_paused = true)]
async fn a_live_volume_whose_migration_is_taken_back_is_looked_at() {
    const GCE: &str = "pd.csi.storage.gke.io";
    let disk = |version: u64, migrated_to: Option<&str>| {
        let annotations = migrated_to.map(|driver| json!({"pv.kubernetes.io/migrated-to": driver}));
        let wire: PersistentVolumeWire = serde_json::from_value(json!({
            "metadata": {
                "name": "pv1", "uid": "pv1-uid", "resourceVersion": version.to_string(), "annotations": annotations,
                "finalizers": ["external-attacher/pd-csi-storage-gke-io"],
            },
            "spec": {"gcePersistentDisk": {"pdName": "d"}},
        }))
        .unwrap();
        Volume::from(wire)
    };
    let store = Store::default();
    store.apply(disk(1, None));
    let (first, other) = (route(GCE), route("b.test"));
    let (queue, other_queue) = (first.queue.clone(), other.queue.clone());
    let registration = store.register(first).unwrap();
    let _other = store.register(other).unwrap();
    assert_eq!(woken(&queue), ["volume pv1"], "at the start");
    store.apply(disk(2, Some(GCE)));
    assert_eq!(woken(&queue), [""; 0], "migrated, and so ours");
    let held = with(attachment("a", 3), |it| it.attacher = "nobody.test".into());
    store.apply(held);
    store.apply(disk(4, None));
    assert_eq!(woken(&queue), ["volume pv1"], "taken back");
    removed(&store, "a");
    assert_eq!(woken(&queue), ["volume pv1"], "and free");
    assert_eq!(woken(&other_queue), [""; 0], "who does not hold it is not asked");
    drop(registration);
    store.apply(disk(5, Some(GCE)));
    let again = route(GCE);
    let queue = again.queue.clone();
    let _registration = store.register(again).unwrap();
    assert_eq!(woken(&queue), [""; 0], "nothing to seed");
}

#[tokio::test(start_paused = true)]
async fn one_driver_is_served_once_and_one_finalizer_belongs_to_one_driver() {
    let store = Store::default();
    let _registration = store.register(route("a.test")).unwrap();
    let conflict = |driver| store.register(route(driver)).err().expect("a conflict");
    let (same, collision) = (conflict("a.test"), conflict("a-test"));
    let said = "driver a.test is already served by AttacherConfig config-of-a.test; delete one of the two";
    assert_eq!(same.to_string(), said);
    assert_eq!((&*collision.driver, &*collision.other.name), ("a-test", "a.test"));
    assert!(collision.to_string().contains(FINALIZER));
    assert_ne!(same.reason(), collision.reason());
}

/// As after a restore of the API server from a backup.
#[tokio::test(start_paused = true)]
async fn a_volume_that_loses_our_finalizer_wakes_what_is_attached() {
    let (store, queue, _registration) = served();
    let protected = |version, finalizers: &[&str]| {
        let finalizers = Finalizers::new(finalizers.iter().copied());
        with(volume("pv1", version), |record| record.finalizers = finalizers)
    };
    store.apply(protected(2, &[FINALIZER]));
    store.apply(held(attached("a", 1)));
    assert_eq!(woken(&queue), [""; 0]);
    store.apply(protected(3, &["a/b"]));
    assert_eq!(woken(&queue), ["a"]);
    // A driver that starts finds it too.
    store.seed(DRIVER);
    fail_next(&queue);
    store.apply(protected(4, &["a/b", FINALIZER]));
    assert!(queue.is_empty());
}
