//! What the work for one object costs the others, counted in look-ups: times would depend on the machine.

use std::sync::atomic::Ordering;

use super::*;
use crate::reflect::Sink as _;

fn lookups(store: &Store) -> u64 {
    let counted = store.inner.rules.tables.lookups.unwrap();
    counted.load(Ordering::Relaxed)
}

fn on_many_nodes() -> Volume {
    let mut record = volume("pv1", 1);
    record.spec.access_modes.read_write_once = false;
    record.spec.access_modes.read_write_many = true;
    record.finalizers = Finalizers::new([FINALIZER]);
    record
}

fn attached(number: u64) -> Attachment {
    let record = held(super::attached(&format!("va{number}"), number + 10));
    let mut record = noted(on_node(record, &format!("n{number}")), "h", &[]);
    record.node_id = Some(format!("id{number}").into());
    record
}

/// All attachments of one volume are deleted, detached and gone; with what each attempt looks at. So many `twins`,
/// PersistentVolumes of the same handle, are attached to each machine besides, under another name of its node.
fn mass_detach(size: u64, twins: u64) -> u64 {
    let (store, queue, _registration) = served();
    store.apply(on_many_nodes());
    for twin in 0..twins {
        let record = with(on_many_nodes(), |it| it.name = format!("twin{twin}").into());
        store.apply(record);
    }
    for number in 0..size * twins {
        let mut record = attached(number);
        record.name = format!("twin-va{number}").into();
        record.uid = format!("twin-uid{number}").into();
        record.source = AttachmentSource::PersistentVolume(format!("twin{}", number % twins).into());
        record.node = format!("m{}", number / twins).into();
        record.node_id = Some(format!("id{}", number / twins).into());
        store.apply(record);
    }
    for number in 0..size {
        store.apply(attached(number));
    }
    assert_eq!(woken(&queue), [""; 0]);
    let before = lookups(&store);
    for number in 0..size {
        let mut record = attached(number);
        record.resource_version = ResourceVersion(1_000_000 + number);
        record.deleting = Some("2026-01-01T00:00:00Z".parse().unwrap());
        store.apply(record);
    }
    assert_eq!(queue.len(), usize::try_from(size).unwrap());
    for number in 0..size {
        let name: Arc<str> = format!("va{number}").into();
        let mut record = Attachment::clone(&store.attachment(&name).unwrap().attachment);
        record.resource_version = ResourceVersion(2_000_000 + number);
        record.finalizers = Finalizers::default();
        store.apply_response(record);
        assert!(store.attachment(&name).is_none());
    }
    assert!(queue.is_empty() && store.counts(DRIVER).detaching == 0);
    lookups(&store) - before
}

/// Twice as many cost a little more than twice as much, where each used to look at all others: also where three other PersistentVolumes of
/// the handle have it at each machine, under another name of its node.
#[tokio::test(start_paused = true)]
async fn a_mass_detach_of_one_volume_costs_each_attachment_the_same() {
    for (twins, each) in [(0, 40), (3, 120)] {
        let (small, large) = (mass_detach(100, twins), mass_detach(800, twins));
        println!("{twins} twins, 100: {small} look-ups, 800: {large}");
        assert!(large < small * 10, "{twins} twins: {small} and {large} look-ups");
        assert!(large < 800 * each, "{twins} twins: 800 cost {large} look-ups");
    }
}

/// The volume changes, as when it is protected: each of its attachments is looked at once.
#[tokio::test(start_paused = true)]
async fn a_change_of_a_volume_costs_one_look_at_each_attachment() {
    let (store, queue, _registration) = served();
    store.apply(on_many_nodes());
    for number in 0..500 {
        store.apply(with(attached(number), |it| it.attached = false));
    }
    let before = lookups(&store);
    let changed = |version: u64, finalizers: &[&str]| {
        with(on_many_nodes(), |it| {
            it.resource_version = ResourceVersion(version);
            it.finalizers = Finalizers::new(finalizers.iter().copied());
        })
    };
    store.apply(changed(9_000_000, &["a/b", FINALIZER]));
    // The watch lets others go on in between.
    let piece = lookups(&store) - before;
    assert!(piece < 100 * 20, "{piece} look-ups at once");
    let waiting = store.inner.backlog.lock().len();
    assert!(waiting > 0);
    store.apply(changed(9_000_001, &[FINALIZER]));
    assert_eq!(store.inner.backlog.lock().len(), waiting, "each waits once");
    store.work_off_backlog().await;
    // The first ones were looked at by each change.
    let cost = lookups(&store) - before;
    assert!(cost < 600 * 20, "{cost} look-ups");
    assert_eq!(store.inner.backlog.lock().len(), 0);
    assert!(queue.is_held(&AttacherKey::Attachment("va0".into())) || queue.len() == 500);
}

