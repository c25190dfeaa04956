//! The CustomResourceDefinition as the YAML that is committed under `crds/` and printed by the `crd` subcommand.

use kube::CustomResourceExt;

use super::AttacherConfig;

const HEADER: &str = "\
# Generated from the Rust types under src/api by `csi-attacher-operator crd`; do not edit.
# To change it, change the types and run `UPDATE=1 cargo test api::tests::crd`.
";

/// The definition could not be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the CustomResourceDefinition of AttacherConfig as YAML: {0}")]
pub struct CrdError(#[from] serde_yaml::Error);

/// The CustomResourceDefinition of AttacherConfig in YAML, with a comment that says how it is made.
///
/// # Errors
/// [`CrdError`] when serialisation fails, which no input can cause.
pub fn crd_yaml() -> Result<String, CrdError> {
    Ok(format!("{HEADER}{}", serde_yaml::to_string(&AttacherConfig::crd())?))
}
