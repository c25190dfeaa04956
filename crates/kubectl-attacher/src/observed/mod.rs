//! What was read of the cluster, reduced to what an explanation needs. Reading is done in [`crate::gather`]; nothing here talks.

mod cluster;
mod gap;
mod workload;

pub use cluster::{ConditionRecord, ConfigRecord, CsiNodeRecord, EventRecord, LeaseHolder, LeaseRecord, NodeRecord};
pub use gap::{Gap, GapReason};
#[cfg(test)]
pub use workload::PodVolume;
pub use workload::{ClaimRecord, PodRecord, PodVolumeSource, PodWire};

use csi_attacher_model::decide::{self, Capabilities, DriverFacts, Policy, PublishSecrets, ReleaseWithoutCall};
use csi_attacher_model::objects::{Attachment, AttachmentSource, SecretReference, Volume};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Whether the volume is attached and is to stay so.
pub fn is_settled(attachment: &Attachment) -> bool {
    attachment.attached && attachment.deleting.is_none()
}

/// One object that was asked for.
#[derive(Clone, Debug, Default)]
pub enum Lookup<T> {
    Found(T),
    Missing,
    /// It was not asked for, or the answer is not known; then a [`Gap`] says why.
    #[default]
    Unknown,
}

impl<T> Lookup<T> {
    /// The object, if it is there.
    pub fn found(&self) -> Option<&T> {
        match self {
            Self::Found(object) => Some(object),
            Self::Missing | Self::Unknown => None,
        }
    }

    /// Whether it is certain that there is none.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }

    /// The same about a reference to it.
    pub fn as_ref(&self) -> Lookup<&T> {
        match self {
            Self::Found(object) => Lookup::Found(object),
            Self::Missing => Lookup::Missing,
            Self::Unknown => Lookup::Unknown,
        }
    }

    /// The same about something made of it.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Lookup<U> {
        self.and_then(|object| Some(make(object)))
    }

    /// The same about something that it may have.
    pub fn and_then<U>(self, find: impl FnOnce(T) -> Option<U>) -> Lookup<U> {
        match self {
            Self::Found(object) => find(object).into(),
            Self::Missing => Lookup::Missing,
            Self::Unknown => Lookup::Unknown,
        }
    }
}

impl<T> From<Option<T>> for Lookup<T> {
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Missing, Self::Found)
    }
}

/// Another VolumeAttachment of the same volume, with what may keep the volume at its node.
#[derive(Clone, Debug)]
pub struct Holder {
    pub attachment: Arc<Attachment>,
    pub node: Lookup<NodeRecord>,
    /// Pods on that node that use the claim, with when they were deleted; none when nobody looked.
    pub pods: Lookup<Vec<HolderPod>>,
    pub events: Lookup<Vec<EventRecord>>,
}

/// A pod that uses the volume on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderPod {
    /// Namespace and name, with a slash.
    pub name: String,
    /// When it was deleted, if it was.
    pub deleting: Option<Timestamp>,
    /// Kind and name of the controller that made it, with a slash.
    pub owner: Option<String>,
}

/// Who serves a driver, as far as objects show it.
#[derive(Clone, Debug, Default)]
pub struct DriverScene {
    pub name: String,
    /// Whether the CRD of AttacherConfig is installed; unknown when nobody may list them.
    pub crd: Lookup<()>,
    /// The AttacherConfig that is for the driver; of several the one that is used.
    pub config: Lookup<ConfigRecord>,
    /// AttacherConfigs of which nobody knows yet which driver they are for: it may be this one.
    pub nameless: Vec<ConfigRecord>,
    /// The Leases of the driver's name, by namespace: a sidecar's is in that of its pod.
    pub leases: Lookup<Vec<LeaseRecord>>,
    /// `spec.attachRequired` of the CSIDriver.
    pub attach_required: Lookup<bool>,
}

impl DriverScene {
    /// The Leases that are known; none where they could not be read.
    pub fn known_leases(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.leases.found().into_iter().flatten()
    }

    /// Those that are held.
    pub fn held_leases(&self, now: Timestamp) -> impl Iterator<Item = &LeaseRecord> {
        self.known_leases().filter(move |lease| lease.is_held(now))
    }

    /// The Leases that are held by who reads no AttacherConfig: a sidecar, or the operator in the place of one.
    pub fn held_by_others(&self, now: Timestamp) -> impl Iterator<Item = &LeaseRecord> {
        let is_of_other =
            |lease: &&LeaseRecord| matches!(lease.holder, LeaseHolder::DropIn(_) | LeaseHolder::Sidecar(_));
        self.held_leases(now).filter(is_of_other)
    }

    /// The AttacherConfig by which the driver is served: while another attacher has the Lease, its settings mean nothing.
    pub fn config_in_use(&self, now: Timestamp) -> Lookup<&ConfigRecord> {
        if self.held_by_others(now).next().is_some() {
            return Lookup::Missing;
        }
        self.config.as_ref()
    }

