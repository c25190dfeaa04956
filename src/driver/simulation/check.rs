//! What must hold at every write and at every call.
//!
//! The API server knows more than a replica: a deletion may be on its way to the replica's cache when a call starts.
//! So "never Publish for what is deleted" reads: not once the replica was told, and not unless the claim was stored,
//! which the API server refuses for what is being deleted already.

use serde_json::Value;
use std::collections::BTreeSet;

use super::backend::{Call, Pair};
use super::cluster::{Kind, Written, finalizers, is_deleting, text};
use super::world::{DRIVER, FINALIZER, Owner, State};
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::store::Store;

/// A write of an attacher was stored; `late` when whoever sent it had given it up, so that the world may have moved on.
pub fn written(state: &mut State, late: bool, written: &Written) {
    let (before, after) = (&*written.before, &*written.after);
    foreign_parts_survive(state, before, after);
    let (had, has) = (is_held(before), is_held(after));
    if text(after, "/spec/attacher").is_empty() {
        if had && !has {
            volume_released(state, after);
        }
        return;
    }
    if had && !has {
        attachment_released(state, after);
    }
    if let Some((pair, owner)) = claim_of(after) {
        state.claims.entry(pair).or_default().insert(owner);
    }
    let attached = |object: &Value| object["status"]["attached"] == true;
    match (attached(before), attached(after)) {
        (false, true) if !late => recorded_as_attached(state, after),
        (true, false) if has => state
            .journal
            .violated("our finalizer goes before the status says detached", || {
                text(after, "/metadata/name").to_owned()
            }),
        _ => {}
    }
}

/// Whether an object carries our finalizer.
pub fn is_held(object: &Value) -> bool {
    finalizers(object).any(|finalizer| finalizer == FINALIZER)
}

/// What an attachment is claimed for: nothing unless finalizer, node ID and volume are noted on it.
pub fn claim_of(object: &Value) -> Option<(Pair, Owner)> {
    if !is_held(object) || text(object, "/spec/attacher") != DRIVER {
        return None;
    }
    let annotations = &object["metadata"]["annotations"];
    let note: Value = serde_json::from_str(annotations[VOLUME_ANNOTATION].as_str()?).ok()?;
    let pair = Pair {
        volume: note["handle"].as_str()?.to_owned(),
        node: annotations[NODE_ID_ANNOTATION].as_str()?.to_owned(),
    };
    Some((pair, owner(object)))
}

/// Whether a place is noted on a claimed attachment as one where the volume may be from before.
fn is_former(object: &Value, pair: &Pair) -> bool {
    let annotation = object["metadata"]["annotations"][VOLUME_ANNOTATION].as_str();
    let note: Option<Value> = annotation.and_then(|text| serde_json::from_str(text).ok());
    let former = note.as_ref().and_then(|note| note["former"].as_array());
    let mut places = former.into_iter().flatten();
    claim_of(object).is_some()
        && places.any(|place| place["handle"] == pair.volume.as_str() && place["nodeID"] == pair.node.as_str())
}

pub fn owner(object: &Value) -> Owner {
    Owner {
        uid: text(object, "/metadata/uid").to_owned(),
        name: text(object, "/metadata/name").to_owned(),
        volume: text(object, "/spec/source/persistentVolumeName").to_owned(),
    }
}

