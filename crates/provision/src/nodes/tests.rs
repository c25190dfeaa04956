//! What is known of nodes, and what of their changes counts.

use serde_json::json;
use std::collections::BTreeMap;

use super::*;
use crate::key::ClaimKey;
use crate::reflect::{ListedNames, Origin};

const DRIVER: &str = "csi.test";

/// CSINodes of one driver: a node with its keys, and whether the list is complete and watched.
#[derive(Default)]
struct CsiNodes {
    keys: Mutex<BTreeMap<Arc<str>, DriverKeys>>,
    is_listed: std::sync::atomic::AtomicBool,
    listener: Mutex<Option<Listener<Arc<str>>>>,
}

impl CsiNodes {
    fn register(&self, node: &str, keys: &[&str]) {
        let node: Arc<str> = node.into();
        let keys = keys.iter().map(|key| Box::from(*key)).collect();
        self.keys.lock().insert(node.clone(), keys);
        let tell = self.listener.lock().clone().unwrap();
        tell(&node);
    }
}

impl CsiNodeCache for Arc<CsiNodes> {
    fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Relaxed)
    }
    fn keys(&self, node: &str, driver: &str) -> Seen<DriverKeys> {
        assert_eq!(driver, DRIVER);
        match self.keys.lock().get(node) {
            Some(keys) => Seen::Here(keys.clone()),
            None if self.is_listed() => Seen::Gone,
            None => Seen::Unknown,
        }
    }
    fn registered(&self, _: &str) -> Vec<(Arc<str>, DriverKeys)> {
        let keys = self.keys.lock();
        let all = keys.iter().map(|(node, keys)| (node.clone(), keys.clone()));
        all.filter(|(_, keys)| !keys.is_empty()).collect()
    }
    fn is_topology_key(&self, key: &str) -> bool {
        self.keys
            .lock()
            .values()
            .flat_map(|keys| keys.iter())
            .any(|known| **known == *key)
    }
    fn moment(&self) -> u64 {
        1
    }
    fn is_known_since(&self, moment: Option<u64>) -> bool {
        self.is_listed() && moment.is_none_or(|moment| moment == 1)
    }
    fn doubt_unwatched(&self, _: &str) {}
    fn listen(&self, listener: Listener<Arc<str>>) {
        *self.listener.lock() = Some(listener);
    }
}

struct Scene {
    csi_nodes: Arc<CsiNodes>,
    nodes: Nodes,
    driver: DriverNodes,
    told: Arc<Mutex<Vec<String>>>,
    version: u64,
}

impl Scene {
    fn new() -> Self {
        let csi_nodes = Arc::<CsiNodes>::default();
        let nodes = Nodes::new(Arc::new(csi_nodes.clone()), WatchAnswers::default());
        let told = Arc::<Mutex<Vec<String>>>::default();
        let into = told.clone();
        nodes.listen(Arc::new(move |node| into.lock().push(node.to_string())));
        Self {
            driver: DriverNodes::new(DRIVER.into(), nodes.clone()),
            csi_nodes,
            nodes,
            told,
            version: 0,
        }
    }

    fn record(&mut self, name: &str, labels: &[(&str, &str)]) -> NodeLabels {
        self.version += 1;
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let wire: NodeLabelsWire = serde_json::from_value(json!({
            "metadata": {
                "name": name, "uid": format!("{name}-uid"), "resourceVersion": self.version.to_string(), "labels": labels,
            },
        }))
        .unwrap();
        wire.into()
    }

    fn watch(&mut self, name: &str, labels: &[(&str, &str)]) {
        let record = self.record(name, labels);
        self.nodes.take_copy(record, Origin::Watch);
    }

    /// Both lists are complete.
    fn listed(&self) {
        self.csi_nodes.is_listed.store(true, Ordering::Relaxed);
        self.lists_nodes();
        assert!(self.nodes.lists().is_synced());
    }

