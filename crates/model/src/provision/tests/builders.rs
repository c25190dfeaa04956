//! Objects as the API server sends them, and what is observed of them.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use crate::decide::tests::builders::put;
use crate::decide::{Capabilities, PublishSecrets};
use crate::objects::{
    Claim, ClaimReference, CsiNode, CsiNodeWire, DeletionSecret, NodeLabels, NodeLabelsWire, PersistentVolumeClaimWire,
    PersistentVolumeWire, SecretReference, StorageClass, StorageClassWire, Volume,
};
use crate::provision::topology::{KnownNode, TopologyFacts, TopologyNode};
use crate::provision::{
    AnsweredVolume, CallSecret, ClaimDecision, Creation, Deletion, LeakProtection, MarkerState, ObservedClaim,
    ObservedVolume, OrphanVolumePolicy, OwningClaim, ProvisionPolicy, ProvisionerFacts, ProvisionerSecretState,
    ProvisionerSecrets, RolePhase, SecretFamily, SecretTemplates, Seen, TemplateContext, UncertainCall, VolumeDecision,
    Waited,
};

pub const DRIVER: &str = "csi.test";
pub const UID: &str = "aaaaaaaa-1111-2222-3333-bbbbbbbbbbbb";
pub const NAME: &str = "pvc-aaaaaaaa-1111-2222-3333-bbbbbbbbbbbb";
pub const MARKER: &str = "attacher.csi.dev/provisioning";
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
pub const NOW: &str = "2026-01-02T03:04:05Z";
pub const DELETED_AT: &str = "2026-01-02T03:00:00Z";
pub const IDENTITY: &str = "1-2-csi.test";

pub fn now() -> Timestamp {
    NOW.parse().unwrap()
}

pub fn claim_json() -> Value {
    json!({
        "metadata": {
            "name": "data", "namespace": "web", "uid": UID, "resourceVersion": "7",
            "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
            "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": {
            "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    })
}

pub fn class_json() -> Value {
    json!({
        "metadata": {"name": "fast", "uid": "class-uid", "resourceVersion": "1"},
        "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
    })
}

/// The PersistentVolume of the claim, as it is after the claim was deleted.
pub fn volume_json() -> Value {
    json!({
        "metadata": {
            "name": NAME, "uid": "pv-uid", "resourceVersion": "9",
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["kubernetes.io/pv-protection", FINALIZER],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "web", "name": "data", "uid": UID},
            "csi": {"driver": DRIVER, "volumeHandle": "vol-1"},
        },
        "status": {"phase": "Released"},
    })
}

pub fn claim_of(json: &Value) -> Claim {
    serde_json::from_value::<PersistentVolumeClaimWire>(json.clone())
        .unwrap()
        .into()
}

pub fn class_of(json: &Value) -> StorageClass {
    serde_json::from_value::<StorageClassWire>(json.clone()).unwrap().into()
}

pub fn volume_of(json: &Value) -> Volume {
    serde_json::from_value::<PersistentVolumeWire>(json.clone())
        .unwrap()
        .into()
}

pub fn class_with(parameters: &[(&str, &str)]) -> StorageClass {
    let parameters: BTreeMap<_, _> = parameters.iter().copied().collect();
    let mut class = class_json();
    class["parameters"] = json!(parameters);
    class_of(&class)
}

pub fn driver() -> ProvisionerFacts {
    ProvisionerFacts {
        name: DRIVER.into(),
        in_tree: None,
        capabilities: Capabilities {
            create_delete_volume: true,
            ..Capabilities::default()
        },
    }
}

pub fn policy() -> ProvisionPolicy {
    ProvisionPolicy {
        config: "config".into(),
        volume_name_prefix: "pvc".into(),
        volume_name_uuid_length: None,
        default_fs_type: "".into(),
        create_metadata: false,
        strict_topology: false,
        aggregate_topology: true,
        read_only_many: false,
        leak_protection: LeakProtection::Always,
        hold_deletions: false,
        orphans: OrphanVolumePolicy::Retry,
        secrets: ProvisionerSecrets {
            listed: PublishSecrets::Any,
            ..ProvisionerSecrets::default()
        },
        identity: IDENTITY.into(),
    }
}

/// A node on which the driver is registered with the keys of these labels.
pub fn node(name: &str, labels: &[(&str, &str)]) -> TopologyNode {
    let keys: Vec<&str> = labels.iter().map(|(key, _)| *key).collect();
    node_with_keys(name, &keys, labels)
}

pub fn node_with_keys(name: &str, keys: &[&str], labels: &[(&str, &str)]) -> TopologyNode {
    let csi_node: CsiNodeWire = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"drivers": [
            {"name": "other", "nodeID": "o", "topologyKeys": ["other"]}, {"name": DRIVER, "nodeID": name, "topologyKeys": keys},
        ]},
    }))
    .unwrap();
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let node: NodeLabelsWire = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    TopologyNode {
        name: name.into(),
        keys: CsiNode::from(csi_node)
            .topology_keys(DRIVER)
            .cloned()
            .unwrap_or_default(),
        labels: NodeLabels::from(node).labels,
    }
}