fn foreign_parts_survive(state: &mut State, before: &Value, after: &Value) {
    let foreign = |object: &Value| {
        let others = finalizers(object).filter(|finalizer| *finalizer != FINALIZER);
        let annotations = object["metadata"]["annotations"].as_object();
        let annotations = annotations.into_iter().flatten();
        let ours = |key: &str| key == NODE_ID_ANNOTATION || key.starts_with("attacher.csi.dev/");
        (
            others.map(str::to_owned).collect::<Vec<_>>(),
            annotations
                .filter(|(key, _)| !ours(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect::<Vec<_>>(),
        )
    };
    if foreign(before) != foreign(after) {
        state
            .journal
            .violated("finalizers and annotations of others survive", || {
                format!(
                    "{}: {:?} became {:?}",
                    text(after, "/metadata/name"),
                    foreign(before),
                    foreign(after)
                )
            });
    }
}

fn attachment_released(state: &mut State, object: &Value) {
    let owner = owner(object);
    let left = state
        .backend
        .may_be_published()
        .find(|(_, owners)| owners.contains(&owner));
    if let Some((pair, _)) = left {
        let detail = format!(
            "{} was let go while {pair} is or may become published for it",
            owner.name
        );
        state.journal.violated(
            "no VolumeAttachment is released while its volume may be published",
            || detail,
        );
    }
}

fn volume_released(state: &mut State, object: &Value) {
    let name = text(object, "/metadata/name");
    let forced = &state.forced;
    let ours = |owner: &&Owner| owner.volume == name && !forced.contains(&owner.uid);
    let left = state.backend.may_be_published().find_map(|(pair, owners)| {
        owners
            .iter()
            .find(ours)
            .map(|owner| format!("{name}: {pair} for {}", owner.name))
    });
    let named = state
        .cluster
        .all(Kind::Attachment)
        .find(|attachment| is_held(attachment) && text(attachment, "/spec/source/persistentVolumeName") == name)
        .map(|attachment| format!("{name} is named by {}", text(attachment, "/metadata/name")));
    if let Some(detail) = left {
        state
            .journal
            .violated("no PersistentVolume is released while it may be published", || detail);
    }
    if let Some(detail) = named {
        state.journal.violated(
            "no PersistentVolume is released while an attachment of ours names it",
            || detail,
        );
    }
}

fn recorded_as_attached(state: &mut State, object: &Value) {
    let owner = owner(object);
    let is_there = state.backend.published.values().any(|owners| owners.contains(&owner));
    if !is_there {
        state
            .journal
            .violated("only what is published is recorded as attached", || owner.name.clone());
    }
}

/// A call of a replica begins; who it is made for.
pub fn called(state: &mut State, store: &Store, replica: usize, call: Call, pair: &Pair) -> BTreeSet<Owner> {
    if state.backend.open.iter().any(|(_, other)| other == pair) {
        state
            .journal
            .violated("no two calls at once for a volume and a node", || {
                format!("{call:?} of {pair}")
            });
    }
    state.backend.open.push((replica, pair.clone()));
    match call {
        Call::Publish => published(state, store, pair),
        Call::Unpublish => {
            unpublished(state, pair);
            BTreeSet::new()
        }
    }
}

fn published(state: &mut State, store: &Store, pair: &Pair) -> BTreeSet<Owner> {
    let attachments = state.cluster.all(Kind::Attachment);
    let noted = attachments.filter(|object| {
        let claimed = claim_of(object).is_some_and(|(claimed, _)| claimed == *pair);
        // A claim whose answer was lost may have noted another place since. This one is kept beside it, so that it is
        // taken back with the rest.
        claimed || is_former(object, pair)
    });
    let owners: BTreeSet<Owner> = noted.map(|object| owner(object)).collect();
    if owners.is_empty() {
        let known = state.claims.get(pair).cloned().unwrap_or_default();
        let forced: BTreeSet<Owner> = known
            .into_iter()
            .filter(|owner| state.forced.contains(&owner.uid))
            .collect();
        if forced.is_empty() {
            state.journal.violated(
                "no Publish without finalizer, node ID and volume on the attachment",
                || pair.to_string(),
            );
        }
        return forced;
    }
    let unprotected = owners.iter().find(|owner| !is_protected(state, &owner.volume));
    if let Some(owner) = unprotected {
        let detail = format!("{} of {}", owner.volume, owner.name);
        state
            .journal
            .violated("no Publish without finalizer on the PersistentVolume", || detail);
    }
    let wanted = owners
        .iter()
        .map(|owner| unwanted(store, owner))
        .collect::<Option<Vec<_>>>();
    if let Some([reason, ..]) = wanted.as_deref() {
        let detail = format!("{pair}: {reason}");
        state
            .journal
            .violated("no Publish for what is known to be deleted or attached", || detail);
    }
    owners
}

fn is_protected(state: &State, volume: &str) -> bool {
    volume.is_empty()
        || state.forced_volumes.contains(volume)
        || state
            .cluster
            .get(Kind::Volume, volume)
            .is_some_and(|object| is_held(object))
}

/// Why a replica itself knows that an attachment is not to be published.
fn unwanted(store: &Store, owner: &Owner) -> Option<&'static str> {
    let snapshot = store.attachment(&owner.name)?;
    let attachment = &snapshot.attachment;
    if *attachment.uid != *owner.uid {
        return None;
    }
    if attachment.deleting.is_some() {
        return Some("the attachment is being deleted");
    }
    if attachment.attached {
        return Some("it is attached");
    }
    let deleting = snapshot.volume.as_ref().is_some_and(|volume| volume.deleting);
    deleting.then_some("the PersistentVolume is being deleted")
}

fn unpublished(state: &mut State, pair: &Pair) {
    let attachments = state.cluster.all(Kind::Attachment);
    let claims = attachments.filter(|object| claim_of(object).is_some_and(|(claimed, _)| claimed == *pair));
    let (deleting, live): (Vec<_>, Vec<_>) = claims.partition(|object| is_deleting(object));
    let forced = |object: &Value| {
        let volume = text(object, "/spec/source/persistentVolumeName");
        state.forced_volumes.contains(volume)
    };
    let used = live
        .iter()
        .find(|object| object["status"]["attached"] == true && !forced(object));
    if let (true, Some(used)) = (deleting.is_empty(), used) {
        let detail = format!("{pair} is attached for {}", text(used, "/metadata/name"));
        state
            .journal
            .violated("no Unpublish under a live attachment", || detail);
    }
}
