//! docs/reference/FIELDS.md, written from the CustomResourceDefinition. What a change does is asked of the code that does it.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::crd::crd_yaml;
use crate::api::{AttacherConfigObject, AttacherConfigSpec, DriverConfig};
use crate::supervisor::plan::{PlanInput, requires_restart};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/FIELDS.md");

const HEAD: &str = "\
# Fields of AttacherConfig

<!-- Made from the types under crates/model/src/api by `make generate`; do not edit. -->

This page lists every field of `attacherconfigs.attacher.csi.dev`, version `v1alpha1`, cluster-scoped, short name `atc`. `kubectl explain
attacherconfig.spec --recursive` prints the same on a cluster; [ATTACHERCONFIG](ATTACHERCONFIG.md) shows the object in use.

* **Default** is the value that the API server sets. A field without one is not stored.
* **Rules**: the API server rejects an invalid value with the name of the field and this message. The operator checks the same again, for
  objects that bypassed the checks of the API server.
* **Change**: `hot` is applied without a reconnect, `restart` lets the calls of this driver end, releases its Lease and
  reconnects; `refused` is a change that the API server rejects. No change affects another driver. [When a change is used](ATTACHERCONFIG.md#when-a-change-is-used) has the details
  for each field.

";

fn version() -> Value {
    let definition: Value = serde_yaml::from_str(&crd_yaml().expect("writable")).expect("readable");
    definition["spec"]["versions"][0].clone()
}

/// A field: its path below `spec` or `status`, and its schema.
struct Field<'s> {
    path: String,
    required: bool,
    /// Whether a rule of the API server compares it with what it was.
    is_fixed: bool,
    schema: &'s Value,
}

fn fields<'s>(schema: &'s Value, prefix: &str, found: &mut Vec<Field<'s>>) {
    let required = |name: &String| {
        let names = schema["required"].as_array();
        names.is_some_and(|names| names.iter().any(|known| known == name.as_str()))
    };
    let is_fixed = |name: &str| {
        let mut rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        rules.any(|rule| {
            let rule = rule["rule"].as_str().unwrap_or_default();
            rule.contains(&format!("oldSelf.{name}"))
        })
    };
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        found.push(Field {
            path: path.clone(),
            required: required(name),
            is_fixed: is_fixed(name),
            schema: property,
        });
        fields(property, &format!("{path}."), found);
        fields(&property["items"], &format!("{path}[]."), found);
    }
}

fn of_part<'s>(schema: &'s Value, part: &str) -> Vec<Field<'s>> {
    let mut found = Vec::new();
    fields(&schema["schema"]["openAPIV3Schema"]["properties"][part], "", &mut found);
    found
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn type_name(schema: &Value) -> String {
    let plain = schema["type"].as_str().unwrap_or("any");
    match plain {
        "array" => format!("list of {}", type_name(&schema["items"])),
        _ if schema["format"] == "date-time" => "time".to_owned(),
        _ if is_duration(schema) => "duration".to_owned(),
        _ => plain.to_owned(),
    }
}

/// Durations are the strings whose pattern ends in the units of Go.
fn is_duration(schema: &Value) -> bool {
    let pattern = schema["pattern"].as_str();
    pattern.is_some_and(|pattern| pattern.contains("ns|us|"))
}

/// The texts of a list, as code.
fn code(values: &[Value]) -> String {
    let texts = values.iter().filter_map(Value::as_str);
    texts.map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
}

fn default(schema: &Value) -> String {
    match &schema["default"] {
        Value::Null => String::new(),
        Value::Object(_) => "the defaults below".to_owned(),
        Value::String(text) if text.is_empty() => "empty".to_owned(),
        Value::String(text) => format!("`{text}`"),
        Value::Array(items) => code(items),
        other => format!("`{other}`"),
    }
}

fn has_one_value(schema: &Value) -> bool {
    schema["enum"].as_array().is_some_and(|values| values.len() == 1)
}

