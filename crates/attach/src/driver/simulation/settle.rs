//! What must be the case once faults have stopped and everybody had time.

use serde_json::Value;
use std::time::Duration;

use super::backend::Pair;
use super::cluster::{Kind, is_deleting, text};
use super::invariants::{
    ATTACHED_IS_PROTECTED, ATTACHED_IS_PUBLISHED, ATTACHED_WITHOUT_ERROR, ATTACHES, DETACHED_AND_GONE, NO_BUSY_LOOP,
    NO_FORGOTTEN_WAIT, NO_LIST_FOR_A_STALL, NOTHING_LEFT, TAKEN_BACK, VOLUME_GOES,
};
use super::objects::{
    claim_of, disk_handle, disk_of, driver_of, is_held, is_held_by, is_protected, node_id, owner, volume_of,
};
use super::replica::LONGEST_WAIT;
use super::scenario::{Disk, Scenario, Secret};
use super::secrets;
use super::world::State;

/// How long everybody has. With faults: the last effect of a lost call, a compensation that waits for its next try, and
/// a few attempts at the longest wait. Without: the slowest watch and a call. Where Leases are competed for, until they have
/// run out at two places; where volumes are listed, three passes.
pub fn patience(scenario: &Scenario) -> Duration {
    let own = Duration::from_secs(if scenario.faultless { 40 } else { 150 });
    let lease = scenario.lease.map_or(Duration::ZERO, |lease| lease.duration * 3);
    let lists = scenario.lists.map_or(Duration::ZERO, |interval| interval * 3);
    own + lease + lists
}

/// For how long it is then watched that nothing more happens than must.
pub const QUIET: Duration = Duration::from_mins(1);

/// Requests and calls that one attempt at most takes.
const STEPS_OF_AN_ATTEMPT: usize = 6;

/// Looks at the metadata of a Secret within that time, for one that waits for it.
const SECRET_LOOKS: usize = 14;

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
            state.journal.violated(VOLUME_GOES, || name.to_owned());
        }
    }
    let uids: Vec<&str> = attachments
        .iter()
        .filter(|object| is_held(object))
        .map(|object| text(object, "/metadata/uid"))
        .collect();
    let before = state.rollback.as_ref();
    let orphan = state.backend.may_be_published().find(|(pair, owners)| {
        let wanted = |uid: &str| uids.contains(&uid) || state.forced.contains(uid);
        // What nobody names any more after a restore is told of, and not touched.
        let lost = before.is_some_and(|rollback| {
            rollback.published.contains(*pair) || owners.iter().any(|owner| rollback.names.contains(&owner.name))
        });
        !lost && !owners.iter().any(|owner| wanted(&owner.uid))
    });
    if let Some((pair, _)) = orphan {
        let pair = pair.to_string();
        state.journal.violated(NOTHING_LEFT, || pair);
    }
    undone(state, &attachments);
    // Three kinds, by one process.
    if state.scenario.steady_watches && state.lists > 3 {
        let lists = state.lists;
        state.journal.violated(NO_LIST_FOR_A_STALL, || format!("{lists} lists"));
    }
}

fn settled_attachment(state: &mut State, attachment: &Value) {
    let name = text(attachment, "/metadata/name");
    let Some(driver) = driver_of(attachment) else { return };
    let disk = disk_of(state, attachment).cloned();
    let secret = disk.as_ref().is_none_or(|disk| has_secret(state, disk));
    if state.unnoted.contains(text(attachment, "/metadata/uid")) {
        return;
    }
    if is_deleting(attachment) {
        // What a sidecar attached names no volume. When its PersistentVolume was removed by force, nobody knows which it was.
        let is_known = claim_of(attachment).is_some() || !state.forced_volumes.contains(volume_of(attachment));
        if is_held(attachment) && secret && is_known && !shared(state, attachment) {
            state.journal.violated(DETACHED_AND_GONE, || name.to_owned());
        }
        return;
    }
    let attached = attachment["status"]["attached"] == true;
    let owner = owner(attachment);
    if state.replaced.contains(&owner.uid) {
        return;
    }
    let published = state.backend.published.values().any(|owners| owners.contains(&owner));
    // Whose PersistentVolume was removed by force may share its volume with another, which nobody can know any more. What
    // was attached in the state that the API server went back to may have been detached since.
    let known = !state.forced.contains(&owner.uid)
        && !state.forced_volumes.contains(&owner.volume)
        && !state.trivial.contains(&owner.uid)
        && !state.was_rolled_back(name);
    // What the backend lost is published again only where it may be attached, and is tried until then.
    let may_be = secret && attachable(state, attachment, disk.as_ref());
    let known = known && (may_be || !has_drifted(state, attachment));
    if attached && !published && known {
        state.journal.violated(ATTACHED_IS_PUBLISHED, || name.to_owned());
    }
    // A restore may take our finalizer from a volume that somebody deletes before that is known: it goes at once.
    let was_deleted = state.was_rolled_back(&owner.volume) && !state.cluster.has(Kind::Volume, &owner.volume);
    let protected = is_protected(state, driver, &owner.volume) || was_deleted;
    if attached && known && is_held_by(attachment, driver) && !protected {
        state.journal.violated(ATTACHED_IS_PROTECTED, || name.to_owned());
    }
    let error = attachment["status"]["attachError"]["message"].as_str();
    // An error that was written late by a request that was given up may come after the success.
    if attached && error.is_some() && state.scenario.api_faults == 0 && !has_drifted(state, attachment) {
        state.journal.violated(ATTACHED_WITHOUT_ERROR, || name.to_owned());
    }
    if !attached && secret && attachable(state, attachment, disk.as_ref()) {
        let detail = format!("{name} ({})", error.unwrap_or("no error"));
        state.journal.violated(ATTACHES, || detail);
    }
}

