//! The contents of a Secret on their way to the one call that they are for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;

use super::requests::Requests;
use crate::objects::{ResourceVersion, SecretReference, slim};
use crate::telemetry::Span;
use csi_attacher_model::answer::ApiError;

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

    /// The values that are text, without the others, such as a key store beside certificates.
    pub fn text_of(wire: SecretWire) -> Self {
        let version = ResourceVersion::of(&wire.metadata);
        let text = |(key, value): (String, ByteString)| Some((key, String::from_utf8(value.0).ok()?));
        Self {
            version,
            ..Self::new(wire.data.into_iter().filter_map(text).collect())
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

impl TryFrom<SecretWire> for SecretData {
    type Error = ApiError;

    /// CSI carries text only. A value that is none is not sent in another form: it may be what a volume is encrypted with.
    fn try_from(wire: SecretWire) -> Result<Self, ApiError> {
        let entries = wire.data.into_iter();
        let texts = entries.map(|(key, value)| String::from_utf8(value.0).map(|text| (key, text)));
        // Which key it is does not leave the process, as keys of Secrets do not.
        let data = texts.collect::<Result<_, _>>().map_err(|_| {
            ApiError::garbled(
                "the value of one of its keys is not UTF-8 text, and CSI can send nothing else; encode it, as the driver's documentation \
                 says, or remove the key",
            )
        })?;
        Ok(Self {
            version: ResourceVersion::of(&wire.metadata),
            ..Self::new(data)
        })
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
        let data = SecretData::try_from(secret).map_err(|error| {
            let SecretReference { namespace, name } = &of;
            ApiError::garbled(format!("Secret {namespace}/{name}: {}", error.message))
        })?;
        self.0 = Some((of, data));
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
