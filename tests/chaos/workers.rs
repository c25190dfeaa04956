//! Those who attach and detach volumes all the while, and some who also make and delete them by claims ([`super::claims`]), as the attach/detach controller does: by name, never at a second node before
//! the VolumeAttachment of the first is gone, and never again before the old one is gone. Each looks at the driver whenever the API
//! server says that something is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_model::api::names::finalizer_name;
use fastrand::Rng;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::claims::{self, Claim};
use super::history::{Place, Step, name_of};
use super::world::{World, claim_name, is_shared, node, volume};
use crate::support::Result;
use crate::support::fixtures::Object;

/// What was wanted has come about so long after the last fault, at the latest. What the operator itself may wait for comes first: 30 s before
/// a PersistentVolume that was refused is saved again, and up to a minute before a watch that failed begins again.
pub const SETTLED_WITHIN: Duration = Duration::from_secs(75);
/// All of them together may take longer on a slow machine, as long as one more comes about within that time; but not for ever.
const ALL_SETTLED_WITHIN: Duration = Duration::from_mins(3);
/// A volume whose VolumeAttachment is gone is free so long after it at the latest: before it is looked whether all is at rest.
pub const FREE_WITHIN: Duration = Duration::from_secs(20);
/// How long is waited before something is looked at again that tells nobody of news, or was refused.
pub const PAUSE: Duration = Duration::from_millis(200);

/// What workers are told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To attach and detach.
    Work,
    /// To finish what they began, and wait.
    Rest,
    /// To bring about where the run ends, which the seed says, and wait.
    Final,
    /// To detach everything, and wait.
    Empty,
    /// To do nothing at all: what they know is not true any more.
    Forget,
}

/// One worker: it has a volume of its own, one node of a volume that may be at many, or a claim.
pub struct Worker {
    pub world: Arc<World>,
    pub driver: usize,
    /// Name of the PersistentVolume; empty while a claim has none.
    pub volume: String,
    /// What the driver knows the volume by.
    pub handle: String,
    nodes: Vec<String>,
    /// The claim that the volume is made for; `None` when it is always there.
    pub claim: Option<Claim>,
    /// Where it is attached, or is to be.
    pub last: Option<Held>,
    pub random: Rng,
    api: Api<VolumeAttachment>,
    pub orders: watch::Receiver<Order>,
    state: Arc<States>,
    number: usize,
}

/// A VolumeAttachment that a worker made.
#[derive(Clone, Debug)]
pub struct Held {
    node: String,
    uid: String,
}

/// What the workers do at the moment.
#[derive(Default)]
struct States {
    states: Mutex<BTreeMap<usize, State>>,
    changes: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
struct State {
    place: Place,
    name: String,
    /// Name of the claim of its volume.
    claim: Option<String>,
    /// The order that it has carried out, and waits after.
    done: Option<Order>,
    wanted: String,
}

impl States {
    fn set(&self, number: usize, state: State) {
        self.states.lock().insert(number, state);
        self.changes.send_modify(|count| *count += 1);
    }
}

/// All workers. They end when this is dropped.
pub struct Workers {
    world: Arc<World>,
    orders: watch::Sender<Order>,
    state: Arc<States>,
    count: usize,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// Somebody gave another order, so that what is being done is of no use.
pub struct Interrupted;

pub type Done = std::result::Result<(), Interrupted>;

/// The name of a VolumeAttachment: the same whenever a volume is attached to the same node, as with the attach/detach controller.
pub fn attachment_name(volume: &str, node: &str) -> String {
    format!("{volume}-{node}")
}

impl Workers {
    /// Begins to work.
    pub fn start(world: &Arc<World>, seed: u64) -> Self {
        let (orders, state) = (watch::Sender::new(Order::Work), Arc::new(States::default()));
        let all: Vec<String> = (0..world.scale.nodes).map(node).collect();
        let mut seats = Vec::new();
        for (driver, number) in (0..world.scale.drivers).flat_map(|it| (0..world.scale.volumes).map(move |of| (it, of)))
        {
            let volume = volume(driver, number);
            if is_shared(number) {
                seats.extend(
                    all.iter()
                        .take(2)
                        .map(|node| (driver, volume.clone(), vec![node.clone()], None)),
                );
            } else {
                seats.push((driver, volume, all.clone(), None));
            }
        }
        for (driver, number) in world.claims() {
            let claim = Claim::new(world, &claim_name(driver, number));
            seats.push((driver, String::new(), all.clone(), Some(claim)));
        }
        let count = seats.len();
        let begin = |(number, (driver, volume, nodes, claim)): (usize, (usize, String, Vec<String>, Option<Claim>))| {
            let worker = Worker {
                world: Arc::clone(world),
                driver,
                handle: volume.clone(),
                volume,
                nodes,
                claim,
                last: None,
                random: Rng::with_seed(seed.wrapping_add(number as u64)),
                api: Api::all(world.client.clone()),
                orders: orders.subscribe(),
                state: Arc::clone(&state),
                number,
            };
            AbortOnDropHandle::new(tokio::spawn(worker.work(seed)))
        };
        let tasks = seats.into_iter().enumerate().map(begin).collect();
        Self {
            world: Arc::clone(world),
            orders,
            state,
            count,
            _tasks: tasks,
        }
    }

