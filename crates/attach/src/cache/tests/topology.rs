//! What CSINodes say of topology, and who is told of it.

use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;

use super::{DRIVER, removed_node};
use crate::cache::Store;
use crate::objects::{CsiNode, CsiNodeWire};

fn csi_node(name: &str, version: u64, keys: &[&str]) -> CsiNode {
    let drivers: Value = if keys.is_empty() {
        json!([{ "name": DRIVER, "nodeID": "id" }])
    } else {
        json!([{ "name": DRIVER, "nodeID": "id", "topologyKeys": keys }])
    };
    let wire: CsiNodeWire = serde_json::from_value(json!({
        "metadata": { "name": name, "uid": format!("{name}-uid"), "resourceVersion": version.to_string() },
        "spec": { "drivers": drivers },
    }))
    .unwrap();
    wire.into()
}

/// A DaemonSet that is rolled out takes each driver away for a moment; a kubelet writes other things.
#[test]
fn only_what_matters_for_topology_is_told() {
    let store = Store::default();
    let told = Arc::new(Mutex::new(Vec::new()));
    let into = told.clone();
    store.listen_to_topology(Arc::new(move |node| into.lock().push(node.to_string())));
    let take = |record: CsiNode| {
        store.apply(record);
        std::mem::take(&mut *told.lock()).join(" ")
    };
    assert_eq!(take(csi_node("n1", 1, &[])), "n1", "it is there");
    assert_eq!(take(csi_node("n1", 2, &[])), "");
    assert_eq!(take(csi_node("n1", 3, &["zone", "rack"])), "n1");
    assert_eq!(take(csi_node("n1", 4, &["rack", "zone"])), "", "the order says nothing");
    assert_eq!(take(csi_node("n1", 5, &["zone"])), "n1");
    removed_node(&store, "n1");
    assert_eq!(told.lock().join(" "), "n1");
}

#[test]
fn equal_keys_are_kept_once_and_known_while_a_node_has_them() {
    let store = Store::default();
    for (name, version) in [("n1", 1), ("n2", 2), ("n3", 3)] {
        store.apply(csi_node(name, version, &["zone"]));
    }
    let topology = |name: &str| store.csi_node(name).unwrap().topology().unwrap().clone();
    assert!(Arc::ptr_eq(&topology("n1"), &topology("n2")) && Arc::ptr_eq(&topology("n1"), &topology("n3")));
    assert!(store.is_topology_key("zone") && !store.is_topology_key("rack"));
    assert_eq!(store.csi_nodes().len(), 3);
    store.apply(csi_node("n2", 4, &["rack"]));
    assert!(store.is_topology_key("zone") && store.is_topology_key("rack"));
    for name in ["n1", "n3"] {
        removed_node(&store, name);
    }
    assert!(!store.is_topology_key("zone") && store.is_topology_key("rack"));
}
