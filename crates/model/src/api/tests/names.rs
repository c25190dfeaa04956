//! Names of Leases against those of the external-attacher sidecar. The other names are in its tables: `decide::tests::patches`.

use proptest::prelude::*;

use crate::api::names::{lease_name, sanitise_driver_name};

#[test]
fn leases_are_named_like_the_sidecar_does() {
    assert_eq!(
        lease_name("ebs.csi.aws.com"),
        "external-attacher-leader-ebs-csi-aws-com"
    );
    assert_eq!(lease_name("trailing."), "external-attacher-leader-trailing-X");
    assert_eq!(lease_name(""), "external-attacher-leader-X");
    // The sidecar asks for a Lease whose name the API server refuses; a sidecar of such a driver works without one.
    assert_eq!(
        lease_name("EBS.csi.aws.com"),
        "external-attacher-leader-ebs-csi-aws-com"
    );
}

proptest! {
    #[test]
    fn every_driver_has_a_lease_that_the_api_server_takes(name in "[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?") {
        prop_assert!(crate::api::validated::is_driver_name(&name));
        let lease = lease_name(&name);
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        prop_assert!(lease.len() <= 253 && lease.bytes().all(is_allowed) && !lease.ends_with('-'), "{}", lease);
    }

    #[test]
    fn a_sanitised_name_has_only_the_allowed_characters(name in any::<String>()) {
        let sanitised = sanitise_driver_name(&name);
        prop_assert!(sanitised.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{}", sanitised);
        prop_assert!(!sanitised.ends_with('-'));
        prop_assert_eq!(sanitise_driver_name(&sanitised), sanitised.clone(), "sanitising twice changes nothing");
    }
}
