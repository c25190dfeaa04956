use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

use super::super::LeaderElectionRecord;

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

/// The last hours of the times of Go are none here. Who cannot read a Lease does not take it.
#[test]
fn a_lease_whose_time_cannot_be_read_is_an_error_and_not_free() {
    for late in ["9999-12-31T23:59:59.000000Z", "soon", ""] {
        let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "h", "renewTime": late}});
        assert!(serde_json::from_value::<Lease>(lease).is_err(), "{late}");
    }
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
