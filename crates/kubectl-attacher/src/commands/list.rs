//! `list`: VolumeAttachments with what is wrong with them.

use csi_attacher_base::clock;
use csi_attacher_model::decide::DriverFacts;
use csi_attacher_model::findings::{FindingKind, findings};
use csi_attacher_model::objects::{Attachment, PersistentVolumeWire, Volume, VolumeAttachmentWire};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::follow::Watch;
use super::listing::Listing;
use super::{Context, print, tell};
use crate::cli::{ListArguments, TableOutput};
use crate::error::{EXIT_BLOCKED, EXIT_OK, Result};
use crate::explain::{current_error, finding_input};
use crate::gather::Sources;
use crate::observed::Lookup;
use crate::output::{self, Table, Text};

/// The version of the serialised form.
const SCHEMA: &str = "attacher.csi.dev/list-v1";
/// Longest error in a table, in characters; `-o json` has all of it.
const MAX_ERROR_CHARS: usize = 60;

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

pub(super) async fn run(context: &Context, arguments: &ListArguments) -> Result<u8> {
    if arguments.watch {
        return watch(context, arguments, print).await;
    }
    let sources = context.sources();
    let attachments = sources.require_attachments().await?;
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
    let name = |row: &AttachmentRow| Some(name_line(&row.name));
    let table = |rows: &[AttachmentRow], wide: bool| table(rows, wide, sources.now);
    let nothing = if arguments.stuck {
        "nothing is stuck"
    } else {
        "no VolumeAttachments"
    };
    let listing = Listing::new(SCHEMA, rows, sources.reader.gaps());
    print(&listing.text(arguments.output, name, table, nothing)?)?;
    Ok(if arguments.stuck && any { EXIT_BLOCKED } else { EXIT_OK })
}

fn concerns(arguments: &ListArguments, attachment: &Attachment) -> bool {
    let (driver, node) = (arguments.driver.as_deref(), arguments.node.as_deref());
    driver.is_none_or(|driver| *driver == *attachment.attacher) && node.is_none_or(|node| *node == *attachment.node)
}

/// The claims of PersistentVolumes.
async fn claims(sources: &Sources) -> HashMap<String, String> {
    let api = sources.reader.cluster::<PersistentVolumeWire>();
    let listed: Lookup<Vec<Volume>> = sources.reader.list(api, ListParams::default()).await;
    let Lookup::Found(volumes) = listed else {
        return HashMap::new();
    };
    let of = |volume: Volume| {
        let claim = volume.claim?;
        Some((volume.name.to_string(), format!("{}/{}", claim.namespace, claim.name)))
    };
    volumes.into_iter().filter_map(of).collect()
}

fn row(
    attachment: &Attachment,
    claims: &HashMap<String, String>,
    arguments: &ListArguments,
    now: Timestamp,
) -> AttachmentRow {
    let volume = attachment.volume_name().map(ToString::to_string);
    let error = current_error(attachment);
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
        since: attachment.pending_since(),
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
    let stuck_after = Duration::from_secs(arguments.stuck_after);
    let found = findings(&finding_input(attachment, &facts), now, stuck_after);
    found.into_iter().any(FindingKind::is_stuck)
}

/// The name of a VolumeAttachment, as kubectl takes it.
pub(super) fn name_line(name: &str) -> String {
    format!("volumeattachment.storage.k8s.io/{name}")
}

fn table(rows: &[AttachmentRow], wide: bool, now: Timestamp) -> Table {
    let mut table = if wide {
        Table::new(&[
            "NAME", "VOLUME", "CLAIM", "NODE", "NODE-ID", "DRIVER", "STATE", "STUCK", "FOR", "ERROR",
        ])
    } else {
        Table::new(&["NAME", "VOLUME", "NODE", "DRIVER", "STATE", "FOR", "ERROR"])
    };
    for row in rows {
        table.row(cells(row, wide, now));
    }
    table
}

fn cells(row: &AttachmentRow, wide: bool, now: Timestamp) -> Vec<Option<String>> {
    let since = row.since.map(|since| output::ago(since, now));
    let (name, volume) = (Some(row.name.clone()), row.volume.clone());
    let (node, driver, state) = (&row.node, &row.driver, row.state.to_owned());
    let (node, driver, state) = (Some(node.clone()), Some(driver.clone()), Some(state));
    if wide {
        let stuck = Some(if row.stuck { "yes" } else { "no" }.to_owned());
        let (claim, node_id, error) = (row.claim.clone(), row.node_id.clone(), row.error.clone());
        return vec![name, volume, claim, node, node_id, driver, state, stuck, since, error];
    }
    let error = row.error.as_ref().map(|error| shortened(error));
    vec![name, volume, node, driver, state, since, error]
}

fn shortened(error: &str) -> String {
    if error.chars().count() <= MAX_ERROR_CHARS {
        return error.to_owned();
    }
    let kept: String = error.chars().take(MAX_ERROR_CHARS).collect();
    format!("{kept}...")
}

