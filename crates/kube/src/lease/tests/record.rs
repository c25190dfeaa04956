use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

use super::super::LeaderElectionRecord;
use crate::kinds::LeaseWire;

#[test]
fn a_lease_of_the_sidecar_is_read_and_written_back_in_its_form() {
    let lease = |holder: &str, renewed: &str, app: &str| -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "resourceVersion": "7", "labels": {"theirs": "stays", "app": app}},
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3,
                "acquireTime": "2026-11-21T04:00:00.000000Z", "renewTime": renewed,
                "strategy": "OldestEmulationVersion",
            },
        })
    };
    let theirs = lease("csi-attacher-0", "2026-11-21T04:47:06.123456Z", "old");
    let mut written: Lease = serde_json::from_value(theirs).unwrap();
    let record = LeaderElectionRecord::of(&written);
    let expected = LeaderElectionRecord {
        holder: "csi-attacher-0".to_owned(),
        duration_seconds: 15,
        acquired: Some("2026-11-21T04:00:00Z".parse().unwrap()),
        renewed: Some("2026-11-21T04:47:06.123456Z".parse().unwrap()),
        transitions: 3,
    };
    assert_eq!(record, expected);

    let ours = LeaderElectionRecord {
        holder: "we".to_owned(),
        renewed: Some("2026-11-21T05:00:00Z".parse().unwrap()),
        ..expected
    };
    let labels = BTreeMap::from([("app".to_owned(), "attacher".to_owned())]);
    ours.write_to(&mut written, &labels);
    let expected = lease("we", "2026-11-21T05:00:00.000000Z", "attacher");
    assert_eq!(serde_json::to_value(&written).unwrap(), expected);
}

/// Go has such times, and client-go takes a Lease over whatever its times are.
#[test]
fn a_lease_is_read_whatever_its_times_are() {
    let late = "9999-12-31T23:59:59.000000Z";
    let object = |acquired: &str, renewed: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "resourceVersion": "7", "managedFields": [{"manager": "m", "time": late}]},
            "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15, "acquireTime": acquired, "renewTime": renewed},
        })
    };
    let good = "2026-11-21T04:00:00.000000Z";
    let read = |text: &str| Some(text.parse().unwrap_or(Timestamp::MAX));
    for (acquired, renewed) in [(late, good), (good, late), (late, late)] {
        let wire: LeaseWire = serde_json::from_value(object(acquired, renewed)).unwrap();
        let lease = Lease::from(wire);
        let record = LeaderElectionRecord::of(&lease);
        assert_eq!((record.acquired, record.renewed), (read(acquired), read(renewed)));
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(lease.metadata.managed_fields, None);
    }
    let no_time = json!({"spec": {"renewTime": 7}});
    assert!(serde_json::from_value::<LeaseWire>(no_time).is_err());
}

#[test]
fn a_lease_without_anything_is_free() {
    let mut lease = Lease::default();
    let record = LeaderElectionRecord::of(&lease);
    assert_eq!(record, LeaderElectionRecord::default());
    record.write_to(&mut lease, &BTreeMap::new());
    let text = serde_json::to_value(&lease).unwrap();
    // Nobody is named by absence, as in client-go.
    assert_eq!(text["spec"], json!({"leaseDurationSeconds": 0, "leaseTransitions": 0}));
}
