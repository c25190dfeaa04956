//! The values of the chart: what they say of an AttacherConfig is what the CustomResourceDefinition says.

use serde_json::{Map, Value, json};

use crate::api::crd::crd_yaml;

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../charts/csi-attacher-operator/values.schema.json"
);
const BEGIN: &str = "\n    \"attacherConfigSpec\": ";
const END: &str = "\n    }";

/// `spec` of an AttacherConfig as JSON schema. Nothing is required here: defaults of the chart may supply it.
fn spec() -> Value {
    let definition: Value = serde_yaml::from_str(&crd_yaml().expect("writable")).expect("readable");
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut spec = json_schema(schema, true);
    spec.as_object_mut().expect("an object").remove("required");
    or_null(spec)
}

/// The pattern of a rule that asks for nothing else: Helm reads patterns as CEL does.
fn pattern(rule: &Value) -> Option<&str> {
    let pattern = rule["rule"]
        .as_str()?
        .strip_prefix("self.matches('")?
        .strip_suffix("')")?;
    (!pattern.contains(['\'', '\\'])).then_some(pattern)
}

/// The same, or null, which the chart takes for a value that is not set.
fn or_null(mut schema: Value) -> Value {
    let kind = schema["type"].take();
    assert!(!kind.is_null(), "a schema without a type has no counterpart here yet");
    schema["type"] = if kind.is_array() { kind } else { json!([kind, "null"]) };
    // A list of values must have null among them to allow it.
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut)
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    schema
}

/// A structural schema as JSON schema (draft 7). Fields that are not named are refused, as the API server prunes them. CEL
/// rules, except those for the form of a text, and formats are left to the API server. Fields that are not required may be null where
/// files of values are merged (`merged`): it takes away what an earlier file sets. Helm replaces a list as a whole, and a null in it would be
/// a field that somebody left empty: `names` without a name is not every Secret.
fn json_schema(structural: &Value, merged: bool) -> Value {
    let mut schema = Map::new();
    let object = structural.as_object().expect("a schema");
    for (key, value) in object {
        match key.as_str() {
            "x-kubernetes-validations" => {
                if let Some(pattern) = value.as_array().and_then(|rules| rules.iter().find_map(pattern)) {
                    schema.insert("pattern".to_owned(), json!(pattern));
                }
            }
            "x-kubernetes-map-type" | "format" | "default" | "nullable" => {}
            "x-kubernetes-list-type" => {
                if value == "set" {
                    schema.insert("uniqueItems".to_owned(), json!(true));
                }
            }
            "properties" => {
                let properties = value.as_object().expect("an object").iter();
                let properties = properties.map(|(name, property)| {
                    let is_required = structural["required"]
                        .as_array()
                        .is_some_and(|all| all.contains(&json!(name)));
                    let property = json_schema(property, merged);
                    let may_be_null = merged && !is_required;
                    (name.clone(), if may_be_null { or_null(property) } else { property })
                });
                schema.insert(key.clone(), Value::Object(properties.collect()));
                schema.insert("additionalProperties".to_owned(), json!(false));
            }
            "items" | "additionalProperties" if value.is_object() => {
                schema.insert(key.clone(), json_schema(value, merged && key != "items"));
            }
            _ => {
                assert!(!key.starts_with("x-kubernetes-"), "{key} has no counterpart here yet");
                schema.insert(key.clone(), value.clone());
            }
        }
    }
    let schema = Value::Object(schema);
    if merged && structural["nullable"] == true {
        or_null(schema)
    } else {
        schema
    }
}

#[test]
fn the_values_of_the_chart_know_the_fields_of_attacherconfigs() {
    let text = std::fs::read_to_string(PATH).expect("the file can be read");
    let start = text.find(BEGIN).expect("the definition is there") + BEGIN.len();
    let end = start + text[start..].find(END).expect("it has an end") + END.len();
    let generated = serde_json::to_string_pretty(&spec())
        .expect("writable")
        .replace('\n', "\n    ");
    let wanted = [&text[..start], &generated, &text[end..]].concat();
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(PATH, &wanted).expect("the file can be written");
    } else {
        assert!(text == wanted, "values.schema.json is stale: run `make generate`");
    }
}

#[test]
fn nothing_but_fields_of_the_definition_is_allowed() {
    let spec = spec();
    assert_eq!(spec["additionalProperties"], json!(false));
    assert_eq!(spec["properties"]["backoff"]["additionalProperties"], json!(false));
    assert_eq!(
        spec["properties"]["backoff"]["properties"]["factorPercent"]["maximum"],
        json!(1000.0)
    );
    assert!(spec.get("required").is_none());
    // The form of a text, also of one in a list; nothing of a rule that asks for more.
    let namespace = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";
    let field = |path: &str| spec.pointer(path).cloned().unwrap_or_default();
    assert_eq!(
        field("/properties/publishSecrets/items/properties/namespace/pattern"),
        json!(namespace)
    );
    let sidecars = "/properties/leaderElection/properties/sidecarNamespaces/items/pattern";
    assert_eq!(field(sidecars), json!(namespace));
    assert_eq!(field("/properties/provisioning/pattern"), Value::Null);
    assert_eq!(
        pattern(&json!({"rule": "self.matches('a') || self.matches('b')"})),
        None
    );
    // What is not set may be null, also the whole; what must be set may not.
    assert_eq!(spec["type"], json!(["object", "null"]));
    let list = "/properties/leaderElection/properties/sidecarNamespaces/type";
    assert_eq!(field(list), json!(["array", "null"]));
    assert_eq!(
        field("/properties/publishSecrets/items/properties/namespace/type"),
        json!("string")
    );
    assert_eq!(field("/properties/endpoint/type"), json!("string"));
    assert_eq!(
        field("/properties/publishSecrets/items/properties/names/type"),
        json!("array")
    );
    let nullable = json_schema(&json!({"type": "string", "enum": ["a"], "nullable": true}), true);
    assert_eq!(nullable, json!({"type": ["string", "null"], "enum": ["a", null]}));
}