/// Everything that is observed of a claim, as objects.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one thing that may be so")]
pub struct ClaimWorld {
    pub claim: Value,
    pub class: Option<Value>,
    pub classes_are_known: bool,
    pub nodes_are_known: bool,
    pub saved: Option<Value>,
    pub handle_owner: Option<String>,
    pub attached_to: Option<String>,
    pub nodes: Vec<TopologyNode>,
    /// The selected node has no Node.
    pub node_gone: bool,
    pub gone: bool,
    pub claim_is_live: bool,
    pub marker_is_own: bool,
    pub saved_is_live: bool,
    pub secret: ProvisionerSecretState,
    /// None is the one that the class names.
    pub secret_of: Option<SecretReference>,
    /// Whether somebody wanted the volume when it was read.
    pub secret_was_wanted: bool,
    /// None is what the marker says.
    pub creation: Option<Creation>,
    pub infeasible: bool,
    pub save_failed: bool,
    pub driver: ProvisionerFacts,
    pub policy: ProvisionPolicy,
    pub role: RolePhase,
    pub is_away: bool,
    pub waited: Waited,
    /// What is not known.
    pub unknown: &'static str,
}

pub fn world() -> ClaimWorld {
    ClaimWorld {
        claim: claim_json(),
        class: Some(class_json()),
        classes_are_known: true,
        nodes_are_known: true,
        saved: None,
        handle_owner: None,
        attached_to: None,
        nodes: Vec::new(),
        node_gone: false,
        gone: false,
        claim_is_live: false,
        marker_is_own: true,
        saved_is_live: true,
        secret: ProvisionerSecretState::NotLoaded,
        secret_of: None,
        secret_was_wanted: false,
        creation: None,
        infeasible: false,
        save_failed: false,
        driver: driver(),
        policy: policy(),
        role: RolePhase::Serving,
        is_away: false,
        waited: Waited::default(),
        unknown: "",
    }
}

pub fn marker_json() -> Value {
    json!({
        "driver": DRIVER, "uid": UID, "prefix": "pvc", "classUID": "class-uid",
        "since": "2026-01-01T00:00:00Z", "writer": IDENTITY,
    })
}

