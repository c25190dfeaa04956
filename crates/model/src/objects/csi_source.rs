//! The CSI source of a volume.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::meta::{OversizedField, boxed};
use super::string_map::StringMap;

/// Name and namespace of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct SecretReference {
    pub namespace: Box<str>,
    pub name: Box<str>,
}

/// `CSIPersistentVolumeSource`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CsiSource {
    /// The driver that owns the volume.
    pub driver: Arc<str>,
    /// The volume's ID for that driver.
    pub handle: Box<str>,
    /// Whether to publish read-only.
    pub read_only: bool,
    /// Filesystem type; empty when the volume names none.
    pub fs_type: Box<str>,
    /// `volumeAttributes`, sent as volume context.
    pub attributes: StringMap,
    /// `controllerPublishSecretRef`.
    pub publish_secret: Option<SecretReference>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CsiWire {
    driver: String,
    volume_handle: String,
    #[serde(default)]
    read_only: bool,
    fs_type: Option<String>,
    volume_attributes: Option<BTreeMap<String, String>>,
    controller_publish_secret_ref: Option<SecretWire>,
}

impl CsiWire {
    /// Empties the attributes when they are too large.
    pub(super) fn take_oversized_attributes(&mut self) -> Option<OversizedField> {
        let entries = self.volume_attributes.iter().flatten();
        let lengths = entries.map(|(key, value)| key.len() + value.len());
        let too_large = OversizedField::of("spec.csi.volumeAttributes", lengths)?;
        self.volume_attributes = None;
        Some(too_large)
    }
}

#[derive(Clone, Debug, Deserialize)]
struct SecretWire {
    name: Option<String>,
    namespace: Option<String>,
}

impl From<CsiWire> for CsiSource {
    fn from(wire: CsiWire) -> Self {
        Self {
            driver: wire.driver.into(),
            handle: wire.volume_handle.into(),
            read_only: wire.read_only,
            fs_type: boxed(wire.fs_type),
            attributes: wire.volume_attributes.unwrap_or_default().into(),
            publish_secret: wire.controller_publish_secret_ref.map(|secret| SecretReference {
                namespace: boxed(secret.namespace),
                name: boxed(secret.name),
            }),
        }
    }
}
