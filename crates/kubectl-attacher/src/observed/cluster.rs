//! Nodes, drivers, Leases, AttacherConfigs and Events.

use csi_attacher_model::api::condition::{ConditionReason, ConditionType};
use csi_attacher_model::api::names::{LEASE_DROP_IN_ANNOTATION, LEASE_HOLDER_ANNOTATION, NEW_LEASE_HOLDER};
use csi_attacher_model::api::{AttacherConfigObject, AttacherConfigStatus, DriverConfig};
use csi_attacher_model::findings::age;
use csi_attacher_model::objects::CsiNode;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::api::storage::v1::CSINode;
use std::collections::BTreeMap;
use std::time::Duration;

/// The taint that confirms that a machine is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConditionRecord {
    /// True, False or Unknown.
    pub status: String,
    /// Why, as one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When the status changed last.
    pub since: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    pub name: String,
    pub ready: Option<ConditionRecord>,
    /// Since when it has the taint out-of-service: the time may be missing.
    #[allow(clippy::option_option, reason = "the taint, and its time")]
    pub out_of_service: Option<Option<Timestamp>>,
    pub unschedulable: bool,
    /// `status.volumesInUse`: what the kubelet has mounted.
    pub volumes_in_use: Vec<String>,
}

impl NodeRecord {
    /// Whether the kubelet reports in.
    pub fn is_ready(&self) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.status == "True")
    }

    /// Whether the kubelet says that it has a volume mounted.
    pub fn uses(&self, driver: &str, handle: &str) -> bool {
        let name = format!("kubernetes.io/csi/{driver}^{handle}");
        self.volumes_in_use.contains(&name)
    }
}

