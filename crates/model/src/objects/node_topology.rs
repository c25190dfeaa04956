//! The topology of nodes: the keys that drivers registered (`storage.k8s.io/v1` CSINode), and the labels of `v1` Nodes.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::meta::{MAX_VOLUME_FIELD, ResourceVersion, boxed, kept_size};
use super::string_map::StringMap;

/// The topology keys under which drivers registered a node, by the name of the driver. Drivers without keys are left out.
///
/// They are the same on most nodes, so that a cache keeps them once for all of these. Most drivers have one to four; some register every
/// label of the node. There is no bound but that of the API server for an object: an entry that was left out would read as one without
/// keys, and the node be left out of requests without a word.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologyKeys(Box<[DriverKeys]>);

/// Name of a driver and its topology keys, sorted.
type DriverKeys = (Box<str>, Arc<[Box<str>]>);

impl TopologyKeys {
    /// From the names of drivers and their keys. The first entry of a name wins.
    pub(super) fn of_entries<'e>(entries: impl Iterator<Item = (&'e str, Vec<String>)>) -> Self {
        let mut drivers: BTreeMap<Box<str>, Vec<String>> = BTreeMap::new();
        for (driver, keys) in entries {
            drivers.entry(driver.into()).or_insert(keys);
        }
        let sorted = |mut keys: Vec<String>| {
            keys.sort_unstable();
            keys.dedup();
            keys.into_iter().map(String::into_boxed_str).collect::<Arc<[_]>>()
        };
        let drivers = drivers.into_iter().map(|(driver, keys)| (driver, sorted(keys)));
        Self(drivers.filter(|(_, keys)| !keys.is_empty()).collect())
    }

    /// The keys of a driver, sorted; none when it registered the node without keys, or not at all.
    pub fn of_driver(&self, driver: &str) -> Option<&Arc<[Box<str>]>> {
        let at = self.0.binary_search_by(|(name, _)| (**name).cmp(driver)).ok()?;
        self.0.get(at).map(|(_, keys)| keys)
    }

    /// Whether some driver registered this key.
    pub fn has_key(&self, key: &str) -> bool {
        self.0
            .iter()
            .any(|(_, keys)| keys.binary_search_by(|known| (**known).cmp(key)).is_ok())
    }

    /// Whether no driver registered a key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

/// Decodes metadata but keeps only what names the object, and its labels. Nothing else is read, so that nothing else can be wrong.
///
/// # Errors
/// What is not as the API server writes it.
pub fn labels_only<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let wire = LabelledWire::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: wire.name,
        namespace: wire.namespace,
        uid: wire.uid,
        resource_version: wire.resource_version,
        labels: wire.labels,
        ..ObjectMeta::default()
    })
}

/// A cached Node: its labels.
///
/// All of them, and not only the topology keys that drivers registered: a key may be registered later, and then the label is there at
/// once, without another list of all nodes during which nothing could be said of any. It costs 3 KiB for a node with 25 labels, and only
/// where a driver with topology is provisioned for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct NodeLabels {
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    /// Sorted by key, as far as [`MAX_VOLUME_FIELD`] allows.
    pub labels: StringMap,
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
