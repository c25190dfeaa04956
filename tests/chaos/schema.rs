//! Values for each field of AttacherConfig, from the schema of its CustomResourceDefinition: valid, borderline and invalid. Pure.

use serde_json::{Value, json};

/// A value for one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Where the field is, below `spec`.
    pub path: Vec<String>,
    pub value: Value,
}

impl Candidate {
    /// The path as messages have it.
    pub fn field(&self) -> String {
        format!("spec.{}", self.path.join("."))
    }

    /// The merge patch of a whole object that sets this field to a value.
    pub fn patch(&self, value: &Value) -> Value {
        let nested = self
            .path
            .iter()
            .rev()
            .fold(value.clone(), |inner, key| json!({key: inner}));
        json!({"spec": nested})
    }
}

/// What is there at a path.
pub fn at<'a>(spec: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(spec, |value, key| &value[key.as_str()])
}

/// All values for all fields of a schema, in the order of the fields.
pub fn candidates(schema: &Value) -> Vec<Candidate> {
    let mut found = Vec::new();
    walk(schema, &mut Vec::new(), &mut found);
    found
}

fn walk(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Candidate>) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            path.push(name.clone());
            walk(property, path, found);
            path.pop();
        }
        return;
    }
    found.extend(values(schema).into_iter().map(|value| Candidate {
        path: path.clone(),
        value,
    }));
}

fn values(schema: &Value) -> Vec<Value> {
    if let Some(variants) = schema["enum"].as_array() {
        let invalid = [json!("Invented"), json!(7)];
        return variants
            .iter()
            .filter(|variant| variant.is_string())
            .cloned()
            .chain(invalid)
            .collect();
    }
    match schema["type"].as_str() {
        Some("boolean") => vec![json!(true), json!(false), json!("yes")],
        Some("integer" | "number") => numbers(schema),
        Some("string") if schema["pattern"].as_str().is_some_and(|pattern| pattern.contains("ms")) => {
            ["1ms", "1s", "7s", "1m30s", "24h", "0s", "24h1ms", "-1s", "soon", ""]
                .map(|text| json!(text))
                .to_vec()
        }
        Some("string") => {
            let most = schema["maxLength"]
                .as_u64()
                .and_then(|most| usize::try_from(most).ok())
                .unwrap_or(63);
            let long = |length| json!("a".repeat(length));
            vec![
                json!("chaos"),
                json!(""),
                long(most),
                long(most + 1),
                json!("white space"),
                json!("../up"),
                json!(7),
            ]
        }
        Some("array") if schema["items"]["properties"].is_object() => {
            let mut values = vec![json!([]), json!("text"), json!([{}])];
            values.extend(items(&schema["items"]).into_iter().map(|item| json!([item])));
            let most = schema["maxItems"].as_u64().unwrap_or(8);
            let many: Vec<Value> = (0..=most).map(|_| valid(&schema["items"])).collect();
            values.push(json!(many));
            values
        }
        Some("array") => {
            let most = schema["maxItems"].as_u64().unwrap_or(8);
            let many: Vec<String> = (0..=most).map(|number| format!("k{number}/traceparent")).collect();
            vec![
                json!([]),
                json!(["chaos"]),
                json!(many),
                json!(["white space"]),
                json!("text"),
            ]
        }
        _ => Vec::new(),
    }
}

/// The bounds of a number, and what is beside them.
fn numbers(schema: &Value) -> Vec<Value> {
    let least = schema["minimum"].as_f64().unwrap_or_default();
    let most = schema["maximum"].as_f64().unwrap_or(1e6);
    // Whole numbers all of them: the schema of numbers takes those too.
    let mut values: Vec<Value> = [least, least + 1.0, least + 2.0, most, least - 1.0, most + 1.0]
        .map(|number| {
            format!("{number}")
                .parse::<i64>()
                .map_or(Value::Null, |number| json!(number))
        })
        .to_vec();
    values.push(json!("7"));
    values
}

/// Items of a list with one field each that has another value than the valid one.
fn items(schema: &Value) -> Vec<Value> {
    let of_field = |(name, property): (&String, &Value)| {
        let with = |value: Value| {
            let mut item = valid(schema);
            item[name.as_str()] = value;
            item
        };
        values(property).into_iter().map(with).collect::<Vec<_>>()
    };
    let properties = schema["properties"].as_object();
    properties.into_iter().flatten().flat_map(of_field).collect()
}

/// A valid item: what it must have.
fn valid(schema: &Value) -> Value {
    let required = schema["required"].as_array().into_iter().flatten();
    let names = required.filter_map(|name| Some((name.as_str()?.to_owned(), json!("chaos"))));
    Value::Object(names.collect())
}

/// A duration of Go in milliseconds, as in `1m30s`; `None` when it is none.
pub fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let unit = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        sum += number
            * match &after[..unit] {
                "h" => 3_600_000.0,
                "m" => 60_000.0,
                "s" => 1000.0,
                "ms" => 1.0,
                "us" | "µs" | "μs" => 0.001,
                "ns" => 0.000_001,
                _ => return None,
            };
        rest = &after[unit..];
    }
    format!("{sum:.0}").parse().ok()
}
