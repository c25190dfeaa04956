//! `list`: VolumeAttachments with what is wrong with them.

use csi_attacher_model::decide::{DriverFacts, NodeEntry};
use csi_attacher_model::findings::{FindingInput, FindingKind, FindingThresholds, findings};
use csi_attacher_model::objects::{Attachment, Operation, PersistentVolumeWire, Volume, VolumeAttachmentWire};
use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::follow::fatal;
use super::{Context, print};
use crate::cli::{ListArguments, TableOutput};
use crate::error::{EXIT_BLOCKED, EXIT_OK, PluginError, Result};
use crate::gather::{ResourceName, Sources, now};
use crate::observed::{Gap, Lookup};
use crate::output::{self, Table};

/// The version of the serialised form.
const SCHEMA: &str = "attacher.csi.dev/list-v1";
/// Longest error in a table, in characters; `-o json` has all of it.
const LONGEST_ERROR: usize = 60;

/// One VolumeAttachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct AttachmentRow {
    name: String,
    driver: String,
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    /// Namespace and name of the claim; only when volumes were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    state: &'static str,
    stuck: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(rename = "nodeID", skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    finalizers: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AttachmentList {
    schema: &'static str,
    items: Vec<AttachmentRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<Gap>,
}

/// Lists and prints.
pub(super) async fn run(context: &Context, arguments: &ListArguments) -> Result<u8> {
    if arguments.watch {
        return watch(context, arguments).await;
    }
    let sources = context.sources();
    let Lookup::Found(attachments) = sources.attachments().await else {
        let gap = sources.reader.gaps().into_iter().next();
        return Err(gap.map_or_else(
            || PluginError::Usage("the cluster has no VolumeAttachments API".to_owned()),
            PluginError::Unreadable,
        ));
    };
    let wide = !matches!(arguments.output, None | Some(TableOutput::Name));
    let claims = if wide { claims(&sources).await } else { HashMap::new() };
    let mut rows: Vec<AttachmentRow> = attachments
        .iter()
        .filter(|attachment| concerns(arguments, attachment))
        .map(|attachment| row(attachment, &claims, arguments, sources.now))
        .filter(|row| row.stuck || !arguments.stuck)
        .collect();
    rows.sort_by(|one, other| (!one.stuck, one.since, &one.name).cmp(&(!other.stuck, other.since, &other.name)));
    let any = !rows.is_empty();
    print(&text(rows, sources.reader.gaps(), arguments, sources.now)?)?;
    Ok(if arguments.stuck && any { EXIT_BLOCKED } else { EXIT_OK })
}

fn concerns(arguments: &ListArguments, attachment: &Attachment) -> bool {
    arguments
        .driver
        .as_deref()
        .is_none_or(|driver| *driver == *attachment.attacher)
        && arguments.node.as_deref().is_none_or(|node| *node == *attachment.node)
}

/// The claims of PersistentVolumes.
async fn claims(sources: &Sources) -> HashMap<String, String> {
    let resource = ResourceName::new("", "persistentvolumes");
    let api = sources.reader.cluster::<PersistentVolumeWire>();
    let listed = sources.reader.list(api, resource, ListParams::default()).await;
    let Lookup::Found(volumes) = listed else {
        return HashMap::new();
    };
    let of = |volume: Volume| {
        let claim = volume.claim?;
        Some((volume.name.to_string(), format!("{}/{}", claim.namespace, claim.name)))
    };
    volumes.into_iter().filter_map(|wire| of(wire.into())).collect()
}

fn row(
    attachment: &Attachment,
    claims: &HashMap<String, String>,
    arguments: &ListArguments,
    now: Timestamp,
) -> AttachmentRow {
    let volume = attachment.volume_name().map(ToString::to_string);
    let error = match Operation::of(attachment) {
        Operation::Attach if attachment.attached => None,
        Operation::Attach => attachment.attach_error.as_ref(),
        Operation::Detach => attachment.detach_error.as_ref(),
    };
    let state = match (attachment.deleting.is_some(), attachment.attached, error.is_some()) {
        (false, true, _) => "Attached",
        (false, false, false) => "Attaching",
        (false, false, true) => "AttachFailing",
        (true, _, false) => "Detaching",
        (true, _, true) => "DetachFailing",
    };
    AttachmentRow {
        name: attachment.name.to_string(),
        driver: attachment.attacher.to_string(),
        node: attachment.node.to_string(),
        claim: volume.as_ref().and_then(|volume| claims.get(volume)).cloned(),
        volume,
        state,
        stuck: is_stuck(attachment, arguments, now),
        since: attachment.deleting.or(attachment.created),
        error: error.map(|error| error.message.to_string()),
        node_id: attachment.node_id.as_deref().map(str::to_owned),
        finalizers: attachment.finalizers.iter().map(str::to_owned).collect(),
    }
}

/// Stuck as the operator's findings have it. What waits for another controller's finalizer is not.
fn is_stuck(attachment: &Attachment, arguments: &ListArguments, now: Timestamp) -> bool {
    let facts = DriverFacts::new(
        &attachment.attacher,
        csi_attacher_model::decide::Capabilities::default(),
    );
    let input = FindingInput {
        attachment,
        volume: None,
        node: NodeEntry::Registered(""),
        attached_at: None,
        wanted_at: None,
        driver: &facts,
        attach_required: None,
        leads_since: None,
    };
    let rules = FindingThresholds {
        stuck_after: Duration::from_secs(arguments.stuck_after),
    };
    findings(&input, now, &rules).iter().any(FindingKind::is_stuck)
}

fn text(rows: Vec<AttachmentRow>, gaps: Vec<Gap>, arguments: &ListArguments, now: Timestamp) -> Result<String> {
    let list = AttachmentList {
        schema: SCHEMA,
        items: rows,
        gaps,
    };
    match arguments.output {
        Some(TableOutput::Json) => output::json(&list),
        Some(TableOutput::Yaml) => output::yaml(&list),
        Some(TableOutput::Name) => Ok(list.items.iter().map(|row| name_line(&row.name)).collect()),
        form => {
            let wide = form == Some(TableOutput::Wide);
            let mut table = table(wide);
            for row in &list.items {
                table.row(cells(row, wide, now));
            }
            let mut text = if table.is_empty() {
                let what = if arguments.stuck {
                    "nothing is stuck\n"
                } else {
                    "no VolumeAttachments\n"
                };
                what.to_owned()
            } else {
                table.text(true)
            };
            text.extend(list.gaps.iter().map(|gap| format!("not seen: {gap}\n")));
            Ok(text)
        }
    }
}

fn name_line(name: &str) -> String {
    format!("volumeattachment.storage.k8s.io/{name}\n")
}

fn table(wide: bool) -> Table {
    if wide {
        Table::new(&[
            "NAME", "VOLUME", "CLAIM", "NODE", "NODE-ID", "DRIVER", "STATE", "STUCK", "FOR", "ERROR",
        ])
    } else {
        Table::new(&["NAME", "VOLUME", "NODE", "DRIVER", "STATE", "FOR", "ERROR"])
    }
}

fn cells(row: &AttachmentRow, wide: bool, now: Timestamp) -> Vec<Option<String>> {
    let since = row.since.map(|since| output::ago(since, now));
    let state = Some(row.state.to_owned());
    let name = Some(row.name.clone());
    let (node, driver) = (Some(row.node.clone()), Some(row.driver.clone()));
    if wide {
        let stuck = Some(if row.stuck { "yes" } else { "no" }.to_owned());
        let ids = (row.claim.clone(), row.node_id.clone());
        return vec![
            name,
            row.volume.clone(),
            ids.0,
            node,
            ids.1,
            driver,
            state,
            stuck,
            since,
            row.error.clone(),
        ];
    }
    let error = row.error.as_ref().map(|error| shortened(error));
    vec![name, row.volume.clone(), node, driver, state, since, error]
}

fn shortened(error: &str) -> String {
    if error.chars().count() <= LONGEST_ERROR {
        return error.to_owned();
    }
    let kept: String = error.chars().take(LONGEST_ERROR).collect();
    format!("{kept}...")
}

/// How often it is looked whether something became stuck.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The list, and each change after it. What is stuck becomes so by time alone: each is looked at again every second.
async fn watch(context: &Context, arguments: &ListArguments) -> Result<u8> {
    let sources = context.sources();
    let stream = watcher(
        sources.reader.cluster::<VolumeAttachmentWire>(),
        watcher::Config::default(),
    )
    .default_backoff();
    pin_mut!(stream);
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    let mut shown = Shown::default();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            _ = looks.tick(), if arguments.stuck => {
                let known: Vec<_> = shown.known.values().cloned().collect();
                for attachment in &known {
                    shown.look(arguments, attachment, false)?;
                }
                continue;
            }
        };
        let (object, gone) = match event {
            None => return Ok(EXIT_OK),
            Some(Ok(Event::Apply(object) | Event::InitApply(object))) => (object, false),
            Some(Ok(Event::Delete(object))) => (object, true),
            Some(Ok(Event::Init)) => {
                shown.listed.clear();
                continue;
            }
            Some(Ok(Event::InitDone)) => {
                for attachment in shown.vanished() {
                    shown.look(arguments, &attachment, true)?;
                }
                continue;
            }
            Some(Err(error)) => match fatal(&error) {
                Some(error) => return Err(error),
                None => continue,
            },
        };
        let attachment: Arc<Attachment> = Arc::new(object.into());
        if concerns(arguments, &attachment) {
            shown.listed.insert(attachment.name.clone());
            shown.look(arguments, &attachment, gone)?;
        }
    }
}

