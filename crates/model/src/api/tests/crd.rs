//! The generated CustomResourceDefinition: the committed copy, its defaults and its shape.

use serde_json::{Value, json};

use crate::api::crd::crd_yaml;
use crate::api::{AttacherConfig, AttacherConfigSpec};

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../crds/attacher.csi.dev_attacherconfigs.yaml"
);

fn definition() -> Value {
    serde_yaml::from_str(&crd_yaml().expect("writable")).expect("readable")
}

fn spec_schema() -> Value {
    definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

#[test]
fn the_committed_file_is_what_the_types_generate() {
    let generated = crd_yaml().expect("writable");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(PATH, &generated).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(PATH).expect("the file can be read");
    assert!(
        committed == generated,
        "crds/ is stale: run UPDATE=1 cargo test api::tests::crd"
    );
}

#[test]
fn the_resource_has_its_names_scope_and_status() {
    let crd = definition();
    assert_eq!(crd["metadata"]["name"], "attacherconfigs.attacher.csi.dev");
    assert_eq!(
        crd["spec"]["names"],
        json!({
            "kind": "AttacherConfig", "plural": "attacherconfigs", "singular": "attacherconfig",
            "shortNames": ["atc"], "categories": ["csi"],
        })
    );
    assert_eq!(crd["spec"]["scope"], "Cluster");
    assert_eq!(crd["spec"]["versions"][0]["name"], "v1alpha1");
    assert_eq!(crd["spec"]["versions"][0]["subresources"], json!({"status": {}}));
    let columns: Vec<(&str, i64)> = crd["spec"]["versions"][0]["additionalPrinterColumns"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| {
            (
                column["name"].as_str().expect("a name"),
                column["priority"].as_i64().unwrap_or(0),
            )
        })
        .collect();
    assert_eq!(
        columns,
        [
            ("Driver", 0),
            ("Ready", 0),
            ("Reason", 0),
            ("Mode", 0),
            ("Attached", 0),
            ("Pending", 0),
            ("Failing", 0),
            ("Provisioning", 0),
            ("Age", 0),
            ("Holder", 1),
            ("Endpoint", 1),
            ("Version", 1),
            ("Pending PVCs", 1),
            ("Deleting", 1),
        ]
    );
}

/// Also where Flux or `kubectl replace` put the file in place of a CRD that was a part of a release: every AttacherConfig would go with it.
#[test]
fn helm_deletes_no_crd_that_is_written_from_the_file() {
    let metadata = &definition()["metadata"];
    assert_eq!(metadata["annotations"], json!({"helm.sh/resource-policy": "keep"}));
    let chart = include_str!("../../../../../charts/csi-attacher-operator-crds/templates/attacherconfigs.yaml");
    assert!(!chart.contains("annotations:"), "it adds the key once more: {chart}");
}

/// An upgrade with an older CRD is refused as a whole: the chart compares every keyword that has an order, by which that may refuse what this
/// one takes.
#[test]
fn the_chart_compares_what_may_refuse_an_object() {
    const NOT_COMPARED: [&str; 11] = [
        "default",
        "description",
        "format",
        "nullable",
        "pattern",
        "title",
        "type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-validations",
    ];
    let chart = include_str!("../../../../../charts/csi-attacher-operator/templates/_crd.tpl");
    let root = &definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    walk("", root, &mut |path, schema| {
        let schemas = [schema, &schema["items"]].into_iter();
        for (keyword, _) in schemas.filter_map(Value::as_object).flatten() {
            let reads = [format!("\"{keyword}\""), format!("$wanted.{keyword} ")];
            let is_compared = reads.iter().any(|read| chart.contains(read));
            assert!(
                is_compared || NOT_COMPARED.contains(&keyword.as_str()),
                "{path}: {keyword}"
            );
        }
    });
}

#[test]
fn printer_columns_name_fields_of_the_schema() {
    let version = &definition()["spec"]["versions"][0];
    for column in version["additionalPrinterColumns"].as_array().expect("columns") {
        let path = column["jsonPath"].as_str().expect("a path");
        if path.starts_with(".metadata") {
            continue;
        }
        let mut schema = &version["schema"]["openAPIV3Schema"];
        let (path, _) = path.split_once("[?").unwrap_or((path, ""));
        for field in path.trim_start_matches('.').split('.') {
            schema = &schema["properties"][field];
        }
        assert!(schema["type"].is_string(), "{path} is not in the schema");
    }
}

/// Fills in defaults from the top down, as the API server does.
fn apply_defaults(schema: &Value, value: &mut Value) {
    let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object_mut()) else {
        return;
    };
    for (name, property) in properties {
        if let (None, Some(default)) = (fields.get(name), property.get("default")) {
            fields.insert(name.clone(), default.clone());
        }
        if let Some(field) = fields.get_mut(name) {
            apply_defaults(property, field);
        }
    }
}