/// What the schema refuses.
fn rules(schema: &Value, required: bool) -> String {
    let mut rules = Vec::new();
    if required {
        rules.push("required".to_owned());
    }
    if let Some(values) = schema["enum"].as_array() {
        rules.push(format!("one of {}", code(values)));
    }
    if let (Some(least), Some(most)) = (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        rules.push(format!("from {least} to {most}"));
    }
    let bounds = [
        ("minLength", "at least", "characters"),
        ("maxLength", "at most", "characters"),
        ("minItems", "at least", "items"),
        ("maxItems", "at most", "items"),
    ];
    for (key, word, unit) in bounds {
        if let Some(bound) = schema[key].as_u64() {
            let unit = if bound == 1 { unit.trim_end_matches('s') } else { unit };
            rules.push(format!("{word} {bound} {unit}"));
        }
    }
    let checks = |schema: &Value| {
        let checks = schema["x-kubernetes-validations"].as_array();
        checks.cloned().unwrap_or_default()
    };
    for rule in checks(schema) {
        let path = rule["fieldPath"].as_str().map(|path| path.trim_start_matches('.'));
        let about = path.map_or(String::new(), |path| format!("`{path}` "));
        rules.push(format!("{about}{}", rule["message"].as_str().unwrap_or_default()));
    }
    for rule in checks(&schema["items"]) {
        rules.push(format!("each {}", rule["message"].as_str().unwrap_or_default()));
    }
    rules.join("; ")
}

fn object(spec: &Value) -> AttacherConfigObject {
    let value = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig",
        "metadata": {"name": "a", "uid": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec,
    });
    serde_json::from_value(value).expect("an object")
}

/// A usable spec in which nothing has its default, so that each field is there to be changed.
fn example() -> Value {
    json!({
        "endpoint": "https://driver.example.com:9000",
        "driverName": "driver.example.com",
        "tls": {"secretRef": {"namespace": "storage", "name": "certificates"}, "serverName": "driver"},
        "provisioning": {"volumeNameUUIDLength": 20},
    })
}

/// Another value that the field may have.
fn other(path: &str, schema: &Value, now: &Value) -> Value {
    match path {
        "endpoint" => return json!("https://other.example.com:9000"),
        "publishSecrets" | "provisioning.secrets" => return json!([{"namespace": "storage"}]),
        "leaderElection.sidecarNamespaces" => return json!(["vendor"]),
        "tracing.annotations" => return json!(["example.com/traceparent"]),
        "backoff.initial" | "provisioning.backoff.initial" => return json!("2s"),
        "leaderElection.renewDeadline" => return json!("9s"),
        "leaderElection.retryPeriod" => return json!("1s"),
        _ => {}
    }
    if let Some(values) = schema["enum"].as_array() {
        let differs = values.iter().find(|value| *value != now && value.is_string());
        return differs.cloned().expect("more than one value");
    }
    match schema["type"].as_str() {
        Some("boolean") => json!(!now.as_bool().unwrap_or_default()),
        Some("integer") => json!(now.as_i64().unwrap_or_default() + 1),
        Some("number") => json!(now.as_f64().unwrap_or_default() + 1.0),
        Some("string") if is_duration(schema) => json!("90s"),
        _ => json!("other"),
    }
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}

fn set(spec: &mut Value, path: &str, value: Value) {
    let mut place = spec;
    for name in path.split('.') {
        place = &mut place[name];
    }
    *place = value;
}

/// Whether a field is changed by itself. A list is changed as a whole, and what has one value only is never changed.
fn is_changed(field: &Field<'_>) -> bool {
    !field.schema["properties"].is_object() && !field.path.contains("[]") && !has_one_value(field.schema)
}

/// The same spec with another value of one field.
fn changed(spec: &Value, field: &Field<'_>) -> Value {
    let read = AttacherConfigSpec::deserialize(spec).expect("readable");
    let read = serde_json::to_value(read).expect("writable");
    let now = read.pointer(&pointer(&field.path)).cloned().unwrap_or_default();
    let mut changed = spec.clone();
    set(&mut changed, &field.path, other(&field.path, field.schema, &now));
    assert_ne!(changed, *spec, "{} was not changed", field.path);
    changed
}

