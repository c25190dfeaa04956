//! What a CSIDriver says about attaching and about where pods are scheduled.

use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;

use crate::objects::slim;

/// A CSIDriver as it comes over the wire.
#[derive(Deserialize, Resource)]
#[resource(inherit = CSIDriver, crates(kube_core = "::kube::core"))]
pub struct CsiDriverWire {
    #[serde(default, deserialize_with = "slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: CsiDriverSpecWire,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CsiDriverSpecWire {
    attach_required: Option<bool>,
    storage_capacity: Option<bool>,
}

impl CsiDriverWire {
    /// Whether kube-scheduler goes by the CSIStorageCapacities of the driver.
    pub fn is_scheduled_by_capacity(&self) -> bool {
        self.spec.storage_capacity == Some(true)
    }
}

crate::kind!(CsiDriverWire, "csidrivers");

/// The part of a CSIDriver that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDriver {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `spec.attachRequired`; true where the object does not say, as the API server has it.
    pub attach_required: bool,
}

impl From<CsiDriverWire> for CsiDriver {
    fn from(wire: CsiDriverWire) -> Self {
        Self {
            uid: wire.metadata.uid.unwrap_or_default().into(),
            attach_required: wire.spec.attach_required.unwrap_or(true),
        }
    }
}
