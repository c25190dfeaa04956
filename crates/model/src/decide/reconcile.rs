//! What is attached, compared with what the driver lists: the reconciler of the Go sidecar (`--reconcile-sync`).
//!
//! An attachment that the driver says otherwise about is looked at again as if it were not settled: a wanted one is
//! published once more, the remains of a finished detach are taken back. It goes further than the sidecar in care: a
//! mismatch must be found by two passes in a row before anything is done about it, because a listing takes time and
//! attachments change meanwhile; and it counts until a pass finds it gone, so that a failed repair is not forgotten.
//!
//! Volumes without an attachment are never touched, and `attached` is never taken from a live one.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::attach::not_replaced;
use super::observed::{NodeEntry, Observed};
use super::published_volume::published_volume;
use super::refusal::Refusal;
use super::release_request::ListedEvidence;
use crate::objects::{AttachmentSource, InTreePlugin, RepairError, repair_volume_handle};

/// What the driver should list about an attachment that is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Name of the VolumeAttachment.
    pub name: Arc<str>,
    /// Its UID: one that is made anew under the same name starts without suspicion.
    pub uid: Box<str>,
    /// The handle under which the driver lists the volume.
    pub handle: Box<str>,
    /// The node's ID.
    pub node_id: Box<str>,
    /// The ID under which it was published, if the node has another one now: a driver that changed the form of its node
    /// IDs may list either.
    pub former_node_id: Option<Box<str>>,
    /// Whether the volume should be at the node.
    pub wanted: DesiredState,
}

impl Expectation {
    fn node_ids(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.node_id).chain(self.former_node_id.as_deref())
    }
}

/// Where a volume should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// At the node.
    Published,
    /// Not at the node any more.
    Unpublished,
}

/// Why an attachment is not compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotComparable {
    /// Its volume or node is not known.
    #[error(transparent)]
    Unknown(#[from] Refusal),
    /// The driver may list its volume under another handle.
    #[error(transparent)]
    Handle(#[from] RepairError),
}

/// What to expect of an attachment of this driver; none while it is being worked on anyway.
pub fn expectation(observed: &Observed<'_>) -> Result<Option<Expectation>, NotComparable> {
    let (attachment, driver) = (observed.attachment, observed.driver);
    if attachment.attacher != driver.name || !driver.capabilities.publish_unpublish {
        return Ok(None);
    }
    let claimed = attachment.finalizers.contains(&driver.finalizer);
    let wanted = match (attachment.deleting.is_some(), attachment.attached, claimed) {
        (false, true, _) => DesiredState::Published,
        (true, _, false) => DesiredState::Unpublished,
        (false, false, _) | (true, _, true) => return Ok(None),
    };
    let (handle, _) = published_volume(attachment, observed.volume)?;
    if wanted == DesiredState::Published
        && let Some(volume) = observed.volume
    {
        // A repair would have to publish the volume that is there now, which is another one.
        not_replaced(attachment, volume)?;
    }
    // The sidecar's order: what the node says now, else what was noted.
    let noted = attachment.node_id.as_deref();
    let node_id = match (observed.node, noted) {
        (NodeEntry::Registered(node_id), _) | (_, Some(node_id)) => node_id,
        (NodeEntry::Missing, None) => return Err(Refusal::NodeNotFound(attachment.node.clone()).into()),
        (NodeEntry::BlankId, None) => {
            return Err(Refusal::BlankNodeId {
                node: attachment.node.clone(),
                driver: driver.name.clone(),
            }
            .into());
        }
        (NodeEntry::WithoutDriver, None) => {
            let (node, driver) = (attachment.node.clone(), driver.name.clone());
            return Err(Refusal::DriverNotOnNode { node, driver }.into());
        }
    };
    Ok(Some(Expectation {
        name: attachment.name.clone(),
        uid: attachment.uid.clone(),
        handle: listed_handle(observed, handle, node_id)?.into(),
        node_id: node_id.into(),
        former_node_id: noted.filter(|noted| *noted != node_id).map(Box::from),
        wanted,
    }))
}

/// The handle of a volume that was translated from an in-tree source is completed as the driver completes it. In-line
/// volumes are translated before they come here.
fn listed_handle<'a>(observed: &Observed<'_>, handle: &'a str, node_id: &str) -> Result<Cow<'a, str>, RepairError> {
    let inline = matches!(observed.attachment.source, AttachmentSource::Inline(_));
    let in_tree = observed.volume.is_some_and(|volume| volume.in_tree.is_some());
    let migrates = InTreePlugin::of_driver(&observed.driver.name).is_some();
    if migrates && (inline || in_tree) {
        return repair_volume_handle(&observed.driver.name, handle, node_id);
    }
    Ok(Cow::Borrowed(handle))
}

/// What the driver lists, as far as anybody asks: a backend may have many more volumes than there are attachments. Beside
/// the expectations themselves it keeps one byte for each.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// In the order of handles.
    expectations: Vec<Expectation>,
    /// What was listed for each of them.
    told: Vec<ListedState>,
    /// Handles of attachments of which nothing is expected yet, in their order.
    pending: Vec<Box<str>>,
    /// The IDs under which the driver knows the nodes of this cluster.
    nodes: HashSet<Box<str>>,
    unclaimed: Vec<Unclaimed>,
}