/// A controller writes annotations on a volume that is attached to many nodes, and kubelets write theirs: no record keeps them.
#[tokio::test(start_paused = true)]
async fn what_no_record_keeps_of_a_volume_or_a_node_costs_nobody_a_look() {
    let (store, queue, _registration) = served();
    store.apply(on_many_nodes());
    store.apply(node("n1", 2, &[(DRIVER, "id1")]));
    for number in 0..500 {
        store.apply(with(attached(number), |it| it.attached = false));
    }
    woken(&queue);
    let (before, generation) = (lookups(&store), store.generation());
    for version in 9_000_000..9_000_100 {
        let mut record = on_many_nodes();
        record.resource_version = ResourceVersion(version);
        store.apply(record);
        store.apply(node("n1", version, &[(DRIVER, "id1")]));
    }
    assert_eq!(store.inner.backlog.lock().len(), 0);
    let cost = lookups(&store) - before;
    assert!(cost <= 200, "{cost} look-ups");
    assert!(queue.is_empty() && store.generation() == generation);
    let known = store.volume("pv1").unwrap().0.resource_version;
    assert_eq!(known, ResourceVersion(9_000_099));
}

/// A node has attachments of many drivers, and one of these registers with the kubelet, or goes.
#[tokio::test(start_paused = true)]
async fn the_registration_of_a_driver_costs_the_attachments_of_others_one_look() {
    let (store, queue, _registration) = served();
    store.apply(on_many_nodes());
    store.apply(node("n1", 2, &[(DRIVER, "id1")]));
    for number in 0..100 {
        let record = on_node(attached(number), "n1");
        store.apply(with(record, |it| it.attached = false));
    }
    woken(&queue);
    let before = lookups(&store);
    store.apply(node("n1", 3, &[(DRIVER, "id1"), ("b.test", "x")]));
    let cost = lookups(&store) - before;
    assert!(queue.is_empty() && cost <= 100, "{cost} look-ups");
    store.apply(node("n1", 4, &[(DRIVER, "id2"), ("b.test", "x")]));
    store.work_off_backlog().await;
    assert_eq!(queue.len(), 100);
}

/// Gauges and conditions ask each second, of each driver, what has waited longest. That costs no walk over all attachments.
#[test]
fn what_has_waited_longest_is_found_without_a_walk() {
    let (store, _queue, _registration) = served();
    for number in 0..1_000 {
        let mut record = attached(number);
        record.created = jiff::Timestamp::from_second(1_000 + i64::try_from(number).unwrap()).ok();
        record.attached = number % 10 != 3;
        store.apply(record);
    }
    let name = |found: Option<Arc<Attachment>>| found.map(|record| record.name.to_string());
    let before = lookups(&store);
    for _ in 0..100 {
        assert_eq!(name(store.oldest_pending(DRIVER)).as_deref(), Some("va3"));
        assert_eq!(name(store.oldest_pending_of(DRIVER, false)).as_deref(), Some("va3"));
        assert_eq!(name(store.oldest_pending_of(DRIVER, true)), None);
    }
    let cost = lookups(&store) - before;
    assert!(cost <= 300, "{cost} records looked at");
    // The oldest one is attached, the next one is deleted, and one more is gone.
    let mut record = attached(3);
    record.resource_version = ResourceVersion(5_000);
    store.apply(record);
    let mut record = attached(13);
    record.resource_version = ResourceVersion(5_001);
    record.created = jiff::Timestamp::from_second(1_013).ok();
    record.deleting = jiff::Timestamp::from_second(9_000).ok();
    store.apply(record);
    removed(&store, "va23");
    assert_eq!(name(store.oldest_pending_of(DRIVER, false)), Some("va33".to_owned()));
    assert_eq!(name(store.oldest_pending_of(DRIVER, true)), Some("va13".to_owned()));
    assert_eq!(name(store.oldest_pending(DRIVER)), Some("va33".to_owned()));
}
