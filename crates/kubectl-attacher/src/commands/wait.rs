//! `wait`: until volumes are attached or detached, for scripts and hooks of a drain.

use csi_attacher_model::objects::{Attachment, VolumeAttachmentWire};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::{self, Event, watcher};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use super::follow::fatal;
use super::{Context, print};
use crate::cli::{WaitArguments, WaitFor};
use crate::error::{EXIT_OK, PluginError, Result};
use crate::gather::{ResourceName, now};
use crate::observed::ClaimRecord;
use crate::output;

/// How often an unbound claim is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How many VolumeAttachments are named when the time is over.
const MOST_NAMED: usize = 10;

/// The VolumeAttachments that are waited for.
#[derive(Clone, Debug)]
enum Target {
    Node(String),
    Volume(String),
    Attachment(String),
}

impl Target {
    fn concerns(&self, attachment: &Attachment) -> bool {
        match self {
            Self::Node(node) => *attachment.node == **node,
            Self::Volume(volume) => attachment.volume_name().is_some_and(|name| **name == **volume),
            Self::Attachment(name) => *attachment.name == **name,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) => write!(f, "Node {node}"),
            Self::Volume(volume) => write!(f, "PersistentVolume {volume}"),
            Self::Attachment(name) => write!(f, "VolumeAttachment {name}"),
        }
    }
}

/// Waits and reports.
pub(super) async fn run(context: &Context, arguments: &WaitArguments) -> Result<u8> {
    let began = std::time::Instant::now();
    let mut state = Waited::default();
    let waiting = async {
        let target = target(context, arguments).await?;
        follow(context, arguments, &target, &mut state).await
    };
    // A timeout of zero looks once, which takes a moment.
    let limit = arguments.timeout.max(Duration::from_secs(2));
    let ended = tokio::time::timeout(limit, waiting).await;
    match ended {
        Ok(Ok(target)) => {
            let done = match arguments.state {
                WaitFor::Detached => "detached",
                WaitFor::Attached => "attached",
            };
            print(&format!(
                "{target}: all volumes are {done}, after {}\n",
                output::span(began.elapsed())
            ))?;
            Ok(EXIT_OK)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(PluginError::Timeout {
            what: state.words(),
            seconds: arguments.timeout.as_secs(),
        }),
    }
}

/// What is waited for. A claim is waited for until it is bound.
async fn target(context: &Context, arguments: &WaitArguments) -> Result<Target> {
    if let Some(node) = &arguments.node {
        return Ok(Target::Node(node.clone()));
    }
    let [kind, name] = arguments.object.as_slice() else {
        return Err(PluginError::Usage(
            "name --node NODE, or pvc NAME, pv NAME or va NAME".to_owned(),
        ));
    };
    match kind.as_str() {
        "pv" | "persistentvolume" => Ok(Target::Volume(name.clone())),
        "va" | "volumeattachment" => Ok(Target::Attachment(name.clone())),
        "pvc" | "persistentvolumeclaim" => claim(context, name).await,
        "node" => Ok(Target::Node(name.clone())),
        other => Err(PluginError::Usage(format!(
            "cannot wait for {other}; name a pvc, pv, va or node"
        ))),
    }
}

async fn claim(context: &Context, name: &str) -> Result<Target> {
    let resource = ResourceName::new("", "persistentvolumeclaims");
    let sources = context.sources();
    let reader = &sources.reader;
    loop {
        let api = reader.namespaced::<PersistentVolumeClaim>(&context.namespace);
        let Some(claim) = reader.require(api, resource, name).await? else {
            let names = reader
                .names(reader.namespaced::<PersistentVolumeClaim>(&context.namespace))
                .await;
            return Err(PluginError::NotFound {
                object: format!("PersistentVolumeClaim {}/{name}", context.namespace),
                nearest: crate::gather::nearest(name, &names),
            });
        };
        let claim = ClaimRecord::from(claim);
        if let Some(volume) = claim.volume.as_ref().filter(|_| claim.is_bound()) {
            return Ok(Target::Volume(volume.clone()));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What was seen last.
#[derive(Debug, Default)]
struct Waited {
    left: Vec<String>,
    seen: bool,
}

impl Waited {
    fn words(&self) -> String {
        if !self.seen {
            return "the VolumeAttachments could not be listed, or the claim is not bound".to_owned();
        }
        if self.left.is_empty() {
            return "there is no VolumeAttachment yet".to_owned();
        }
        let named: Vec<&str> = self.left.iter().take(MOST_NAMED).map(String::as_str).collect();
        let more = self.left.len() - named.len();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!(
            "{} left: {}{more}; go on with: kubectl attacher why va NAME",
            self.left.len(),
            named.join(", ")
        )
    }
}

/// Follows the VolumeAttachments until it is as asked for.
async fn follow(context: &Context, arguments: &WaitArguments, target: &Target, state: &mut Waited) -> Result<Target> {
    let sources = context.sources();
    let stream = watcher(
        sources.reader.cluster::<VolumeAttachmentWire>(),
        watcher::Config::default(),
    );
    pin_mut!(stream);
    let mut known: BTreeMap<String, Attachment> = BTreeMap::new();
    let mut listed = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => {
                listed = false;
                known.clear();
            }
            Ok(Event::InitDone) => listed = true,
            Ok(Event::Apply(wire) | Event::InitApply(wire)) => {
                let attachment = Attachment::from(wire);
                if concerns(arguments, target, &attachment) {
                    known.insert(attachment.name.to_string(), attachment);
                }
            }
            Ok(Event::Delete(wire)) => {
                known.remove(wire.metadata.name.as_deref().unwrap_or_default());
            }
            Err(error) => {
                if let Some(error) = fatal(&error) {
                    return Err(error);
                }
            }
        }
        if !listed {
            continue;
        }
        let left = left(arguments.state, &known);
        let done = match arguments.state {
            WaitFor::Detached => known.is_empty(),
            WaitFor::Attached => !known.is_empty() && left.is_empty(),
        };
        if done {
            return Ok(target.clone());
        }
        if (!state.seen || state.left != left) && !arguments.quiet {
            progress(target, &left);
        }
        *state = Waited { left, seen: true };
    }
    Err(PluginError::Usage("the watch of VolumeAttachments ended".to_owned()))
}

fn concerns(arguments: &WaitArguments, target: &Target, attachment: &Attachment) -> bool {
    let driver = arguments.driver.as_deref();
    target.concerns(attachment) && driver.is_none_or(|driver| *driver == *attachment.attacher)
}

/// Names of what is not as asked for.
fn left(state: WaitFor, known: &BTreeMap<String, Attachment>) -> Vec<String> {
    let waits = |attachment: &&Attachment| match state {
        WaitFor::Detached => true,
        WaitFor::Attached => !attachment.attached || attachment.deleting.is_some(),
    };
    known
        .values()
        .filter(waits)
        .map(|attachment| attachment.name.to_string())
        .collect()
}

/// Tells of progress on standard error, so that the result is alone on standard output.
fn progress(target: &Target, left: &[String]) {
    let at = now().strftime("%H:%M:%S");
    let text = match left.len() {
        0 => "no VolumeAttachment yet".to_owned(),
        1 => format!("1 volume left: {}", left.join("")),
        count => format!("{count} volumes left"),
    };
    // Nobody is left to tell when standard error is closed.
    drop(writeln!(std::io::stderr(), "{at} {target}: {text}"));
}