/// A volume that the driver lists at a node of this cluster though no attachment is for it there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unclaimed {
    /// The volume's handle.
    pub handle: Box<str>,
    /// The node's ID.
    pub node_id: Box<str>,
}

/// More of them than this are not kept in mind.
pub const MOST_UNCLAIMED: usize = 1_000;
/// Longer handles, in bytes, are not kept in mind. The CSI spec allows 128.
const LONGEST_HANDLE: usize = 1_024;

/// What the driver lists for an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListedState {
    /// Its volume was not listed, so it is at no node.
    NotListed,
    /// The driver listed its volume without saying where it is.
    NodesUnknown,
    /// Its volume is at the node.
    Published,
    /// Its volume is not at the node.
    NotPublished,
}

/// What came of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The driver says otherwise than expected.
    pub contradicted: Vec<Expectation>,
    /// The driver says what was expected.
    pub agreed: Vec<Expectation>,
    /// The driver lists them at nodes where no attachment is for them.
    pub unclaimed: Vec<Unclaimed>,
}

/// From this many nodes of one volume on, looking them up one by one is slow.
const MANY_NODES: usize = 16;

impl Listing {
    /// A listing that will take in what these expectations are about.
    pub fn about(mut expectations: Vec<Expectation>) -> Self {
        expectations.sort_by(|one, other| one.handle.cmp(&other.handle));
        Self {
            told: vec![ListedState::NotListed; expectations.len()],
            expectations,
            ..Self::default()
        }
    }

    /// The same listing, which finds out too what is at these nodes without an attachment: those of the handles in
    /// `pending` are being attached or detached.
    #[must_use]
    pub fn looking_for_unclaimed(mut self, mut pending: Vec<Box<str>>, nodes: HashSet<Box<str>>) -> Self {
        pending.sort_unstable();
        self.pending = pending;
        self.nodes = nodes;
        self
    }

    /// What is at a node of this cluster without an attachment. Nothing is done about it: somebody else may have put it
    /// there, and the volume may be in use.
    fn note_unclaimed(&mut self, first: usize, handle: &str, nodes: &[String]) {
        if self.nodes.is_empty() || handle.len() > LONGEST_HANDLE {
            return;
        }
        if self.pending.binary_search_by(|known| (**known).cmp(handle)).is_ok() {
            return;
        }
        for node_id in nodes.iter().filter(|node| self.nodes.contains(node.as_str())) {
            let mut about = self.expectations[first..]
                .iter()
                .take_while(|expected| &*expected.handle == handle);
            let is_named = about.any(|expected| expected.node_ids().any(|named| named == node_id));
            if !is_named && self.unclaimed.len() < MOST_UNCLAIMED {
                self.unclaimed.push(Unclaimed {
                    handle: handle.into(),
                    node_id: node_id.as_str().into(),
                });
            }
        }
    }

