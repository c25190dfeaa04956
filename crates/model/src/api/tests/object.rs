//! Objects that the schema should have refused.

use kube_core::ResourceExt;
use kube_core::WatchEvent;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::api::{AttacherConfigObject, AttacherConfigSpec};

fn object(spec: &Value) -> AttacherConfigObject {
    let value = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig",
        "metadata": {"name": "ebs", "generation": 2, "resourceVersion": "7"}, "spec": spec,
    });
    serde_json::from_value(value).expect("every object can be read")
}

#[test]
fn a_good_object_is_read() {
    let object = object(&json!({"endpoint": "unix:///csi/csi.sock"}));
    assert_eq!(object.name_any(), "ebs");
    assert_eq!(object.spec, Ok(AttacherConfigSpec::new("unix:///csi/csi.sock")));
    assert!(object.config().is_ok());
}

#[test]
fn where_a_former_release_had_its_lease_is_read_from_the_status() {
    let rows = [
        (json!(null), None),
        (
            json!({"namespace": "storage", "runsOutAfterSeconds": 15}),
            Some("storage"),
        ),
        (json!({"withoutLease": ["a"]}), None),
        // It becomes part of a path.
        (json!({"namespace": "../storage"}), None),
    ];
    for (recorded, wanted) in rows {
        let object: AttacherConfigObject = serde_json::from_value(json!({
            "metadata": {"name": "ebs"}, "spec": {"endpoint": "unix:///csi/csi.sock"}, "status": {"leaderElection": recorded},
        }))
        .expect("every object can be read");
        let config = object.config().expect("valid");
        assert_eq!(config.former_lease.as_deref(), wanted, "{recorded}");
    }
}

#[test]
fn a_malformed_spec_is_reported_with_its_field() {
    for (spec, wanted) in [
        (json!(null), "spec: must be set, with at least spec.endpoint"),
        (json!(7), "spec: invalid type: integer `7`"),
        (json!({}), "spec: missing field `endpoint`"),
        (json!(["unix:///a"]), "spec: must be an object, not a list"),
        (json!({"endpoint": 5}), "spec.endpoint: invalid type: integer `5`"),
        (
            json!({"endpoint": "unix:///a", "suspend": "yes"}),
            "spec.suspend: invalid type: string \"yes\"",
        ),
        (
            json!({"endpoint": "unix:///a", "timeouts": []}),
            "spec.timeouts: must be an object, not a list",
        ),
        (
            json!({"endpoint": "unix:///a", "timeouts": {"publish": "1d"}}),
            "spec.timeouts.publish: \"1d\" is not a duration",
        ),
        (
            json!({"endpoint": "unix:///a", "timeouts": {"publish": 60}}),
            "spec.timeouts.publish: invalid type: integer `60`",
        ),
        (
            json!({"endpoint": "unix:///a", "backoff": {"factorPercent": "200"}}),
            "spec.backoff.factorPercent: invalid type",
        ),
        (
            json!({"endpoint": "unix:///a", "concurrency": {"perNode": 1.5}}),
            "spec.concurrency.perNode: invalid type",
        ),
        (
            json!({"endpoint": "unix:///a", "defaultFsType": null}),
            "spec.defaultFsType: invalid type: null",
        ),
    ] {
        let object = object(&spec);
        let message = object.spec.as_ref().expect_err("malformed").to_string();
        assert!(message.starts_with(wanted), "{spec}: {message}");
        assert_eq!(object.config().expect_err("malformed").to_string(), message);
    }
}