/// How often it is looked whether something became stuck.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The list, and each change after it, until nobody reads any more. What is stuck becomes so by time alone: each is looked at again every
/// second.
async fn watch(context: &Context, arguments: &ListArguments, print: impl Fn(&Text) -> Result<bool>) -> Result<u8> {
    let mut watch = Watch::new(context.client.clone(), watcher::Config::default());
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    let mut shown = Shown::default();
    loop {
        let seen = tokio::select! {
            seen = watch.next() => Some(seen?),
            _ = looks.tick(), if arguments.stuck => None,
        };
        let text = match seen {
            Some(Ok(event)) => shown.observe(arguments, event)?,
            Some(Err(error)) => {
                tell(&error);
                continue;
            }
            None => shown.look_again(arguments)?,
        };
        if !text.is_empty() && !print(&text)? {
            return Ok(EXIT_OK);
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
    /// The rows that an event makes.
    fn observe(&mut self, arguments: &ListArguments, event: Event<VolumeAttachmentWire>) -> Result<Text> {
        let (object, gone) = match event {
            Event::Apply(object) | Event::InitApply(object) => (object, false),
            Event::Delete(object) => (object, true),
            Event::Init => {
                self.listed.clear();
                return Ok(Text::default());
            }
            Event::InitDone => {
                let vanished = self.vanished();
                return self.look_at(arguments, &vanished, true);
            }
        };
        let attachment: Arc<Attachment> = Arc::new(object.into());
        if !concerns(arguments, &attachment) {
            return Ok(Text::default());
        }
        self.listed.insert(attachment.name.clone());
        self.look(arguments, &attachment, gone)
    }

    /// What a list does not show any more: a watch that broke tells nothing of its end.
    fn vanished(&self) -> Vec<Arc<Attachment>> {
        let gone = self.known.iter().filter(|(name, _)| !self.listed.contains(*name));
        gone.map(|(_, attachment)| attachment.clone()).collect()
    }

    /// The rows of those that became stuck meanwhile.
    fn look_again(&mut self, arguments: &ListArguments) -> Result<Text> {
        let known: Vec<_> = self.known.values().cloned().collect();
        self.look_at(arguments, &known, false)
    }

    fn look_at(&mut self, arguments: &ListArguments, attachments: &[Arc<Attachment>], gone: bool) -> Result<Text> {
        let mut text = Text::default();
        for attachment in attachments {
            text.append(&self.look(arguments, attachment, gone)?);
        }
        Ok(text)
    }

    /// The row of an attachment if it is news; of those that are stuck also that it is so no more.
    fn look(&mut self, arguments: &ListArguments, attachment: &Arc<Attachment>, gone: bool) -> Result<Text> {
        if gone {
            self.known.remove(&attachment.name);
        } else {
            self.known.insert(attachment.name.clone(), attachment.clone());
        }
        let mut row = row(attachment, &HashMap::new(), arguments, clock::now());
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
            return Ok(Text::default());
        }
        match arguments.output {
            Some(TableOutput::Json) => output::json(&row),
            Some(TableOutput::Yaml) => {
                let mut text = Text::of("---");
                text.append(&output::yaml(&row)?);
                Ok(text)
            }
            Some(TableOutput::Name) => Ok(Text::of(&name_line(&row.name))),
            form => {
                let table = table(&[row], form == Some(TableOutput::Wide), clock::now());
                Ok(table.text(!std::mem::replace(&mut self.has_begun, true)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{ApiServerFixture, attachment, list};
    use crate::cli::{Cli, Command};
    use crate::error::EXIT_ERROR;
    use clap::Parser;
    use std::cell::RefCell;

    /// Longer than any of the watches needs to end.
    const LIMIT: Duration = Duration::from_secs(20);

    fn arguments() -> ListArguments {
        ListArguments {
            stuck: false,
            driver: None,
            node: None,
            stuck_after: 300,
            output: Some(TableOutput::Name),
            watch: true,
        }
    }

    #[test]
    fn what_is_printed_can_be_retried() {
        let cli = Cli::try_parse_from(["kubectl-attacher", "retry", &name_line("csi-1")]).unwrap();
        let Command::Retry(retry) = cli.command else {
            panic!("{:?}", cli.command)
        };
        assert_eq!(retry.name, "csi-1");
    }

    #[tokio::test]
    async fn a_watch_ends_with_its_reader() {
        let server = ApiServerFixture::start(|_, query| {
            if query.contains("watch=") {
                Err(500)
            } else {
                Ok(list(&[attachment("csi-1"), attachment("csi-2"), attachment("csi-3")]))
            }
        });
        let (context, arguments) = (server.context(), arguments());
        let printed = RefCell::new(Vec::new());
        let print = |text: &Text| {
            printed.borrow_mut().push(text.as_str().to_owned());
            Ok(printed.borrow().len() < 2)
        };
        let ended = tokio::time::timeout(LIMIT, watch(&context, &arguments, print)).await;
        assert_eq!(ended.unwrap().unwrap(), EXIT_OK);
        let names = ["csi-1", "csi-2"].map(|name| format!("volumeattachment.storage.k8s.io/{name}\n"));
        assert_eq!(*printed.borrow(), names);
    }

    #[tokio::test]
    async fn a_watch_of_a_cluster_that_refuses_it_ends() {
        let server = ApiServerFixture::start(|_, _| Err(401));
        let (context, arguments) = (server.context(), arguments());
        let ended = tokio::time::timeout(LIMIT, watch(&context, &arguments, |_| Ok(true))).await;
        assert_eq!(ended.unwrap().unwrap_err().exit_code(), EXIT_ERROR);
    }
}
