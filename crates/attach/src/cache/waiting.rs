//! Which attachments may have waited for a change of another object.

use std::sync::Arc;

use super::index::Index;
use super::sharing::{OfVolume, noted};
use crate::decide;
use crate::objects::{Attachment, CsiNode};

/// What others wait for because of an attachment, at one moment.
pub(super) struct Influence {
    record: Arc<Attachment>,
    /// Whether an attach on another node waits for its detach.
    leaving: bool,
    /// How many nodes its volume leaves, counted up to 2: more make no difference.
    leaving_nodes: usize,
    /// Whether a detach of the same handle from the same machine waits until it is not in use any more.
    in_use: bool,
    /// The attachments that may wait because of `in_use`.
    kept: Vec<Arc<str>>,
}

impl Influence {
    pub fn of(index: &Index, record: &Arc<Attachment>) -> Self {
        let in_use = decide::is_in_use(record);
        let kept = if in_use {
            index.view(record).detaches_kept()
        } else {
            Vec::new()
        };
        Self {
            leaving: decide::is_leaving(record, index.links.finalizer_of(&record.attacher)),
            leaving_nodes: leaving_nodes(index, record),
            in_use,
            kept,
            record: record.clone(),
        }
    }

    /// Whether another one is about the same volume at the same place.
    fn has_same_place(&self, other: &Self) -> bool {
        let (one, other) = (&*self.record, &*other.record);
        (&one.attacher, &one.node, one.volume_name(), noted(one), &one.node_id)
            == (
                &other.attacher,
                &other.node,
                other.volume_name(),
                noted(other),
                &other.node_id,
            )
    }
}

/// How many nodes those attachments of a volume are leaving that noted the same handle, counted up to 2. Not known of one attachment alone.
fn leaving_nodes(index: &Index, record: &Attachment) -> usize {
    let shared = index.view(record).shared();
    let of_handle = shared.and_then(|shared| shared.that_noted(noted(record)));
    of_handle.map_or(0, |it| it.leaving.count_nodes(&record.attacher))
}

/// The attachments that may have waited for a change of another one: for what it was `before`, and is now.
///
/// An attach waits while some attachment of its volume leaves another node. That is so before and after the change when
/// there are two such nodes or more, so that a volume that leaves thousands of nodes wakes nobody in between.
pub(super) fn waiting_for_change(
    index: &Index,
    before: Option<Influence>,
    now: Option<&Arc<Attachment>>,
) -> Vec<Arc<str>> {
    let now = now.map(|now| Influence::of(index, now));
    let stays = match (&before, &now) {
        (Some(before), Some(now)) => before.has_same_place(now),
        _ => false,
    };
    let mut waiting = Vec::new();
    for (influence, other) in [(&before, &now), (&now, &before)] {
        let Some(influence) = influence else { continue };
        let goes_on = |as_before: fn(&Influence) -> bool| stays && other.as_ref().is_some_and(as_before);
        let nodes = influence.leaving_nodes.min(leaving_nodes(index, &influence.record));
        if influence.leaving && !goes_on(|other| other.leaving) && nodes < 2 {
            waiting.extend(waiting_attaches(index, &influence.record));
        }
        if influence.in_use && !goes_on(|other| other.in_use) {
            waiting.extend(influence.kept.iter().cloned());
        }
    }
    if let Some(changed) = before.or(now) {
        waiting.retain(|name| *name != changed.record.name);
    }
    waiting.sort_unstable();
    waiting.dedup();
    waiting
}

/// The attaches of a volume for one node that wait while an attachment of it leaves another node.
fn waiting_attaches(index: &Index, leaving: &Attachment) -> Vec<Arc<str>> {
    let of_volume = leaving.volume_name().and_then(|volume| index.links.of_volume(volume));
    let volume = index.view(leaving).volume_record();
    let for_many_nodes = volume.is_some_and(|volume| !decide::is_for_one_node(&volume.spec));
    match of_volume {
        None => Vec::new(),
        // What one waits for that is alone now is not kept.
        Some(alone @ OfVolume::One(_)) => alone.names().cloned().collect(),
        Some(OfVolume::Several(_)) if for_many_nodes => Vec::new(),
        Some(OfVolume::Several(shared)) => shared.waiting.of(&leaving.attacher).cloned().collect(),
    }
}

/// The detaches that may have waited because of an ID that a node had, as its CSINode said, and has no more.
pub(super) fn freed_by_node(index: &Index, previous: &CsiNode, current: Option<&CsiNode>) -> Vec<Arc<str>> {
    let mut freed = Vec::new();
    for (driver, id) in previous.node_ids() {
        if current.and_then(|current| current.node_id(driver)) == Some(id) {
            continue;
        }
        let nodes = index.links.nodes_of_id(driver, id);
        let nodes = nodes.filter(|node| **node != previous.name);
        for name in nodes.flat_map(|node| index.links.on_node(node)) {
            let other = index.attachments.get(name);
            if other.is_some_and(|other| *other.attacher == *driver && other.deleting.is_some()) {
                freed.push(name.clone());
            }
        }
    }
    freed
}
