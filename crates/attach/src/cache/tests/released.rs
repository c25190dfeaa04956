//! What a provisioner asks of the cache: who uses a volume, and which volumes have its handle.

use parking_lot::Mutex;
use std::sync::atomic::Ordering;

use super::*;

fn attach(store: &Store, name: &str, volume: &str, node: &str, version: u64) {
    let record = on_node(of_volume(attachment(name, version), volume), node);
    store.apply(with(record, |record| record.attacher = "of.another".into()));
}

/// The names of the volumes that are told of from now on.
fn listened(store: &Store) -> Arc<Mutex<Vec<String>>> {
    let told = Arc::<Mutex<Vec<String>>>::default();
    let tell = told.clone();
    store.listen_to_volumes(Arc::new(move |volume: &Arc<Volume>| {
        tell.lock().push(volume.name.to_string());
    }));
    told
}

#[test]
fn the_nodes_of_a_volume_are_named() {
    let store = Store::default();
    store.apply(volume("pv1", 1));
    let nodes = || {
        store
            .nodes_of_volume("pv1", DRIVER, "h1")
            .map(|nodes| nodes.to_string())
    };
    assert_eq!(nodes(), None);
    attach(&store, "va0", "pv1", "n0", 10);
    attach(&store, "other", "pv2", "n9", 11);
    assert_eq!(nodes().as_deref(), Some("n0"));
    for number in 1..10 {
        let (name, node) = (format!("va{number}"), format!("n{number}"));
        attach(&store, &name, "pv1", &node, 11 + number);
    }
    assert_eq!(nodes().as_deref(), Some("n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"));
    for number in 0..10 {
        removed(&store, &format!("va{number}"));
    }
    assert_eq!(nodes(), None);
}

/// The PersistentVolume that it was attached by was removed by force, and another one made for the same volume.
#[test]
fn an_attachment_that_noted_the_handle_is_one_of_the_volume() {
    let store = Store::default();
    let told = listened(&store);
    store.apply(noted(of_volume(attachment("va1", 1), "former"), "h1", &[]));
    store.apply(with_handle("pv1", 2, "h1"));
    let nodes = |name, handle| store.nodes_of_volume(name, DRIVER, handle);
    assert_eq!(nodes("pv1", "h1").as_deref(), Some("n1"));
    assert_eq!(nodes("pv2", "h2"), None);
    // Of one that is not there, too.
    assert_eq!(nodes("pv3", "h1").as_deref(), Some("n1"));
    assert_eq!(nodes("former", "h3").as_deref(), Some("n1"));
    assert_eq!(store.nodes_of_volume("pv3", "of.another", "h1"), None);
    told.lock().clear();
    removed(&store, "va1");
    assert_eq!(nodes("pv1", "h1"), None);
    assert_eq!(*told.lock(), ["pv1"]);
}

/// 2,000 volumes are deleted one after the other: to look for their handles must not go through all of them each time.
#[test]
fn another_volume_of_a_handle_is_found_without_a_walk() {
    let (store, _queue, _registration) = served();
    for number in 0..100 {
        store.apply(with_handle(&format!("pv{number}"), number + 1, &format!("h{number}")));
    }
    let counted = store.inner.rules.tables.lookups.unwrap();
    let before = counted.load(Ordering::Relaxed);
    for number in 0..100 {
        let handle = format!("h{number}");
        assert_eq!(store.handle_owner(DRIVER, &handle, &format!("pv{number}")), None);
    }
    let cost = counted.load(Ordering::Relaxed) - before;
    assert!(cost <= 100, "{cost} look-ups");
    store.apply(with_handle("twin", 200, "h7"));
    let owner = |driver, except| store.handle_owner(driver, "h7", except);
    assert_eq!(owner(DRIVER, "pv7").as_deref(), Some("twin"));
    assert_eq!(owner(DRIVER, "twin").as_deref(), Some("pv7"));
    assert_eq!(owner("of.another", "pv7"), None);
    store.remove::<Volume>("pv7", "pv7-uid");
    assert_eq!(owner(DRIVER, "twin"), None);
}

