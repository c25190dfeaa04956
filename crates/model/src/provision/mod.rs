//! The decision core of the provisioner: what to do next about one PersistentVolumeClaim or PersistentVolume, and why. A sibling of
//! [`decide`](crate::decide), which knows nothing of claims.
//!
//! It is pure: no async, no client, no clock. [`claim`] and [`volume`] take what was observed and return one action with its reason; the
//! effect layer performs it, puts the object that the API server returned into the cache, and asks again, until there is nothing to do.
//! [`created`], [`undone`] and [`delete_answer`] turn the answers of a driver into what is known then. What must survive a crash is the
//! marker on the claim alone.
//!
//! Invariants, each held by a property in `tests/properties.rs`:
//! * CreateVolume is asked for only for a claim that carries a marker of this process (`leakProtection: Always`), under a name made from the
//!   UID of the claim.
//! * A marker leaves a claim only when its PersistentVolume is saved, no call was made, the last answer was final, the volume was deleted
//!   with OK, or a person let it go.
//! * DeleteVolume is asked for the handle of a PersistentVolume only when that is Released with policy Delete and was read live, no
//!   VolumeAttachment names it, no other PersistentVolume has the handle, and neither its claim nor another one that is bound to it is
//!   there. The one other handle is that of a volume which CreateVolume answered in this process, nobody wants, and no PersistentVolume or
//!   VolumeAttachment names.
//! * While it is not known whether a call created a volume, each call has the same name, and the selected node stays.
//! * What is not known ([`Seen::Unknown`]) leads to no call and no write.
//! * Finalizers and annotations of others survive every patch.
//!
//! Places that are left for later slices: data sources and VolumeAttributesClasses (`request::check_claim`), translated classes and
//! volumes of in-tree plug-ins ([`ProvisionerFacts::in_tree`]), capacity.

mod action;
pub mod attempt;
mod claim;
mod classify;
mod creation;
pub mod deletion;
mod distributed;
mod driver;
pub mod event;
mod fingerprint;
mod marker;
mod observed;
mod ownership;
mod parameters;
pub mod patch;
mod persistent_volume;
mod plan;
mod policy;
mod quantity;
mod refusal;
mod release_request;
mod request;
mod response;
mod secrets;
mod seen;
mod settle;
mod told_trouble;
pub mod topology;
mod trouble;
mod volume;
mod volume_name;

pub use action::{ClaimAction, ClaimDecision, ClaimReason, ProvisionedVolumeAction, VolumeDecision, VolumeReason};
pub use classify::{CreateErrorClass, create_error, delete_answer};
pub use creation::{Creation, Deletion, UncertainCall};
pub use distributed::{CapacityManager, NotCentral, capacity_selector, check_central};
pub use driver::ProvisionerFacts;
pub use fingerprint::{claim_fingerprint, volume_fingerprint};
pub use marker::{Marker, MarkerState, RecordedArguments, marked_since};
pub use observed::{CallSecret, ObservedClaim, ObservedVolume, OwningClaim, ProvisionerSecretState, RolePhase, Waited};
pub use ownership::{
    is_of_volume, is_own_claim, is_own_class, is_own_volume, is_released, may_be_asked_for, named_claim,
    needs_claim_work, needs_volume_work,
};
pub use parameters::ClassParameters;
pub use patch::ClaimWrite;
pub use persistent_volume::{is_saved, node_affinity, persistent_volume};
pub use plan::{ClaimAccessType, CreatePlan, DeletePlan, VolumeCapability, VolumeTemplate};
pub use policy::{LeakProtection, OrphanVolumePolicy, ProvisionPolicy, ProvisionerSecrets};
pub use quantity::{format_bytes, parse_bytes};
pub use refusal::{ProvisionRefusal, TemplateFault};
pub use response::{AnsweredVolume, InvalidAnswer, MAX_HANDLE, NewVolume, VolumeFault};
pub use secrets::{SecretFamily, SecretTemplates, TemplateContext};
pub use seen::Seen;
pub use settle::{CreateOutcome, answered_meanwhile, created, deletion_of, going, undone};
pub use trouble::{PendingObject, PendingOperation, ProvisionHealth, Trouble, TroubleKind};
pub use volume::{heir, last_to_go};
pub use volume_name::{VolumeNaming, is_prefix};

#[cfg(test)]
mod tests;
