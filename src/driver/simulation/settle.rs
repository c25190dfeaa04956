//! What must be the case once faults have stopped and everybody had time.

use serde_json::Value;
use std::time::Duration;

use super::actors::node_id;
use super::backend::Pair;
use super::check::{claim_of, is_held, owner};
use super::cluster::{Kind, is_deleting, text};
use super::replica::LONGEST_WAIT;
use super::scenario::Disk;
use super::world::State;

/// How long everybody has. With faults: the last effect of a lost call, a compensation that waits for its next try, and
/// a few attempts at the longest wait. Without: the slowest watch and a call.
pub fn patience(faultless: bool) -> Duration {
    Duration::from_secs(if faultless { 40 } else { 150 })
}

/// For how long it is then watched that nothing more happens than must.
pub const QUIET: Duration = Duration::from_mins(1);

/// Requests and calls that one attempt at most takes.
const STEPS_OF_AN_ATTEMPT: usize = 6;

/// Everything that can be done is done, and nothing else is left at the backend.
pub fn everything_is_settled(state: &mut State) {
    let attachments: Vec<_> = state.cluster.all(Kind::Attachment).cloned().collect();
    for attachment in &attachments {
        settled_attachment(state, attachment);
    }
    let volumes: Vec<_> = state.cluster.all(Kind::Volume).cloned().collect();
    for volume in &volumes {
        let name = text(volume, "/metadata/name");
        let named = attachments.iter().any(|attachment| volume_of(attachment) == name);
        if is_deleting(volume) && is_held(volume) && !named {
            state
                .journal
                .violated("a deleted PersistentVolume that nobody names goes", || name.to_owned());
        }
    }
    let uids: Vec<&str> = attachments
        .iter()
        .filter(|object| is_held(object))
        .map(|object| text(object, "/metadata/uid"))
        .collect();
    let orphan = state.backend.may_be_published().find(|(_, owners)| {
        let wanted = |uid: &str| uids.contains(&uid) || state.forced.contains(uid);
        !owners.iter().any(|owner| wanted(&owner.uid))
    });
    if let Some((pair, _)) = orphan {
        let pair = pair.to_string();
        state
            .journal
            .violated("nothing is published that no attachment holds", || pair);
    }
    undone(state, &attachments);
}

fn volume_of(attachment: &Value) -> &str {
    text(attachment, "/spec/source/persistentVolumeName")
}

fn settled_attachment(state: &mut State, attachment: &Value) {
    let name = text(attachment, "/metadata/name");
    let disk = disk_of(state, attachment);
    let secret = disk
        .as_ref()
        .is_none_or(|disk| !disk.secret || state.cluster.has(Kind::Secret, &disk.name));
    if is_deleting(attachment) {
        if is_held(attachment) && secret && !shared(state, attachment) {
            state
                .journal
                .violated("a deleted VolumeAttachment is detached and goes", || name.to_owned());
        }
        return;
    }
    let attached = attachment["status"]["attached"] == true;
    let owner = owner(attachment);
    let published = state.backend.published.values().any(|owners| owners.contains(&owner));
    // Whose PersistentVolume was removed by force may share its volume with another, which nobody can know any more.
    let known = !state.forced.contains(&owner.uid) && !state.forced_volumes.contains(&owner.volume);
    if attached && !published && known {
        state
            .journal
            .violated("what is attached is published", || name.to_owned());
    }
    let error = attachment["status"]["attachError"]["message"].as_str();
    // An error that was written late by a request that was given up may come after the success.
    if attached && error.is_some() && state.scenario.api_faults == 0 {
        state
            .journal
            .violated("what is attached shows no attachError", || name.to_owned());
    }
    if !attached && secret && attachable(state, attachment, disk.as_ref()) {
        let detail = format!("{name} ({})", error.unwrap_or("no error"));
        state.journal.violated("what can be attached is attached", || detail);
    }
}

/// Whether another attachment has the same volume attached on the same node; it would lose it.
fn shared(state: &State, attachment: &Value) -> bool {
    let Some((pair, owner)) = claim_of(attachment) else {
        return false;
    };
    state.cluster.all(Kind::Attachment).any(|other| {
        let same = claim_of(other).is_some_and(|(claimed, other)| claimed.volume == pair.volume && other != owner)
            && text(other, "/spec/nodeName") == text(attachment, "/spec/nodeName");
        same && !is_deleting(other) && other["status"]["attached"] == true
    })
}

fn disk_of(state: &State, attachment: &Value) -> Option<Disk> {
    let (name, handle) = (
        volume_of(attachment),
        text(attachment, "/spec/source/inlineVolumeSpec/csi/volumeHandle"),
    );
    let mut disks = state.scenario.disks.iter();
    disks
        .find(|disk| {
            if disk.inline {
                disk.handle == handle
            } else {
                disk.name == name
            }
        })
        .cloned()
}

fn attachable(state: &State, attachment: &Value, disk: Option<&Disk>) -> bool {
    let Some(disk) = disk else { return false };
    let volume = state.cluster.get(Kind::Volume, &disk.name);
    let Some(id) = node_id(state, text(attachment, "/spec/nodeName")) else {
        return false;
    };
    let pair = Pair {
        volume: disk.handle.clone(),
        node: id.to_owned(),
    };
    let is_there = disk.inline || volume.is_some_and(|object| !is_deleting(object));
    is_there && !state.backend.is_elsewhere(&pair)
}

/// Volumes of attachments that vanished during Publish are taken back by the operator that saw it, if it lived on.
fn undone(state: &mut State, attachments: &[std::sync::Arc<Value>]) {
    let came_back = |name: &str| attachments.iter().any(|object| text(object, "/metadata/name") == name);
    let claimed = |pair: &Pair| {
        attachments
            .iter()
            .any(|object| claim_of(object).is_some_and(|(other, _)| other == *pair))
    };
    let left = state
        .must_undo
        .iter()
        .find(|(pair, name)| state.backend.published.contains_key(*pair) && !came_back(name) && !claimed(pair));
    if let Some((pair, name)) = left {
        let detail = format!("{pair} of {name}");
        state.journal.violated(
            "the volume of an attachment that vanished during Publish is taken back",
            || detail,
        );
    }
}

/// After that, only what cannot be done is tried, and not more often than its backoff says.
pub fn quiet_enough(state: &mut State, steps: usize) {
    let failing = state.cluster.all(Kind::Attachment).filter(|object| {
        let attached = object["status"]["attached"] == true;
        if is_deleting(object) {
            is_held(object)
        } else {
            !attached
        }
    });
    // A tenth may be taken from each wait by chance.
    let tries = if state.scenario.faultless {
        0
    } else {
        QUIET.as_secs() / (LONGEST_WAIT.as_secs() * 9 / 10) + 1
    };
    let allowed = failing.count() * STEPS_OF_AN_ATTEMPT * usize::try_from(tries).unwrap_or(0);
    if steps > allowed {
        state.journal.violated("no busy loop", || {
            format!(
                "{steps} requests and calls within {} s, where {allowed} are enough",
                QUIET.as_secs()
            )
        });
    }
}
