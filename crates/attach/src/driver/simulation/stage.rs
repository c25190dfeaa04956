//! The objects of a history and what users and controllers do to them.

use serde_json::{Value, json};

use super::backend::{Call, Pair};
use super::cluster::{Kind, finalizers, is_deleting, text};
use super::mutants::{Flaw, has_flaw};
use super::objects::{claim_of, context_of, is_former, is_held, owner, volume_of};
use super::scenario::{DRIVERS, Disk, Event, Secret};
use super::world::{State, World};
use super::{leases, secrets};
use crate::api::names::NODE_ID_ANNOTATION;

const PROTECTION: &str = "kubernetes.io/pv-protection";
const SOMEBODYS: &str = "somebody.test/holds";

/// Puts the objects of a scenario in place.
pub fn set_the_stage(state: &mut State) {
    for driver in DRIVERS {
        let required = !has_flaw(Flaw::Unattached);
        let spec = json!({"metadata": {}, "spec": {"attachRequired": required}});
        state.cluster.create(Kind::Driver, driver, spec);
    }
    for disk in state.scenario.disks.clone() {
        create_volume(state, &disk);
        if disk.secret != Secret::None {
            secrets::write(state, &disk);
        }
    }
    for node in 0..state.scenario.nodes {
        create_node(state, node, 1);
    }
    state.place = 0;
    leases::release(state);
    state.stage = state.cluster.changes.len();
}

/// Lets an event happen that is about objects, or about a backend.
pub fn change(state: &mut State, event: Event) {
    match event {
        Event::Attach(volume, node) => {
            let driver = state.scenario.disks[volume].driver;
            create_attachment(state, volume, node, driver);
        }
        Event::AttachByOther(volume, node) => {
            let driver = state.scenario.disks[volume].driver;
            create_attachment(state, volume, node, 1 - driver);
        }
        Event::Detach(volume, node) => {
            state.cluster.delete(Kind::Attachment, &attachment(volume, node));
        }
        Event::DetachByOther(volume, node) => {
            state.cluster.delete(Kind::Attachment, &by_other(volume, node));
        }
        Event::CreateVolume(number) => {
            let disk = state.scenario.disks[number].clone();
            create_volume(state, &disk);
        }
        Event::ForceVolume(number) => force_volume(state, number),
        Event::ForceAttachment(volume, node) => force_attachment(state, &attachment(volume, node)),
        Event::EditAttachment(volume, node) => edit(state, Kind::Attachment, &attachment(volume, node)),
        Event::EditVolume(number) => edit(state, Kind::Volume, &format!("pv{number}")),
        Event::RetryNow(volume, node) => {
            let value = state.rng.u8(0..100).to_string();
            let name = attachment(volume, node);
            state.cluster.edit(Kind::Attachment, &name, |object| {
                object["metadata"]["annotations"]["attacher.csi.dev/retry-now"] = value.into();
            });
        }
        Event::NodeGoes(number) => {
            state.cluster.delete(Kind::Node, &node(number));
        }
        Event::NodeComes(number) => create_node(state, number, 1),
        Event::NodeReborn(number) => {
            state.cluster.delete(Kind::Node, &node(number));
            let generation = state.rng.usize(1..=3);
            create_node(state, number, generation);
        }
        Event::DriverLeaves(number) => {
            state.cluster.edit(Kind::Node, &node(number), |object| {
                object["spec"]["drivers"] = json!([]);
            });
        }
        Event::SecretGoes(number) => {
            let key = secrets::key_of(&state.scenario.disks[number]);
            state.cluster.delete(Kind::Secret, &key);
        }
        Event::SecretComes(number) => {
            let disk = state.scenario.disks[number].clone();
            if disk.secret != Secret::None {
                secrets::write(state, &disk);
            }
        }
        Event::Drift(volume, node) => drift(state, volume, node),
        Event::RemakeVolume(number) => remake_volume(state, number),
        Event::BlankNodeId(volume, node) => blank_node_id(state, &attachment(volume, node)),
        // Not a matter of objects.
        _ => {}
    }
}

/// Names of attachments are made of volume and node, and come back.
fn attachment(volume: usize, node: usize) -> String {
    format!("va{volume}{node}")
}

fn by_other(volume: usize, node: usize) -> String {
    format!("vx{volume}{node}")
}

fn node(number: usize) -> String {
    format!("n{number}")
}

fn create_node(state: &mut State, number: usize, generation: usize) {
    let id = format!("n{number}-id{generation}");
    let drivers = DRIVERS.map(|driver| json!({"name": driver, "nodeID": id}));
    let (spec, node) = (json!({"drivers": drivers}), node(number));
    let object = json!({"metadata": {}, "spec": spec});
    if !state.cluster.create(Kind::Node, &node, object) {
        state.cluster.edit(Kind::Node, &node, |object| object["spec"] = spec);
    }
}

