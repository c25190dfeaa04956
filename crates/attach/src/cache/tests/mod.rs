//! The cache against everything that a watch and the answers to our writes can bring.

mod ahead;
mod backwards;
mod cost;
mod follow;
mod index;
mod marks;
mod model;
mod neighbours;
mod released;
mod rounds;
mod routing;
mod sharing;
mod table;
mod topology;

use futures::FutureExt as _;
use serde_json::{Value, json};
use std::sync::Arc;

use super::{AttacherKey, CacheChange, CacheRules, Index, Registration, Route, Store};
use crate::decide::{Capabilities, DriverFacts};
use crate::objects::{
    Attachment, AttachmentSource, CsiNode, Finalizers, FormerVolumeOnNode, PersistentVolumeWire, ResourceVersion,
    Volume, VolumeAnnotation, VolumeAttachmentWire, VolumeError, VolumeSource,
};
use crate::queue::{Backoff, Builder, Queue, RunResult, Ticket};
use crate::reflect::{CachedKind, Origin, TableRules, Tables as _};

const DRIVER: &str = "a.test";
const FINALIZER: &str = "external-attacher/a-test";

fn attachment_wire(name: &str, uid: &str, version: u64) -> VolumeAttachmentWire {
    let value = json!({
        "metadata": {"name": name, "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
        "status": {"attached": false},
    });
    serde_json::from_value(value).unwrap()
}

/// An attachment of pv1 to n1 by the driver a.test, wanted and not attached.
fn attachment(name: &str, version: u64) -> Attachment {
    attachment_wire(name, &format!("{name}-uid"), version).into()
}

fn volume_wire(metadata: &Value) -> PersistentVolumeWire {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "h"}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn volume(name: &str, version: u64) -> Volume {
    volume_wire(&json!({"name": name, "uid": format!("{name}-uid"), "resourceVersion": version.to_string()})).into()
}

fn node(name: &str, version: u64, drivers: &[(&str, &str)]) -> CsiNode {
    let mut node = CsiNode::new(name, drivers);
    node.resource_version = ResourceVersion(version);
    node
}

/// The record with a change.
fn with<R>(mut record: R, edit: impl FnOnce(&mut R)) -> R {
    edit(&mut record);
    record
}

fn attached(name: &str, version: u64) -> Attachment {
    with(attachment(name, version), |record| record.attached = true)
}

fn on_node(record: Attachment, node: &str) -> Attachment {
    with(record, |record| record.node = node.into())
}

fn of_volume(record: Attachment, volume: &str) -> Attachment {
    let source = AttachmentSource::PersistentVolume(volume.into());
    with(record, |record| record.source = source)
}

/// The volume `name` with the handle `handle`.
fn with_handle(name: &str, version: u64, handle: &str) -> Volume {
    let mut record = volume(name, version);
    if let VolumeSource::Csi(source) = &mut record.spec.source {
        source.handle = handle.into();
    }
    record
}

/// Notes the volume on the attachment, and that it was tried for at other nodes before.
fn noted(record: Attachment, handle: &str, former: &[&str]) -> Attachment {
    let former = former.iter().map(|id| FormerVolumeOnNode {
        handle: handle.into(),
        node_id: (*id).into(),
    });
    let note = VolumeAnnotation {
        handle: handle.into(),
        secret: None,
        former: former.collect(),
        renewed: 0,
    };
    with(record, |record| record.volume_note = Some(Box::new(note)))
}

/// Held by our finalizer.
fn held(record: Attachment) -> Attachment {
    with(record, |record| record.finalizers = Finalizers::new([FINALIZER]))
}

/// Being deleted, held by our finalizer.
fn detaching(name: &str, version: u64) -> Attachment {
    let deleting = Some("2026-01-01T00:00:00Z".parse().unwrap());
    with(held(attachment(name, version)), |record| record.deleting = deleting)
}

/// Being deleted, and held by nobody.
fn let_go(name: &str, version: u64) -> Attachment {
    let none = Finalizers::default();
    with(detaching(name, version), |record| record.finalizers = none)
}

fn volume_error() -> VolumeError {
    VolumeError {
        time: None,
        message: "busy".into(),
        code: None,
    }
}

fn facts(driver: &str) -> DriverFacts {
    let publish_unpublish = true;
    DriverFacts::new(
        driver,
        Capabilities {
            publish_unpublish,
            ..Capabilities::default()
        },
    )
}

fn route(driver: &str) -> Route {
    Route {
        facts: Arc::new(facts(driver)),
        config: format!("config-of-{driver}").into(),
        queue: Builder::new(Backoff::default()).build(),
        settled: Arc::new(|_, _, _| {}),
    }
}

/// A store with one driver, and its queue.
fn served() -> (Store, Queue<AttacherKey>, Registration) {
    let tables = TableRules {
        lookups: Some(Box::leak(Box::default())),
        ..TableRules::default()
    };
    let store = Store::with_rules(CacheRules {
        tables,
        ..CacheRules::default()
    });
    let route = route(DRIVER);
    let queue = route.queue.clone();
    let registration = store.register(route).unwrap();
    (store, queue, registration)
}

impl Index {
    /// As the watch shows it.
    pub fn apply<R: CachedKind<Index>>(&mut self, record: R) -> Option<CacheChange> {
        self.take_copy(record, Origin::Watch)
    }
}

/// As when the watch reports that an attachment is gone.
fn removed(store: &Store, name: &str) {
    store.remove::<Attachment>(name, &format!("{name}-uid"));
}

fn removed_node(store: &Store, name: &str) {
    store.remove::<CsiNode>(name, &format!("{name}-uid"));
}

fn next(queue: &Queue<AttacherKey>) -> Option<Ticket<AttacherKey>> {
    tokio::task::unconstrained(queue.next()).now_or_never().flatten()
}

fn label(key: &AttacherKey) -> String {
    match key {
        AttacherKey::Attachment(name) => name.to_string(),
        AttacherKey::Volume(name) => format!("volume {name}"),
    }
}

/// Takes out what the queue hands out now, as done, in alphabetical order.
fn woken(queue: &Queue<AttacherKey>) -> Vec<String> {
    let mut keys = Vec::new();
    while let Some(ticket) = next(queue) {
        keys.push(label(&ticket.key));
        ticket.finish(RunResult::Done);
    }
    keys.sort();
    keys
}

/// Lets the key that is handed out next fail with the inputs it has.
fn fail_next(queue: &Queue<AttacherKey>) {
    let ticket = next(queue).expect("a key is ready");
    let fingerprint = ticket.fingerprint;
    ticket.finish(RunResult::FailedWith { fingerprint });
}
