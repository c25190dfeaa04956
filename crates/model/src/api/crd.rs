//! The CustomResourceDefinition as the YAML that is committed under `crds/` and printed by the `crd` subcommand.

use kube_core::CustomResourceExt;
use serde_yaml::Value;

use super::AttacherConfig;

/// Keeps the CRD where it was a part of a Helm release and is none of the next revision: Helm deletes no object with this
/// annotation. It is in the file itself, as whoever replaces the CRD by the file (Flux, `kubectl replace`) takes away all other annotations.
const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");

const HEADER: &str = "\
# Generated from the Rust types under crates/model/src/api by `csi-attacher-operator crd`; do not edit.
# To change it, change the types and run `UPDATE=1 cargo test api::tests::crd`.
";

/// The CRD could not be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the CustomResourceDefinition of AttacherConfig as YAML: {0}")]
pub struct CrdError(#[from] serde_yaml::Error);

/// The CustomResourceDefinition of AttacherConfig in YAML, with a comment that says how it is made.
///
/// # Errors
/// [`CrdError`] when serialisation fails, which no input can cause.
pub fn crd_yaml() -> Result<String, CrdError> {
    let mut definition = AttacherConfig::crd();
    let (name, value) = KEEP;
    let annotations = definition.metadata.annotations.get_or_insert_default();
    annotations.insert(name.to_owned(), value.to_owned());
    let mut crd = serde_yaml::to_value(definition)?;
    flow(&mut crd);
    Ok(format!("{HEADER}{}", serde_yaml::to_string(&crd)?))
}

/// Makes one line of each paragraph of a description: `kubectl explain` wraps lines by itself, and breaks them where the
/// sources do besides.
fn flow(value: &mut Value) {
    match value {
        Value::Mapping(fields) => {
            for (name, field) in fields.iter_mut() {
                match field {
                    Value::String(text) if name == "description" => {
                        let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
                        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
                    }
                    _ => flow(field),
                }
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(flow),
        _ => {}
    }
}