fn volume_spec(disk: &Disk) -> Value {
    let mode = if disk.single_writer {
        "ReadWriteOnce"
    } else {
        "ReadWriteMany"
    };
    let mut csi = json!({
        "driver": DRIVERS[disk.driver], "volumeHandle": disk.handle, "readOnly": disk.read_only,
        "volumeAttributes": context_of(disk),
    });
    if disk.secret != Secret::None {
        csi["controllerPublishSecretRef"] = json!({"namespace": secrets::namespace_of(disk), "name": disk.name});
    }
    json!({"accessModes": [mode], "csi": csi})
}

fn create_volume(state: &mut State, disk: &Disk) {
    if disk.inline {
        return;
    }
    let mut object = json!({"metadata": {}, "spec": volume_spec(disk)});
    if state.rng.bool() {
        object["metadata"]["finalizers"] = json!([PROTECTION]);
    }
    if state.rng.bool() {
        object["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": DRIVERS[disk.driver]});
    }
    state.cluster.create(Kind::Volume, &disk.name, object);
}

fn create_attachment(state: &mut State, volume: usize, number: usize, driver: usize) {
    let disk = &state.scenario.disks[volume];
    let source = if disk.inline {
        json!({"inlineVolumeSpec": volume_spec(disk)})
    } else {
        json!({"persistentVolumeName": disk.name})
    };
    let name = if driver == disk.driver {
        attachment(volume, number)
    } else {
        by_other(volume, number)
    };
    let spec = json!({"attacher": DRIVERS[driver], "nodeName": node(number), "source": source});
    let object = json!({"metadata": {}, "spec": spec, "status": {"attached": false}});
    state.cluster.create(Kind::Attachment, &name, object);
}

/// Somebody deletes a PersistentVolume; the protection of volumes in use lets go a while later.
pub fn delete_volume(world: &World, number: usize) {
    let name = format!("pv{number}");
    let (deleted, pause) = world.with(|state| (state.cluster.delete(Kind::Volume, &name), state.millis(0..=2_000)));
    if !deleted {
        return;
    }
    let world = world.clone();
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        world.with(|state| {
            let known = state.cluster.get(Kind::Volume, &name);
            if known.is_some_and(|object| is_deleting(object)) {
                state.cluster.edit(Kind::Volume, &name, take_protection);
            }
        });
    });
}

/// A volume that is still held by its protection only because the API server went back: its controller lets go again.
pub fn let_go_of_deleted_volumes(state: &mut State) {
    let volumes = state.cluster.all(Kind::Volume).filter(|object| is_deleting(object));
    let names = volumes.map(|object| text(object, "/metadata/name").to_owned());
    for name in names.collect::<Vec<String>>() {
        state.cluster.edit(Kind::Volume, &name, take_protection);
    }
}

fn take_protection(volume: &mut Value) {
    take_finalizer(volume, PROTECTION);
}

fn free(object: &mut Value) {
    object["metadata"]["finalizers"] = json!([]);
}

pub fn take_finalizer(object: &mut Value, finalizer: &str) {
    let left = finalizers(object).filter(|entry| *entry != finalizer);
    let left: Vec<String> = left.map(str::to_owned).collect();
    object["metadata"]["finalizers"] = left.into();
}

fn force_volume(state: &mut State, number: usize) {
    let name = format!("pv{number}");
    let known = state.cluster.get(Kind::Volume, &name);
    if known.is_none_or(|object| !is_deleting(object)) {
        return;
    }
    state.forced_volumes.insert(name.clone());
    state.cluster.edit(Kind::Volume, &name, free);
}

/// A PersistentVolume of the same name and another handle, under which the backend has another volume.
fn remake_volume(state: &mut State, number: usize) {
    let former = state.scenario.disks[number].clone();
    if former.inline || !state.cluster.delete(Kind::Volume, &former.name) {
        return;
    }
    state.forced_volumes.insert(former.name.clone());
    state.cluster.edit(Kind::Volume, &former.name, free);
    let attachments = state.cluster.all(Kind::Attachment);
    let naming = attachments.filter(|object| volume_of(object) == former.name);
    let naming: Vec<_> = naming.cloned().collect();
    let mut is_presumed = false;
    for attachment in naming {
        let owner = owner(&attachment);
        let noted = claim_of(&attachment).is_some_and(|(claimed, _)| claimed.volume == former.handle);
        let of_sidecar = |place: &Pair| !noted && place.volume == former.handle && !is_former(&attachment, place);
        let mut places = state.backend.may_be_published();
        // What a sidecar attached beside the note is named by nothing but the PersistentVolume that is removed here.
        if places.any(|(place, owners)| of_sidecar(place) && owners.contains(&owner)) {
            state.forced.insert(owner.uid.clone());
            state.unnoted.insert(owner.uid.clone());
        }
        is_presumed |= !noted && is_held(&attachment);
        state.replaced.insert(owner.uid);
    }
    let disk = &mut state.scenario.disks[number];
    disk.handle = format!("{}-again{}", former.handle, state.former_disks.len());
    let disk = disk.clone();
    if is_presumed {
        state.presumed.insert((disk.driver, disk.handle.clone()));
    }
    state.former_disks.push(former);
    create_volume(state, &disk);
}

