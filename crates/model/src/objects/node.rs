//! `storage.k8s.io/v1` CSINode.

use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;
use std::sync::Arc;

use super::ResourceVersion;
use super::meta::{boxed, is_blank, slim};
use super::node_topology::TopologyKeys;

/// A CSINode as it comes over the wire, reduced to what is read.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = CSINode, crates(kube_core = "::kube_core"))]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct CsiNodeWire {
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: CsiNodeSpecWire,
}

/// `CSINodeSpec`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct CsiNodeSpecWire {
    #[serde(default)]
    drivers: Option<Vec<DriverWire>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DriverWire {
    name: String,
    #[serde(rename = "nodeID")]
    node_id: String,
    topology_keys: Option<Vec<String>>,
}

/// A cached CSINode: which drivers the kubelet registered, under which node ID.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct CsiNode {
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    drivers: Box<[(Box<str>, Box<str>)]>,
    /// None where no driver registered a topology key.
    topology: Option<Arc<TopologyKeys>>,
}

impl CsiNode {
    /// Builds the record from driver names and node IDs.
    pub fn new(name: &str, drivers: &[(&str, &str)]) -> Self {
        Self {
            name: name.into(),
            uid: format!("{name}-uid").into(),
            resource_version: ResourceVersion::default(),
            drivers: drivers
                .iter()
                .map(|(driver, id)| ((*driver).into(), (*id).into()))
                .collect(),
            topology: None,
        }
    }

    /// The topology keys of a driver, sorted; none when it registered the node without keys, or not at all.
    pub fn topology_keys(&self, driver: &str) -> Option<&Arc<[Box<str>]>> {
        self.topology.as_ref()?.of_driver(driver)
    }

    /// The topology keys of all drivers; none when no driver registered any.
    pub fn topology(&self) -> Option<&Arc<TopologyKeys>> {
        self.topology.as_ref()
    }

    /// Takes topology keys that are kept already in the place of equal ones.
    pub fn share_topology(&mut self, kept: Arc<TopologyKeys>) {
        if self.topology.as_ref() == Some(&kept) {
            self.topology = Some(kept);
        }
    }

    /// The node ID under which `driver` registered, if it is not blank; names match exactly and the first entry wins.
    pub fn node_id(&self, driver: &str) -> Option<&str> {
        self.entry(driver).filter(|id| !is_blank(id))
    }

    /// Whether `driver` registered, be it with a blank node ID.
    pub fn has_driver(&self, driver: &str) -> bool {
        self.entry(driver).is_some()
    }

    fn entry(&self, driver: &str) -> Option<&str> {
        let mut drivers = self.drivers.iter();
        drivers.find(|(name, _)| &**name == driver).map(|(_, id)| &**id)
    }

    /// The registered drivers with their node IDs, those that are not blank.
    pub fn node_ids(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.drivers.iter().map(|(driver, id)| (&**driver, &**id));
        all.filter(|(_, id)| !is_blank(id))
    }

    /// Names of the registered drivers.
    pub fn drivers(&self) -> impl Iterator<Item = &str> {
        self.drivers.iter().map(|(name, _)| &**name)
    }
}

impl From<CsiNodeWire> for CsiNode {
    fn from(wire: CsiNodeWire) -> Self {
        let mut drivers = wire.spec.drivers.unwrap_or_default();
        let keys = drivers
            .iter_mut()
            .map(|entry| (&*entry.name, entry.topology_keys.take().unwrap_or_default()));
        let topology = TopologyKeys::of_entries(keys);
        Self {
            topology: (!topology.is_empty()).then(|| Arc::new(topology)),
            resource_version: ResourceVersion::of(&wire.metadata),
            name: wire.metadata.name.unwrap_or_default().into(),
            uid: boxed(wire.metadata.uid),
            drivers: drivers
                .into_iter()
                .map(|entry| (entry.name.into(), entry.node_id.into()))
                .collect(),
        }
    }
}