#[test]
fn the_schema_fills_in_the_same_defaults_as_the_types() {
    let mut spec = json!({"endpoint": "unix:///csi/csi.sock"});
    apply_defaults(&spec_schema(), &mut spec);
    assert_eq!(
        spec,
        json!({
            "endpoint": "unix:///csi/csi.sock",
            "suspend": false,
            "timeouts": {"publish": "60s", "unpublish": "60s", "listVolumes": "60s", "probe": "15s", "identity": "10s"},
            "backoff": {"initial": "1s", "max": "1m", "factorPercent": 200, "jitterPercent": 10},
            "concurrency": {"attach": 100, "detach": 100, "perNode": 0, "callsPerSecond": 0},
            "reconcileSync": {"mode": "Auto", "interval": "1m", "maxEntries": 0},
            "defaultFsType": "",
            "orphanPolicy": "Retry",
            "kubernetesAPI": {"qps": 0, "burst": 0},
            "leaderElection": {
                "enabled": true, "namespace": "", "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
            },
            "deletionPolicy": "Orphan",
            "tracing": {
                "annotationMode": "Link",
                "annotations": ["tracing.k8s.io/traceparent", "opentelemetry.io/traceparent"],
                "outgoingAnnotation": true, "maxAttemptsPerTrace": 50, "maxTraceAge": "1h",
                "redact": {"volumeID": "None", "names": "None"}, "errorSuffix": false,
            },
        })
    );
    let read: AttacherConfigSpec = serde_json::from_value(spec).expect("readable");
    assert_eq!(read, AttacherConfigSpec::new("unix:///csi/csi.sock"));
    let bare: AttacherConfigSpec =
        serde_json::from_value(json!({"endpoint": "unix:///csi/csi.sock"})).expect("readable");
    assert_eq!(read, bare);
}

/// Calls `check` with the path and schema of every field below `schema`.
fn walk(path: &str, schema: &Value, check: &mut dyn FnMut(&str, &Value)) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        check(&path, property);
        walk(&path, property, check);
        walk(&path, &property["items"], check);
    }
}

#[test]
fn every_field_is_documented_and_cheap_to_check() {
    walk("spec", &spec_schema(), &mut |path, schema| {
        assert!(
            schema["description"].as_str().is_some_and(|text| text.len() > 20),
            "{path} has no description"
        );
        assert!(
            schema["type"] != "string" || schema["maxLength"].is_u64() || schema["enum"].is_array(),
            "{path} has no maxLength, CEL needs it"
        );
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            assert!(rule["message"].is_string(), "{path} has a rule without a message");
        }
    });
    let root = &definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    walk("", root, &mut |path, schema| {
        let known = matches!(schema["format"].as_str(), None | Some("int64" | "double" | "date-time"));
        assert!(
            known,
            "{path} has a format that the API server warns about: {}",
            schema["format"]
        );
    });
}

#[test]
fn samples_are_valid() {
    let samples = [
        include_str!("../../../../../config/samples/attacherconfig-minimal.yaml"),
        include_str!("../../../../../config/samples/attacherconfig-full.yaml"),
        include_str!("../../../../../config/samples/attacherconfig-tls.yaml"),
    ];
    for sample in samples {
        let sample = sample.split("\n---\n").next().unwrap_or_default();
        let object: AttacherConfig = serde_yaml::from_str(sample).expect("readable");
        crate::api::DriverConfig::try_from(&object.spec).expect("valid");
        let mut json: Value = serde_yaml::from_str(sample).expect("readable");
        assert_eq!(
            (&json["apiVersion"], &json["kind"]),
            (&json!("attacher.csi.dev/v1alpha1"), &json!("AttacherConfig"))
        );
        walk_unknown("spec", &spec_schema(), &mut json["spec"]);
    }
}

/// It says so in its first line. `enabled` is ignored, and `tls` is in a sample of its own.
#[test]
fn the_full_sample_has_every_setting() {
    let sample = include_str!("../../../../../config/samples/attacherconfig-full.yaml");
    let sample: Value = serde_yaml::from_str(sample).expect("readable");
    walk("/spec", &spec_schema(), &mut |path, _| {
        let is_elsewhere = path.starts_with("/spec.tls") || path == "/spec.leaderElection.enabled";
        let place = path.replace('.', "/");
        let of_item = |list: &str| place.replacen(list, &format!("{list}/0"), 1);
        let places = [place.clone(), of_item("/publishSecrets"), of_item("/secrets")];
        let has = places.iter().any(|place| sample.pointer(place).is_some());
        assert!(has || is_elsewhere, "{path} is not in the sample");
    });
}

/// Fails on a field that the schema does not have.
fn walk_unknown(path: &str, schema: &Value, value: &mut Value) {
    for (name, field) in value.as_object_mut().into_iter().flatten() {
        let property = &schema["properties"][name];
        assert!(property.is_object(), "{path}.{name} is not in the schema");
        walk_unknown(&format!("{path}.{name}"), property, field);
    }
}
