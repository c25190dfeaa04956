//! The contents of a Secret on their way to the one call that they are for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;

use super::error::ApiError;
use super::requests::Requests;
use crate::objects::{ResourceVersion, SecretReference, slim};
use crate::telemetry::Span;

/// A Secret as it comes over the wire. It cannot be printed.
#[derive(Deserialize, Resource)]
#[resource(inherit = Secret, crates(kube_core = "::kube::core"))]
pub struct SecretWire {
    #[serde(default, deserialize_with = "slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    data: BTreeMap<String, ByteString>,
}

crate::kind!(SecretWire, "secrets");

/// The contents of a publish secret: key to value. It prints as a count, and lives as long as one attempt, or until what it was
/// published with is taken back. Copies share the contents.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData {
    data: Arc<BTreeMap<String, String>>,
    version: ResourceVersion,
}

impl SecretData {
    /// Contents of no version.
    pub fn new(data: BTreeMap<String, String>) -> Self {
        Self {
            data: Arc::new(data),
            version: ResourceVersion::default(),
        }
    }

    /// The version that was read; zero when the contents come from elsewhere.
    pub fn version(&self) -> ResourceVersion {
        self.version
    }

    /// The contents, for the one call that they are for.
    pub fn expose(&self) -> &BTreeMap<String, String> {
        &self.data
    }
}

impl From<SecretWire> for SecretData {
    fn from(wire: SecretWire) -> Self {
        // A Secret may hold bytes that are no text; CSI carries text only, so they are carried as near to it as can be.
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
        };
        let data = wire.data.into_iter().map(|(key, value)| (key, text(value.0)));
        Self {
            version: ResourceVersion::of(&wire.metadata),
            ..Self::new(data.collect())
        }
    }
}

impl fmt::Debug for SecretData {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "<{} redacted>", self.data.len())
    }
}

/// The Secret of the calls of one attempt: read live, and kept for no longer than that, or than the outcome of a call is not known.
#[derive(Clone, Debug, Default)]
pub struct HeldSecret(Option<(SecretReference, SecretData)>);

impl HeldSecret {
    /// One that was read before.
    pub fn new(held: Option<(SecretReference, SecretData)>) -> Self {
        Self(held)
    }

    /// Reads a Secret for work for this node, if it is for one, and keeps its contents.
    pub async fn read(
        &mut self,
        requests: &Requests,
        of: SecretReference,
        node: Option<&Arc<str>>,
        span: &Span,
    ) -> Result<(), ApiError> {
        let secret = requests.get::<SecretWire>(&of, node, span).await?;
        self.0 = Some((of, secret.into()));
        Ok(())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The contents of a Secret, if it is the one that was read last.
    pub fn of(&self, wanted: Option<&SecretReference>) -> Option<&SecretData> {
        let (of, data) = self.0.as_ref()?;
        (Some(of) == wanted).then_some(data)
    }
}