/// A driver answers one ID for many claims. Each change of one of their PersistentVolumes asks for the others and for who is attached: that
/// must go through neither all PersistentVolumes nor all VolumeAttachments.
#[test]
fn what_shares_a_handle_is_found_without_a_walk() {
    let (store, _queue, _registration) = served();
    let noting = |name: &str, volume: &str, node: &str, handle: &str| {
        let record = on_node(of_volume(attachment(name, 1), volume), node);
        store.apply(noted(record, handle, &[]));
    };
    for number in 0..1_000 {
        let (name, handle) = (format!("pv{number}"), format!("h{number}"));
        store.apply(with_handle(&name, 1, &handle));
        noting(&format!("va{number}"), &name, "n1", &handle);
    }
    for twin in ["twin2", "twin0", "twin1"] {
        store.apply(with_handle(twin, 1, "shared"));
    }
    noting("va-of-twin", "twin2", "n2", "shared");
    noting("va-of-former", "former", "n3", "shared");
    let named = ["twin0", "twin2", "former"].map(|name| store.is_named(name));
    assert_eq!(named, [false, true, true], "by whatever attachment");
    let handles = [(DRIVER, "shared"), (DRIVER, "nobody's"), ("of.another", "shared")];
    let are_noted = handles.map(|(driver, handle)| store.is_noted(driver, handle));
    assert_eq!(are_noted, [true, false, false]);
    let told = listened(&store);
    let counted = store.inner.rules.tables.lookups.unwrap();
    let before = counted.load(Ordering::Relaxed);
    let owner = |except| store.handle_owner(DRIVER, "shared", except);
    assert_eq!(owner("twin0").as_deref(), Some("twin1"));
    assert_eq!(owner("twin1").as_deref(), Some("twin0"));
    let all = store.volumes_of_handle(DRIVER, "shared");
    let all: Vec<&str> = all.iter().map(|volume| &*volume.name).collect();
    assert_eq!(all, ["twin0", "twin1", "twin2"]);
    assert!(store.volumes_of_handle("of.another", "shared").is_empty());
    let nodes = || store.nodes_of_volume("twin1", DRIVER, "shared");
    assert_eq!(nodes().as_deref(), Some("n2, n3"));
    removed(&store, "va-of-former");
    assert_eq!(nodes().as_deref(), Some("n2"));
    assert_eq!(*told.lock(), ["twin0"], "one of those that share the handle");
    let cost = counted.load(Ordering::Relaxed) - before;
    assert!(cost < 60, "{cost} look-ups");
}

#[test]
fn whoever_provisions_is_told_of_volumes_and_of_their_last_attachment() {
    let store = Store::default();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    store.listen_to_volumes(Arc::new(move |volume: &Arc<Volume>| {
        heard.lock().push((volume.name.to_string(), volume.resource_version.0));
    }));
    let take = || std::mem::take(&mut *told.lock());
    store.apply(volume("pv1", 1));
    attach(&store, "va1", "pv1", "n1", 2);
    assert_eq!(take(), [("pv1".to_owned(), 1)]);
    removed(&store, "va1");
    assert_eq!(take(), [("pv1".to_owned(), 1)], "the deletion of its volume may go on");
    store.apply(volume("pv1", 3));
    assert!(take().is_empty(), "another version that says the same");
    store.apply(with(volume("pv1", 4), |record| record.deleting = true));
    store.remove::<Volume>("pv1", "pv1-uid");
    // With the last copy.
    assert_eq!(take(), [("pv1".to_owned(), 4), ("pv1".to_owned(), 4)]);
}

#[test]
fn volumes_that_say_the_same_share_it() {
    let store = Store::default();
    let saying = |name: &str, version: u64, retry: &str| -> Volume {
        let metadata = json!({
            "name": name, "uid": format!("{name}-uid"), "resourceVersion": version.to_string(),
            "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER, "attacher.csi.dev/retry-now": retry},
        });
        volume_wire(&metadata).into()
    };
    for (name, version) in [("pv1", 1), ("pv2", 2)] {
        store.apply(saying(name, version, "same"));
    }
    let of = |name: &str| store.volume(name).unwrap().0.lifecycle.clone();
    assert!(Arc::ptr_eq(&of("pv1"), &of("pv2")));
    // What nobody says any more does not stay.
    for version in 3..1000 {
        store.apply(saying("pv1", version, &version.to_string()));
    }
    let kept = store.inner.index.read().links.lifecycles.keys().count();
    assert!(kept <= 128, "{kept}");
    assert_eq!(of("pv1").retry_now.as_deref(), Some("999"));
}

/// The PersistentVolume was made again with another handle: the volume may be at a node under the former one.
#[test]
fn an_attachment_is_one_of_the_volumes_that_it_was_tried_for_before() {
    let store = Store::default();
    store.apply(with(noted(attachment("va1", 1), "h1", &["id"]), |record| {
        record.volume_note.as_mut().unwrap().handle = "h2".into();
    }));
    for (handle, nodes) in [("h1", Some("n1")), ("h2", Some("n1")), ("h3", None)] {
        let found = store.nodes_of_volume("other", DRIVER, handle);
        assert_eq!(found.as_deref(), nodes, "{handle}");
    }
    // All that were attached by it are told when it goes, also where the one that it names has one of the handles.
    for (name, handle) in [("pv1", "h2"), ("former", "h1"), ("other", "h3")] {
        store.apply(with_handle(name, 2, handle));
    }
    let told = listened(&store);
    removed(&store, "va1");
    assert_eq!(store.nodes_of_volume("other", DRIVER, "h1"), None);
    told.lock().sort();
    // The one that it names, and those with its handles.
    assert_eq!(*told.lock(), ["former", "pv1"]);
}
