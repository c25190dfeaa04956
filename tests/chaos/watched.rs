//! What the API server says at the moment: VolumeAttachments and Leases, by watches of the tests' own.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::history::Term;
use super::recorder::Recorder;

/// All VolumeAttachments by name.
#[derive(Default)]
struct Seen {
    objects: Mutex<BTreeMap<String, Arc<VolumeAttachment>>>,
    changes: watch::Sender<u64>,
}

/// The watches. They end when this is dropped.
pub struct Watched {
    seen: Arc<Seen>,
    client: Client,
    recorder: Recorder,
    /// Lease names and the drivers they are for.
    leases: BTreeMap<String, String>,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl Watched {
    /// Begins to watch.
    pub fn start(client: Client, recorder: Recorder, leases: BTreeMap<String, String>) -> Self {
        let watched = Self {
            seen: Arc::default(),
            client,
            recorder,
            leases,
            tasks: Mutex::default(),
        };
        watched.start_again();
        watched
    }

    /// Forgets everything and watches anew: for when the API server has gone back in time.
    pub fn start_again(&self) {
        self.tasks.lock().clear();
        self.seen.objects.lock().clear();
        let attachments = follow(Api::all(self.client.clone()), {
            let seen = Arc::clone(&self.seen);
            let mut listed = BTreeMap::new();
            move |event: Event<VolumeAttachment>| {
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
        let (recorder, leases) = (self.recorder.clone(), self.leases.clone());
        let terms = follow(
            Api::<Lease>::all(self.client.clone()),
            move |event: Event<Lease>| match event {
                Event::InitApply(lease) | Event::Apply(lease) => note(&recorder, &leases, &lease, true),
                Event::Delete(lease) => note(&recorder, &leases, &lease, false),
                Event::Init | Event::InitDone => {}
            },
        );
        *self.tasks.lock() = vec![attachments, terms];
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

fn follow<K>(api: Api<K>, mut take: impl FnMut(Event<K>) + Send + 'static) -> AbortOnDropHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let task = async move {
        // An API server that is away, or was killed, is asked again and again, for at most so long at a time.
        let mut events = watcher(api, watcher::Config::default().timeout(60))
            .default_backoff()
            .boxed();
        while let Some(event) = events.next().await {
            if let Ok(event) = event {
                take(event);
            }
        }
    };
    AbortOnDropHandle::new(tokio::spawn(task))
}

fn note(recorder: &Recorder, leases: &BTreeMap<String, String>, lease: &Lease, exists: bool) {
    let Some(driver) = leases.get(&lease.name_any()) else {
        return;
    };
    let spec = lease.spec.as_ref().filter(|_| exists);
    let holder = spec
        .and_then(|spec| spec.holder_identity.clone())
        .filter(|holder| !holder.is_empty());
    let acquired = spec.and_then(|spec| spec.acquire_time.as_ref()).map(|time| time.0);
    recorder.term(Term {
        driver: driver.clone(),
        namespace: lease.namespace().unwrap_or_default(),
        acquired: acquired.filter(|_| holder.is_some()).unwrap_or_else(Timestamp::now),
        holder,
    });
}
