//! What the cache of attaching says of a PersistentVolume whose volume may be deleted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_model::provision::Seen;
use csi_attacher_provision::VolumeCache as _;
use kube::runtime::watcher::Event;
use serde_json::json;

use crate::cache::{Index, Store};
use crate::health::Health;
use crate::objects::{CsiNodeWire, PersistentVolumeWire, Volume, VolumeAttachmentWire};
use crate::reflect::{CachedKind, Kind as _, WatchedKind, apply};
use crate::supervisor::attach_cache::AttachCache;

const VOLUMES: &str = PersistentVolumeWire::PLURAL;

fn list<K: WatchedKind>(store: &Store, objects: Vec<K>)
where
    K::Record: CachedKind<Index>,
{
    let (mut seen, health) = (HashSet::new(), Health::default());
    let objects = objects.into_iter().map(Event::InitApply);
    for event in std::iter::once(Event::Init).chain(objects).chain([Event::InitDone]) {
        apply(event, store, &mut seen, &health.check("watch"), 0);
    }
}

fn wire(name: &str, version: &str) -> PersistentVolumeWire {
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": version },
        "spec": { "accessModes": ["ReadWriteOnce"], "csi": { "driver": "a.test", "volumeHandle": "h" } },
    }))
    .unwrap()
}

/// A cache in which the watch of PersistentVolumes breaks after each list.
struct Broken {
    volumes: AttachCache,
    volume: Volume,
}

impl Broken {
    fn new() -> Self {
        let broken = Self {
            volumes: AttachCache(Store::default()),
            volume: wire("pv", "5").into(),
        };
        list(&broken.volumes.0, vec![wire("pv", "5")]);
        broken.lists_attachments();
        list::<CsiNodeWire>(&broken.volumes.0, Vec::new());
        broken.breaks(VOLUMES);
        broken
    }

    fn breaks(&self, kind: &'static str) {
        let lists = self.volumes.0.lists();
        lists.record_break(kind);
        lists.set_failure(kind, Some("too old".to_owned()));
    }

    fn lists_volumes(&self, more: Vec<PersistentVolumeWire>) {
        list(&self.volumes.0, [vec![wire("pv", "5")], more].concat());
        self.breaks(VOLUMES);
    }

    fn lists_attachments(&self) {
        list::<VolumeAttachmentWire>(&self.volumes.0, Vec::new());
    }

    fn reads(&self, version: &str) {
        let name = Arc::from("pv");
        self.volumes.reading(&name)(wire("pv", version).into()).unwrap();
    }

    /// Whether it is known that no other one has the handle, and that it is attached nowhere.
    fn known(&self) -> (bool, bool) {
        let owner = self.volumes.handle_owner("a.test", "h", "pv");
        let attached = self.volumes.attached_to("pv", "a.test", "h");
        (matches!(owner, Seen::Gone), matches!(attached, Seen::Gone))
    }
}

#[tokio::test(start_paused = true)]
async fn lists_that_begin_after_a_read_say_what_a_broken_watch_would_have_said() {
    let broken = Broken::new();
    broken.lists_volumes(Vec::new());
    assert_eq!(broken.known(), (false, false), "nobody has read it");
    assert!(broken.volumes.lacks_read(&broken.volume));
    broken.reads("5");
    assert!(!broken.volumes.lacks_read(&broken.volume));
    assert_eq!(broken.known(), (false, false), "the lists are older");
    broken.lists_volumes(Vec::new());
    assert_eq!(broken.known(), (true, false));
    broken.lists_attachments();
    assert_eq!(broken.known(), (true, true));
    // The read before the call does not make the lists older.
    broken.reads("5");
    assert_eq!(broken.known(), (true, true));
    // Another copy has to be read as well.
    broken.reads("6");
    broken.breaks(VOLUMES);
    assert_eq!(broken.known(), (false, false));
}

#[tokio::test(start_paused = true)]
async fn an_old_list_and_one_before_a_break_of_the_attachments_are_no_proof() {
    let broken = Broken::new();
    broken.reads("5");
    broken.lists_volumes(Vec::new());
    broken.lists_attachments();
    assert_eq!(broken.known(), (true, true));
    broken.volumes.0.lists().record_break(VolumeAttachmentWire::PLURAL);
    assert_eq!(broken.known(), (true, false));
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(broken.known(), (false, false));
    broken.lists_volumes(vec![wire("other", "7")]);
    broken.lists_attachments();
    let owner = broken.volumes.handle_owner("a.test", "h", "pv");
    assert!(matches!(owner, Seen::Here(owner) if *owner == *"other"));
}

/// A volume that was created is undone though PersistentVolumes cannot be watched: nothing is known of one that is not there, and
/// VolumeAttachments that were listed lately count.
#[tokio::test(start_paused = true)]
async fn of_a_volume_without_a_persistent_volume_attachments_that_were_listed_lately_count() {
    let broken = Broken::new();
    broken.lists_volumes(Vec::new());
    let attached = |name: &str| match broken.volumes.attached_to(name, "a.test", "new") {
        Seen::Here(nodes) => nodes.to_string(),
        known => format!("{known:?}"),
    };
    assert_eq!(attached("absent"), "Gone");
    assert_eq!(attached("pv"), "Unknown");
    let named = json!({
        "metadata": { "name": "va", "uid": "va", "resourceVersion": "8" },
        "spec": { "attacher": "b.test", "nodeName": "n1", "source": { "persistentVolumeName": "absent" } },
    });
    list::<VolumeAttachmentWire>(&broken.volumes.0, vec![serde_json::from_value(named).unwrap()]);
    assert_eq!(attached("absent"), "n1");
    broken.lists_attachments();
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(attached("absent"), "Unknown");
    broken.lists_attachments();
    assert_eq!(attached("absent"), "Gone");
    broken.breaks(VolumeAttachmentWire::PLURAL);
    assert_eq!(attached("absent"), "Unknown");
}