    /// Gives an order; does not wait.
    pub fn order(&self, order: Order) {
        self.orders.send_replace(order);
    }

    /// Gives an order and waits until all have carried it out; writes down who did not in time. Answers how long it took.
    pub async fn settle(&self, order: Order) -> Duration {
        let started = std::time::Instant::now();
        self.order(order);
        let mut changes = self.state.changes.subscribe();
        let mut done = 0;
        let is_settled = loop {
            let more = async { while self.waiting(order).len() <= done && changes.changed().await.is_ok() {} };
            let left = ALL_SETTLED_WITHIN.saturating_sub(started.elapsed());
            let is_stuck = timeout(left.min(SETTLED_WITHIN), more).await.is_err();
            done = self.waiting(order).len();
            if is_stuck || done == self.count {
                break done == self.count;
            }
        };
        if !is_settled {
            let states = self.state.states.lock().clone();
            for state in states.into_values().filter(|state| state.done != Some(order)) {
                let found = self.world.watched.get(&state.name).map(|object| brief(&object));
                let mut found = found.unwrap_or_else(|| "no VolumeAttachment".to_owned());
                if let Some(claim) = &state.claim {
                    found = format!("{found}; {}", claims::brief(&self.world, claim).await);
                }
                self.world.recorder.step(
                    &state.place,
                    Step::Overdue {
                        wanted: state.wanted,
                        found,
                    },
                );
                self.detach_by_hand(&state.place);
            }
        }
        started.elapsed()
    }

    /// Detaches the volume from nodes for which it has no VolumeAttachment, as a person does whom the operator has told of it. So that the
    /// rest of the run tells something.
    fn detach_by_hand(&self, place: &Place) {
        for driver in self.world.drivers.iter().filter(|driver| driver.name == place.driver) {
            for (volume, node) in driver.mock.published() {
                let attachment = format!("{}-{node}", name_of(&volume));
                if volume == place.volume && self.world.watched.get(&attachment).is_none() {
                    driver.mock.drift_detach(&volume, &node);
                }
            }
        }
    }

    fn waiting(&self, order: Order) -> Vec<usize> {
        let states = self.state.states.lock();
        states
            .iter()
            .filter(|(_, state)| state.done == Some(order))
            .map(|(number, _)| *number)
            .collect()
    }
}

/// What matters of a VolumeAttachment, for people.
pub fn brief(object: &VolumeAttachment) -> String {
    let metadata = &object.metadata;
    json!({
        "resourceVersion": metadata.resource_version, "uid": metadata.uid, "deletionTimestamp": metadata.deletion_timestamp,
        "finalizers": metadata.finalizers, "annotations": metadata.annotations, "status": object.status,
    })
    .to_string()
}

/// Deletes the object of this UID only.
pub fn if_uid(uid: &str) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    })
}

impl Worker {
    fn place(&self, node: &str) -> Place {
        let driver = self.world.drivers[self.driver].name.clone();
        Place {
            driver,
            volume: self.handle.clone(),
            node: node.to_owned(),
        }
    }

    fn step(&self, node: &str, step: Step) {
        self.world.recorder.step(&self.place(node), step);
    }

    fn is_published(&self, node: &str) -> bool {
        let published = self.world.drivers[self.driver].mock.published();
        published.contains(&(self.handle.clone(), node.to_owned()))
    }

    /// What is wanted next; `node` is empty when it is about the claim.
    pub fn says(&self, node: &str, wanted: &str, done: Option<Order>) {
        let place = match &self.claim {
            Some(claim) if node.is_empty() => self.place_of_claim(&claim.uid),
            _ => self.place(node),
        };
        let state = State {
            place,
            name: attachment_name(&self.volume, node),
            claim: self.claim.as_ref().map(|claim| claim.name.clone()),
            done,
            wanted: wanted.to_owned(),
        };
        self.state.set(self.number, state);
    }