/// What the change of one field does to a running driver.
fn change(spec: &Value, field: &Field<'_>) -> &'static str {
    let config = |spec: &Value| -> Arc<DriverConfig> {
        let config = object(spec).config();
        Arc::new(config.unwrap_or_else(|errors| panic!("{}: give it another value: {errors}", field.path)))
    };
    if requires_restart(&config(spec), &config(&changed(spec, field))) {
        "restart"
    } else {
        "hot"
    }
}

/// The document.
fn document() -> Result<String, std::fmt::Error> {
    let version = version();
    let mut text = String::from(HEAD);
    writeln!(
        text,
        "## spec\n\n| Field | Type | Default | Rules | Change | Meaning |\n|---|---|---|---|---|---|"
    )?;
    for field in of_part(&version, "spec") {
        writeln!(
            text,
            "| `spec.{}` | {} | {} | {} | {} | {} |",
            field.path,
            type_name(field.schema),
            default(field.schema),
            cell(&rules(field.schema, field.required)),
            if !is_changed(&field) {
                ""
            } else if field.is_fixed {
                "refused"
            } else {
                change(&example(), &field)
            },
            cell(field.schema["description"].as_str().unwrap_or_default()),
        )?;
    }
    writeln!(
        text,
        "\n## status\n\nOnly the operator writes it: the leader of the driver, by server-side apply with the field manager \
         `csi-attacher-operator`. What it says of provisioning, `status.provisioning` and the conditions about it, has the field manager \
         `csi-attacher-operator-provisioning`; where another replica provisions, that one writes it.\n\n| Field | Type | Meaning |\n|---|---|---|"
    )?;
    for field in of_part(&version, "status") {
        let description = field.schema["description"].as_str().unwrap_or_default();
        let (path, kind) = (&field.path, type_name(field.schema));
        writeln!(text, "| `status.{path}` | {kind} | {} |", cell(description))?;
    }
    writeln!(
        text,
        "\n## Columns\n\nWhat `kubectl get atc` prints; those marked wide only with `-o wide`.\n\n| Column | From | Wide | Meaning |\n|---|---|---|---|"
    )?;
    for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
        let of = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
        let wide = if column["priority"].as_i64().unwrap_or_default() > 0 {
            "wide"
        } else {
            ""
        };
        let from = cell(of("jsonPath").trim_start_matches('.'));
        writeln!(
            text,
            "| {} | `{from}` | {wide} | {} |",
            of("name").to_uppercase(),
            cell(&of("description"))
        )?;
    }
    Ok(text)
}

#[test]
fn the_document_is_what_the_types_say() {
    let generated = document().expect("a text can be written");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(PATH, &generated).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(PATH).expect("docs/reference/FIELDS.md can be read");
    assert!(
        committed == generated,
        "docs/reference/FIELDS.md is stale: run `make generate`"
    );
}

/// What the plan does not see of a copy would never reach the driver.
#[test]
fn the_plan_sees_a_change_of_each_field() {
    let mut spec = example();
    // Without a limit the burst says nothing.
    spec["kubernetesAPI"] = json!({"qps": 5, "burst": 5});
    let version = version();
    for field in of_part(&version, "spec").iter().filter(|field| is_changed(field)) {
        let [before, after] = [&spec, &changed(&spec, field)].map(|spec| PlanInput::of(&object(spec)));
        let description = field.schema["description"].as_str().unwrap_or_default();
        assert_eq!(before == after, description.starts_with("Ignored:"), "{}", field.path);
    }
}

/// The table tells the truth about changes only as long as both kinds are found.
#[test]
fn changes_are_told_apart() {
    let text = document().expect("a text can be written");
    for (field, cell) in [
        ("endpoint", "restart"),
        ("driverName", "restart"),
        ("tls.serverName", "restart"),
        ("leaderElection.retryPeriod", "restart"),
        ("provisioning.mode", "hot"),
        ("publishSecrets", "hot"),
        ("timeouts.publish", "hot"),
        ("concurrency.attach", "hot"),
        ("deletionPolicy", "hot"),
        ("provisioning.volumeNamePrefix", "refused"),
        ("provisioning.volumeNameUUIDLength", "refused"),
        ("backoff.factorPercent", "from 100 to 1000"),
        ("orphanPolicy", "`Retry` | one of `Retry`, `TreatNotFoundAsDetached`"),
    ] {
        let begin = format!("| `spec.{field}` |");
        let row = text.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("{field} has no row"));
        assert!(row.contains(&format!("| {cell} |")), "{row}");
    }
}
