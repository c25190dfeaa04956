//! Disks of GCE: the translation, and the repair of handles that only they need.

use serde_json::json;

use super::{decode, show, translate};
use crate::decide::is_for_one_node;
use crate::objects::{AccessModes, InTreePlugin, RepairError, TranslationError, repair_volume_handle};

const BETA: &str = "failure-domain.beta.kubernetes.io/zone";
const GA: &str = "topology.kubernetes.io/zone";

#[test]
fn gce_persistent_disk() {
    let zones = |key: &str, value: &str| json!({"labels": {key: value, "other": "label"}});
    let both = json!({"labels": {BETA: "beta", GA: "ga"}});
    let empty_beta = json!({"labels": {BETA: "", GA: "ga"}});
    let disk = |place: &str| format!("projects/UNSPECIFIED/{place}/disks/d rw fs[] ctx[partition=]");
    let refused = |error: &str| format!("error: failed to get region from zones: {error}");
    let odd = |zone: &str| {
        refused(&format!(
            "zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
        ))
    };
    let regions = "multiple or no regions gotten from zones, got: map[us-central1:{} us-east1:{}]";
    let rows = [
        ("no zone", json!({}), disk("zones/UNSPECIFIED")),
        ("no zone in the label", zones(GA, ""), disk("zones/UNSPECIFIED")),
        ("beta zone", zones(BETA, "testZone"), disk("zones/testZone")),
        ("zone", zones(GA, "us-central1-a"), disk("zones/us-central1-a")),
        ("beta goes first", both, disk("zones/beta")),
        ("an empty beta zone does not", empty_beta, disk("zones/ga")),
        (
            "regional",
            zones(BETA, "us-central1-a__us-central1-c"),
            disk("regions/us-central1"),
        ),
        ("a zone of four parts", zones(GA, "a-b-c__a-b-c-d"), odd("a-b-c-d")),
        ("a zone of one part", zones(GA, "a__a-b-c"), odd("a")),
        ("a zone of no part", zones(GA, "a-b-c__"), odd("")),
        ("two regions", zones(GA, "us-east1-a__us-central1-c"), refused(regions)),
    ];
    for (name, metadata, expected) in rows {
        let found = show(translate(metadata, json!({"gcePersistentDisk": {"pdName": "d"}})));
        assert_eq!(found, expected, "{name}");
    }
    let full = json!({"gcePersistentDisk": {"pdName": "d", "partition": 3, "fsType": "xfs", "readOnly": true}});
    assert_eq!(
        show(translate(json!({}), full)),
        "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d ro fs[xfs] ctx[partition=3]"
    );
}

#[test]
fn gce_access_modes() {
    let modes = |modes: &[&str]| {
        let spec = json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes});
        decode(json!({}), spec).spec.access_modes
    };
    let (once, many) = (
        AccessModes::parse(&["ReadWriteOnce"]),
        AccessModes::parse(&["ReadOnlyMany"]),
    );
    let rows: [(&[&str], AccessModes); 9] = [
        (&["ReadWriteOnce"], once),
        (&["ReadWriteMany"], once),
        (&["ReadOnlyMany"], many),
        (&["ReadWriteOnce", "ReadOnlyMany"], once),
        (&["ReadWriteMany", "ReadOnlyMany"], once),
        (&["ReadWriteOnce", "ReadWriteMany"], once),
        (&["ReadWriteOncePod"], once),
        (&["ReadWriteOncePod", "ReadOnlyMany"], many),
        (&[], once),
    ];
    for (given, expected) in rows {
        assert_eq!(modes(given), expected, "{given:?}");
        // As the attach/detach controller has it, which asks this of the translated volume.
        assert_eq!(is_for_one_node(modes(given)), expected == once, "{given:?}");
    }
    let absent = decode(
        json!({}),
        json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": null}),
    );
    assert_eq!(absent.spec.access_modes, AccessModes::default(), "none stay none");
    let cinder = decode(
        json!({}),
        json!({"cinder": {"volumeID": "v"}, "accessModes": ["ReadWriteMany"]}),
    );
    assert_eq!(
        cinder.spec.access_modes,
        AccessModes::parse(&["ReadWriteMany"]),
        "only here"
    );
}

#[test]
fn repairing_handles() {
    const GCE: &str = "pd.csi.storage.gke.io";
    let node = "projects/p/zones/us-central1-a/instances/n";
    let handle = |place: &str| format!("projects/UNSPECIFIED/{place}/disks/d");
    let repaired = |handle: &str, node: &str| repair_volume_handle(GCE, handle, node).map(std::borrow::Cow::into_owned);
    let good = [
        (
            "projects/x/zones/UNSPECIFIED/disks/d".to_owned(),
            "projects/x/zones/UNSPECIFIED/disks/d",
        ),
        (handle("zones/UNSPECIFIED"), "projects/p/zones/us-central1-a/disks/d"),
        (handle("zones/z"), "projects/p/zones/z/disks/d"),
        (handle("regions/UNSPECIFIED"), "projects/p/regions/us-central1/disks/d"),
        (handle("regions/r"), "projects/p/regions/r/disks/d"),
        (format!("{}/more", handle("zones/z")), "projects/p/zones/z/disks/d"),
    ];
    for (given, expected) in good {
        assert_eq!(repaired(&given, node).as_deref(), Ok(expected), "{given}");
    }
    assert!(
        repaired("projects/x/zones/z/disks/d", "any").is_ok(),
        "the node does not matter then"
    );
    let bad = [
        ("short".to_owned(), node, RepairError::Handle(1)),
        (handle("zones/z"), "node-1", RepairError::Node(1)),
        (handle("places/z"), node, RepairError::Regionality("places".into())),
        (
            handle("regions/UNSPECIFIED"),
            "projects/p/zones/z/instances/n",
            RepairError::Region {
                zone: "z".into(),
                error: TranslationError::Zone("z".into()),
            },
        ),
    ];
    for (given, node, expected) in bad {
        assert_eq!(repaired(&given, node), Err(expected), "{given}");
    }
    for plugin in InTreePlugin::ALL.iter().filter(|plugin| plugin.as_str() != GCE) {
        assert_eq!(repair_volume_handle(plugin.as_str(), "h", "n").as_deref(), Ok("h"));
    }
    let unknown = repair_volume_handle("other.test", "h", "n").unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "could not find In-Tree driver name for CSI plugin other.test"
    );
}
