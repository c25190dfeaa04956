//! What must hold at every write and at every call.
//!
//! The API server knows more than a replica: a deletion may be on its way to the replica's cache when a call starts.
//! So "never Publish for what is deleted" reads: not once the replica was told, and not unless the claim was stored,
//! which the API server refuses for what is being deleted already.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

use super::backend::{Call, OpenCall, Pair};
use super::calls::ModelDriver;
use super::cluster::{Kind, is_deleting, text};
use super::invariants::{
    ALLOWED_SECRET, CLAIMED_FIRST, NAMED, NOT_FOR_A_GAP, NOT_UNDER_A_LIVE_ONE, ONCE_CLAIMED, ONE_AT_A_TIME, ONE_LEADER,
    ONLY_WITH_THE_LEASE, PROTECTED_FIRST, RIGHT_DRIVER, RIGHT_REQUEST, RIGHT_SECRET, WANTED,
};
use super::objects::{claim_of, context_of, disk_handle, is_former, is_protected, mode_of, owner};
use super::scenario::{Disk, Secret};
use super::secrets;
use super::world::{Owner, State};
use crate::cache::Store;
use crate::csi::mode_name;
use csi_attacher_proto::v1;

/// What a request to a driver carries: the Secret of its volume, and what the PersistentVolume says.
pub fn contents(
    state: &mut State,
    call: Call,
    pair: &Pair,
    secret: Option<&BTreeMap<String, String>>,
    request: Option<&v1::ControllerPublishVolumeRequest>,
) {
    let disks = state.scenario.disks.iter().chain(&state.former_disks);
    let disks: Vec<Disk> = disks
        .filter(|disk| disk.handle == pair.volume && disk.driver == pair.driver)
        .cloned()
        .collect();
    if disks.is_empty() {
        let detail = || format!("{call:?} of {pair}");
        return state.journal.violated(RIGHT_DRIVER, detail);
    }
    let held = |disk: &Disk| {
        let value = secret.and_then(|secret| secret.get("key"));
        value.is_some_and(|value| state.secrets.held(&secrets::key_of(disk), value))
    };
    if disks.iter().any(|disk| disk.secret == Secret::Forbidden && held(disk)) {
        let detail = || format!("{call:?} of {pair}");
        return state.journal.violated(ALLOWED_SECRET, detail);
    }
    let fits = |disk: &Disk| match disk.secret {
        Secret::None => secret.is_none(),
        // What was claimed before there was a Secret is taken back without one.
        Secret::Own | Secret::Forbidden => held(disk),
    };
    if !disks.iter().any(fits) {
        let detail = format!("{call:?} of {pair} with {secret:?}");
        state.journal.violated(RIGHT_SECRET, || detail);
    }
    let Some(request) = request else { return };
    let capability = request.volume_capability.as_ref();
    let mode = capability.and_then(|capability| capability.access_mode.as_ref());
    let mode = mode.map(|mode| mode.mode().as_str_name());
    let says = |disk: &Disk| {
        let context = context_of(disk);
        request.readonly == disk.read_only
            && request.volume_context.iter().eq(context.iter())
            && mode == Some(mode_name(mode_of(disk)))
    };
    if !disks.iter().any(says) {
        let detail = format!("{pair}: {request:?}");
        state.journal.violated(RIGHT_REQUEST, || detail);
    }
}

/// A call of a process begins; who it is made for.
pub fn called(state: &mut State, driver: &ModelDriver, call: Call, pair: &Pair) -> BTreeSet<Owner> {
    let (process, place, store) = (driver.process.number(), driver.place, &driver.store);
    if pair.volume.trim().is_empty() || pair.node.trim().is_empty() {
        state.journal.violated(NAMED, || format!("{call:?} of {pair}"));
    }
    let occupied = |open: &&OpenCall| open.pair == *pair && (open.process == process || !open.left);
    if let Some(other) = state.backend.open.iter().find(occupied) {
        let detail = format!("{call:?} of {pair}, beside one of operator{}", other.process);
        state.journal.violated(ONE_AT_A_TIME, || detail);
    }
    if state.scenario.lease.is_some() {
        if !state.terms.allow(process, place, pair.driver) {
            let detail = || format!("{call:?} of {pair} by operator{process}");
            state.journal.violated(ONLY_WITH_THE_LEASE, detail);
        } else if let Some(lease) = state.terms.called(process, pair.driver) {
            let detail = || format!("{call:?} of {pair} by operator{process}, while another has {lease}");
            state.journal.violated(ONE_LEADER, detail);
        }
    }
    state.backend.open.push(OpenCall {
        process,
        pair: pair.clone(),
        left: false,
    });
    match call {
        Call::Publish => published(state, store, pair),
        Call::Unpublish => {
            unpublished(state, store, pair);
            BTreeSet::new()
        }
    }
}

