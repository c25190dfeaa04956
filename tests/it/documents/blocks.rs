//! Examples in YAML: AttacherConfigs are usable, values are taken by the chart.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use csi_attacher_model::api::{AttacherConfig, AttacherConfigSpec, DriverConfig};
use kube::CustomResourceExt;
use serde::Deserialize;
use serde_json::Value;

use super::markdown::{self, Block, Document};
use super::{Problems, none};
use crate::support::prometheus::of_repository;

/// What a document of a block is.
#[derive(Debug, PartialEq)]
enum Example {
    /// A whole AttacherConfig, or its `spec` alone: the spec.
    Config(Value),
    /// Anything else that is YAML.
    Other,
}

fn example(document: &Value) -> Example {
    let mut spec = document["spec"].clone();
    let alone = document.as_object().is_some_and(|fields| fields.len() == 1);
    let known = |name: &String| spec_schema()["properties"].get(name).is_some();
    if document["kind"] != "AttacherConfig" {
        let fields = spec.as_object();
        if !alone || !fields.is_some_and(|fields| fields.keys().any(known)) {
            return Example::Other;
        }
        // An example may leave out what it is not about.
        if spec["endpoint"].is_null() {
            spec["endpoint"] = "unix:///csi/csi.sock".into();
        }
    }
    Example::Config(spec)
}

fn spec_schema() -> Value {
    let definition = serde_json::to_value(AttacherConfig::crd()).expect("writable");
    let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    schema.cloned().expect("it has a schema")
}

/// Why the operator or the API server would not take this spec.
fn spec_problem(spec: &Value) -> Option<String> {
    let schema = spec_schema();
    if let Some(field) = unknown("spec", &schema, spec) {
        return Some(format!("{field} is not in the schema"));
    }
    let read = match AttacherConfigSpec::deserialize(spec) {
        Ok(read) => read,
        Err(error) => return Some(error.to_string()),
    };
    DriverConfig::try_from(&read).err().map(|errors| errors.to_string())
}

fn unknown(path: &str, schema: &Value, value: &Value) -> Option<String> {
    value.as_object().into_iter().flatten().find_map(|(name, inner)| {
        let path = format!("{path}.{name}");
        match schema["properties"].get(name) {
            Some(schema) => unknown(&path, schema, inner),
            None => Some(path),
        }
    })
}

fn documents_of(text: &str) -> Result<Vec<Value>, String> {
    let documents = serde_yaml::Deserializer::from_str(text);
    documents
        .map(|one| Value::deserialize(one).map_err(|error| error.to_string()))
        .collect()
}

/// Values for the chart say so in their first line.
fn is_values(block: &Block<'_>) -> bool {
    block
        .text
        .lines()
        .next()
        .is_some_and(|line| line.starts_with("# values.yaml") || line.starts_with("# my-values.yaml"))
}

/// What is wrong, and how many AttacherConfigs were looked at.
fn problems(documents: &[Document]) -> (Problems, usize) {
    let (mut problems, mut count) = (Problems::new(), 0);
    for document in documents {
        for block in document.blocks().iter().filter(|block| block.language == "yaml") {
            let place = format!("{}:{}", document.path, block.line);
            let examples = match documents_of(&block.text) {
                Ok(examples) => examples,
                Err(error) => {
                    problems.push(format!("{place}: {error}"));
                    continue;
                }
            };
            for example in examples.iter().map(example) {
                let Example::Config(spec) = example else { continue };
                count += 1;
                problems.extend(spec_problem(&spec).map(|what| format!("{place}: {what}")));
            }
        }
    }
    (problems, count)
}

#[test]
fn every_attacherconfig_in_the_documents_can_be_used() {
    let (problems, count) = problems(&markdown::all());
    none(&problems);
    assert!(count >= 3, "only {count} were found");
}

#[test]
fn an_attacherconfig_that_cannot_be_used_is_found() {
    let block = |yaml: &str| [Document::new("A.md", &format!("```yaml\n{yaml}\n```\n"))];
    for (yaml, wrong) in [
        ("kind: AttacherConfig\nspec: {endpoint: 'unix:///csi/csi.sock'}", None),
        (
            "spec: {endpoint: 'unix:///csi/csi.sock', backof: {}}",
            Some("spec.backof"),
        ),
        (
            "spec: {endpoint: 'unix:///csi/csi.sock', backoff: {initial: 2m}}",
            Some("spec.backoff.initial"),
        ),
        ("spec: {endpoint: 'tcp://host:1'}", Some("endpoint")),
        (
            "spec: {endpoint: 'unix:///csi/csi.sock', timeouts: {publish: soon}}",
            Some("soon"),
        ),
        ("a: [", Some("A.md:2")),
        ("spec: {timeouts: {publish: 2m}}", None),
        ("spec: {timeouts: {publsh: 2m}}", Some("spec.timeouts.publsh")),
        ("kind: Pod\nspec: {containers: []}", None),
    ] {
        let (found, _) = problems(&block(yaml));
        match wrong {
            None => assert_eq!(found, Problems::new(), "{yaml}"),
            Some(part) => assert!(found.iter().any(|line| line.contains(part)), "{yaml}: {found:?}"),
        }
    }
}

fn helm() -> PathBuf {
    let built = Command::new(of_repository("tests/controlplane/build"))
        .args(["--path", "helm"])
        .stderr(Stdio::inherit())
        .output()
        .expect("the script starts");
    PathBuf::from(String::from_utf8_lossy(&built.stdout).trim())
}

/// What the chart makes of values, or why it does not take them.
fn rendered(helm: &PathBuf, values: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let file = folder.path().join("values.yaml");
    std::fs::write(&file, values).expect("it can be written");
    let mut command = Command::new(helm);
    command
        .args(["template", "storage"])
        .arg(of_repository("charts/csi-attacher-operator"))
        .arg("--values")
        .arg(&file);
    command.env_remove("KUBECONFIG").stdin(Stdio::null());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, folder.path());
    }
    let output = command.output().expect("helm starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// AttacherConfigs that the chart makes of values must be usable too.
fn values_problem(helm: &PathBuf, values: &str) -> Option<String> {
    let manifest = match rendered(helm, values) {
        Ok(manifest) => manifest,
        Err(said) => return Some(said),
    };
    let documents = documents_of(&manifest).unwrap_or_default();
    documents.iter().map(example).find_map(|example| match example {
        Example::Config(spec) => spec_problem(&spec),
        Example::Other => None,
    })
}

#[tokio::test]
async fn the_chart_takes_every_set_of_values_in_the_documents() {
    let looking = tokio::task::spawn_blocking(|| {
        let helm = helm();
        assert!(values_problem(&helm, "drivrs: {}").is_some_and(|said| said.contains("drivrs")));
        let wrong = "attacherConfigs: {a: {endpoint: 'unix:///a.sock', backoff: {initial: 2m}}}";
        assert!(values_problem(&helm, wrong).is_some_and(|said| said.contains("backoff.initial")));
        let (mut problems, mut count) = (Problems::new(), 0);
        for document in markdown::all() {
            for block in document.blocks().iter().filter(|block| is_values(block)) {
                count += 1;
                let wrong = values_problem(&helm, &block.text);
                problems.extend(wrong.map(|said| format!("{}:{}: {said}", document.path, block.line)));
            }
        }
        (problems, count)
    });
    let (problems, count) = looking.await.expect("it ends");
    none(&problems);
    assert!(count >= 3, "only {count} were found");
}
