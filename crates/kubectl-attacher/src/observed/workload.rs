//! Pods and their claims.

use csi_attacher_model::objects::{InTreePlugin, Volume};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube_derive::Resource;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::ConditionRecord;

/// A Pod as it comes over the wire, reduced to what is read: there may be ten thousand.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Pod, crates(kube_core = "::kube_core"))]
pub struct PodWire {
    /// Reduced object metadata.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpecWire,
    #[serde(default)]
    status: PodStatusWire,
}

/// Metadata without what nobody reads: managed fields alone are half of a pod.
fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = SlimMeta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        owner_references: meta.owner_references,
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecWire {
    node_name: Option<String>,
    #[serde(default)]
    volumes: Option<Vec<VolumeWire>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeWire {
    name: String,
    persistent_volume_claim: Option<ClaimSourceWire>,
    ephemeral: Option<IgnoredAny>,
    csi: Option<InlineWire>,
    gce_persistent_disk: Option<IgnoredAny>,
    aws_elastic_block_store: Option<IgnoredAny>,
    cinder: Option<IgnoredAny>,
    azure_disk: Option<IgnoredAny>,
    vsphere_volume: Option<IgnoredAny>,
}

impl VolumeWire {
    /// The in-tree plug-in, if its driver attaches volumes: those of Azure files and of Portworx do not.
    fn in_tree(&self) -> Option<InTreePlugin> {
        let plugins = [
            (&self.gce_persistent_disk, InTreePlugin::GcePersistentDisk),
            (&self.aws_elastic_block_store, InTreePlugin::AwsElasticBlockStore),
            (&self.cinder, InTreePlugin::Cinder),
            (&self.azure_disk, InTreePlugin::AzureDisk),
            (&self.vsphere_volume, InTreePlugin::VsphereVolume),
        ];
        let given = plugins.into_iter().find(|(source, _)| source.is_some());
        given.map(|(_, plugin)| plugin)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSourceWire {
    claim_name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct InlineWire {
    driver: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodStatusWire {
    phase: Option<String>,
    #[serde(default)]
    conditions: Option<Vec<PodCondition>>,
}

/// Where a volume of a pod comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodVolumeSource {
    /// A claim of this name in the pod's namespace.
    Claim(String),
    /// A CSI ephemeral volume of this driver, which is never attached.
    Inline(String),
    /// A volume that the pod names itself, of a plug-in that a CSI driver took over.
    InTree(InTreePlugin),
}

/// A volume of a pod that a CSI driver has to do with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVolume {
    pub name: String,
    pub source: PodVolumeSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRecord {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The node that it was scheduled to.
    pub node: Option<String>,
    /// `status.phase`.
    pub phase: String,
    pub created: Option<Timestamp>,
    /// When it was deleted, if it was.
    pub deleting: Option<Timestamp>,
    /// Kind and name of the controller that made it, with a slash.
    pub owner: Option<String>,
    pub scheduled: Option<ConditionRecord>,
    /// The volumes that a CSI driver may have to do with.
    pub volumes: Vec<PodVolume>,
}

impl PodRecord {
    /// Whether it ended by itself and uses no volume any more.
    pub fn is_over(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether one of its volumes is this claim.
    pub fn uses(&self, claim: &str) -> bool {
        let source = PodVolumeSource::Claim(claim.to_owned());
        self.volumes.iter().any(|volume| volume.source == source)
    }
}

impl From<PodWire> for PodRecord {
    fn from(wire: PodWire) -> Self {
        let name = wire.metadata.name.unwrap_or_default();
        let owners = wire.metadata.owner_references.unwrap_or_default();
        let owner = owners.iter().find(|owner| owner.controller == Some(true));
        let known = |volume: &VolumeWire| {
            let source = if let Some(claim) = &volume.persistent_volume_claim {
                PodVolumeSource::Claim(claim.claim_name.clone())
            } else if volume.ephemeral.is_some() {
                // The claim of a generic ephemeral volume has the pod's name and the volume's.
                PodVolumeSource::Claim(format!("{name}-{}", volume.name))
            } else if let Some(inline) = &volume.csi {
                PodVolumeSource::Inline(inline.driver.clone())
            } else {
                PodVolumeSource::InTree(volume.in_tree()?)
            };
            let name = volume.name.clone();
            Some(PodVolume { name, source })
        };
        let volumes = wire.spec.volumes.iter().flatten().filter_map(known).collect();
        let mut conditions = wire.status.conditions.into_iter().flatten();
        let scheduled = conditions.find(|condition| condition.type_ == "PodScheduled");
        Self {
            namespace: wire.metadata.namespace.unwrap_or_default(),
            uid: wire.metadata.uid.unwrap_or_default(),
            node: wire.spec.node_name.filter(|node| !node.is_empty()),
            phase: wire.status.phase.unwrap_or_default(),
            created: wire.metadata.creation_timestamp.map(|time| time.0),
            deleting: wire.metadata.deletion_timestamp.map(|time| time.0),
            owner: owner.map(|owner| format!("{}/{}", owner.kind, owner.name)),
            scheduled: scheduled.map(|condition| ConditionRecord {
                status: condition.status,
                reason: condition.reason.unwrap_or_default(),
                message: condition.message.unwrap_or_default(),
                since: condition.last_transition_time.map(|time| time.0),
            }),
            volumes,
            name,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    pub uid: String,
    /// `status.phase`.
    pub phase: String,
    /// The PersistentVolume that it is bound to.
    pub volume: Option<String>,
    pub created: Option<Timestamp>,
    pub storage_class: Option<String>,
}

impl ClaimRecord {
    /// Whether it has its volume.
    pub fn is_bound(&self) -> bool {
        self.phase == "Bound" && self.volume.is_some()
    }

    /// Whether it had a volume, which is gone or that of another claim.
    pub fn is_lost(&self) -> bool {
        self.phase == "Lost" && self.volume.is_some()
    }

    /// Whether it is the claim of a PersistentVolume, and not one that was made again under its name. A PersistentVolume that was reserved
    /// by hand names no UID.
    pub fn is_of(&self, volume: &Volume) -> bool {
        let is_meant = |uid: &str| uid.is_empty() || *uid == *self.uid;
        let is_referred = volume.claim.as_ref().is_some_and(|claim| is_meant(&claim.uid));
        is_referred || self.volume.as_deref() == Some(&*volume.name)
    }
}

impl From<PersistentVolumeClaim> for ClaimRecord {
    fn from(claim: PersistentVolumeClaim) -> Self {
        let spec = claim.spec.unwrap_or_default();
        Self {
            uid: claim.metadata.uid.unwrap_or_default(),
            phase: claim.status.and_then(|status| status.phase).unwrap_or_default(),
            volume: spec.volume_name.filter(|name| !name.is_empty()),
            created: claim.metadata.creation_timestamp.map(|time| time.0),
            storage_class: spec.storage_class_name,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::explain::tests::builders::{claim, volume};
    use crate::observed::ClaimRecord;
    use serde_json::json;

    #[test]
    fn a_claim_that_was_made_again_is_another_one() {
        for (referred, uid, names, expected) in [
            ("old", "old", Some("pv1"), true),
            ("old", "old", None, true),
            ("old", "new", None, false),
            ("old", "new", Some("pv2"), false),
            ("old", "new", Some("pv1"), true),
            ("", "new", None, true),
        ] {
            let reference = json!({"namespace": "shop", "name": "data", "uid": referred});
            let volume = volume(json!({"spec": {"claimRef": reference}}));
            let claim = ClaimRecord {
                uid: uid.to_owned(),
                volume: names.map(str::to_owned),
                ..claim()
            };
            assert_eq!(
                claim.is_of(volume.found().unwrap()),
                expected,
                "{referred} {uid} {names:?}"
            );
        }
    }
}
