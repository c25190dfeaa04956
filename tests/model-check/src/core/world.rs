//! What a world is made of.

use std::sync::Arc;

use csi_attacher_model::decide::{OrphanPolicy, OwnedVolumeOnNode, Policy, PublishSecrets, VolumeOnNode};

use super::objects::{self, Kind};
use super::rules::Rules;
use super::state::SLOTS;

/// A world before anything happened.
#[derive(Clone)]
pub struct Setting {
    /// What it is.
    pub name: &'static str,
    /// PersistentVolumes: handle, driver, access mode.
    pub volumes: Vec<(&'static str, &'static str, &'static str)>,
    /// VolumeAttachments that somebody may make: volume and node by number.
    pub attachments: Vec<(u8, u8)>,
    /// How many nodes there are.
    pub nodes: u8,
    /// How many processes.
    pub replicas: usize,
    /// How many faults may happen, of these kinds.
    pub faults: u8,
    /// Which.
    pub kinds: &'static [Fault],
    /// What people and controllers have done before the history begins, and what is at rest by then.
    pub before: Vec<User>,
    /// What people and controllers may do, and how often.
    pub users: Vec<(User, u8)>,
    /// A VolumeAttachment is made only when no other one of the volume is there, as kube-controller-manager does for a volume for
    /// one node.
    pub one_at_a_time: bool,
    /// Publishing needs a Secret.
    pub secret: bool,
    /// Each publish after an unpublish is answered with another publish context.
    pub contexts: bool,
    /// What the operator decides by.
    pub rules: Rules,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process dies and starts again.
    Crash,
    /// A process loses the Lease and knows it when it looks; what it sent goes on.
    LeaseLost,
    /// A request to the API server gets no answer that counts: it is carried out, later or never.
    NoAnswer,
    /// The driver refuses a call with a code that says that nothing was done.
    Refused,
    /// A call is not answered in time: the driver goes on with it, or gives it up.
    Hangs,
    /// The publish Secret is deleted for a while.
    SecretGoes,
    /// The driver answers without PUBLISH_UNPUBLISH for a while.
    CapabilityGoes,
}

/// What people and controllers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Makes the VolumeAttachment of this number.
    Attach(u8),
    /// Deletes it.
    Detach(u8),
    /// Deletes the PersistentVolume of this number.
    DeleteVolume(u8),
    /// Puts a finalizer on the VolumeAttachment of this number.
    Hold(u8),
    /// Puts a finalizer on the PersistentVolume of this number.
    HoldVolume(u8),
    /// The node of this number comes back under another ID.
    Reborn(u8),
    /// Somebody takes our finalizer from the PersistentVolume of this number.
    Unprotect(u8),
}

impl Setting {
    /// Kinds and names of all objects, by slot: volumes, attachments, nodes.
    pub fn names(&self) -> Vec<(Kind, String)> {
        let volumes = (0..self.volumes.len()).map(|number| (Kind::Volume, format!("pv{number}")));
        let attachments = self.attachments.iter();
        let attachments = attachments.map(|(volume, node)| (Kind::Attachment, format!("va-pv{volume}-node{node}")));
        let nodes = (0..self.nodes).map(|number| (Kind::Node, format!("node{number}")));
        let names: Vec<_> = volumes.chain(attachments).chain(nodes).collect();
        assert!(names.len() <= SLOTS, "a world has at most {SLOTS} objects");
        names
    }

    /// All places: each handle at each node ID. The second ID of a node is the one under which it may come back.
    pub fn places(&self) -> Vec<OwnedVolumeOnNode> {
        let mut handles: Vec<&str> = self.volumes.iter().map(|(handle, ..)| *handle).collect();
        handles.dedup();
        let reborn = self.users.iter().any(|(user, _)| matches!(user, User::Reborn(_)));
        let ids = (0..self.nodes).flat_map(|node| {
            let second = reborn.then(|| format!("id{node}b"));
            std::iter::once(format!("id{node}")).chain(second)
        });
        let ids: Vec<String> = ids.collect();
        let at = |handle: &str| {
            let places = ids.iter().filter_map(|id| VolumeOnNode::new(handle, id));
            places.map(OwnedVolumeOnNode::from).collect::<Vec<_>>()
        };
        handles.into_iter().flat_map(at).collect()
    }

    /// The slot of a volume by its number.
    pub fn volume(number: u8) -> u8 {
        number
    }

    /// The slot of an attachment by its number.
    pub fn attachment(&self, number: u8) -> u8 {
        u8::try_from(self.volumes.len()).unwrap_or(0) + number
    }

    /// The slot of a node by its number.
    pub fn node(&self, number: u8) -> u8 {
        self.attachment(u8::try_from(self.attachments.len()).unwrap_or(0)) + number
    }

    /// The slots of a kind.
    pub fn slots_of(&self, kind: Kind) -> std::ops::Range<u8> {
        let (attachments, nodes) = (self.attachment(0), self.node(0));
        match kind {
            Kind::Volume => 0..attachments,
            Kind::Attachment => attachments..nodes,
            Kind::Node => nodes..nodes + self.nodes,
        }
    }

    /// The slot of the volume, or of the node, that an attachment needs; a volume is its own.
    pub fn needs(&self, slot: u8, kind: Kind) -> u8 {
        let number = slot.checked_sub(self.attachment(0));
        let of = number.and_then(|number| self.attachments.get(usize::from(number)));
        match (of, kind) {
            (Some((volume, _)), Kind::Volume) => *volume,
            (Some((_, node)), Kind::Node) => self.node(*node),
            _ => slot,
        }
    }

    /// Whether the volume of an attachment is one of the driver.
    pub fn is_ours(&self, slot: u8) -> bool {
        let volume = usize::from(self.needs(slot, Kind::Volume));
        self.volumes
            .get(volume)
            .is_some_and(|(_, driver, _)| *driver == objects::DRIVER)
    }

    /// Settings that decisions are made by.
    pub fn policy(&self) -> Policy {
        Policy {
            default_fs_type: Arc::from("ext4"),
            orphans: OrphanPolicy::default(),
            leaving: false,
            publish_secrets: PublishSecrets::Any,
            config: Arc::from("config"),
        }
    }

    /// The object of a slot before it is stored.
    pub fn object(&self, slot: u8) -> serde_json::Value {
        let (kind, name) = &self.names()[usize::from(slot)];
        match kind {
            Kind::Volume => {
                let (handle, driver, mode) = self.volumes[usize::from(slot)];
                objects::volume(name, handle, driver, mode, self.secret)
            }
            Kind::Attachment => {
                let (volume, node) = self.attachments[usize::from(slot - self.attachment(0))];
                objects::attachment(name, &format!("pv{volume}"), &format!("node{node}"))
            }
            Kind::Node => objects::node(name, Some(&format!("id{}", slot - self.node(0)))),
        }
    }
}