fn published(state: &mut State, store: &Store, pair: &Pair) -> BTreeSet<Owner> {
    if let Some(rollback) = &mut state.rollback {
        // What follows is another story than that of what was published before.
        rollback.published.remove(pair);
    }
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
        let excused: BTreeSet<Owner> = known
            .into_iter()
            .filter(|owner| state.forced.contains(&owner.uid) || state.was_rolled_back(&owner.name))
            .collect();
        if excused.is_empty() {
            state.journal.violated(CLAIMED_FIRST, || pair.to_string());
        }
        return excused;
    }
    let unprotected = owners
        .iter()
        .find(|owner| !is_protected(state, pair.driver, &owner.volume));
    if let Some(owner) = unprotected.filter(|owner| !state.was_rolled_back(&owner.volume)) {
        let detail = format!("{} of {}", owner.volume, owner.name);
        state.journal.violated(PROTECTED_FIRST, || detail);
    }
    let wanted = owners
        .iter()
        .map(|owner| unwanted(state, store, pair, owner))
        .collect::<Option<Vec<_>>>();
    // It may not know yet that somebody has removed by force the attachment for which it publishes.
    let removed = state.claims.get(pair).into_iter().flatten();
    let is_for_removed = removed
        .filter(|owner| state.forced.contains(&owner.uid))
        .any(|owner| knows(store, owner) && unwanted(state, store, pair, owner).is_none());
    if let Some([reason, ..]) = wanted.as_deref().filter(|_| !is_for_removed) {
        let detail = format!("{pair}: {reason}");
        state.journal.violated(WANTED, || detail);
    }
    owners
}

/// Whether a replica has a copy of this very attachment.
fn knows(store: &Store, owner: &Owner) -> bool {
    let known = store.attachment(&owner.name);
    known.is_some_and(|known| *known.attachment.uid == *owner.uid)
}

/// Why a replica itself knows that an attachment is not to be published.
fn unwanted(state: &State, store: &Store, pair: &Pair, owner: &Owner) -> Option<&'static str> {
    let snapshot = store.attachment(&owner.name)?;
    let attachment = &snapshot.attachment;
    if *attachment.uid != *owner.uid {
        return None;
    }
    if attachment.deleting.is_some() {
        return Some("the attachment is being deleted");
    }
    if attachment.attached {
        // What the driver has lost is published once more.
        let lost = state.has_lost(pair.driver, &pair.volume) || !state.backend.published.contains_key(pair);
        return (!lost || state.scenario.lists.is_none()).then_some("it is attached");
    }
    let deleting = snapshot.volume.as_ref().is_some_and(|volume| volume.deleting);
    deleting.then_some("the PersistentVolume is being deleted")
}

fn unpublished(state: &mut State, store: &Store, pair: &Pair) {
    let of_volume = |claimed: &Pair| (claimed.driver, &claimed.volume) == (pair.driver, &pair.volume);
    // The node ID may be one that the node has now, and was never claimed for.
    // A sidecar that was ended in a call leaves the finalizer on the PersistentVolume, and no other trace.
    let is_presumed = state.presumed.contains(&(pair.driver, pair.volume.clone()));
    if !is_presumed && !state.claims.keys().any(of_volume) {
        state.journal.violated(ONCE_CLAIMED, || pair.to_string());
    }
    let attachments = state.cluster.all(Kind::Attachment);
    let claims = attachments.filter(|object| claim_of(object).is_some_and(|(claimed, _)| claimed == *pair));
    let (deleting, live): (Vec<_>, Vec<_>) = claims.partition(|object| is_deleting(object));
    let forced = |object: &Value| {
        let volume = text(object, "/spec/source/persistentVolumeName");
        state.forced_volumes.contains(volume) || state.was_rolled_back(text(object, "/metadata/name"))
    };
    let mut used = live
        .iter()
        .filter(|object| object["status"]["attached"] == true && !forced(object));
    let knows = |object: &&&std::sync::Arc<Value>| {
        let known = store.attachment(text(object, "/metadata/name"));
        known.is_some_and(|known| {
            let known = &known.attachment;
            *known.uid == *text(object, "/metadata/uid") && known.attached && known.deleting.is_none()
        })
    };
    let used = if deleting.is_empty() {
        used.next()
    } else {
        used.find(knows)
    };
    if let Some(used) = used {
        let detail = format!("{pair} is attached for {}", text(used, "/metadata/name"));
        state.journal.violated(NOT_UNDER_A_LIVE_ONE, || detail);
    }
    let before = state.rollback.as_ref();
    if before.is_some_and(|rollback| rollback.published.contains(pair)) {
        let mut attachments = state.cluster.all(Kind::Attachment);
        let named = attachments.any(|object| disk_handle(state, object) == Some((pair.driver, &pair.volume)));
        if !named {
            state.journal.violated(NOT_FOR_A_GAP, || pair.to_string());
        }
    }
}