    /// What the operator knows of the driver. Of a sidecar, and of a driver that never answered, the usual is supposed.
    pub fn facts(&self) -> DriverFacts {
        let status = self.config.found().and_then(|config| config.status.driver.as_ref());
        let capabilities = match status {
            Some(driver) if !driver.capabilities.is_empty() => {
                Capabilities::of_names(&driver.capabilities).of_attaching()
            }
            Some(driver) if driver.mode == Some(csi_attacher_model::api::status::DriverMode::Trivial) => {
                Capabilities::default()
            }
            _ => Capabilities {
                publish_unpublish: true,
                ..Capabilities::default()
            },
        };
        let facts = DriverFacts::new(&self.name, capabilities);
        if capabilities.publish_unpublish {
            return facts;
        }
        facts.releasing(match self.attach_required {
            Lookup::Found(false) => ReleaseWithoutCall::AttachNotRequired,
            _ => ReleaseWithoutCall::Unclaimed,
        })
    }

    /// The settings that decisions are made by. A sidecar reads every Secret that it has a permission for.
    pub fn policy(&self, now: Timestamp) -> Policy {
        let in_use = self.config_in_use(now);
        let in_use = in_use.found();
        let Some((record, config)) = in_use.and_then(|record| Some((record, record.spec.as_ref().ok()?))) else {
            return Policy {
                publish_secrets: PublishSecrets::Any,
                ..Policy::default()
            };
        };
        Policy {
            default_fs_type: config.default_fs_type.as_str().into(),
            orphans: config.orphan_policy,
            leaving: record.deleting.is_some(),
            publish_secrets: config.publish_secrets.clone(),
            config: record.name.as_str().into(),
        }
    }
}

/// One volume on its way to, or from, one node.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    pub now: Timestamp,
    /// From when on an operation counts as stuck.
    pub stuck_after: Duration,
    /// The pod that wants the volume, if the question was about one or one was found.
    pub pod: Option<PodRecord>,
    pub pod_events: Lookup<Vec<EventRecord>>,
    /// Namespace and name of the claim, with a slash.
    pub claim_name: Option<String>,
    pub claim: Lookup<ClaimRecord>,
    /// Of a PersistentVolume whose claim was made again under its name: namespace and name, and when that was.
    pub former_claim: Option<(String, Option<Timestamp>)>,
    pub volume_name: Option<String>,
    pub volume: Lookup<Arc<Volume>>,
    /// The VolumeAttachments that name the PersistentVolume, at whatever node; read when the question is about a volume. The scenes of
    /// its nodes share them.
    pub naming: Lookup<Arc<[Arc<Attachment>]>>,
    /// Pods that use the claim, on whatever node; read and shared as those.
    pub users: Lookup<Arc<[PodRecord]>>,
    /// Since when the PersistentVolume is being deleted.
    pub volume_deleting: Option<Timestamp>,
    /// `spec.persistentVolumeReclaimPolicy` of one that is being deleted.
    pub reclaim_policy: Option<String>,
    pub node_name: Option<String>,
    pub node: Lookup<NodeRecord>,
    pub csi_node: Lookup<CsiNodeRecord>,
    /// The VolumeAttachment of the volume at the node.
    pub attachment: Lookup<Arc<Attachment>>,
    pub events: Lookup<Vec<EventRecord>>,
    /// The other VolumeAttachments of the volume; unknown when they could not be listed.
    pub holders: Lookup<Vec<Holder>>,
    /// How many VolumeAttachments of the driver name the node.
    pub on_node: Option<usize>,
    /// Who serves the driver.
    pub driver: DriverScene,
    /// The publish secret of the volume, and whether it is there.
    pub secret: Option<(SecretReference, Lookup<()>)>,
}

impl Scene {
    /// A scene of which nothing is known yet.
    pub fn empty(now: Timestamp) -> Self {
        Self {
            now,
            stuck_after: Duration::from_mins(5),
            ..Self::default()
        }
    }

    /// The handle of the volume: the one that the VolumeAttachment stands for, as the PersistentVolume of today may be another volume;
    /// where that is not known, the one that the PersistentVolume has.
    pub fn handle(&self) -> Option<&str> {
        let volume = self.volume.found().map(|volume| &**volume);
        let attachment = self.attachment.found();
        let known = attachment.and_then(|attachment| decide::wanted_handle(attachment, volume));
        known.or_else(|| volume?.spec.csi().map(|source| &*source.handle))
    }

    /// Whether another VolumeAttachment is of the same volume ([`decide::is_same_volume`]).
    pub fn is_of_volume(&self, other: &Attachment) -> bool {
        let same_name = other
            .volume_name()
            .is_some_and(|name| Some(&**name) == self.volume_name.as_deref());
        let volume = self.volume.found().map(|volume| &**volume);
        let others = volume.filter(|_| same_name);
        if let Some(attachment) = self.attachment.found() {
            return decide::is_same_volume((attachment, volume), (other, others));
        }
        match (decide::wanted_handle(other, others), self.handle()) {
            (Some(other), Some(handle)) => other == handle,
            _ => same_name,
        }
    }

    /// Whether the volume may be at one node at a time only.
    pub fn is_for_one_node(&self) -> bool {
        let inline = match self.attachment.found().map(|attachment| &attachment.source) {
            Some(AttachmentSource::Inline(spec)) => Some(spec.access_modes),
            _ => None,
        };
        let modes = inline.or_else(|| self.volume.found().map(|volume| volume.spec.access_modes));
        modes.is_some_and(decide::is_for_one_node)
    }
}
