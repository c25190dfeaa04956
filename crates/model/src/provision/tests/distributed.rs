//! Which drivers their nodes provision for.

use crate::answer::ApiError;
use crate::api::condition::{ConditionReason, MAX_MESSAGE_BYTES};
use crate::provision::{CapacityManager, NotCentral, capacity_selector, check_central};

const DRIVER: &str = "csi.test";

fn capacity(driver: &str, managed_by: &str) -> CapacityManager {
    CapacityManager {
        namespace: "storage".into(),
        name: "csisc-1".into(),
        driver: driver.into(),
        managed_by: managed_by.into(),
    }
}

fn failed(status: u16) -> Result<Vec<CapacityManager>, ApiError> {
    Err(ApiError::of_answer(status, "no"))
}

fn reason(result: Result<(), NotCentral>) -> Option<ConditionReason> {
    result.err().map(|refusal| refusal.reason())
}

#[test]
fn the_label_of_a_node_is_told_from_others() {
    let rows = [
        ("external-provisioner-node01", true),
        // In place of a name that is too long beside the beginning.
        ("external-provisioner-df38e37f", true),
        ("external-p-53f40b57-nodeaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", true),
        ("ext-53f40b57-ip-192-168-100-200.ap-southeast-1.compute.internal", true),
        ("e-53f40b57-node", true),
        ("external-provisioner", false),
        ("external-provisionerless-node01", false),
        ("external-provisioner.node01", false),
        ("internal-p-53f40b57-node01", false),
        ("-53f40b57-node01", false),
        ("operator", false),
        ("", false),
    ];
    for (managed_by, is_of_node) in rows {
        let found = check_central(DRIVER, Ok(vec![capacity(DRIVER, managed_by)]), false);
        let expected = is_of_node.then_some(ConditionReason::DistributedProvisioner);
        assert_eq!(reason(found), expected, "{managed_by}");
    }
}

#[test]
fn what_is_answered_decides_whether_provisioning_begins() {
    use ConditionReason::{DistributedProvisioner, Forbidden, Syncing};
    let node = || capacity(DRIVER, "external-provisioner-n1");
    let central = || capacity(DRIVER, "external-provisioner");
    let of_other = || capacity("other.test", "external-provisioner-n1");
    // What is answered, and the reason when it starts and while it works.
    let rows = [
        (Ok(vec![]), None, None),
        (Ok(vec![central()]), None, None),
        (Ok(vec![of_other()]), None, None),
        (
            Ok(vec![of_other(), central(), node()]),
            Some(DistributedProvisioner),
            Some(DistributedProvisioner),
        ),
        (failed(404), None, None),
        (failed(403), Some(Forbidden), None),
        (failed(401), Some(Syncing), None),
        (failed(429), Some(Syncing), None),
        (failed(503), Some(Syncing), None),
        (Err(ApiError::garbled("no list")), Some(Syncing), None),
    ];
    for (listed, starting, working) in rows {
        let found = reason(check_central(DRIVER, listed.clone(), false));
        assert_eq!(found, starting, "{listed:?}");
        let found = reason(check_central(DRIVER, listed.clone(), true));
        assert_eq!(found, working, "{listed:?}");
    }
}

#[test]
fn the_message_names_object_label_and_the_ways_out() {
    let found = check_central(DRIVER, Ok(vec![capacity(DRIVER, "external-provisioner-n1")]), false);
    let message = found.unwrap_err().to_string();
    for part in [
        "driver csi.test",
        "CSIStorageCapacity storage/csisc-1",
        "csi.storage.k8s.io/managed-by=external-provisioner-n1",
        "Remove spec.provisioning",
        "remove --node-deployment, and delete the CSIStorageCapacities",
    ] {
        assert!(message.contains(part), "{part:?} in {message}");
    }
    assert!(message.len() < MAX_MESSAGE_BYTES, "{} bytes", message.len());
    let refused = check_central(DRIVER, failed(403), false);
    let message = refused.unwrap_err().to_string();
    let rule = "apiGroups [\"storage.k8s.io\"], resources [csistoragecapacities], verbs [list]";
    assert!(message.contains(rule), "{message}");
}

#[test]
fn a_name_that_is_no_value_of_a_label_is_not_asked_for() {
    let selector = "csi.storage.k8s.io/drivername=csi.test,csi.storage.k8s.io/managed-by,\
                    csi.storage.k8s.io/managed-by!=external-provisioner";
    assert_eq!(capacity_selector(DRIVER).as_deref(), Some(selector));
    let (longest, longer) = ("a".repeat(63), "a".repeat(64));
    for (driver, is_asked) in [
        ("Disk.CSI.example.com", true),
        ("a_b", true),
        (&*longest, true),
        (&*longer, false),
        ("", false),
        ("-a", false),
        ("a.", false),
        ("a,b", false),
        ("a b", false),
        ("a=b", false),
        ("a/b", false),
        ("\u{e9}", false),
    ] {
        assert_eq!(capacity_selector(driver).is_some(), is_asked, "{driver:?}");
    }
}
