//! PersistentVolumeClaims, as far as the role reads them.

use std::sync::Arc;

use csi_attacher_kube::reflect::ResourceVersion;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;

/// A claim as it comes over the wire.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim, crates(kube_core = "::kube::core"))]
pub struct ClaimWire {
    /// Its metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: ClaimSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSpec {
    storage_class_name: Option<String>,
}

/// A claim as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Namespace and name.
    pub name: Arc<str>,
    uid: Box<str>,
    resource_version: ResourceVersion,
    /// Its storage class.
    pub class: Option<String>,
}

csi_attacher_kube::kind!(ClaimWire, "persistentvolumeclaims", Claim);

impl From<ClaimWire> for Claim {
    fn from(wire: ClaimWire) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let meta = &wire.metadata;
        Self {
            name: format!("{}/{}", text(&meta.namespace), text(&meta.name)).into(),
            uid: text(&meta.uid).into(),
            resource_version: ResourceVersion::of(meta),
            class: wire.spec.storage_class_name,
        }
    }
}