impl ClaimWorld {
    pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        put(&mut self.claim, pointer, value.into());
        self
    }

    pub fn annotate(mut self, key: &str, value: &str) -> Self {
        self.claim["metadata"]["annotations"][key] = value.into();
        self
    }

    pub fn class(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        put(self.class.as_mut().unwrap(), pointer, value.into());
        self
    }

    pub fn without_class(mut self) -> Self {
        self.class = None;
        self
    }

    /// Marked for a call with its class as it is now.
    pub fn marked(self) -> Self {
        let mut marker = marker_json();
        if let Some(class) = &self.class {
            marker["classHash"] = json!(&*class_of(class).told_hash);
        }
        self.marked_with(&marker)
    }

    /// With a class of the same name that is made anew with other parameters.
    pub fn replaced_class(self) -> Self {
        let replaced = self.class("/metadata/uid", "new");
        replaced.class("/parameters", json!({"pool": "other"}))
    }

    pub fn marked_with(mut self, marker: &Value) -> Self {
        self.claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection", MARKER]);
        self.annotate(MARKER, &marker.to_string())
    }

    pub fn deleting(self) -> Self {
        self.set("/metadata/deletionTimestamp", DELETED_AT)
    }

    pub fn bound(self, volume: &str) -> Self {
        self.set("/spec/volumeName", volume).set("/status/phase", "Bound")
    }

    pub fn saved(mut self) -> Self {
        self.saved = Some(volume_json());
        self
    }

    pub fn saved_with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let mut volume = volume_json();
        put(&mut volume, pointer, value.into());
        self.saved = Some(volume);
        self
    }

    pub fn removed(self) -> Self {
        self.with(|world| world.gone = true)
    }

    pub fn creation(mut self, creation: Creation) -> Self {
        self.creation = Some(creation);
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Delayed binding on a node in a zone, for a driver with topology.
    pub fn delayed(mut self) -> Self {
        self.driver.capabilities.accessibility_constraints = true;
        self.nodes = vec![node("n1", &[("zone", "a")]), node("n2", &[("zone", "b")])];
        self.class("/volumeBindingMode", "WaitForFirstConsumer")
            .annotate("volume.kubernetes.io/selected-node", "n1")
    }

    /// Of a class that names a Secret, of which this is known.
    pub fn with_secret(self, state: ProvisionerSecretState) -> Self {
        let named = json!({
            "csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "ns",
        });
        self.class("/parameters", named).with(|world| world.secret = state)
    }

    pub fn of_another_driver(self) -> Self {
        self.annotate("volume.kubernetes.io/storage-provisioner", "other.test")
    }

    pub fn observe<T>(&self, look: impl FnOnce(&ObservedClaim<'_>) -> T) -> T {
        let claim = claim_of(&self.claim);
        let class = self.class.as_ref().map(class_of);
        let saved = self.saved.as_ref().map(volume_of);
        let facts = TopologyFacts::new(self.unknown != "topology", self.nodes.clone());
        let selected = self
            .nodes
            .iter()
            .find(|node| Some(&node.name) == claim.selected_node.as_ref());
        let unknown = |what| self.unknown == what;
        let node = KnownNode {
            labels: seen(
                selected.map(|node| node.labels.clone()).filter(|_| !self.node_gone),
                unknown("node"),
            ),
            keys: seen(selected.map(|node| node.keys.clone()), unknown("node")),
        };
        let named = class.as_ref().and_then(|class| named_secret(class, &claim));
        let secret_of = self.secret_of.clone().or(named).map(|reference| CallSecret {
            reference,
            is_wanted: self.secret_was_wanted,
        });
        let has_marker = MarkerState::of(&claim, DRIVER).may_be_open();
        let creation = self.creation.clone().unwrap_or_else(|| Creation::of_marker(has_marker));
        look(&ObservedClaim {
            claim: &claim,
            gone: self.gone,
            claim_is_live: self.claim_is_live,
            marker_is_own: self.marker_is_own,
            class: seen(class.as_ref(), unknown("class")),
            classes_are_known: self.classes_are_known,
            nodes_are_known: self.nodes_are_known,
            saved: seen(saved.as_ref(), unknown("saved")),
            saved_is_live: self.saved_is_live,
            handle_owner: seen(self.handle_owner.as_deref(), unknown("handle")),
            attached_to: seen(self.attached_to.as_deref(), unknown("attached")),
            node: &node,
            topology: &facts,
            secret: self.secret,
            secret_of: secret_of.as_ref(),
            creation: &creation,
            infeasible: self.infeasible,
            save_failed: self.save_failed,
            others_may_have_called: false,
            driver: &self.driver,
            policy: &self.policy,
            role: self.role,
            is_away: self.is_away,
            waited: self.waited,
            now: now(),
        })
    }

    pub fn decide(&self) -> ClaimDecision {
        self.observe(crate::provision::claim::decide)
    }
}

/// The Secret of the calls for a claim.
fn named_secret(class: &StorageClass, claim: &Claim) -> Option<SecretReference> {
    let context = TemplateContext {
        volume: NAME,
        namespace: &claim.namespace,
        name: &claim.name,
        claim: Some(claim),
    };
    let templates = SecretTemplates::of(class).ok()?;
    templates.resolve(SecretFamily::Provisioner, &context).ok()?
}

pub fn seen<T>(object: Option<T>, is_unknown: bool) -> Seen<T> {
    match object {
        _ if is_unknown => Seen::Unknown,
        Some(object) => Seen::Here(object),
        None => Seen::Gone,
    }
}

/// Everything that is observed of a PersistentVolume, as objects.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one thing that may be so")]
pub struct VolumeWorld {
    pub volume: Value,
    pub class: Option<Value>,
    pub sharer: Option<String>,
    pub heir: Option<Arc<str>>,
    pub heir_is_live: bool,
    pub heir_is_deleting: bool,
    pub attached_to: Option<String>,
    pub lacks_read: bool,
    pub claim: OwningClaim,
    pub bound: Option<ClaimReference>,
    pub bound_is_live: bool,
    pub is_live: bool,
    pub deletion: Deletion,
    pub secret: ProvisionerSecretState,
    /// None is the one that is named.
    pub secret_of: Option<SecretReference>,
    pub role: RolePhase,
    pub is_away: bool,
    pub driver: ProvisionerFacts,
    pub policy: ProvisionPolicy,
    pub unknown: &'static str,
}

pub fn volume_world() -> VolumeWorld {
    VolumeWorld {
        volume: volume_json(),
        class: Some(class_json()),
        sharer: None,
        heir: None,
        heir_is_live: true,
        heir_is_deleting: false,
        attached_to: None,
        lacks_read: false,
        claim: OwningClaim::NotCached,
        bound: None,
        bound_is_live: false,
        is_live: true,
        deletion: Deletion::NotDeleted,
        secret: ProvisionerSecretState::NotLoaded,
        secret_of: None,
        role: RolePhase::Serving,
        is_away: false,
        driver: driver(),
        policy: policy(),
        unknown: "",
    }
}

impl VolumeWorld {
    pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        put(&mut self.volume, pointer, value.into());
        self
    }

    pub fn annotate(mut self, key: &str, value: &str) -> Self {
        self.volume["metadata"]["annotations"][key] = value.into();
        self
    }

    pub fn deleting(self) -> Self {
        self.set("/metadata/deletionTimestamp", DELETED_AT)
    }

    pub fn phase(self, phase: &str) -> Self {
        self.set("/status/phase", phase)
    }

    pub fn unprotected(self) -> Self {
        self.set("/metadata/finalizers", json!(["kubernetes.io/pv-protection"]))
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn observe<T>(&self, look: impl FnOnce(&ObservedVolume<'_>) -> T) -> T {
        let volume = volume_of(&self.volume);
        let class = self.class.as_ref().map(class_of);
        let unknown = |what| self.unknown == what;
        let named = deletion_secret(&volume, class.as_ref());
        look(&ObservedVolume {
            volume: &volume,
            sharer: seen(self.sharer.as_deref(), unknown("sharer")),
            heir: self
                .heir
                .as_ref()
                .filter(|_| self.sharer.is_some() && !unknown("sharer")),
            heir_is_live: self.heir_is_live,
            heir_is_deleting: self.heir_is_deleting,
            attached_to: seen(self.attached_to.as_deref(), unknown("attached")),
            lacks_read: self.lacks_read,
            claim: self.claim,
            bound: seen(self.bound.as_ref(), unknown("bound")),
            bound_is_live: self.bound_is_live,
            is_live: self.is_live,
            deletion: self.deletion,
            class: seen(class.as_ref(), unknown("class")),
            secret: self.secret,
            secret_of: self.secret_of.as_ref().or(named.as_ref()),
            driver: &self.driver,
            policy: &self.policy,
            role: self.role,
            is_away: self.is_away,
        })
    }

    pub fn decide(&self) -> VolumeDecision {
        self.observe(crate::provision::volume::decide)
    }
}

fn deletion_secret(volume: &Volume, class: Option<&StorageClass>) -> Option<SecretReference> {
    if let DeletionSecret::Named(secret) = &volume.lifecycle.deletion_secret {
        return Some(secret.clone());
    }
    let claim = volume.claim.as_ref()?;
    let context = TemplateContext {
        volume: &volume.name,
        namespace: &claim.namespace,
        name: &claim.name,
        claim: None,
    };
    let templates = SecretTemplates::of(class?).ok()?;
    templates.resolve(SecretFamily::Provisioner, &context).ok()?
}

/// A claim that no PersistentVolume names.
pub fn another_claim() -> ClaimReference {
    ClaimReference {
        namespace: "web".into(),
        name: "moved".into(),
        uid: "moved-uid".into(),
    }
}

/// What the driver answers: an ID, and nothing else.
pub fn answered_volume() -> AnsweredVolume {
    AnsweredVolume {
        handle: "vol-1".into(),
        ..AnsweredVolume::default()
    }
}

/// What a world's first call would be made with.
pub fn plan_of(world: &ClaimWorld) -> Arc<crate::provision::CreatePlan> {
    let mut marked = world
        .clone()
        .marked()
        .creation(Creation::Uncertain(UncertainCall::default()));
    marked.secret = ProvisionerSecretState::Loaded;
    match marked.decide().action {
        crate::provision::ClaimAction::Create(plan) => plan,
        other => panic!("no call: {other:?}"),
    }
}
