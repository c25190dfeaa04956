//! The sidecar external-attacher, which works while no replica runs. It notes no volume on a VolumeAttachment, and its attempts end
//! anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::backend::Pair;
use super::cluster::{Kind, finalizers, is_deleting, text};
use super::leases::Rival;
use super::objects::{claim_of, disk_of, driver_of, is_held_by, node_id, owner, volume_of};
use super::scenario::Disk;
use super::settle::{attachable, has_secret};
use super::stage::take_finalizer;
use super::world::{Owner, State, World, finalizer};
use crate::api::names::NODE_ID_ANNOTATION;

/// How often it looks at everything.
const PERIOD: Duration = Duration::from_secs(1);

/// The sidecars of all drivers.
pub struct Sidecars {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Sidecars {
    /// One for each driver. Where there are Leases, it works while it holds that of its driver.
    pub fn start(world: &World) -> Self {
        let stop = CancellationToken::new();
        let drivers = world.with(|state| state.scenario.drivers);
        let start = |driver| tokio::spawn(lead(world.clone(), driver, stop.clone()));
        let tasks = (0..drivers).map(start).collect();
        Self { stop, tasks }
    }

    pub async fn end(self) {
        self.stop.cancel();
        for task in self.tasks {
            task.await.expect("a sidecar does not panic");
        }
    }
}

async fn lead(world: World, driver: usize, stop: CancellationToken) {
    let mut rival = world.with(|state| Rival::new(state, "sidecar", driver));
    while !stop.is_cancelled() && !world.is_over() {
        world.with(|state| {
            if rival.leads(state) {
                work(state, driver);
            }
        });
        tokio::select! {
            biased;
            () = sleep(PERIOD) => {}
            () = stop.cancelled() => {}
        }
    }
    world.with(|state| rival.leave(state));
}

/// Does whatever there is to do for a driver. No time passes meanwhile; where a call of a replica still has its effect to come, it is
/// done later.
fn work(state: &mut State, driver: usize) {
    if !state.capable[driver] {
        return;
    }
    let attachments = state.cluster.all(Kind::Attachment);
    let ours: Vec<_> = attachments
        .filter(|object| driver_of(object) == Some(driver))
        .cloned()
        .collect();
    for attachment in ours {
        let Some(disk) = disk_of(state, &attachment).cloned() else {
            continue;
        };
        if disk.driver != driver || !has_secret(state, &disk) {
            continue;
        }
        if is_deleting(&attachment) {
            if !is_another_volume(&attachment, &disk) {
                detach(state, &attachment, &disk);
            }
        } else if attachment["status"]["attached"] != true {
            attach(state, &attachment, &disk);
        }
    }
    release_volumes(state, driver);
}

/// Whether a replica noted another volume than the PersistentVolume is now. The sidecar would detach the wrong one, for which nobody
/// after it could do anything.
fn is_another_volume(attachment: &Value, disk: &Disk) -> bool {
    claim_of(attachment).is_some_and(|(claimed, _)| claimed.volume != disk.handle)
}

fn is_busy(state: &State, pair: &Pair) -> bool {
    state.backend.under_way.contains_key(pair) || state.backend.open.iter().any(|open| open.pair == *pair)
}

fn attach(state: &mut State, attachment: &Value, disk: &Disk) {
    if !attachable(state, attachment, Some(disk)) {
        return;
    }
    let node = text(attachment, "/spec/nodeName");
    let Some(id) = node_id(state, disk.driver, node).map(str::to_owned) else {
        return;
    };
    let pair = Pair::of(disk, &id);
    if is_busy(state, &pair) {
        return;
    }
    let (name, owner) = (text(attachment, "/metadata/name").to_owned(), owner(attachment));
    state
        .cluster
        .edit(Kind::Volume, &disk.name, |object| protect(object, disk.driver));
    state.cluster.edit(Kind::Attachment, &name, |object| {
        protect(object, disk.driver);
        object["metadata"]["annotations"][NODE_ID_ANNOTATION] = id.into();
    });
    state.claims.entry(pair.clone()).or_default().insert(owner.clone());
    let end = End::draw(state);
    state
        .journal
        .note("sidecar", || format!("attaches {name}: {pair} [{end:?}]"));
    let context = BTreeMap::from([("device".to_owned(), pair.to_string())]);
    if end != End::BeforeTheCall {
        state
            .backend
            .published
            .entry(pair.clone())
            .or_default()
            .insert(owner.clone());
        state
            .backend
            .contexts
            .entry(pair.clone())
            .or_default()
            .push(context.clone());
    }
    if end == End::Recorded {
        let time = state.cluster.second().to_string();
        state.cluster.edit(Kind::Attachment, &name, |object| {
            object["status"] = json!({"attached": true, "attachmentMetadata": context});
            let entry =
                json!({"manager": "csi-attacher", "operation": "Update", "subresource": "status", "time": time});
            object["metadata"]["managedFields"] = json!([entry]);
        });
    }
    lose_other_places(state, &pair, &owner);
}

/// Where an attempt to attach ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    BeforeTheCall,
    BeforeTheRecord,
    Recorded,
}

