//! The nodes of the cluster: the labels of Nodes, which are watched here, and the topology keys of CSINodes, which another part of the
//! process watches. Read for drivers with topology only, and watched from the first one of these on: a cluster without such a driver need
//! not permit it.
//!
//! Must not decide anything and must not call anything but the watch.

use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::WorkKey;
use crate::objects::{NodeLabels, NodeLabelsWire, StringMap};
use crate::provision::Seen;
use crate::provision::topology::{KnownNode, TopologyFacts, TopologyNode};
use crate::reflect::{Kind, Listener, Lists, ObjectTable, RecordChange, Sink, weak_listener};
use csi_attacher_kube::watch_answers::WatchAnswers;
use tokio_util::task::AbortOnDropHandle;

#[cfg(test)]
mod tests;

/// The topology keys of a driver on a node, sorted.
pub type DriverKeys = Arc<[Box<str>]>;

/// What is known of CSINodes.
pub trait CsiNodeCache: Send + Sync + 'static {
    /// Whether the list of CSINodes is complete.
    fn is_listed(&self) -> bool;

    /// The topology keys of a driver on a node: empty where the CSINode does not name the driver; gone only when there is no CSINode in a
    /// complete list whose watch works.
    fn keys(&self, node: &str, driver: &str) -> Seen<DriverKeys>;

    /// The nodes on which a driver is registered with at least one topology key, in any order.
    fn registered(&self, driver: &str) -> Vec<(Arc<str>, DriverKeys)>;

    /// Whether some driver registered a topology key of this name.
    fn is_topology_key(&self, key: &str) -> bool;

    /// This moment, for [`Self::is_known_since`].
    fn moment(&self) -> u64;

    /// Whether CSINodes are known as they were at this moment, or are newer. Without a moment that is so only while they are watched.
    fn is_known_since(&self, moment: Option<u64>) -> bool;

    /// They have to be watched: has them listed again where they are not.
    fn doubt_unwatched(&self, why: &str);

    /// Tells of each CSINode that comes, goes, or has other topology keys from now on.
    fn listen(&self, listener: Listener<Arc<str>>);
}

/// Handle to what is known of nodes. Clones share it.
#[derive(Clone)]
pub struct Nodes(Arc<NodesInner>);

struct NodesInner {
    labels: RwLock<ObjectTable<NodeLabels>>,
    lists: Lists,
    csi_nodes: Arc<dyn CsiNodeCache>,
    /// Counts the changes that matter for topology.
    generation: AtomicU64,
    listener: RwLock<Option<Listener<Arc<str>>>>,
}

impl Sink for Nodes {
    type Tables = ObjectTable<NodeLabels>;

    const CONSEQUENCE: &'static str = "until then no volume of a driver with topology is provisioned";

    fn lists(&self) -> &Lists {
        &self.0.lists
    }

    fn tables(&self) -> &RwLock<ObjectTable<NodeLabels>> {
        &self.0.labels
    }

    fn dispatch(&self, change: RecordChange<NodeLabels>) {
        if self.matters(&change)
            && let Some(node) = change.current.or(change.previous)
        {
            self.changed(&node.name);
        }
    }
}

impl Nodes {
    /// With these CSINodes. Nothing is watched yet. `answers` is where the connection of the watch records what the API server has accepted.
    pub fn new(csi_nodes: Arc<dyn CsiNodeCache>, answers: WatchAnswers) -> Self {
        let nodes = Self(Arc::new(NodesInner {
            labels: RwLock::default(),
            lists: Lists::recorded_by(&[NodeLabelsWire::PLURAL], true, answers),
            csi_nodes,
            generation: AtomicU64::new(0),
            listener: RwLock::default(),
        }));
        // The other part of the process outlives this one, and does not keep it alive.
        let listener = weak_listener(&nodes.0, |inner, node: &Arc<str>| Self(inner).changed(node));
        nodes.0.csi_nodes.listen(listener);
        nodes
    }

    /// Tells the name of each node of which something changes that topology is made from, from now on, instead of whoever was told before.
    pub fn listen(&self, listener: Listener<Arc<str>>) {
        *self.0.listener.write() = Some(listener);
    }

    /// Whether a change of a Node may change a topology: a kubelet writes its Node all the time, and others write labels that no driver
    /// has as a key.
    fn matters(&self, change: &RecordChange<NodeLabels>) -> bool {
        let (Some(previous), Some(current)) = (&change.previous, &change.current) else {
            return true;
        };
        if previous.uid != current.uid {
            return true;
        }
        if previous.labels == current.labels {
            return false;
        }
        let keys = |labels: &StringMap| labels.filtered(|key| self.0.csi_nodes.is_topology_key(key));
        keys(&previous.labels) != keys(&current.labels)
    }

    /// What is known of a node changed: counted first, so that whoever is told of it sees it.
    fn changed(&self, node: &Arc<str>) {
        self.0.generation.fetch_add(1, Ordering::SeqCst);
        let listener = self.0.listener.read().clone();
        if let Some(tell) = listener {
            tell(node);
        }
    }
}

/// The labels of these keys, which are sorted.
fn of_keys(labels: &StringMap, keys: &[Box<str>]) -> StringMap {
    labels.filtered(|key| keys.binary_search_by(|known| (**known).cmp(key)).is_ok())
}

