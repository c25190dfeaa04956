//! What must hold at every write that an operator's request makes to an object.

use serde_json::Value;
use std::time::Duration;

use super::backend::Pair;
use super::cluster::{Kind, Written, finalizers, is_deleting, text};
use super::invariants::{
    FOREIGN_PARTS, HELD_WHILE_PUBLISHED, PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED, PUBLISHED_FIRST,
    QUICK_BESIDE_SLOW, RELEASED_FIRST, RIGHT_CONTEXT,
};
use super::objects::{claim_of, driver_of, is_held, is_held_by, owner};
use super::scenario::{DRIVERS, SLOW};
use super::world::{Owner, State, finalizer};
use crate::api::names::NODE_ID_ANNOTATION;

/// A write of an attacher was stored; `late` when whoever sent it had given it up, so that the world may have moved on.
pub fn written(state: &mut State, late: bool, written: &Written) {
    let (before, after) = (&*written.before, &*written.after);
    foreign_parts_survive(state, before, after);
    if text(after, "/spec/attacher").is_empty() {
        for driver in 0..DRIVERS.len() {
            match (is_held_by(before, driver), is_held_by(after, driver)) {
                (true, false) => volume_released(state, driver, after),
                (false, true) => {
                    let handle = text(after, "/spec/csi/volumeHandle").to_owned();
                    state.presumed.insert((driver, handle));
                }
                _ => {}
            }
        }
        return;
    }
    let (had, has) = (is_held(before), is_held(after));
    if had && !has {
        attachment_released(state, before);
    }
    if let Some((pair, owner)) = claim_of(after) {
        state.claims.entry(pair).or_default().insert(owner);
    }
    let attached = |object: &Value| object["status"]["attached"] == true;
    match (attached(before), attached(after)) {
        (false, true) => recorded_as_attached(state, late, after),
        // A write that comes late finds an attachment that was not there any more before a restore.
        (true, false) if has && !state.was_rolled_back(text(after, "/metadata/name")) => state
            .journal
            .violated(RELEASED_FIRST, || text(after, "/metadata/name").to_owned()),
        _ => {}
    }
    let context = |object: &Value| object["status"]["attachmentMetadata"].clone();
    if attached(after) && (!attached(before) || context(before) != context(after)) {
        recorded_context(state, after);
    }
}

fn foreign_parts_survive(state: &mut State, before: &Value, after: &Value) {
    let ours: Vec<String> = (0..DRIVERS.len()).map(finalizer).collect();
    let foreign = |object: &Value| {
        let others = finalizers(object).filter(|finalizer| !ours.iter().any(|ours| ours == finalizer));
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
        state.journal.violated(FOREIGN_PARTS, || {
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
    if state.unnoted.contains(&owner.uid) {
        // Where it was published is said by the node or the PersistentVolume alone, which may be another one since.
        return;
    }
    // A former place where another attachment is attached is that one's: its own detach asks for it.
    let is_of_another = |pair: &Pair| {
        let mut attachments = state.cluster.all(Kind::Attachment);
        let holds = |other: &Value| {
            let claimed = claim_of(other).is_some_and(|(claimed, by)| claimed == *pair && by.uid != owner.uid);
            claimed && other["status"]["attached"] == true && !is_deleting(other)
        };
        claim_of(object).is_some_and(|(claimed, _)| claimed != *pair) && attachments.any(|other| holds(other))
    };
    let left = state
        .backend
        .may_be_published()
        .find(|(pair, owners)| owners.contains(&owner) && !is_of_another(pair));
    if let Some((pair, _)) = left {
        let detail = format!(
            "{} was let go while {pair} is or may become published for it",
            owner.name
        );
        state.journal.violated(HELD_WHILE_PUBLISHED, || detail);
    }
}

fn volume_released(state: &mut State, driver: usize, object: &Value) {
    let name = text(object, "/metadata/name");
    let ours = |owner: &&Owner| {
        owner.volume == name && !state.forced.contains(&owner.uid) && !state.was_rolled_back(&owner.name)
    };
    let mut published = state
        .backend
        .may_be_published()
        .filter(|(pair, _)| pair.driver == driver);
    let left = published.find_map(|(pair, owners)| {
        owners
            .iter()
            .find(ours)
            .map(|owner| format!("{name}: {pair} for {}", owner.name))
    });
    let named = state
        .cluster
        .all(Kind::Attachment)
        .find(|attachment| {
            let named = text(attachment, "/spec/source/persistentVolumeName") == name;
            named && is_held(attachment)
        })
        .map(|attachment| format!("{name} is named by {}", text(attachment, "/metadata/name")));
    if let Some(detail) = left {
        state.journal.violated(PROTECTED_WHILE_PUBLISHED, || detail);
    }
    if let Some(detail) = named {
        state.journal.violated(PROTECTED_WHILE_NAMED, || detail);
    }
}

fn recorded_as_attached(state: &mut State, late: bool, object: &Value) {
    let owner = owner(object);
    if state.scenario.slow.is_some() && driver_of(object) != Some(0) {
        quick_enough(state, &owner);
    }
    let is_there = state.backend.published.values().any(|owners| owners.contains(&owner));
    // The backend may lose it before it is recorded.
    let is_there = is_there || claim_of(object).is_some_and(|(pair, _)| state.drifted.contains(&pair));
    if is_there || state.was_rolled_back(&owner.name) {
        return;
    }
    let lacked = driver_of(object).is_some_and(|driver| state.lacked[driver]);
    if lacked && !is_held(object) {
        // Nothing was ever published: the driver is served as one that has nothing to publish with.
        state.trivial.insert(owner.uid);
        return;
    }
    if !late {
        state.journal.violated(PUBLISHED_FIRST, || owner.name);
    }
}

/// A driver whose requests are quick has attached in less than the time of one slow request.
fn quick_enough(state: &mut State, owner: &Owner) {
    let mut changes = state.cluster.changes.iter();
    let first = changes.find(|change| text(&change.object, "/metadata/uid") == owner.uid);
    let took = first.map_or(Duration::ZERO, |first| first.at.elapsed());
    if took > SLOW / 2 {
        let detail = format!("{} is attached after {took:?}", owner.name);
        state.journal.violated(QUICK_BESIDE_SLOW, || detail);
    }
}

/// The publish context is one that the driver answered for this place, and nothing of another one.
fn recorded_context(state: &mut State, object: &Value) {
    let Some((pair, owner)) = claim_of(object) else { return };
    if state.trivial.contains(&owner.uid) || state.was_rolled_back(&owner.name) {
        return;
    }
    let shown = &object["status"]["attachmentMetadata"];
    let answered = state.backend.contexts.get(&pair);
    let is_right = answered.is_some_and(|contexts| {
        contexts
            .iter()
            .any(|context| serde_json::to_value(context).is_ok_and(|context| context == *shown))
    });
    if !is_right {
        let detail = format!("{} of {pair}: {shown}", owner.name);
        state.journal.violated(RIGHT_CONTEXT, || detail);
    }
}