/// What a watch has seen and printed.
#[derive(Default)]
struct Shown {
    known: BTreeMap<Arc<str>, Arc<Attachment>>,
    /// What was seen since the last list began.
    listed: BTreeSet<Arc<str>>,
    rows: BTreeMap<String, (&'static str, Option<String>)>,
    has_begun: bool,
}

impl Shown {
    /// What a list does not show any more: a watch that broke tells nothing of its end.
    fn vanished(&self) -> Vec<Arc<Attachment>> {
        let gone = self.known.iter().filter(|(name, _)| !self.listed.contains(*name));
        gone.map(|(_, attachment)| attachment.clone()).collect()
    }

    /// Prints the row of an attachment if it is news; of those that are stuck also that it is so no more.
    fn look(&mut self, arguments: &ListArguments, attachment: &Arc<Attachment>, gone: bool) -> Result<()> {
        if gone {
            self.known.remove(&attachment.name);
        } else {
            self.known.insert(attachment.name.clone(), attachment.clone());
        }
        let mut row = row(attachment, &HashMap::new(), arguments, now());
        let is_shown = if gone {
            row.state = "Gone";
            self.rows.remove(&row.name).is_some()
        } else if arguments.stuck && !row.stuck {
            self.rows.remove(&row.name).is_some()
        } else {
            let is = (row.state, row.error.clone());
            self.rows.insert(row.name.clone(), is.clone()) != Some(is)
        };
        if !is_shown {
            return Ok(());
        }
        let wide = arguments.output == Some(TableOutput::Wide);
        let text = match arguments.output {
            Some(TableOutput::Json) => output::json(&row)?,
            Some(TableOutput::Yaml) => format!("---\n{}", output::yaml(&row)?),
            Some(TableOutput::Name) => name_line(&row.name),
            _ => {
                let mut table = table(wide);
                table.row(cells(&row, wide, now()));
                table.text(!std::mem::replace(&mut self.has_begun, true))
            }
        };
        print(&text)
    }
}
