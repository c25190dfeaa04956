//! `storage.k8s.io/v1` StorageClass.

use k8s_openapi::api::storage::v1::StorageClass as StorageClassApi;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::meta::{OversizedField, ResourceVersion, boxed, boxed_list, slim};
use super::string_map::StringMap;
use crate::stable_hash::stable_hash;

/// A StorageClass as it comes over the wire, reduced to what is read.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = StorageClassApi, crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct StorageClassWire {
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    provisioner: String,
    parameters: Option<BTreeMap<String, String>>,
    reclaim_policy: Option<String>,
    volume_binding_mode: Option<String>,
    mount_options: Option<Vec<String>>,
    allowed_topologies: Option<Vec<TopologyTermWire>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TopologyTermWire {
    match_label_expressions: Option<Vec<TopologyExpressionWire>>,
}

#[derive(Clone, Debug, Deserialize)]
struct TopologyExpressionWire {
    #[serde(default)]
    key: String,
    values: Option<Vec<String>>,
}

named! {
    /// What becomes of a volume when its claim is gone (`persistentVolumeReclaimPolicy`).
    #[allow(missing_docs, reason = "the variants are the names of the API")]
    pub enum ReclaimPolicy {
        Delete,
        Retain,
        Recycle,
        /// One that this version does not know.
        Other = "",
    }
}

impl ReclaimPolicy {
    /// Reads the API's name.
    pub fn parse(name: &str) -> Self {
        Self::of_word(name).unwrap_or(Self::Other)
    }
}

/// `TopologySelectorLabelRequirement`: a key and the values that are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct TopologyExpression {
    pub key: Box<str>,
    pub values: Box<[Box<str>]>,
}

/// A cached StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "a field without a comment is the field of the API with this name"
)]
pub struct StorageClass {
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    pub provisioner: Arc<str>,
    pub parameters: StringMap,
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Whether `volumeBindingMode` is WaitForFirstConsumer. An absent mode is Immediate.
    pub delayed: bool,
    pub mount_options: Box<[Box<str>]>,
    /// The terms of `allowedTopologies`, of which one must hold; all expressions of a term must.
    pub allowed_topologies: Box<[Box<[TopologyExpression]>]>,
    /// A field that is larger than [`MAX_VOLUME_FIELD`](super::MAX_VOLUME_FIELD) and was left out: nothing is provisioned by the class.
    pub too_large: Option<Box<OversizedField>>,
    /// Hash of what a driver is told of it: `provisioner`, `parameters` and `mountOptions`. Made once: each look at one of thousands of claims
    /// asks for it.
    pub told_hash: Arc<str>,
    /// Hash of `allowedTopologies`, made once as well.
    pub allowed_hash: Arc<str>,
}

/// Markers have it: it is the same in every version.
fn told_hash(provisioner: &str, parameters: &StringMap, mount_options: &[Box<str>]) -> Box<str> {
    let parameters = parameters.iter().flat_map(|(key, value)| [key, value]);
    let options = mount_options.iter().map(|option| &**option);
    stable_hash(
        std::iter::once(provisioner)
            .chain(parameters)
            .chain(["mountOptions"])
            .chain(options),
    )
}

/// The same.
fn allowed_hash(allowed: &[Box<[TopologyExpression]>]) -> Box<str> {
    let terms = allowed.iter().flat_map(|term| {
        let entries = term.iter().flat_map(|expression| {
            let values = expression.values.iter().map(|value| &**value);
            ["key", &*expression.key].into_iter().chain(values)
        });
        std::iter::once("term").chain(entries)
    });
    stable_hash(terms)
}

impl StorageClassWire {
    /// Empties the fields that are too large; the first of them.
    fn take_oversized(&mut self) -> Option<OversizedField> {
        let parameters = self.parameters.iter().flatten();
        let parameters = parameters.map(|(key, value)| key.len() + value.len());
        let options = self.mount_options.iter().flatten().map(String::len);
        let expressions = self
            .allowed_topologies
            .iter()
            .flatten()
            .flat_map(|term| term.match_label_expressions.iter().flatten());
        let topologies = expressions.flat_map(|expression| {
            let values = expression.values.iter().flatten().map(String::len);
            values.chain([expression.key.len()])
        });
        let too_large = OversizedField::of("parameters", parameters)
            .or_else(|| OversizedField::of("mountOptions", options))
            .or_else(|| OversizedField::of("allowedTopologies", topologies))?;
        self.parameters = None;
        self.mount_options = None;
        self.allowed_topologies = None;
        Some(too_large)
    }
}

impl From<StorageClassWire> for StorageClass {
    fn from(mut wire: StorageClassWire) -> Self {
        let too_large = wire.take_oversized().map(Box::new);
        let expression = |wire: TopologyExpressionWire| TopologyExpression {
            key: wire.key.into(),
            values: boxed_list(wire.values),
        };
        let term = |wire: TopologyTermWire| {
            wire.match_label_expressions
                .into_iter()
                .flatten()
                .map(expression)
                .collect()
        };
        let parameters = StringMap::from(wire.parameters.unwrap_or_default());
        let mount_options = boxed_list(wire.mount_options);
        let allowed_topologies: Box<[Box<[_]>]> = wire.allowed_topologies.into_iter().flatten().map(term).collect();
        Self {
            resource_version: ResourceVersion::of(&wire.metadata),
            name: boxed(wire.metadata.name).into(),
            uid: boxed(wire.metadata.uid),
            told_hash: told_hash(&wire.provisioner, &parameters, &mount_options).into(),
            allowed_hash: allowed_hash(&allowed_topologies).into(),
            provisioner: wire.provisioner.into(),
            parameters,
            reclaim_policy: wire.reclaim_policy.as_deref().map(ReclaimPolicy::parse),
            delayed: wire.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            mount_options,
            allowed_topologies,
            too_large,
        }
    }
}