impl End {
    fn draw(state: &mut State) -> Self {
        match state.rng.u8(0..8) {
            0 => Self::BeforeTheCall,
            1..=2 => Self::BeforeTheRecord,
            _ => Self::Recorded,
        }
    }
}

/// The sidecar knows one place of an attachment: the one that it notes. What a replica left somewhere else is lost with it.
fn lose_other_places(state: &mut State, pair: &Pair, owner: &Owner) {
    let mut places = state.backend.may_be_published();
    if places.any(|(place, owners)| place != pair && owners.contains(owner)) {
        state.forced.insert(owner.uid.clone());
    }
}

fn detach(state: &mut State, attachment: &Value, disk: &Disk) {
    if !is_held_by(attachment, disk.driver) || !(disk.inline || state.cluster.has(Kind::Volume, &disk.name)) {
        return;
    }
    let noted = attachment["metadata"]["annotations"][NODE_ID_ANNOTATION].as_str();
    let registered = node_id(state, disk.driver, text(attachment, "/spec/nodeName"));
    let Some(id) = registered.or(noted.filter(|id| !id.is_empty())) else {
        return;
    };
    let pair = Pair::of(disk, id);
    let (name, owner) = (text(attachment, "/metadata/name").to_owned(), owner(attachment));
    // It takes a volume from another attachment of the same place, which is its own defect.
    let is_shared = state
        .backend
        .published
        .get(&pair)
        .is_some_and(|users| users.iter().any(|user| *user != owner));
    if is_busy(state, &pair) || is_shared {
        return;
    }
    state.journal.note("sidecar", || format!("detaches {name}: {pair}"));
    state.backend.published.remove(&pair);
    state.must_undo.remove(&pair);
    lose_other_places(state, &pair, &owner);
    state.cluster.edit(Kind::Attachment, &name, |object| {
        object["status"] = json!({"attached": false});
        take_finalizer(object, &finalizer(disk.driver));
    });
}

/// Lets PersistentVolumes go that nothing names.
fn release_volumes(state: &mut State, driver: usize) {
    let volumes = state.cluster.all(Kind::Volume);
    let going = volumes.filter(|object| is_deleting(object) && is_held_by(object, driver));
    let names: Vec<String> = going.map(|object| text(object, "/metadata/name").to_owned()).collect();
    for name in names {
        let named = state
            .cluster
            .all(Kind::Attachment)
            .any(|object| volume_of(object) == name);
        let mut places = state.backend.may_be_published();
        let published = places.any(|(_, owners)| owners.iter().any(|owner| owner.volume == name));
        if !named && !published {
            state
                .cluster
                .edit(Kind::Volume, &name, |object| take_finalizer(object, &finalizer(driver)));
        }
    }
}

fn protect(object: &mut Value, driver: usize) {
    if !is_held_by(object, driver) {
        let mut all: Vec<String> = finalizers(object).map(str::to_owned).collect();
        all.push(finalizer(driver));
        object["metadata"]["finalizers"] = all.into();
    }
}