fn blank_node_id(state: &mut State, name: &str) {
    let known = state.cluster.get(Kind::Attachment, name);
    let noted = known.filter(|object| object["metadata"]["annotations"][NODE_ID_ANNOTATION].is_string());
    let Some(uid) = noted.map(|object| owner(object).uid) else {
        return;
    };
    // Where the volume is may be noted nowhere else, and the node may have another ID by now.
    state.forced.insert(uid.clone());
    state.unnoted.insert(uid);
    state.cluster.edit(Kind::Attachment, name, |object| {
        object["metadata"]["annotations"][NODE_ID_ANNOTATION] = "".into();
    });
}

fn force_attachment(state: &mut State, name: &str) {
    let Some(object) = state.cluster.get(Kind::Attachment, name).cloned() else {
        return;
    };
    state.forced.insert(owner(&object).uid);
    if let Some((pair, owner)) = claim_of(&object) {
        let publishing = state.backend.open.iter().any(|open| open.pair == pair && !open.left);
        let under_way = state.backend.under_way.get(&pair);
        let publishing = publishing && under_way.is_some_and(|operation| operation.call == Call::Publish);
        if publishing && !is_deleting(&object) {
            state.must_undo.insert(pair, owner.name);
        }
    }
    state.cluster.edit(Kind::Attachment, name, |object| {
        object["metadata"]["finalizers"] = json!([]);
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
}

/// A finalizer of somebody else comes or goes, and an annotation of theirs changes.
fn edit(state: &mut State, kind: Kind, name: &str) {
    let (front, number) = (state.rng.bool(), state.rng.u8(0..100));
    state.cluster.edit(kind, name, |object| {
        object["metadata"]["annotations"]["somebody.test/note"] = number.to_string().into();
        if finalizers(object).any(|finalizer| finalizer == SOMEBODYS) {
            take_finalizer(object, SOMEBODYS);
        } else if !is_deleting(object) {
            let mut list: Vec<String> = finalizers(object).map(str::to_owned).collect();
            list.insert(if front { 0 } else { list.len() }, SOMEBODYS.to_owned());
            object["metadata"]["finalizers"] = list.into();
        }
    });
}

/// The backend loses a volume that nobody works at.
fn drift(state: &mut State, volume: usize, node: usize) {
    let known = state.cluster.get(Kind::Attachment, &attachment(volume, node));
    let claim = known.and_then(|object| claim_of(object));
    let Some((pair, _)) = claim else { return };
    if state.scenario.lists.is_some() && !state.backend.under_way.contains_key(&pair) {
        state.backend.published.remove(&pair);
        state.drifted.insert(pair);
    }
}

/// The API server goes back by so many changes.
pub fn restore(state: &mut State, back: usize, bumped: bool) {
    if state.rollback.is_some() {
        return;
    }
    let back = back.min(state.cluster.changes.len() - state.stage);
    // With faults, an attempt that has attached it may still wait for the answer to what it has written.
    let settled: Vec<Pair> = if state.scenario.api_faults == 0 {
        let attached = state.cluster.all(Kind::Attachment);
        let attached = attached.filter(|object| object["status"]["attached"] == true && !is_deleting(object));
        let claims = attached.filter_map(|object| claim_of(object));
        claims.map(|(pair, _)| pair).collect()
    } else {
        Vec::new()
    };
    let names = state.cluster.restore(back, bumped);
    let calls = |pair: &Pair| {
        state.backend.open.iter().any(|open| open.pair == *pair) || state.backend.under_way.contains_key(pair)
    };
    let rollback = super::world::Rollback {
        published: settled.into_iter().filter(|pair| !calls(pair)).collect(),
        names,
    };
    state.journal.note("api", || {
        format!("goes back by {back} changes, which changes {:?}", rollback.names)
    });
    state.must_undo.clear();
    state.rollback = Some(rollback);
}