impl From<Node> for NodeRecord {
    fn from(node: Node) -> Self {
        let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
        let ready = status.conditions.unwrap_or_default();
        let ready = ready.into_iter().find(|condition| condition.type_ == "Ready");
        let taints = spec.taints.unwrap_or_default();
        let out_of_service = taints.iter().find(|taint| taint.key == OUT_OF_SERVICE);
        Self {
            name: node.metadata.name.unwrap_or_default(),
            ready: ready.map(|condition| ConditionRecord {
                status: condition.status,
                reason: condition.reason.unwrap_or_default(),
                message: condition.message.unwrap_or_default(),
                since: condition.last_transition_time.map(|time| time.0),
            }),
            out_of_service: out_of_service.map(|taint| taint.time_added.as_ref().map(|time| time.0)),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            volumes_in_use: status.volumes_in_use.unwrap_or_default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNodeRecord {
    /// Drivers and node IDs.
    pub drivers: CsiNode,
    /// How many volumes of a driver the node takes, where the driver says so.
    pub limits: BTreeMap<String, i32>,
}

impl From<CSINode> for CsiNodeRecord {
    fn from(node: CSINode) -> Self {
        let name = node.metadata.name.unwrap_or_default();
        let registered = node.spec.drivers.iter();
        let ids = registered.clone().map(|driver| (&*driver.name, &*driver.node_id));
        let limits = registered.filter_map(|driver| Some((driver.name.clone(), driver.allocatable.as_ref()?.count?)));
        Self {
            drivers: CsiNode::new(&name, &ids.collect::<Vec<_>>()),
            limits: limits.collect(),
        }
    }
}

/// Who has a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseHolder {
    /// Nobody: it was released.
    Nobody,
    /// Nobody yet: it was just created, and all candidates wait until it has run out.
    New,
    /// A replica of the operator that reads AttacherConfigs.
    Replica(String),
    /// The operator in the place of a sidecar: it reads the annotations of people, and no AttacherConfig.
    DropIn(String),
    /// A sidecar, which reads neither.
    Sidecar(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    pub namespace: String,
    pub holder: LeaseHolder,
    /// When it was renewed last.
    pub renewed: Option<Timestamp>,
    /// For how long a renewal counts.
    pub duration: Duration,
}

impl LeaseRecord {
    /// The name of who has it.
    pub fn holder(&self) -> Option<&str> {
        match &self.holder {
            LeaseHolder::Nobody | LeaseHolder::New => None,
            LeaseHolder::Replica(name) | LeaseHolder::DropIn(name) | LeaseHolder::Sidecar(name) => Some(name),
        }
    }

    /// Whether somebody has it and has renewed it lately.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.holder().is_some() && self.is_current(now)
    }

    /// Whether it was created lately, and waits for its first holder.
    pub fn is_new(&self, now: Timestamp) -> bool {
        self.holder == LeaseHolder::New && self.is_current(now)
    }

    /// Whether its time is not over. Clocks of other machines may differ, so it counts for twice its time.
    fn is_current(&self, now: Timestamp) -> bool {
        self.renewed
            .is_some_and(|renewed| age(renewed, now) <= self.duration * 2)
    }
}

impl From<Lease> for LeaseRecord {
    fn from(lease: Lease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let annotations = lease.metadata.annotations.unwrap_or_default();
        let is_noted = |key: &str, holder: &String| annotations.get(key) == Some(holder);
        let holder = match spec.holder_identity.filter(|holder| !holder.is_empty()) {
            None => LeaseHolder::Nobody,
            Some(holder) if holder == NEW_LEASE_HOLDER => LeaseHolder::New,
            Some(holder) if is_noted(LEASE_HOLDER_ANNOTATION, &holder) => LeaseHolder::Replica(holder),
            Some(holder) if is_noted(LEASE_DROP_IN_ANNOTATION, &holder) => LeaseHolder::DropIn(holder),
            Some(holder) => LeaseHolder::Sidecar(holder),
        };
        let seconds = spec.lease_duration_seconds;
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Self {
            namespace: lease.metadata.namespace.unwrap_or_default(),
            holder,
            renewed: spec.renew_time.map(|time| time.0),
            duration: Duration::from_secs(seconds.unwrap_or(15)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct ConfigRecord {
    pub name: String,
    pub created: Option<Timestamp>,
    /// When it was deleted, if it was.
    pub deleting: Option<Timestamp>,
    pub generation: Option<i64>,
    /// Its settings; an error in words when this program cannot use them, which may be older than the operator: see [`Self::is_accepted`].
    pub spec: Result<DriverConfig, String>,
    pub status: AttacherConfigStatus,
}

impl ConfigRecord {
    /// The driver that it is for: what the spec says, else what the driver answered.
    pub fn driver(&self) -> Option<&str> {
        let spec = self.spec.as_ref().ok().and_then(|spec| spec.driver_name.as_deref());
        spec.or(self.status.driver.as_ref().map(|driver| driver.name.as_str()))
    }

    /// Whether it claims its driver: by its spec, or as the one that serves it. What a driver answered once may be that of a former endpoint.
    pub fn claims(&self) -> bool {
        let is_named = self.spec.as_ref().is_ok_and(|spec| spec.driver_name.is_some());
        is_named || self.status.holder.is_some()
    }

    /// Whether another one for its driver is used.
    pub fn yields(&self) -> bool {
        self.deleting.is_some() || self.is_suspended()
    }

    /// Whether it is suspended; the operator says so of a spec that this program cannot read.
    pub fn is_suspended(&self) -> bool {
        let is_told = |ready: ConditionRecord| ready.reason == ConditionReason::Suspended.as_str();
        match &self.spec {
            Ok(spec) => spec.suspend,
            Err(_) => self.is_accepted() && self.condition(ConditionType::Ready).is_some_and(is_told),
        }
    }

    /// Whether the operator has read the spec as it is now, and found it valid.
    pub fn is_accepted(&self) -> bool {
        let Some(generation) = self.generation else {
            return false;
        };
        self.status.conditions.iter().any(|condition| {
            let is_invalid = condition.status == "True" && condition.reason == ConditionReason::InvalidSpec.as_str();
            let is_of_spec = condition.observed_generation == Some(generation);
            condition.type_ == ConditionType::Stalled.as_str() && is_of_spec && !is_invalid
        })
    }

    /// What this program cannot read of a spec that the operator can, if anything.
    pub fn not_read(&self) -> Option<String> {
        let errors = self.spec.as_ref().err().filter(|_| self.is_accepted())?;
        let name = &self.name;
        Some(format!(
            "this kubectl-attacher does not know a part of the spec of AttacherConfig {name}; it is of another version than the operator: \
             {errors}"
        ))
    }

    pub fn condition(&self, kind: ConditionType) -> Option<ConditionRecord> {
        let mut conditions = self.status.conditions.iter();
        let found = conditions.find(|condition| condition.type_ == kind.as_str())?;
        Some(ConditionRecord {
            status: found.status.clone(),
            reason: found.reason.clone(),
            message: found.message.clone(),
            since: Some(found.last_transition_time.0),
        })
    }
}

impl From<AttacherConfigObject> for ConfigRecord {
    fn from(object: AttacherConfigObject) -> Self {
        Self {
            spec: object.config().map_err(|errors| errors.to_string()),
            generation: object.metadata.generation,
            name: object.metadata.name.unwrap_or_default(),
            created: object.metadata.creation_timestamp.map(|time| time.0),
            deleting: object.metadata.deletion_timestamp.map(|time| time.0),
            status: object.status,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    pub reason: String,
    pub message: String,
    /// When it happened last.
    pub last: Option<Timestamp>,
}

impl From<Event> for EventRecord {
    fn from(event: Event) -> Self {
        let series = event.series.and_then(|series| series.last_observed_time);
        let first = event.event_time.map(|time| time.0);
        let last = event.last_timestamp.map(|time| time.0).or(first);
        Self {
            last: series.map(|time| time.0).or(last),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_note_counts_for_the_holder_that_it_names() {
        let holder = |identity: &str, annotation: &str, noted: &str| {
            let lease = json!({
                "metadata": {"name": "l", "namespace": "n", "annotations": {annotation: noted}},
                "spec": {"holderIdentity": identity},
            });
            LeaseRecord::from(serde_json::from_value::<Lease>(lease).unwrap()).holder
        };
        let (replica, drop_in) = ("attacher.csi.dev/holder", "attacher.csi.dev/drop-in-holder");
        let pod = || "pod-1".to_owned();
        for (identity, annotation, noted, expected) in [
            ("pod-1", replica, "pod-1", LeaseHolder::Replica(pod())),
            ("pod-1", drop_in, "pod-1", LeaseHolder::DropIn(pod())),
            ("pod-1", drop_in, "pod-0", LeaseHolder::Sidecar(pod())),
            ("pod-1", "other", "pod-1", LeaseHolder::Sidecar(pod())),
            ("", replica, "pod-1", LeaseHolder::Nobody),
            ("attacher.csi.dev/new-lease", replica, "pod-1", LeaseHolder::New),
        ] {
            assert_eq!(
                holder(identity, annotation, noted),
                expected,
                "{identity} {annotation} {noted}"
            );
        }
    }
}
