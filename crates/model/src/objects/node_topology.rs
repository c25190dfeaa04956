//! The topology of nodes: the keys that drivers registered (`storage.k8s.io/v1` CSINode), and the labels of `v1` Nodes.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::meta::{MAX_VOLUME_FIELD, ResourceVersion, boxed, kept_size, slim};
use super::string_map::StringMap;

/// A CSINode as it comes over the wire, reduced to its topology keys.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = CSINode, crates(kube_core = "::kube_core"))]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct TopologyKeysWire {
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: TopologyKeysSpecWire,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct TopologyKeysSpecWire {
    drivers: Option<Vec<DriverKeysWire>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DriverKeysWire {
    name: String,
    topology_keys: Option<Vec<String>>,
}

/// What a CSINode says of topology: the keys under which each driver registered the node, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct TopologyKeys {
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    drivers: Box<[DriverKeys]>,
}

/// Name of a driver and its topology keys, sorted.
type DriverKeys = (Box<str>, Arc<[Box<str>]>);

impl TopologyKeys {
    /// The keys of a driver, sorted; none when the driver is not registered on the node. The first entry of a name wins.
    pub fn of_driver(&self, driver: &str) -> Option<&Arc<[Box<str>]>> {
        let mut drivers = self.drivers.iter();
        drivers.find(|(name, _)| &**name == driver).map(|(_, keys)| keys)
    }
}

impl From<TopologyKeysWire> for TopologyKeys {
    fn from(wire: TopologyKeysWire) -> Self {
        let drivers = wire.spec.drivers.into_iter().flatten().map(|driver| {
            let mut keys: Vec<Box<str>> = driver.topology_keys.into_iter().flatten().map(String::into).collect();
            keys.sort_unstable();
            keys.dedup();
            (driver.name.into(), keys.into())
        });
        Self {
            drivers: drivers.collect(),
            resource_version: ResourceVersion::of(&wire.metadata),
            name: boxed(wire.metadata.name).into(),
            uid: boxed(wire.metadata.uid),
        }
    }
}

/// A Node as it comes over the wire, reduced to its labels.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Node, crates(kube_core = "::kube_core"))]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct NodeLabelsWire {
    #[serde(deserialize_with = "labels_only")]
    pub metadata: ObjectMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LabelledWire {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

fn labels_only<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let wire = LabelledWire::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: wire.name,
        uid: wire.uid,
        resource_version: wire.resource_version,
        labels: wire.labels,
        ..ObjectMeta::default()
    })
}

/// A cached Node: its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct NodeLabels {
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    /// Sorted by key, as far as [`MAX_VOLUME_FIELD`] allows.
    pub labels: StringMap,
}

impl NodeLabels {
    /// Drops every label but those that `is_key` names: the topology keys that some driver registered.
    pub fn retain(&mut self, is_key: impl Fn(&str) -> bool) {
        let kept = self.labels.iter().filter(|(key, _)| is_key(key));
        let kept: BTreeMap<String, String> = kept.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        self.labels = kept.into();
    }
}

impl From<NodeLabelsWire> for NodeLabels {
    fn from(wire: NodeLabelsWire) -> Self {
        let mut size = 0;
        let fits = |(key, value): &(String, String)| {
            size += kept_size([key.len() + value.len()]);
            size <= MAX_VOLUME_FIELD
        };
        let resource_version = ResourceVersion::of(&wire.metadata);
        let labels: BTreeMap<_, _> = wire.metadata.labels.into_iter().flatten().take_while(fits).collect();
        Self {
            labels: labels.into(),
            resource_version,
            name: boxed(wire.metadata.name).into(),
            uid: boxed(wire.metadata.uid),
        }
    }
}