    /// Takes in an entry: a volume and the nodes where it is, unless the driver did not say. The last entry for a
    /// volume counts, as for the sidecar.
    pub fn add(&mut self, handle: &str, nodes: Option<&[String]>) {
        let first = self.expectations.partition_point(|expected| &*expected.handle < handle);
        if let Some(nodes) = nodes {
            self.note_unclaimed(first, handle, nodes);
        }
        let about = self.expectations[first..].iter().zip(&mut self.told[first..]);
        let mut about = about.take_while(|(expected, _)| &*expected.handle == handle).peekable();
        if about.peek().is_none() {
            return;
        }
        let Some(nodes) = nodes else {
            about.for_each(|(_, told)| *told = ListedState::NodesUnknown);
            return;
        };
        let many: Option<HashSet<&str>> =
            (nodes.len() >= MANY_NODES).then(|| nodes.iter().map(String::as_str).collect());
        let is_at = |node_id: &str| match &many {
            Some(many) => many.contains(node_id),
            None => nodes.iter().any(|node| node == node_id),
        };
        for (expected, told) in about {
            *told = if expected.node_ids().any(is_at) {
                ListedState::Published
            } else {
                ListedState::NotPublished
            };
        }
    }

    /// What was listed about all expectations together, whatever was expected. A volume that is at one of the places is there; to be
    /// nowhere it has to be listed, with its nodes.
    pub fn evidence(&self) -> ListedEvidence {
        let mut told = self.expectations.iter().zip(&self.told);
        if let Some((expected, _)) = told.find(|(_, told)| **told == ListedState::Published) {
            return ListedEvidence::At(expected.node_id.to_string());
        }
        let is_elsewhere = |told: &ListedState| *told == ListedState::NotPublished;
        if !self.told.is_empty() && self.told.iter().all(is_elsewhere) {
            ListedEvidence::NotThere
        } else {
            ListedEvidence::Silent
        }
    }

    /// Compares what was listed with what was expected, when the listing is complete. What the driver does not tell is
    /// neither a contradiction nor an agreement.
    pub fn compare(self) -> Comparison {
        let mut compared = Comparison {
            unclaimed: self.unclaimed,
            ..Comparison::default()
        };
        for (expected, told) in self.expectations.into_iter().zip(self.told) {
            let here = match told {
                ListedState::NodesUnknown => continue,
                ListedState::Published => true,
                ListedState::NotListed | ListedState::NotPublished => false,
            };
            if here == (expected.wanted == DesiredState::Published) {
                compared.agreed.push(expected);
            } else {
                compared.contradicted.push(expected);
            }
        }
        compared
    }
}

/// Volumes that the driver lists at nodes of this cluster and no VolumeAttachment names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumesWithoutAttachment {
    /// How many, up to [`MOST_UNCLAIMED`].
    pub count: usize,
    /// Some of them, in the order of their handles.
    pub examples: Vec<Unclaimed>,
}

/// So many of the volumes without a VolumeAttachment are shown.
pub const MOST_EXAMPLES: usize = 16;

/// What the last pass found at nodes without a VolumeAttachment.
#[derive(Clone, Debug, Default)]
pub struct LastingUnclaimed(Option<HashSet<Unclaimed>>);

impl LastingUnclaimed {
    /// Takes in what a pass found that was made to its end, and answers what the pass before found as well: one pass alone may
    /// have met an attach or detach that was under way. None after the first pass.
    pub fn pass(&mut self, found: Vec<Unclaimed>) -> Option<VolumesWithoutAttachment> {
        let found: HashSet<Unclaimed> = found.into_iter().collect();
        let before = self.0.replace(found);
        let (before, found) = (before?, self.0.as_ref()?);
        let mut lasting: Vec<&Unclaimed> = found.intersection(&before).collect();
        let count = lasting.len();
        lasting.sort_unstable();
        lasting.truncate(MOST_EXAMPLES);
        let examples = lasting.into_iter().cloned().collect();
        Some(VolumesWithoutAttachment { count, examples })
    }
}

/// The mismatches of the last pass.
#[derive(Clone, Debug, Default)]
pub struct UnconfirmedMismatches(HashMap<Arc<str>, (Box<str>, DesiredState)>);

impl UnconfirmedMismatches {
    /// Takes in the mismatches of a pass that was made to its end, and answers those that the pass before found as well.
    pub fn pass(&mut self, found: Vec<Expectation>) -> Vec<Expectation> {
        let before = std::mem::take(&mut self.0);
        let mut confirmed = Vec::new();
        for expected in found {
            let mark = (expected.uid.clone(), expected.wanted);
            if before.get(&expected.name) == Some(&mark) {
                confirmed.push(expected.clone());
            }
            self.0.insert(expected.name, mark);
        }
        confirmed
    }
}
