//! Which publish secrets a driver may be given.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::rules;

/// Publish secrets of one namespace.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct PublishSecretsSpec {
    /// Namespace of the Secrets.
    #[schemars(length(min = 1, max = rules::NAMESPACE.max), extend("x-kubernetes-validations" = [rules::NAMESPACE.rule()]))]
    pub namespace: String,

    /// Names of the Secrets. Omitted: all Secrets of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = rules::MAX_PUBLISH_SECRETS), extend(
        "items" = rules::SECRET_NAME.item(),
        "x-kubernetes-list-type" = "set",
    ))]
    pub names: Option<Vec<String>>,
}
