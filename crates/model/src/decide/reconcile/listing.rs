//! Reading a listing: which entries of it are about an attachment, and what they say.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::{Comparison, DesiredState, Expectation, Unclaimed};
use crate::decide::message::cut;
use crate::decide::release_request::ListedEvidence;

/// More of them than this are not kept in mind: those that come first in their order stay. A driver may list them in another order each
/// time.
pub const MAX_UNCLAIMED: usize = 1_000;
/// Longer handles, in bytes, are not kept in mind. The CSI spec allows 128.
const MAX_HANDLE_BYTES: usize = 1_024;

/// What the driver lists, as far as anybody asks: a backend may have many more volumes than there are attachments. Each node of
/// an entry is looked up, so a listing costs as much as it is long, however many attachments a volume has.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// In the order of handles, those of one handle in the order of node IDs.
    expectations: Vec<Expectation>,
    /// Of the entries for its volume, the number of the last one that has it at its node; 0 for none.
    seen_in: Vec<u32>,
    /// Where the expectations with a former node ID are, in the order of handles and these IDs.
    former: Vec<usize>,
    /// In the order of handles.
    volumes: Vec<VolumeEntries>,
    /// Handles of attachments of which nothing is expected yet, in their order; none if nobody asks what is at nodes without an attachment.
    pending: Option<Vec<Box<str>>>,
    /// The IDs under which the driver knows the nodes of this cluster.
    nodes: Arc<HashSet<Box<str>>>,
    unclaimed: BTreeSet<Unclaimed>,
    /// The first node ID that was listed for a volume of which something is expected and that no node of this cluster has.
    unknown_node: Option<Box<str>>,
}

/// A volume of which something is expected, with what was listed for it.
#[derive(Clone, Debug)]
struct VolumeEntries {
    /// Where its expectations begin and end.
    expectations: (usize, usize),
    /// Entries so far; the last one counts.
    count: u32,
    /// Whether the last entry says where the volume is.
    has_nodes: bool,
    /// Whether any entry does not.
    is_silent_once: bool,
}

impl VolumeEntries {
    /// Whether the driver lists the volume at the node of one of its expectations; none when it does not say where the volume is.
    fn is_at_node(&self, seen_in: u32) -> Option<bool> {
        match self.count {
            // What is not listed is at no node.
            0 => Some(false),
            last => self.has_nodes.then_some(last == seen_in),
        }
    }
}

impl Listing {
    /// A listing that will take in what these expectations are about.
    pub fn about(mut expectations: Vec<Expectation>) -> Self {
        expectations.sort_by(|one, other| (&one.handle, &one.node_id).cmp(&(&other.handle, &other.node_id)));
        let mut former: Vec<usize> = (0..expectations.len())
            .filter(|index| expectations[*index].former_node_id.is_some())
            .collect();
        former.sort_by_key(|index| (&expectations[*index].handle, &expectations[*index].former_node_id));
        let (mut volumes, mut begin) = (Vec::new(), 0);
        for of_volume in expectations.chunk_by(|one, other| one.handle == other.handle) {
            let end = begin + of_volume.len();
            volumes.push(VolumeEntries {
                expectations: (begin, end),
                count: 0,
                has_nodes: false,
                is_silent_once: false,
            });
            begin = end;
        }
        Self {
            seen_in: vec![0; expectations.len()],
            expectations,
            former,
            volumes,
            ..Self::default()
        }
    }

    /// The same listing, in a cluster whose nodes the driver knows by these IDs.
    #[must_use]
    pub fn with_nodes(self, nodes: HashSet<Box<str>>) -> Self {
        let nodes = Arc::new(nodes);
        Self { nodes, ..self }
    }

    /// The same listing, which finds out too what is at the nodes without an attachment: those of the handles in
    /// `pending` are being attached or detached.
    #[must_use]
    pub fn looking_for_unclaimed(self, mut pending: Vec<Box<str>>) -> Self {
        pending.sort_unstable();
        Self {
            pending: Some(pending),
            ..self
        }
    }

