//! The Secrets that are named: with the certificates of a connection, and those that a driver may be given for its volumes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::rules;

/// The certificates of an https endpoint.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsSpec {
    /// Secret with ca.crt, the CAs that may have signed the driver's certificate (no others are trusted), and, if the driver
    /// requires a client certificate, tls.crt and tls.key. It is read again when it changes; the operator needs the
    /// permission to get it.
    #[serde(rename = "secretRef")]
    pub secret: TlsSecretReference,

    /// Name in the driver's certificate, such as csi.example.com. Omitted: the host of the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = rules::SERVER_NAME.max), extend("x-kubernetes-validations" = [rules::SERVER_NAME.rule()]))]
    pub server_name: Option<String>,
}

/// Namespace and name of a Secret.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-map-type" = "atomic"))]
pub struct TlsSecretReference {
    /// Namespace of the Secret.
    #[schemars(length(min = 1, max = rules::NAMESPACE.max), extend("x-kubernetes-validations" = [rules::NAMESPACE.rule()]))]
    pub namespace: String,

    /// Name of the Secret in that namespace.
    #[schemars(length(min = 1, max = rules::SECRET_NAME.max), extend("x-kubernetes-validations" = [rules::SECRET_NAME.rule()]))]
    pub name: String,
}

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
