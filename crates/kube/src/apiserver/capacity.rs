//! Which provisioner wrote a CSIStorageCapacity.

use csi_attacher_model::provision::CapacityManager;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;

use crate::api::names::{CAPACITY_DRIVER_LABEL, CAPACITY_MANAGER_LABEL};
use crate::objects::labels_only;

/// A CSIStorageCapacity as it comes over the wire: its name and its labels.
#[derive(Deserialize, Resource)]
#[resource(inherit = CSIStorageCapacity, crates(kube_core = "::kube::core"))]
pub struct CapacityWire {
    #[serde(default, deserialize_with = "labels_only")]
    metadata: ObjectMeta,
}

crate::kind!(CapacityWire, "csistoragecapacities");

impl From<CapacityWire> for CapacityManager {
    fn from(wire: CapacityWire) -> Self {
        let ObjectMeta {
            name,
            namespace,
            labels,
            ..
        } = wire.metadata;
        let mut labels = labels.unwrap_or_default();
        let mut label = |key: &str| labels.remove(key).unwrap_or_default().into();
        Self {
            namespace: namespace.unwrap_or_default().into(),
            name: name.unwrap_or_default().into(),
            driver: label(CAPACITY_DRIVER_LABEL),
            managed_by: label(CAPACITY_MANAGER_LABEL),
        }
    }
}
