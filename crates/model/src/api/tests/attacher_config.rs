//! Reading the spec.

use serde_json::json;

use crate::api::{AttacherConfigSpec, GoDuration};

#[test]
fn unknown_fields_are_accepted_so_that_newer_and_older_objects_can_be_read() {
    let spec: AttacherConfigSpec = serde_json::from_value(json!({
        "endpoint": "unix:///csi.sock", "invented": {"a": 1}, "alsoInvented": [1], "logLevel": "debug", "timeouts": {"publish": "5s", "invented": true},
    }))
    .expect("readable");
    assert_eq!(spec.timeouts.publish, GoDuration::from_secs(5));
    assert_eq!(
        spec.timeouts.unpublish,
        GoDuration::from_secs(60),
        "its neighbours keep their defaults"
    );
}

#[test]
fn what_is_written_reads_back_the_same() {
    let spec: AttacherConfigSpec = serde_json::from_value(json!({
        "driverName": "ebs.csi.aws.com", "endpoint": "http://[::1]:9000", "suspend": true, "defaultFsType": "ext4",
        "timeouts": {"publish": "1.5s"}, "backoff": {"factorPercent": 150}, "concurrency": {"perNode": 7},
    }))
    .expect("readable");
    let written = serde_json::to_value(&spec).expect("writable");
    assert_eq!(written["timeouts"]["publish"], "1.5s");
    assert_eq!(
        written["concurrency"],
        json!({"attach": 100, "detach": 100, "perNode": 7, "callsPerSecond": 0})
    );
    assert_eq!(
        serde_json::from_value::<AttacherConfigSpec>(written).expect("readable"),
        spec
    );
}
