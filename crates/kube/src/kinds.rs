//! The kinds of objects that are read, written and watched: one row each.

use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Event, Namespace};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube_derive::Resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::AttacherConfigObject;
use crate::api::names::{CAPACITY_DRIVER_LABEL, CAPACITY_MANAGER_LABEL};
pub use crate::objects::ResourceVersion;
use crate::objects::{
    Attachment, Claim, CsiNode, CsiNodeWire, NodeLabels, NodeLabelsWire, PersistentVolumeClaimWire,
    PersistentVolumeWire, StorageClass, StorageClassWire, Volume, VolumeAttachmentWire, labels_only, slim,
};
use csi_attacher_model::provision::CapacityManager;

/// A kind of object, as it comes over the wire. Its group, version and kind are those of [`Resource`].
pub trait Kind: Resource<DynamicType = ()> + DeserializeOwned {
    /// Plural name: part of a path, and what logs, metrics and [`Lists`](crate::reflect::Lists) call the kind.
    const PLURAL: &'static str;
}

/// A kind that can be watched.
pub trait WatchedKind: Kind + Clone + Debug + Send + 'static {
    /// What is kept of an object.
    type Record: CacheRecord + From<Self>;
}

/// What a table needs to know of its records.
pub trait CacheRecord {
    /// `metadata.name`; of a namespaced kind, something that is unique in the cluster.
    fn name(&self) -> &Arc<str>;
    /// `metadata.uid`, which no other object has.
    fn uid(&self) -> &str;
    /// `metadata.resourceVersion`, which orders the copies of an object.
    fn version(&self) -> ResourceVersion;
    /// Gives it another version.
    fn set_version(&mut self, version: ResourceVersion);
}

/// The row of a kind: its wire type, its plural name and, if it is watched, the record that is kept of it, which has the fields
/// `name`, `uid` and `resource_version`, or another field with what is unique in the cluster in the place of `name`.
#[macro_export]
macro_rules! kind {
    ($wire:ty, $plural:literal) => {
        impl $crate::kinds::Kind for $wire {
            const PLURAL: &'static str = $plural;
        }
    };
    ($wire:ty, $plural:literal, $record:ty) => {
        $crate::kind!($wire, $plural, $record, name);
    };
    ($wire:ty, $plural:literal, $record:ty, $name:ident) => {
        $crate::kind!($wire, $plural);

        impl $crate::kinds::WatchedKind for $wire {
            type Record = $record;
        }

        impl $crate::kinds::CacheRecord for $record {
            #[allow(
                clippy::misnamed_getters,
                reason = "the name of a record is what no other one has"
            )]
            fn name(&self) -> &std::sync::Arc<str> {
                &self.$name
            }

            fn uid(&self) -> &str {
                &self.uid
            }

            fn version(&self) -> $crate::kinds::ResourceVersion {
                self.resource_version
            }

            fn set_version(&mut self, version: $crate::kinds::ResourceVersion) {
                self.resource_version = version;
            }
        }
    };
}
kind!(VolumeAttachmentWire, "volumeattachments", Attachment);
kind!(PersistentVolumeWire, "persistentvolumes", Volume);
kind!(CsiNodeWire, "csinodes", CsiNode);
kind!(StorageClassWire, "storageclasses", StorageClass);
kind!(NodeLabelsWire, "nodes", NodeLabels);
// Claims of one name are in several namespaces: a table has them by both.
kind!(PersistentVolumeClaimWire, "persistentvolumeclaims", Claim, key);
kind!(AttacherConfigObject, "attacherconfigs");
kind!(LeaseWire, "leases");
kind!(EventWire, "events");
kind!(Namespace, "namespaces");
kind!(CsiDriverWire, "csidrivers");
kind!(CapacityWire, "csistoragecapacities");

/// A Lease whose times may be any: a [`Timestamp`] ends 26 hours before those of Go do. Who holds it shows by changes of its record alone, so
/// that a time which cannot be read, and is the latest here, must keep nobody from taking it.
#[derive(Clone, Debug, Deserialize, Resource)]
#[serde(try_from = "Value")]
#[resource(inherit = Lease, crates(kube_core = "::kube::core"))]
pub struct LeaseWire {
    metadata: ObjectMeta,
    spec: Option<LeaseSpec>,
}

impl TryFrom<Value> for LeaseWire {
    type Error = serde_json::Error;

    fn try_from(mut lease: Value) -> Result<Self, Self::Error> {
        let is_readable = |time: &str| time.parse::<Timestamp>().is_ok();
        for at in ["/spec/acquireTime", "/spec/renewTime"] {
            if let Some(time) = lease.pointer_mut(at)
                && time.as_str().is_some_and(|text| !is_readable(text))
            {
                *time = Timestamp::MAX.to_string().into();
            }
        }
        // These have times as well, and a write without them leaves them as they are (Kubernetes, "Server-Side Apply").
        if let Some(metadata) = lease.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let Lease { metadata, spec } = serde_json::from_value(lease)?;
        Ok(Self { metadata, spec })
    }
}

impl From<LeaseWire> for Lease {
    fn from(wire: LeaseWire) -> Self {
        let LeaseWire { metadata, spec } = wire;
        Self { metadata, spec }
    }
}

/// An Event, of which the answer to a write is not read.
#[derive(Deserialize, Resource)]
#[resource(inherit = Event, crates(kube_core = "::kube::core"))]
pub struct EventWire {
    #[serde(default, deserialize_with = "slim")]
    metadata: ObjectMeta,
}

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

/// A CSIStorageCapacity as it comes over the wire: its name and its labels.
#[derive(Deserialize, Resource)]
#[resource(inherit = CSIStorageCapacity, crates(kube_core = "::kube::core"))]
pub struct CapacityWire {
    #[serde(default, deserialize_with = "labels_only")]
    metadata: ObjectMeta,
}

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
