//! Everybody but the operator: the attach/detach controller, users, kubelets, and fate.

use serde_json::{Value, json};
use std::time::Duration;

use super::backend::Call;
use super::check::{claim_of, owner};
use super::cluster::{Kind, finalizers, is_deleting, text};
use super::mutants::Mutant;
use super::replica::Replica;
use super::scenario::{Disk, Event};
use super::world::{DRIVER, State, World};

const PROTECTION: &str = "kubernetes.io/pv-protection";
const SOMEBODYS: &str = "somebody.test/holds";

/// The operator's replicas: one that works and one that only watches.
pub struct Replicas {
    world: World,
    mutant: Mutant,
    active: Replica,
    standby: Replica,
    count: usize,
}

impl Replicas {
    pub fn start(world: &World, mutant: Mutant) -> Self {
        let (mut active, mut standby) = (Replica::start(world, 1, mutant), Replica::start(world, 2, mutant));
        active.lead();
        if mutant.double {
            standby.lead();
        }
        Self {
            world: world.clone(),
            mutant,
            active,
            standby,
            count: 2,
        }
    }

    fn fresh(&mut self) -> Replica {
        self.count += 1;
        Replica::start(&self.world, self.count, self.mutant)
    }

    /// The operator dies; after a pause another process goes on.
    async fn replace(&mut self, pause: Duration, by_standby: bool) {
        let fresh = self.fresh();
        let successor = if by_standby {
            std::mem::replace(&mut self.standby, fresh)
        } else {
            fresh
        };
        std::mem::replace(&mut self.active, successor).die();
        tokio::time::sleep(pause).await;
        self.active.lead();
    }

    async fn hand_over(&mut self) {
        self.active.drain().await;
        std::mem::swap(&mut self.active, &mut self.standby);
        self.active.lead();
    }
}

/// Puts the objects of a scenario in place.
pub fn set_the_stage(state: &mut State) {
    for disk in state.scenario.disks.clone() {
        create_volume(state, &disk);
        if disk.secret {
            state.cluster.create(Kind::Secret, &disk.name, json!({"metadata": {}}));
        }
    }
    for node in 0..state.scenario.nodes {
        create_node(state, node, 1);
    }
}

/// Lets an event happen.
pub async fn act(world: &World, replicas: &mut Replicas, event: Event) {
    world.note("world", || format!("{event:?}"));
    match event {
        Event::Crash | Event::Failover => {
            let pause = world.with(|state| {
                state.must_undo.clear();
                state.millis(0..=3_000)
            });
            replicas.replace(pause, event == Event::Failover).await;
        }
        Event::HandOver => replicas.hand_over().await,
        Event::ConnectionLost => {
            let pause = world.with(|state| state.millis(0..=3_000));
            replicas.active.reconnect(pause).await;
        }
        Event::Reconfigure => replicas.active.reconfigure(),
        Event::WatchBreaks(kind) => replicas.active.break_watch(kind),
        Event::DeleteVolume(number) => delete_volume(world, number),
        event => world.with(|state| change(state, event)),
    }
}

