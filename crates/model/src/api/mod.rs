//! What users and other controllers see: the AttacherConfig resource, its checked form for the runtime, its status
//! conditions, and the names shared with other programs (finalizers, leases, annotations).
//!
//! Everything here is pure data and pure functions. This module must not talk to the API server or to a driver, read a
//! clock, log, or panic on any input: the API server's checks can be bypassed (an older CRD, a direct write to etcd),
//! so every rule of the schema is checked a second time in [`validated`].

pub mod attacher_config;
mod brakes;
pub mod condition;
pub mod crd;
pub mod duration;
mod endpoint;
mod event_reason;
pub mod names;
pub mod object;
pub mod permissions;
pub mod provisioning_status;
mod rules;
pub mod status;
pub mod validated;

#[cfg(test)]
mod tests;

pub use attacher_config::{
    AnnotationMode, AttacherConfig, AttacherConfigSpec, DeletionPolicy, LeakProtection, OrphanPolicy,
    OrphanVolumePolicy, ProvisioningSpec, PublishSecretsSpec, ReconcileSyncMode, RedactionMode,
};
pub use brakes::Brakes;
pub use duration::GoDuration;
pub use event_reason::{EventReason, EventType};
pub use object::AttacherConfigObject;
pub use rules::MAX_DURATION;
pub(crate) use rules::{is_label, is_label_value, is_subdomain, is_volume_name_prefix};
pub use status::{AttacherConfigStatus, FormerLease};
pub use validated::DriverConfig;