    async fn work(mut self, seed: u64) {
        loop {
            let order = *self.orders.borrow_and_update();
            let done = match order {
                Order::Work if self.claim.is_some() => {
                    // It was interrupted, and looks what the order is.
                    drop(self.claim_round().await);
                    continue;
                }
                Order::Work => {
                    self.round().await;
                    continue;
                }
                Order::Rest => self.reach(self.node()).await,
                Order::Final => self.finish(self.end(seed)).await,
                Order::Empty => self.finish(None).await,
                Order::Forget => {
                    self.last = None;
                    self.forget_claim();
                    Ok(())
                }
            };
            if done.is_ok() {
                let node = self.node().unwrap_or_else(|| self.nodes[0].clone());
                let node = if self.volume.is_empty() { String::new() } else { node };
                self.says(&node, "nothing", Some(order));
                if self.orders.changed().await.is_err() {
                    return;
                }
            }
        }
    }

    fn node(&self) -> Option<String> {
        self.last.as_ref().map(|held| held.node.clone())
    }

    /// Where the volume is when the run ends: the same for the same seed, whatever happened.
    fn end(&self, seed: u64) -> Option<String> {
        let mut random = Rng::with_seed(!seed ^ (self.number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        random
            .u8(..3)
            .gt(&0)
            .then(|| self.nodes[random.usize(..self.nodes.len())].clone())
    }

    /// Attaches the volume somewhere, or detaches it. What is begun is finished, unless it is all to be forgotten.
    async fn round(&mut self) {
        let target = match &self.last {
            Some(_) if self.random.u8(..3) > 0 => None,
            _ => Some(self.nodes[self.random.usize(..self.nodes.len())].clone()),
        };
        // Somebody changes his mind.
        if let Some(node) = target.clone().filter(|_| self.random.u8(..6) == 0) {
            if self.reach(None).await.is_ok() && self.attach(&node).await.is_ok() {
                sleep(Duration::from_millis(self.random.u64(..600))).await;
                // It is at rest only when it is detached again.
                drop(self.reach(None).await);
            }
        } else if self.reach(target).await.is_ok() {
            self.pause(2500).await;
        }
    }

    /// Up to so many milliseconds, unless there is another order.
    pub async fn pause(&mut self, most: u64) {
        let pause = Duration::from_millis(self.random.u64(..most));
        drop(timeout(pause, self.orders.changed()).await);
    }

    /// Somewhere.
    pub fn any_node(&mut self) -> String {
        self.nodes[self.random.usize(..self.nodes.len())].clone()
    }

    pub fn forgotten(&self) -> Done {
        if *self.orders.borrow() == Order::Forget {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }

    /// Brings the volume to a node, or away from all.
    pub async fn reach(&mut self, target: Option<String>) -> Done {
        if let Some(held) = self.last.clone().filter(|held| target.as_ref() != Some(&held.node)) {
            self.says(&held.node, "detached", None);
            self.detach(&held).await?;
            self.last = None;
        }
        if let Some(node) = target {
            self.says(&node, "attached", None);
            if self.last.is_none() {
                self.attach(&node).await?;
            }
            self.wait_attached().await?;
        }
        Ok(())
    }

    /// Makes the VolumeAttachment.
    async fn attach(&mut self, node: &str) -> Done {
        let name = attachment_name(&self.volume, node);
        let driver = &self.world.drivers[self.driver].name;
        let object = json!({
            "metadata": {"name": name},
            "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": self.volume}},
        });
        // It has the form of the type.
        let Ok(object) = serde_json::from_value::<VolumeAttachment>(object) else {
            return Err(Interrupted);
        };
        self.step(node, Step::Create);
        let uid = self.create(&self.api, &object).await?;
        self.last = Some(Held {
            node: node.to_owned(),
            uid,
        });
        Ok(())
    }

    /// Makes an object as soon as the API server takes it; answers its UID.
    pub async fn create<K: Object>(&self, api: &Api<K>, object: &K) -> std::result::Result<String, Interrupted> {
        loop {
            self.forgotten()?;
            match api.create(&PostParams::default(), object).await {
                Ok(made) => return Ok(made.uid().unwrap_or_default()),
                // The answer to an earlier try was lost: before the first one it was gone.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    if let Ok(made) = api.get(&object.name_any()).await {
                        return Ok(made.uid().unwrap_or_default());
                    }
                }
                Err(_) => {}
            }
            sleep(PAUSE).await;
        }
    }

    /// Deletes an object as soon as the API server takes that; answers what that answers, which is nothing where there is no such object.
    pub async fn delete<K: Object>(
        &self,
        api: &Api<K>,
        name: &str,
        how: &DeleteParams,
    ) -> std::result::Result<Option<K>, Interrupted> {
        loop {
            self.forgotten()?;
            match api.delete(name, how).await {
                Ok(answer) => return Ok(answer.left()),
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    async fn wait_attached(&self) -> Done {
        let Some(Held { node, uid }) = &self.last else {
            return Ok(());
        };
        let name = attachment_name(&self.volume, node);
        let mut changes = self.world.watched.changes();
        loop {
            self.forgotten()?;
            let attachment = self
                .world
                .watched
                .get(&name)
                .filter(|object| object.metadata.uid.as_ref() == Some(uid));
            if attachment.is_some_and(|object| object.status.as_ref().is_some_and(|status| status.attached)) {
                let published = self.is_published(node);
                self.step(node, Step::Attached { published });
                return Ok(());
            }
            drop(timeout(Duration::from_secs(1), changes.changed()).await);
        }
    }

    async fn detach(&self, held: &Held) -> Done {
        let Held { node, uid } = held;
        let name = attachment_name(&self.volume, node);
        let finalizer = finalizer_name(&self.world.drivers[self.driver].name);
        self.step(node, Step::Delete);
        // Without a time of deletion the object was gone at once, and is shown as it was last: with a finalizer that was added during the
        // deletion, and lost.
        let answer = self.delete(&self.api, &name, &if_uid(uid)).await?;
        let carried = answer.is_some_and(|object| {
            object.metadata.deletion_timestamp.is_some() && object.finalizers().contains(&finalizer)
        });
        self.step(node, Step::DeleteAnswered { finalizer: carried });
        self.wait_gone(&name, uid).await?;
        self.step(node, Step::Gone);
        self.wait_free(node).await
    }

    async fn wait_gone(&self, name: &str, uid: &str) -> Done {
        let mut changes = self.world.watched.changes();
        loop {
            self.forgotten()?;
            let is_other = |uid_found: Option<String>| uid_found.as_deref() != Some(uid);
            if is_other(self.world.watched.get(name).and_then(|object| object.uid())) {
                // The watch may be behind, and not show it yet.
                let live = self.api.get_opt(name).await;
                if live.is_ok_and(|live| is_other(live.and_then(|object| object.uid()))) {
                    return Ok(());
                }
            }
            drop(timeout(Duration::from_secs(1), changes.changed()).await);
        }
    }

    async fn wait_free(&self, node: &str) -> Done {
        let mock = &self.world.drivers[self.driver].mock;
        let key = (self.handle.clone(), node.to_owned());
        let free = mock.wait_for_published(|published| !published.contains(&key));
        let mut orders = self.orders.clone();
        tokio::select! {
            _ = free => self.step(node, Step::Free),
            () = sleep(FREE_WITHIN) => {
                self.step(node, Step::Kept);
                // So that the rest of the run tells something.
                mock.drift_detach(&key.0, &key.1);
            }
            _ = orders.wait_for(|order| *order == Order::Forget) => return Err(Interrupted),
        }
        Ok(())
    }
}

/// Follows a driver and writes down whenever a volume for one node is at two.
pub async fn watch_two_nodes(world: Arc<World>, driver: usize) -> Result<()> {
    let at_two = |published: &std::collections::BTreeSet<(String, String)>| {
        let mut nodes: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
        for (volume, node) in published {
            nodes.entry(volume).or_default().push(node);
        }
        let number = |volume: &str| {
            volume
                .rsplit('v')
                .next()
                .and_then(|number| number.parse::<usize>().ok())
        };
        let is_made = |volume: &str| name_of(volume) != volume;
        let single = |volume: &str| is_made(volume) || number(volume).is_some_and(|number| !is_shared(number));
        let wrong = nodes
            .into_iter()
            .filter(|(volume, nodes)| nodes.len() > 1 && single(volume));
        wrong
            .map(|(volume, nodes)| (volume.clone(), format!("published at {nodes:?}")))
            .collect::<BTreeMap<_, _>>()
    };
    let mock = &world.drivers[driver].mock;
    let mut known = BTreeMap::new();
    loop {
        let published = mock.wait_for_published(|published| at_two(published) != known).await;
        let now = at_two(&published);
        for (volume, text) in now.iter().filter(|(volume, _)| !known.contains_key(*volume)) {
            world
                .recorder
                .finding(super::checker::Kind::TwoNodes, volume, text.clone());
        }
        known = now;
    }
}