/// The nodes of one driver. They are put together when they are asked for after a change: there may be thousands, and each look at a claim
/// asks.
pub(crate) struct DriverNodes {
    driver: Arc<str>,
    nodes: Nodes,
    /// With the generation that they are of, or a later one.
    facts: Mutex<Option<(u64, Arc<TopologyFacts>)>>,
    /// The claims that found no topology and that any node may help, each with the digest of the nodes that it was refused with. Those with a
    /// selected node are found by that.
    waiting: Mutex<BTreeMap<WorkKey, u64>>,
}

impl DriverNodes {
    pub fn new(driver: Arc<str>, nodes: Nodes) -> Self {
        Self {
            driver,
            nodes,
            facts: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// Counts the changes that matter for the topology of any driver.
    fn generation(&self) -> u64 {
        self.nodes.0.generation.load(Ordering::SeqCst)
    }

    /// All of them.
    pub fn facts(&self) -> Arc<TopologyFacts> {
        let mut kept = self.facts.lock();
        // Both are read first: what changes while the nodes are put together makes them old.
        let generation = self.generation();
        let complete = self.nodes.0.lists.is_synced() && self.nodes.0.csi_nodes.is_listed();
        if let Some((of, facts)) = &*kept
            && *of == generation
            && facts.complete == complete
        {
            return facts.clone();
        }
        let facts = Arc::new(self.put_together(complete));
        *kept = Some((generation, facts.clone()));
        facts
    }

    fn put_together(&self, complete: bool) -> TopologyFacts {
        let registered = self.nodes.0.csi_nodes.registered(&self.driver);
        let labels = self.nodes.0.labels.read();
        let nodes = registered.into_iter().filter_map(|(name, keys)| {
            let labels = of_keys(&labels.get(&name)?.labels, &keys);
            Some(TopologyNode { name, keys, labels })
        });
        TopologyFacts::new(complete, nodes.collect())
    }

    /// Whether a claim waits for other nodes, at the end of an attempt that refused it with these, by their digest; true where there are
    /// others already. Each attempt says it anew, so that a claim that has left the queue does not wait.
    pub fn wait_for_others(&self, claim: &WorkKey, refused_with: Option<u64>) -> bool {
        let Some(digest) = refused_with else {
            self.waiting.lock().remove(claim);
            return false;
        };
        self.waiting.lock().insert(claim.clone(), digest);
        // Looked at after that: who changes the nodes later finds the claim.
        self.facts().digest() != digest
    }

    /// The claims that were refused with other nodes than there are now; each once for these. CSINodes change for all drivers, and thousands
    /// of claims of one may wait.
    pub fn take_waiting(&self) -> Vec<WorkKey> {
        // Almost always there are none, and nothing is put together for them.
        if self.waiting.lock().is_empty() {
            return Vec::new();
        }
        let digest = self.facts().digest();
        let mut waiting = self.waiting.lock();
        let others = waiting.iter_mut().filter(|(_, refused)| **refused != digest);
        let told = others.map(|(claim, refused)| {
            *refused = digest;
            claim.clone()
        });
        told.collect()
    }

    /// This moment, of Nodes and of CSINodes.
    pub fn moment(&self) -> (u64, u64) {
        (self.nodes.0.lists.now(), self.nodes.0.csi_nodes.moment())
    }

    /// Whether both are known as they were at this moment, or are newer; or are watched.
    pub fn are_known_since(&self, moment: Option<(u64, u64)>) -> bool {
        let (nodes, csi_nodes) = (moment.map(|(nodes, _)| nodes), moment.map(|(_, csi_nodes)| csi_nodes));
        let known = &self.nodes.0;
        known.lists.is_known_since::<NodeLabelsWire>(nodes) && known.csi_nodes.is_known_since(csi_nodes)
    }

    /// Has those listed again that are not watched now.
    pub fn doubt_unwatched(&self, why: &str) {
        let known = &self.nodes.0;
        known.lists.doubt_unwatched::<NodeLabelsWire>(why);
        known.csi_nodes.doubt_unwatched(why);
    }

    /// What is known of one.
    pub fn known(&self, node: &str) -> KnownNode {
        let inner = &self.nodes.0;
        let keys = inner.csi_nodes.keys(node, &self.driver);
        let registered: &[Box<str>] = match &keys {
            Seen::Here(keys) => keys,
            Seen::Gone | Seen::Unknown => &[],
        };
        let is_proof = inner.lists.is_synced() && inner.lists.is_watched::<NodeLabelsWire>();
        let labels = Seen::look(is_proof, || {
            let known = inner.labels.read().get(node).cloned();
            known.map(|known| of_keys(&known.labels, registered))
        });
        KnownNode { labels, keys }
    }
}

/// Starts the watch of Nodes.
pub type StartWatch = Box<dyn FnOnce(Nodes) -> AbortOnDropHandle<()> + Send>;

/// The nodes, and their watch from when it is needed first.
pub struct NodeWatch {
    nodes: Nodes,
    start: Mutex<Option<StartWatch>>,
    running: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl NodeWatch {
    /// Watches nothing yet.
    pub fn new(nodes: Nodes, start: StartWatch) -> Self {
        Self {
            nodes,
            start: Mutex::new(Some(start)),
            running: Mutex::default(),
        }
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Watches from now on, if that has not begun yet.
    pub fn start(&self) {
        let start = self.start.lock().take();
        if let Some(start) = start {
            *self.running.lock() = Some(start(self.nodes.clone()));
        }
    }
}
