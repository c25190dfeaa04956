//! What the API server says of VolumeAttachments at the moment, by a watch of the test's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::checker::Kind;
use super::recorder::Recorder;
use super::secrets::shown_in;

/// How long an API server that is away is left alone.
const AGAIN_AFTER: Duration = Duration::from_millis(300);

/// All VolumeAttachments by name.
#[derive(Default)]
struct Seen {
    objects: Mutex<BTreeMap<String, Arc<VolumeAttachment>>>,
    changes: watch::Sender<u64>,
}

/// The watch. It ends when this is dropped.
pub struct Watched {
    seen: Arc<Seen>,
    client: Client,
    recorder: Recorder,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Watched {
    /// Begins to watch.
    pub fn start(client: Client, recorder: Recorder) -> Self {
        let watched = Self {
            recorder,
            seen: Arc::default(),
            client,
            task: Mutex::default(),
        };
        watched.start_again();
        watched
    }

    /// Forgets everything and watches anew: for when the API server has gone back in time.
    pub fn start_again(&self) {
        *self.task.lock() = None;
        self.seen.objects.lock().clear();
        let attachments = follow(Api::all(self.client.clone()), {
            let (seen, recorder) = (Arc::clone(&self.seen), self.recorder.clone());
            let mut listed = BTreeMap::new();
            move |event: Event<VolumeAttachment>| {
                if let Event::InitApply(object) | Event::Apply(object) = &event {
                    look_for_secrets(&recorder, object);
                }
                match event {
                    Event::Init => listed = BTreeMap::new(),
                    Event::InitApply(object) => drop(listed.insert(object.name_any(), Arc::new(object))),
                    Event::InitDone => *seen.objects.lock() = std::mem::take(&mut listed),
                    Event::Apply(object) => drop(seen.objects.lock().insert(object.name_any(), Arc::new(object))),
                    Event::Delete(object) => drop(seen.objects.lock().remove(&object.name_any())),
                }
                seen.changes.send_modify(|count| *count += 1);
            }
        });
        *self.task.lock() = Some(attachments);
    }

    /// A VolumeAttachment as it was seen last.
    pub fn get(&self, name: &str) -> Option<Arc<VolumeAttachment>> {
        self.seen.objects.lock().get(name).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<VolumeAttachment>> {
        self.seen.objects.lock().values().cloned().collect()
    }

    /// Tells of every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.seen.changes.subscribe()
    }
}

/// What is in the status of a VolumeAttachment is gone with it soon.
fn look_for_secrets(recorder: &Recorder, object: &VolumeAttachment) {
    let text = serde_json::to_string(object).unwrap_or_default();
    if let Some(form) = shown_in(&text) {
        let text = format!("the VolumeAttachment shows a publish Secret {form}: {text}");
        recorder.finding(Kind::SecretShown, &object.name_any(), text);
    }
}

fn follow<K>(api: Api<K>, mut take: impl FnMut(Event<K>) + Send + 'static) -> AbortOnDropHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let task = async move {
        let mut events = watcher(api, watcher::Config::default()).boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => take(event),
                // The API server is away, and asked again soon.
                Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    };
    AbortOnDropHandle::new(tokio::spawn(task))
}