fn change(state: &mut State, event: Event) {
    match event {
        Event::Attach(volume, node) => create_attachment(state, volume, node),
        Event::Detach(volume, node) => {
            let name = attachment(volume, node);
            state.cluster.delete(Kind::Attachment, &name);
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
            state
                .cluster
                .edit(Kind::Attachment, &attachment(volume, node), |object| {
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
            state.cluster.delete(Kind::Secret, &format!("pv{number}"));
        }
        Event::SecretComes(number) => {
            state
                .cluster
                .create(Kind::Secret, &format!("pv{number}"), json!({"metadata": {}}));
        }
        // Not a matter of objects.
        Event::Crash
        | Event::Failover
        | Event::HandOver
        | Event::ConnectionLost
        | Event::Reconfigure
        | Event::WatchBreaks(_)
        | Event::DeleteVolume(_) => {}
    }
}

/// Names of attachments are made of volume and node, and come back.
fn attachment(volume: usize, node: usize) -> String {
    format!("va{volume}{node}")
}

pub fn node(number: usize) -> String {
    format!("n{number}")
}

fn create_node(state: &mut State, number: usize, generation: usize) {
    let id = format!("n{number}-id{generation}");
    let spec = json!({"drivers": [{"name": DRIVER, "nodeID": id}]});
    let created = state
        .cluster
        .create(Kind::Node, &node(number), json!({"metadata": {}, "spec": spec}));
    if !created {
        state
            .cluster
            .edit(Kind::Node, &node(number), |object| object["spec"] = spec);
    }
}

fn volume_spec(disk: &Disk) -> Value {
    let mode = if disk.single_writer {
        "ReadWriteOnce"
    } else {
        "ReadWriteMany"
    };
    let mut csi = json!({"driver": DRIVER, "volumeHandle": disk.handle});
    if disk.secret {
        csi["controllerPublishSecretRef"] = json!({"namespace": "ns", "name": disk.name});
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
        object["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": DRIVER});
    }
    state.cluster.create(Kind::Volume, &disk.name, object);
}

fn create_attachment(state: &mut State, volume: usize, number: usize) {
    let disk = &state.scenario.disks[volume];
    let source = if disk.inline {
        json!({"inlineVolumeSpec": volume_spec(disk)})
    } else {
        json!({"persistentVolumeName": disk.name})
    };
    let spec = json!({"attacher": DRIVER, "nodeName": node(number), "source": source});
    let object = json!({"metadata": {}, "spec": spec, "status": {"attached": false}});
    state
        .cluster
        .create(Kind::Attachment, &attachment(volume, number), object);
}

/// Somebody deletes a PersistentVolume; the protection of volumes in use lets go a while later.
fn delete_volume(world: &World, number: usize) {
    let name = format!("pv{number}");
    let (deleted, pause) = world.with(|state| (state.cluster.delete(Kind::Volume, &name), state.millis(0..=2_000)));
    if !deleted {
        return;
    }
    let world = world.clone();
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        world.with(|state| {
            if state
                .cluster
                .get(Kind::Volume, &name)
                .is_some_and(|object| is_deleting(object))
            {
                state
                    .cluster
                    .edit(Kind::Volume, &name, |object| take_finalizer(object, PROTECTION));
            }
        });
    });
}

fn take_finalizer(object: &mut Value, finalizer: &str) {
    let left: Vec<String> = finalizers(object)
        .filter(|entry| *entry != finalizer)
        .map(str::to_owned)
        .collect();
    object["metadata"]["finalizers"] = left.into();
}

fn force_volume(state: &mut State, number: usize) {
    let name = format!("pv{number}");
    if state
        .cluster
        .get(Kind::Volume, &name)
        .is_none_or(|object| !is_deleting(object))
    {
        return;
    }
    state.forced_volumes.insert(name.clone());
    state.cluster.edit(Kind::Volume, &name, |object| {
        object["metadata"]["finalizers"] = json!([]);
    });
}

fn force_attachment(state: &mut State, name: &str) {
    let Some(object) = state.cluster.get(Kind::Attachment, name).cloned() else {
        return;
    };
    state.forced.insert(owner(&object).uid);
    if let Some((pair, owner)) = claim_of(&object) {
        let publishing = state.backend.open.iter().any(|(_, open)| *open == pair);
        let publishing = publishing && !is_deleting(&object);
        if publishing
            && state
                .backend
                .under_way
                .get(&pair)
                .is_some_and(|operation| operation.call == Call::Publish)
        {
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

/// The node ID under which the driver is registered on a node now.
pub fn node_id<'a>(state: &'a State, node: &str) -> Option<&'a str> {
    let object = state.cluster.get(Kind::Node, node)?;
    let id = text(object, "/spec/drivers/0/nodeID");
    (!id.is_empty()).then_some(id)
}