/// Whether the driver does not list the volume of an attachment that is recorded as attached: the backend lost it, there was
/// nothing to publish it with, or it was detached after the backup that the API server went back to. Then it is tried again and again.
fn has_drifted(state: &State, attachment: &Value) -> bool {
    let Some((driver, handle)) = disk_handle(state, attachment) else {
        return false;
    };
    let owner = owner(attachment);
    let lost = state.has_lost(driver, handle)
        || state.trivial.contains(&owner.uid)
        || state.was_rolled_back(text(attachment, "/metadata/name"));
    lost && !state.backend.published.values().any(|owners| owners.contains(&owner))
}

/// Whether the Secret of a disk can be had, if it needs one.
pub fn has_secret(state: &State, disk: &Disk) -> bool {
    match disk.secret {
        Secret::None => true,
        Secret::Own => state.cluster.has(Kind::Secret, &secrets::key_of(disk)),
        Secret::Forbidden => false,
    }
}

/// Whether another attachment has the same volume attached on the same node; it would lose it.
fn shared(state: &State, attachment: &Value) -> bool {
    // What a sidecar attached has no claim: the volume is that of its PersistentVolume.
    let volume = |object: &Value| match claim_of(object) {
        Some((pair, _)) => Some((pair.driver, pair.volume)),
        None => disk_handle(state, object).map(|(driver, handle)| (driver, handle.clone())),
    };
    let (Some(of), owner_of) = (volume(attachment), owner(attachment)) else {
        return false;
    };
    state.cluster.all(Kind::Attachment).any(|other| {
        if state.unnoted.contains(text(other, "/metadata/uid")) {
            // It may be of the same volume and node.
            return true;
        }
        let same = volume(other).as_ref() == Some(&of)
            && owner(other) != owner_of
            && text(other, "/spec/nodeName") == text(attachment, "/spec/nodeName");
        same && !is_deleting(other) && other["status"]["attached"] == true
    })
}

pub fn attachable(state: &State, attachment: &Value, disk: Option<&Disk>) -> bool {
    let Some(disk) = disk else { return false };
    let volume = state.cluster.get(Kind::Volume, &disk.name);
    if driver_of(attachment) != Some(disk.driver) {
        return false;
    }
    let Some(id) = node_id(state, disk.driver, text(attachment, "/spec/nodeName")) else {
        return false;
    };
    let pair = Pair::of(disk, id);
    let is_there = disk.inline || volume.is_some_and(|object| !is_deleting(object));
    is_there && !state.backend.is_elsewhere(&pair)
}

/// Volumes of attachments that vanished during Publish are taken back by the operator that saw it, if it lived on and knew that
/// they are not recorded as attached.
fn undone(state: &mut State, attachments: &[std::sync::Arc<Value>]) {
    let came_back = |name: &str| attachments.iter().any(|object| text(object, "/metadata/name") == name);
    let claimed = |pair: &Pair| {
        attachments
            .iter()
            .any(|object| claim_of(object).is_some_and(|(other, _)| other == *pair))
    };
    let left = state.must_undo.iter().find(|(pair, name)| {
        let known = !state.unanswered.contains(*name);
        known && state.backend.published.contains_key(*pair) && !came_back(name) && !claimed(pair)
    });
    if let Some((pair, name)) = left {
        let detail = format!("{pair} of {name}");
        state.journal.violated(TAKEN_BACK, || detail);
    }
}

/// After that, only what cannot be done is tried, and not more often than its backoff says.
pub fn quiet_enough(state: &mut State, steps: usize, secret_looks: usize) {
    let failing = state.cluster.all(Kind::Attachment).filter(|object| {
        let attached = object["status"]["attached"] == true;
        if is_deleting(object) {
            is_held(object)
        } else {
            // What is published where the node is not any more is listed otherwise than expected, and tried again.
            !attached || state.scenario.lists.is_some()
        }
    });
    // A tenth may be taken from each wait by chance.
    let tries = if state.scenario.faultless {
        0
    } else {
        QUIET.as_secs() / (LONGEST_WAIT.as_secs() * 9 / 10) + 1
    };
    let failing: Vec<&Value> = failing.map(|object| &**object).collect();
    let waiting = failing.iter().filter(|object| {
        let disk = disk_of(state, object);
        disk.is_some_and(|disk| disk.secret != Secret::None)
    });
    let looks = waiting.count() * SECRET_LOOKS;
    let allowed = failing.len() * STEPS_OF_AN_ATTEMPT * usize::try_from(tries).unwrap_or(0);
    if steps > allowed {
        state.journal.violated(NO_BUSY_LOOP, || {
            format!(
                "{steps} requests and calls within {} s, where {allowed} are enough",
                QUIET.as_secs()
            )
        });
    }
    if secret_looks > looks {
        state.journal.violated(NO_FORGOTTEN_WAIT, || {
            format!("{secret_looks} looks at Secrets, where {looks} are enough")
        });
    }
}