    /// The list of Nodes is complete, and shows none.
    fn lists_nodes(&self) {
        use kube::runtime::watcher::Event;
        for event in [Event::Init, Event::InitDone] {
            let health = csi_attacher_base::health::Health::new();
            crate::reflect::apply::<NodeLabelsWire, _>(
                event,
                &self.nodes,
                &mut ListedNames::new(),
                &health.check("nodes"),
                0,
            );
        }
    }

    fn take_told(&self) -> String {
        std::mem::take(&mut *self.told.lock()).join(" ")
    }

    /// The nodes with their labels.
    fn facts(&self) -> String {
        let facts = self.driver.facts();
        let of_node = |node: &TopologyNode| {
            let labels: Vec<String> = node
                .labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            format!("{} {}", node.name, labels.join(" "))
        };
        facts.nodes().iter().map(of_node).collect::<Vec<_>>().join(", ")
    }
}

/// Thousands of nodes write their status all the time.
#[test]
fn only_labels_that_are_topology_keys_count() {
    let mut scene = Scene::new();
    scene.csi_nodes.register("n1", &["zone"]);
    scene.watch("n1", &[("zone", "a"), ("other", "1")]);
    assert_eq!(scene.take_told(), "n1 n1");
    let before = scene.driver.facts();
    scene.watch("n1", &[("zone", "a"), ("other", "1")]);
    scene.watch("n1", &[("zone", "a"), ("other", "2")]);
    assert_eq!(scene.take_told(), "");
    assert!(
        Arc::ptr_eq(&before, &scene.driver.facts()),
        "nothing is put together again"
    );
    scene.watch("n1", &[("zone", "b"), ("other", "2")]);
    assert_eq!(
        (scene.take_told(), scene.facts()),
        ("n1".to_owned(), "n1 zone=b".to_owned())
    );
}

fn claim(name: &str) -> WorkKey {
    WorkKey::Claim(ClaimKey {
        uid: name.into(),
        name: format!("web/{name}").into(),
    })
}

/// The DaemonSet of any driver changes CSINodes one after the other, and thousands of claims may wait for the nodes of one.
#[test]
fn claims_hear_of_other_nodes_of_their_driver_only_and_once() {
    let mut scene = Scene::new();
    let [first, second] = ["a", "b"].map(claim);
    let none = scene.driver.facts().digest();
    assert!(!scene.driver.wait_for_others(&first, Some(none)));
    scene.csi_nodes.register("n1", &[]);
    scene.watch("n1", &[("zone", "a")]);
    assert_eq!(scene.take_told(), "n1 n1");
    assert!(scene.driver.take_waiting().is_empty(), "the driver has no other nodes");
    scene.csi_nodes.register("n1", &["zone"]);
    assert_eq!(scene.driver.take_waiting(), std::slice::from_ref(&first));
    scene.csi_nodes.register("n2", &[]);
    assert!(scene.driver.take_waiting().is_empty(), "it has heard of these");

    // They came during its attempt.
    assert!(scene.driver.wait_for_others(&second, Some(none)));
    scene.csi_nodes.register("n1", &[]);
    assert_eq!(scene.driver.facts().digest(), none);
    assert_eq!(
        scene.driver.take_waiting(),
        std::slice::from_ref(&first),
        "it may have been refused with those"
    );
    assert!(!scene.driver.wait_for_others(&first, None));
    scene.csi_nodes.register("n1", &["zone"]);
    assert_eq!(
        scene.driver.take_waiting(),
        [second],
        "the other one does not wait any more"
    );
}

/// The label was there before, and nobody has to list anything again.
#[test]
fn a_key_that_is_registered_later_has_its_label_at_once() {
    let mut scene = Scene::new();
    scene.watch("n1", &[("zone", "a"), ("rack", "7")]);
    scene.csi_nodes.register("n1", &["zone"]);
    assert_eq!(scene.facts(), "n1 zone=a");
    scene.csi_nodes.register("n1", &["rack", "zone"]);
    assert_eq!(scene.facts(), "n1 rack=7 zone=a");
    scene.csi_nodes.register("n1", &[]);
    assert_eq!(scene.facts(), "");
    assert_eq!(scene.driver.known("n1").keys, Seen::Here(Arc::from([])));
}

