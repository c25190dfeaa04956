use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;

use super::super::LeaderElectionRecord;

#[test]
fn a_lease_of_the_sidecar_is_read_and_written_back_in_its_form() {
    let lease: Lease = serde_json::from_value(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "l", "resourceVersion": "7", "labels": {"theirs": "stays", "app": "old"}},
        "spec": {
            "holderIdentity": "csi-attacher-0", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-21T04:00:00.000000Z", "renewTime": "2026-11-21T04:47:06.123456Z",
            "strategy": "OldestEmulationVersion",
        },
    }))
    .unwrap();
    let record = LeaderElectionRecord::of(&lease);
    let expected = LeaderElectionRecord {
        holder: "csi-attacher-0".to_owned(),
        duration_seconds: 15,
        acquired: Some("2026-11-21T04:00:00Z".parse::<Timestamp>().unwrap()),
        renewed: Some("2026-11-21T04:47:06.123456Z".parse::<Timestamp>().unwrap()),
        transitions: 3,
    };
    assert_eq!(record, expected);

    let mut written = lease.clone();
    let ours = LeaderElectionRecord {
        holder: "we".to_owned(),
        renewed: Some("2026-11-21T05:00:00Z".parse().unwrap()),
        ..expected
    };
    let labels = BTreeMap::from([("app".to_owned(), "attacher".to_owned())]);
    ours.write_to(&mut written, &labels);
    let text = serde_json::to_value(&written).unwrap();
    assert_eq!(
        text["spec"],
        json!({
            "holderIdentity": "we", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-21T04:00:00.000000Z", "renewTime": "2026-11-21T05:00:00.000000Z",
            "strategy": "OldestEmulationVersion",
        })
    );
    assert_eq!(
        text["metadata"]["labels"],
        json!({"theirs": "stays", "app": "attacher"})
    );
    assert_eq!(text["metadata"]["resourceVersion"], "7");
}

#[test]
fn a_lease_without_anything_is_free() {
    let record = LeaderElectionRecord::of(&Lease::default());
    assert_eq!(record, LeaderElectionRecord::default());
    let mut lease = Lease::default();
    record.write_to(&mut lease, &BTreeMap::new());
    let text = serde_json::to_value(&lease).unwrap();
    // Nobody is named by absence, as in client-go.
    assert_eq!(text["spec"], json!({"leaseDurationSeconds": 0, "leaseTransitions": 0}));
}
