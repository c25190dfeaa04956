//! What happens to the VolumeAttachments of the demonstration, as one watch sees it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::plan;
use crate::say::Say;
use crate::support::{Error, Result};

/// One VolumeAttachment and the moments at which it was first seen in a state.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The PersistentVolume.
    pub volume: String,
    /// The CSI driver.
    pub driver: String,
    /// The node.
    pub node: String,
    /// Who made it: the first field manager.
    pub creator: String,
    created: Instant,
    attached: Option<Instant>,
    deleting: Option<Instant>,
    gone: Option<Instant>,
    /// The error of the last attempt.
    error: Option<String>,
}

impl Seen {
    /// What it was last seen to be.
    pub fn state(&self) -> &'static str {
        match (self.gone, self.deleting, self.attached) {
            (Some(_), ..) => "detached",
            (_, Some(_), _) => "detaching",
            (.., Some(_)) => "attached",
            _ => "attaching",
        }
    }

    /// From the creation until `status.attached` was seen to be true.
    pub fn attaching_took(&self) -> Option<Duration> {
        Some(self.attached?.duration_since(self.created))
    }

    /// From the deletion timestamp until the object was seen to be gone.
    pub fn detaching_took(&self) -> Option<Duration> {
        let gone = self.gone?;
        Some(gone.duration_since(self.deleting.unwrap_or(gone)))
    }
}

/// VolumeAttachments by name.
pub type Known = BTreeMap<String, Seen>;

/// A running watch; ends when dropped.
pub struct Attachments {
    known: watch::Receiver<Known>,
    task: JoinHandle<()>,
}

impl Drop for Attachments {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Attachments {
    /// Starts to watch, and tells the user of each change.
    pub fn follow(client: Client, say: Say) -> Self {
        let (sender, known) = watch::channel(Known::new());
        let task = tokio::spawn(run(client, sender, say));
        Self { known, task }
    }

    /// Waits until there are as many VolumeAttachments as volumes and all of them satisfy a condition.
    pub async fn wait_for_all(&self, what: &str, limit: Duration, holds: impl Fn(&Seen) -> bool) -> Result<Known> {
        let wanted = plan::volumes().count();
        let mut known = self.known.clone();
        let wait = known.wait_for(|known| known.len() >= wanted && known.values().all(&holds));
        let outcome = tokio::time::timeout(limit, wait)
            .await
            .map(|found| found.map(|found| found.clone()));
        match outcome {
            Ok(Ok(known)) => Ok(known),
            Ok(Err(_)) | Err(_) => Err(Error::TimedOut {
                what: format!("all {wanted} VolumeAttachments {what}"),
                limit,
                last: describe(&self.known.borrow()),
            }),
        }
    }

    /// Whether any VolumeAttachment was made yet.
    pub fn any(&self) -> bool {
        !self.known.borrow().is_empty()
    }
}

/// The beginning of the name, which is a hash: enough to tell it from the others.
pub fn short_name(name: &str) -> String {
    let short: String = name.chars().take(12).collect();
    if short == name { short } else { format!("{short}…") }
}

fn describe(known: &Known) -> String {
    if known.is_empty() {
        return "there is none".to_owned();
    }
    let lines = known.values().map(|seen| {
        let error = seen
            .error
            .as_ref()
            .map(|error| format!(" ({error})"))
            .unwrap_or_default();
        format!("{} on {} is {}{error}", seen.volume, seen.node, seen.state())
    });
    lines.collect::<Vec<_>>().join("; ")
}

async fn run(client: Client, known: watch::Sender<Known>, say: Say) {
    let api: Api<VolumeAttachment> = Api::all(client);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.extend(object.metadata.name.clone());
                known.send_modify(|known| take_in(known, &object, say));
            }
            Ok(Event::Apply(object)) => known.send_modify(|known| take_in(known, &object, say)),
            // What is not listed any more was deleted while the watch was interrupted.
            Ok(Event::InitDone) => known.send_modify(|known| {
                let missed = known.iter_mut().filter(|(name, _)| !listed.contains(name));
                missed.for_each(|(name, seen)| bury(name, seen, say));
            }),
            Ok(Event::Delete(object)) => known.send_modify(|known| {
                let name = object.metadata.name.unwrap_or_default();
                if let Some(seen) = known.get_mut(&name) {
                    bury(&name, seen, say);
                }
            }),
            // The watch starts again by itself; every wait for what it finds has a limit.
            Err(_) => {}
        }
    }
}

fn bury(name: &str, seen: &mut Seen, say: Say) {
    if seen.gone.is_none() {
        seen.gone = Some(Instant::now());
        say.line(format!(
            "{}  detached from {}  ({})",
            seen.volume,
            seen.node,
            short_name(name)
        ));
    }
}

fn take_in(known: &mut Known, object: &VolumeAttachment, say: Say) {
    let spec = &object.spec;
    let Some(name) = object.metadata.name.clone() else {
        return;
    };
    let ours = plan::DRIVERS.iter().any(|driver| driver.name == spec.attacher);
    if !ours {
        return;
    }
    let seen = known.entry(name.clone()).or_insert_with(|| Seen {
        volume: spec.source.persistent_volume_name.clone().unwrap_or_default(),
        driver: spec.attacher.clone(),
        node: spec.node_name.clone(),
        creator: creator(object),
        created: Instant::now(),
        attached: None,
        deleting: None,
        gone: None,
        error: None,
    });
    let status = object.status.clone().unwrap_or_default();
    if status.attached && seen.attached.is_none() {
        seen.attached = Some(Instant::now());
        say.line(format!(
            "{}  attached to {}  ({})",
            seen.volume,
            seen.node,
            short_name(&name)
        ));
    }
    if object.metadata.deletion_timestamp.is_some() {
        seen.deleting.get_or_insert_with(Instant::now);
    }
    seen.error = status
        .attach_error
        .or(status.detach_error)
        .and_then(|error| error.message);
}

fn creator(object: &VolumeAttachment) -> String {
    let managers = object.metadata.managed_fields.iter().flatten();
    let spec_owner = managers.filter(|entry| entry.subresource.is_none()).find(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.is_some_and(|fields| fields.get("f:spec").is_some())
    });
    spec_owner
        .and_then(|entry| entry.manager.clone())
        .unwrap_or_else(|| "unknown".to_owned())
}
