//! The release of a PersistentVolume while watches break.

use std::borrow::Cow;

use futures::stream::{self, BoxStream, StreamExt as _};
use kube::runtime::watcher::{self, Event};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::driver::release::requests_about;
use crate::objects::CsiNodeWire;
use crate::reflect::{WatchedKind, follow_from_list};
use csi_attacher_base::health::Health;

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

fn list<K: WatchedKind>(objects: Vec<K>) -> Events<K> {
    let objects = objects.into_iter().map(|object| Ok(Event::InitApply(object)));
    let events = std::iter::once(Ok(Event::Init)).chain(objects);
    let events: Vec<_> = events.chain([Ok(Event::InitDone)]).collect();
    stream::iter(events).boxed()
}

/// Lists work, and each watch breaks some milliseconds after it began.
fn breaking<K: WatchedKind>(objects: impl Fn() -> Vec<K> + Send + 'static) -> Events<K> {
    let one = move |()| {
        let events = list(objects()).chain(stream::once(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(watcher::Error::NoResourceVersion)
        }));
        let pause = stream::once(tokio::time::sleep(Duration::from_millis(40))).filter_map(|()| async { None });
        events.chain(pause)
    };
    stream::repeat(()).flat_map(one).boxed()
}

/// Lists and watches of attachments that tell this, and of volumes, whose watches break. Waits until one has broken, and then has the
/// volume pv1 be deleted.
async fn deleted_as_watches_break(
    stage: &AttemptFixture,
    attachments: impl FnMut() -> Events<VolumeAttachmentWire> + Send + 'static,
) -> AbortOnDropHandle<()> {
    let (api, store, health) = (stage.api.clone(), stage.store.clone(), Health::new());
    let volumes = move || {
        let found = api.get(&format!("{VOLUMES}pv1")).into_iter();
        let wires = found.filter_map(|object| serde_json::from_value(object).ok());
        wires.collect()
    };
    let volumes = move || breaking::<PersistentVolumeWire>(volumes.clone());
    let watches = AbortOnDropHandle::new(tokio::spawn(async move {
        let check = |name: &str| health.check(name);
        let nodes = || list::<CsiNodeWire>(Vec::new()).chain(stream::pending());
        futures::future::join3(
            follow_from_list(volumes, store.clone(), check("v")),
            follow_from_list(attachments, store.clone(), check("a")),
            follow_from_list(nodes, store.clone(), check("n")),
        )
        .await;
    }));
    stage.store.lists().wait_synced().await;
    while stage.store.knows_who_names_volumes() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.volume(&json!({"finalizers": [FINALIZER], "deletionTimestamp": DELETED}));
    watches
}

/// Watches that break again and again, while lists work, keep no volume: it is read, attachments are listed, and the write has the
/// version that was read as its condition.
#[tokio::test]
async fn a_volume_is_released_though_its_watch_breaks_again_and_again() {
    for all_break in [false, true] {
        let stage = AttemptFixture::of(Api::default()).await;
        let attachments = move || -> Events<VolumeAttachmentWire> {
            if all_break {
                return breaking(Vec::new);
            }
            list(Vec::new()).chain(stream::pending()).boxed()
        };
        let _watches = deleted_as_watches_break(&stage, attachments).await;
        let released = stage.api.until(|api| api.get(&format!("{VOLUMES}pv1")).is_none());
        let released = tokio::time::timeout(Duration::from_secs(8), released).await;
        released.expect("in time");
        let patches = stage.api.patches.lock();
        let (_, body, _) = patches.last().expect("one patch");
        assert!(body.to_string().contains("/metadata/resourceVersion"), "{body}");
    }
}

/// An attachment that names the volume, and that only a list shows, keeps it.
#[tokio::test]
async fn a_volume_that_a_list_shows_to_be_named_is_kept() {
    let stage = AttemptFixture::of(Api::default()).await;
    let named: VolumeAttachmentWire = serde_json::from_value(json!({
        "metadata": {"name": "va", "uid": "va-uid", "resourceVersion": "7"},
        "spec": {"attacher": "other.test", "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
    }))
    .unwrap();
    let lists = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = lists.clone();
    let attachments = move || {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        let shown = (number > 0).then(|| named.clone());
        let shown = list(shown.into_iter().collect());
        shown.chain(stream::pending()).boxed()
    };
    let _watches = deleted_as_watches_break(&stage, attachments).await;
    // Attachments are listed again.
    eventually(|| lists.load(Ordering::SeqCst) >= 2 && stage.store.attachment("va").is_some()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(stage.patches(), []);
}

/// Nobody waits for the release of a volume that is being deleted, and attaches wait for that of a live one.
#[tokio::test]
async fn only_the_release_of_a_deleted_volume_lets_others_go_first() {
    let stage = AttemptFixture::of(Api::default()).await;
    let deleted = json!({"deletionTimestamp": DELETED, "finalizers": ["a/b"]});
    for (metadata, lets_others_go_first) in [(json!({}), false), (deleted, true)] {
        stage.volume(&metadata);
        let (volume, _) = stage.store.volume("pv1").unwrap();
        let requests = requests_about(stage.engine.work(), &volume);
        assert_eq!(matches!(requests, Cow::Owned(_)), lets_others_go_first, "{metadata}");
    }
}
