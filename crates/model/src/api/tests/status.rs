//! Reading and writing the status.

use serde_json::{Value, json};

use crate::api::AttacherConfigStatus;
use crate::api::status::{AttachmentsStatus, OldestPending};

fn full() -> Value {
    json!({
        "observedGeneration": 3,
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Running", "message": "",
            "lastTransitionTime": "2026-11-01T10:00:00Z", "observedGeneration": 3,
        }],
        "driver": {
            "name": "ebs.csi.aws.com", "vendorVersion": "v1.2.3", "mode": "Attach",
            "capabilities": ["PUBLISH_UNPUBLISH_VOLUME"],
        },
        "holder": "csi-attacher-operator-0",
        "attachments": {
            "attached": 812, "attaching": 3, "detaching": 1, "pending": 4, "failing": 1,
            "oldestPending": {"name": "csi-1", "pendingSinceTime": "2026-11-01T10:00:00Z"},
        },
        "lastFailure": {
            "time": "2026-11-01T10:00:00Z", "volumeAttachment": "csi-1", "operation": "ControllerPublishVolume",
            "code": "DEADLINE_EXCEEDED", "message": "late", "traceID": "4bf92f3577b34da6a3ce929d0e0e4736",
        },
        "provisioning": {
            "holder": "csi-attacher-operator-1",
            "lease": {"name": "ebs-csi-aws-com", "namespace": "csi"},
            "persistentVolumeClaims": {
                "pending": 4, "uncertain": 1, "failing": 1,
                "oldestPending": {"namespace": "web", "name": "data-0", "pendingSinceTime": "2026-11-01T10:00:00Z"},
            },
            "persistentVolumes": {
                "deleting": 2, "failing": 0, "held": 0,
                "oldestPending": {"name": "pvc-1", "pendingSinceTime": "2026-11-01T10:00:00Z"},
            },
            "lastFailure": {
                "time": "2026-11-01T10:00:00Z", "operation": "Provision", "code": "ResourceExhausted", "message": "full",
                "persistentVolumeClaim": {"namespace": "web", "name": "data-0"},
                "traceID": "4bf92f3577b34da6a3ce929d0e0e4736",
            },
        },
    })
}

#[test]
fn a_full_status_reads_and_writes_the_same() {
    let strict: AttacherConfigStatus = serde_json::from_value(full()).expect("readable");
    assert_eq!(serde_json::to_value(&strict).expect("writable"), full());
    assert_eq!(AttacherConfigStatus::from_value_lenient(full()), strict);
}

#[test]
fn only_the_bad_part_of_a_status_is_lost() {
    let parts = [
        "observedGeneration",
        "driver",
        "holder",
        "attachments",
        "lastFailure",
        "provisioning",
    ];
    for part in parts {
        for bad in [
            json!(true),
            json!([1]),
            json!({"name": 1, "at": 1, "attached": "x", "holder": 1}),
        ] {
            let mut value = full();
            value[part] = bad;
            let mut wanted = full();
            wanted.as_object_mut().expect("an object").remove(part);
            let read = AttacherConfigStatus::from_value_lenient(value);
            assert_eq!(serde_json::to_value(&read).expect("writable"), wanted, "{part}");
        }
    }
}

#[test]
fn a_bad_condition_is_lost_alone() {
    let mut value = full();
    let good = value["conditions"][0].clone();
    value["conditions"] = json!([{"type": "Bad", "lastTransitionTime": "yesterday"}, good, 7]);
    assert_eq!(
        serde_json::to_value(AttacherConfigStatus::from_value_lenient(value)).expect("writable"),
        full()
    );
}

#[test]
fn a_status_of_another_shape_is_empty() {
    for value in [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!({}),
        json!({"conditions": {}}),
    ] {
        assert_eq!(
            AttacherConfigStatus::from_value_lenient(value),
            AttacherConfigStatus::default()
        );
    }
}

#[test]
fn pending_is_the_sum_of_attaching_and_detaching() {
    let oldest = OldestPending {
        name: "csi-1".into(),
        pending_since_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
    };
    let counts = AttachmentsStatus::new(10, 3, 4, 2, Some(oldest));
    assert_eq!((counts.attached, counts.pending, counts.failing), (10, 7, 2));
    assert_eq!(
        AttachmentsStatus::new(0, usize::MAX, usize::MAX, 0, None).pending,
        i64::MAX
    );
}
