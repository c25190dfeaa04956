//! A watch of all VolumeAttachments that notes when each was first seen, seen attached, and seen gone; or of the objects of another
//! kind, of which a caller says what they are called and whether they are as they should be.
//!
//! API time stamps have whole seconds only. The watch has a thread and a connection of its own, so that what it notes is
//! not delayed by the load that the benchmark makes; it runs during the ceilings too, so that it costs both the same.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Config};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{oneshot, watch};

use csi_attacher_kube::apiserver::connect;
use csi_attacher_model::objects::{Attachment, VolumeAttachmentWire};

use super::support::{Error, Result};

/// What happened to one attachment, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    created: Option<Instant>,
    attached: Option<Instant>,
    gone: Option<Instant>,
}

/// How many attachments of a group came how far.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    created: usize,
    attached: usize,
    gone: usize,
}

/// What a watched object is to the recorder.
pub struct Sight {
    /// The name that it is noted under.
    pub name: String,
    /// Whether it is attached, or what that is for its kind.
    pub attached: bool,
}

/// What to wait for.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// Seen.
    Created,
    /// Seen with `status.attached`.
    Attached,
    /// Seen deleted.
    Gone,
}

type Noted = Arc<Mutex<HashMap<String, Times>>>;
type Tallies = HashMap<String, Tally>;

/// The running watch; ends when dropped.
pub struct Recorder {
    noted: Noted,
    tallies: watch::Receiver<Tallies>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A watch that panicked was reported by the waits already.
            drop(thread.join());
        }
    }
}

impl Recorder {
    /// Starts to watch VolumeAttachments.
    pub fn start(config: Config) -> Result<Self> {
        Self::start_of(config, |object: VolumeAttachmentWire| {
            let attachment = Attachment::from(object);
            Sight {
                name: attachment.name.to_string(),
                attached: attachment.attached,
            }
        })
    }

    /// Starts to watch objects of a kind. `read` sees each copy that the watch brings.
    pub fn start_of<K: Watched>(config: Config, read: impl Fn(K) -> Sight + Send + 'static) -> Result<Self> {
        let noted = Noted::default();
        let (tally, tallies) = watch::channel(Tallies::new());
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = noted.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = follow(&config, read, &shared, &tally) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self {
            noted,
            tallies,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Waits until this many attachments of a group (the name up to its last hyphen) reached a stage.
    pub async fn wait(&self, group: &str, stage: Stage, count: usize, limit: Duration) -> Result<()> {
        let reached = |tally: &Tally| match stage {
            Stage::Created => tally.created,
            Stage::Attached => tally.attached,
            Stage::Gone => tally.gone,
        };
        let mut tallies = self.tallies.clone();
        let enough = tallies.wait_for(|tallies| tallies.get(group).is_some_and(|tally| reached(tally) >= count));
        match tokio::time::timeout(limit, enough).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::Other("the watch of the benchmark ended".to_owned())),
            Err(_) => {
                let seen = self.tallies.borrow().get(group).copied().unwrap_or_default();
                let text = format!("{group}: not {count} {stage:?} within {limit:?}, but {seen:?}");
                Err(Error::Other(text))
            }
        }
    }

    /// Sorted times from created to attached of a group.
    pub fn latencies(&self, group: &str) -> Vec<Duration> {
        let noted = self.noted.lock();
        let mine = noted.iter().filter(|(name, _)| group_of(name) == group);
        let mut latencies: Vec<_> = mine
            .filter_map(|(_, times)| Some(times.attached?.duration_since(times.created?)))
            .collect();
        latencies.sort();
        latencies
    }

    /// Attaches a second between the first and the last that were seen of a group: the same for an attacher that has to
    /// start first as for the client of a ceiling, which does not.
    pub fn attach_rate(&self, group: &str) -> f64 {
        self.rate(group, Stage::Attached)
    }

    /// The same of another stage.
    pub fn rate(&self, group: &str, stage: Stage) -> f64 {
        let reached: Vec<Instant> = self.reached(group, stage).into_values().collect();
        match (reached.iter().min(), reached.iter().max()) {
            (Some(first), Some(last)) if last > first => {
                (reached.len() - 1) as f64 / last.duration_since(*first).as_secs_f64()
            }
            _ => 0.0,
        }
    }

    /// When each of a group was seen to reach a stage.
    pub fn reached(&self, group: &str, stage: Stage) -> HashMap<String, Instant> {
        let noted = self.noted.lock();
        let mine = noted.iter().filter(|(name, _)| group_of(name) == group);
        let at = |times: &Times| match stage {
            Stage::Created => times.created,
            Stage::Attached => times.attached,
            Stage::Gone => times.gone,
        };
        mine.filter_map(|(name, times)| Some((name.clone(), at(times)?)))
            .collect()
    }
}

/// A kind that can be watched.
pub trait Watched: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {}

impl<K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static> Watched for K {}

async fn follow<K: Watched>(
    config: &Config,
    read: impl Fn(K) -> Sight,
    noted: &Noted,
    tallies: &watch::Sender<Tallies>,
) {
    let Ok(client) = connect(config) else { return };
    let mut events = watcher(Api::<K>::all(client), watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => note(&read(object), false, noted, tallies),
            Ok(Event::Delete(object)) => note(&read(object), true, noted, tallies),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => eprintln!("bench: watch: {error}"),
        }
    }
}

fn note(object: &Sight, gone: bool, noted: &Noted, tallies: &watch::Sender<Tallies>) {
    let now = Instant::now();
    let mut noted = noted.lock();
    let times = noted.entry(object.name.clone()).or_default();
    let before = *times;
    times.created.get_or_insert(now);
    if object.attached && !gone {
        times.attached.get_or_insert(now);
    }
    if gone {
        times.gone.get_or_insert(now);
    }
    let after = *times;
    drop(noted);
    tallies.send_modify(|tallies| {
        let tally = tallies.entry(group_of(&object.name).to_owned()).or_default();
        tally.created += usize::from(before.created.is_none() && after.created.is_some());
        tally.attached += usize::from(before.attached.is_none() && after.attached.is_some());
        tally.gone += usize::from(before.gone.is_none() && after.gone.is_some());
    });
}

fn group_of(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(group, _)| group)
}