#[test]
fn a_node_is_gone_only_where_complete_lists_do_not_have_it() {
    let mut scene = Scene::new();
    assert!(!scene.driver.facts().complete);
    let unknown = KnownNode {
        labels: Seen::Unknown,
        keys: Seen::Unknown,
    };
    assert_eq!(scene.driver.known("n1"), unknown);
    scene.listed();
    assert!(scene.driver.facts().complete);
    assert_eq!(scene.driver.known("n1"), KnownNode::GONE);

    scene.csi_nodes.register("n1", &["zone"]);
    scene.watch("n1", &[("zone", "a"), ("other", "1")]);
    let known = scene.driver.known("n1");
    assert_eq!(known.labels.here().unwrap().iter().collect::<Vec<_>>(), [("zone", "a")]);
    let last = scene.record("n1", &[]);
    scene.nodes.take_deletion(&last);
    assert_eq!(scene.driver.known("n1").labels, Seen::Gone);
    assert_eq!(scene.facts(), "");

    // What is not known while the watch fails may be there.
    scene.nodes.lists().set_failure("nodes", Some("no".to_owned()));
    assert_eq!(scene.driver.known("n1").labels, Seen::Unknown);
}

#[test]
fn the_watch_is_started_once() {
    let scene = Scene::new();
    let started = Arc::new(AtomicU64::new(0));
    let counts = started.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    let watch = NodeWatch::new(
        scene.nodes.clone(),
        Box::new(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
            AbortOnDropHandle::new(tokio::spawn(std::future::pending()))
        }),
    );
    assert_eq!(started.load(Ordering::Relaxed), 0);
    watch.start();
    watch.start();
    assert_eq!(started.load(Ordering::Relaxed), 1);
}

/// A list that began after a moment says what a watch that broke would have said.
#[test]
fn nodes_are_known_while_they_are_watched_or_from_a_later_list() {
    let scene = Scene::new();
    scene.listed();
    let lists = scene.nodes.lists().clone();
    let knows = |moment| scene.driver.are_known_since(moment);
    assert!(knows(None), "they are watched");
    lists.record_break(NodeLabelsWire::PLURAL);
    lists.set_failure(NodeLabelsWire::PLURAL, Some("too old".to_owned()));
    let moment = scene.driver.moment();
    assert!(!knows(None) && !knows(Some(moment)));
    scene.lists_nodes();
    lists.record_break(NodeLabelsWire::PLURAL);
    lists.set_failure(NodeLabelsWire::PLURAL, Some("too old".to_owned()));
    assert_eq!((knows(None), knows(Some(moment))), (false, true));
    assert!(!knows(Some(scene.driver.moment())), "the next call needs a newer one");
    scene.csi_nodes.is_listed.store(false, Ordering::Relaxed);
    assert!(!knows(Some(moment)), "CSINodes are not known");
}

/// A watch that gets no answer does not break: what was listed before it may be of any age.
#[test]
fn nodes_are_not_known_while_their_watch_waits_for_an_answer() {
    let (csi_nodes, answers) = (Arc::<CsiNodes>::default(), WatchAnswers::default());
    csi_nodes.is_listed.store(true, Ordering::Relaxed);
    let nodes = Nodes::new(Arc::new(csi_nodes), answers.clone());
    let driver = DriverNodes::new(DRIVER.into(), nodes);
    assert!(driver.are_known_since(None));
    answers.asked("/api/v1/nodes");
    assert!(!driver.are_known_since(None));
    answers.accepted("/api/v1/nodes");
    assert!(driver.are_known_since(None));
}