/// Read by position, a list would say something that nobody wrote: all Secrets of a namespace, for one.
#[test]
fn a_list_in_place_of_an_object_is_refused_wherever_it_is() {
    let (list, empty) = (json!(["kube-system"]), json!([]));
    let rows = [
        (json!({"publishSecrets": [list]}), "publishSecrets[0]"),
        (
            json!({"publishSecrets": [{"namespace": "a", "names": ["b"]}, list]}),
            "publishSecrets[1]",
        ),
        (json!({"provisioning": {"secrets": [list]}}), "provisioning.secrets[0]"),
        (json!({"provisioning": empty}), "provisioning"),
        (json!({"provisioning": {"timeouts": empty}}), "provisioning.timeouts"),
        (json!({"provisioning": {"topology": empty}}), "provisioning.topology"),
        (json!({"reconcileSync": ["Disabled"]}), "reconcileSync"),
        (json!({"kubernetesAPI": empty}), "kubernetesAPI"),
        (json!({"leaderElection": empty}), "leaderElection"),
        (json!({"tracing": empty}), "tracing"),
        (json!({"tracing": {"redact": empty}}), "tracing.redact"),
        (json!({"backoff": empty}), "backoff"),
        (json!({"concurrency": empty}), "concurrency"),
        (json!({"tls": {"secretRef": ["kube-system", "name"]}}), "tls.secretRef"),
    ];
    for (mut spec, field) in rows {
        spec["endpoint"] = json!("unix:///a");
        let error = object(&spec).spec.expect_err("malformed");
        let wanted = format!("spec.{field}: must be an object, not a list");
        assert_eq!(error.to_string(), wanted, "{spec}");
    }
    // What is a list in a field of a newer version, or a list by its type, is nobody's mistake.
    let spec = json!({
        "endpoint": "unix:///a", "newer": [["a"]], "timeouts": {"newer": []}, "publishSecrets": [{"namespace": "a", "names": ["b"]}],
    });
    assert!(object(&spec).spec.is_ok());
}

#[test]
fn an_error_does_not_repeat_a_long_value() {
    let object = object(&json!({"endpoint": "unix:///a", "suspend": "x".repeat(100_000)}));
    assert!(object.spec.expect_err("malformed").to_string().len() < 2_000);
}

#[test]
fn a_well_formed_spec_that_breaks_rules_is_reported_too() {
    let object = object(&json!({"endpoint": "tcp://x:1", "concurrency": {"attach": -1}}));
    assert!(object.spec.is_ok());
    let errors = object.config().expect_err("invalid");
    let fields: Vec<&str> = errors.0.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.endpoint", "spec.concurrency.attach"]);
}

#[test]
fn a_watch_survives_a_malformed_object() {
    let line = r#"{"type":"MODIFIED","object":{"kind":"AttacherConfig","metadata":{"name":"x"},"spec":{"endpoint":[]},"status":"?"}}"#;
    match serde_json::from_str::<WatchEvent<AttacherConfigObject>>(line) {
        Ok(WatchEvent::Modified(object)) => assert!(object.spec.is_err_and(|error| error.field == "spec.endpoint")),
        other => panic!("{other:?}"),
    }
}

/// A compile-time check that the type can be watched.
#[test]
fn the_type_fits_a_watcher() {
    fn watchable<K>() -> String
    where
        K: kube_core::Resource<DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + 'static,
    {
        K::url_path(&(), None)
    }
    assert_eq!(
        watchable::<AttacherConfigObject>(),
        "/apis/attacher.csi.dev/v1alpha1/attacherconfigs"
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!("1h")),
        Just(json!("unix:///a")),
    ];
    let key = prop_oneof![
        Just("endpoint".to_owned()),
        Just("timeouts".to_owned()),
        Just("publish".to_owned()),
        Just("backoff".to_owned()),
        Just("initial".to_owned()),
        Just("concurrency".to_owned()),
        Just("attach".to_owned()),
        Just("conditions".to_owned()),
        Just("driver".to_owned()),
        any::<String>(),
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_spec_and_status_can_be_read(spec in any_json(), status in any_json()) {
        let object: AttacherConfigObject =
            serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec, "status": status})).expect("readable");
        if let Err(errors) = object.config() {
            prop_assert!(errors.0.iter().all(|error| error.field.starts_with("spec")));
            prop_assert!(!errors.to_string().is_empty());
        }
    }
}