    /// Takes in an entry: a volume and the nodes where it is, unless the driver did not say. The last entry for a
    /// volume counts, as for the sidecar.
    pub fn add(&mut self, handle: &str, nodes: Option<&[String]>) {
        let handle_of = |volume: &VolumeEntries| &*self.expectations[volume.expectations.0].handle;
        let volume = self.volumes.binary_search_by(|volume| handle_of(volume).cmp(handle));
        let mut volume = volume.ok().map(|index| &mut self.volumes[index]);
        if let Some(volume) = &mut volume {
            volume.count = volume.count.saturating_add(1);
            volume.has_nodes = nodes.is_some();
            volume.is_silent_once |= nodes.is_none();
        }
        let is_pending = |pending: &Vec<Box<str>>| pending.binary_search_by(|known| (**known).cmp(handle)).is_ok();
        let looks_for_unclaimed =
            handle.len() <= MAX_HANDLE_BYTES && self.pending.as_ref().is_some_and(|pending| !is_pending(pending));
        for node_id in nodes.unwrap_or_default() {
            let is_named = match &volume {
                Some(volume) => mark(&self.expectations, &self.former, &mut self.seen_in, volume, node_id),
                None => false,
            };
            if is_named || (volume.is_none() && !looks_for_unclaimed) {
                continue;
            }
            if !self.nodes.contains(node_id.as_str()) {
                if volume.is_some() {
                    let shown = || cut(node_id, MAX_HANDLE_BYTES).into();
                    self.unknown_node.get_or_insert_with(shown);
                }
            } else if looks_for_unclaimed {
                // Nothing is done about it: somebody else may have put it there, and the volume may be in use.
                self.unclaimed.insert(Unclaimed {
                    handle: handle.into(),
                    node_id: node_id.as_str().into(),
                });
                if self.unclaimed.len() > MAX_UNCLAIMED {
                    self.unclaimed.pop_last();
                }
            }
        }
    }

    /// Whether it asks about a volume at the node of this ID.
    pub fn is_about_node(&self, node_id: &str) -> bool {
        let mut ids = self
            .expectations
            .iter()
            .flat_map(|expected| [Some(&expected.node_id), expected.former_node_id.as_ref()]);
        ids.any(|id| id.is_some_and(|id| **id == *node_id))
    }

    /// What was listed about all expectations together, whatever was expected. A volume that any entry has at one of the places is
    /// there; to be nowhere it has to be listed, in each entry with its nodes, as a driver may list a volume once for each node, and at nodes
    /// of this cluster alone: an ID that none has may be that of the place in another form.
    pub fn evidence(&self) -> ListedEvidence {
        if let Some(index) = self.seen_in.iter().position(|seen_in| *seen_in > 0) {
            return ListedEvidence::At(self.expectations[index].node_id.to_string());
        }
        let says_all = |volume: &VolumeEntries| volume.count > 0 && !volume.is_silent_once;
        match &self.unknown_node {
            Some(node_id) => ListedEvidence::AtUnknown(node_id.to_string()),
            None if !self.volumes.is_empty() && self.volumes.iter().all(says_all) => ListedEvidence::NotThere,
            None => ListedEvidence::Silent,
        }
    }

    /// Compares what was listed with what was expected, when the listing is complete. What the driver does not say is
    /// neither a contradiction nor an agreement.
    pub fn compare(self) -> Comparison {
        let mut compared = Comparison {
            unclaimed: self.unclaimed,
            ..Comparison::default()
        };
        let mut expectations = self.expectations.into_iter().zip(self.seen_in);
        for volume in self.volumes {
            let (begin, end) = volume.expectations;
            for (expected, seen_in) in expectations.by_ref().take(end - begin) {
                match volume.is_at_node(seen_in) {
                    Some(here) if here == (expected.wanted == DesiredState::Published) => {
                        compared.agreed.push(expected);
                    }
                    Some(_) => compared.contradicted.push(expected),
                    None => {}
                }
            }
        }
        compared
    }
}

/// Notes that the last entry of a volume has it at this node. False when nothing is expected there.
fn mark(
    expectations: &[Expectation],
    former: &[usize],
    seen_in: &mut [u32],
    volume: &VolumeEntries,
    node_id: &str,
) -> bool {
    let (begin, end) = volume.expectations;
    let of_volume = &expectations[begin..end];
    let first = begin + of_volume.partition_point(|expected| &*expected.node_id < node_id);
    let at_node = (first..end).take_while(|index| &*expectations[*index].node_id == node_id);
    let wanted = (&*expectations[begin].handle, Some(node_id));
    let place = |index: usize| {
        let expected = &expectations[index];
        (&*expected.handle, expected.former_node_id.as_deref())
    };
    let first = former.partition_point(|index| place(*index) < wanted);
    let formerly = former[first..].iter().copied();
    let formerly = formerly.take_while(|index| place(*index) == wanted);
    let mut is_named = false;
    for index in at_node.chain(formerly) {
        seen_in[index] = volume.count;
        is_named = true;
    }
    is_named
}
