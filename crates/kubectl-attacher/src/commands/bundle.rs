//! `bundle`: an archive for those who help.

use csi_attacher_model::api::names::LEASE_PREFIX;
use csi_attacher_model::decide::{Capabilities, DriverFacts};
use csi_attacher_model::insight::is_pending;
use csi_attacher_model::objects::Attachment;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use super::why::explain;
use super::{Context, print};
use crate::bundle::{archive, redact, redact_text};
use crate::cli::{BundleArguments, WhyKind};
use crate::error::{EXIT_OK, PluginError, Result};
use crate::explain::Explanation;
use crate::gather::{Sources, words};
use crate::observed::Lookup;
use crate::output::{self, Style};

/// Most VolumeAttachments that are explained, the oldest first.
const MOST_EXPLAINED: usize = 50;
/// Objects of one page.
const PAGE: u32 = 500;

/// A kind that is put in, and how it is chosen.
struct Part {
    file: &'static str,
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    keep: fn(&Value) -> bool,
}

fn all(_: &Value) -> bool {
    true
}

/// Leases of attachers.
fn is_attacher_lease(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    name.starts_with(LEASE_PREFIX)
}

/// Events of the operator, and those about attaching.
fn is_about_attaching(object: &Value) -> bool {
    let component = object["source"]["component"].as_str().unwrap_or_default();
    let reporting = object["reportingComponent"].as_str().unwrap_or_default();
    let kind = object["involvedObject"]["kind"].as_str().unwrap_or_default();
    let reason = object["reason"].as_str().unwrap_or_default();
    [component, reporting]
        .iter()
        .any(|who| who.contains("attacher") || who.contains("attachdetach"))
        || matches!(kind, "VolumeAttachment" | "AttacherConfig")
        || matches!(reason, "FailedAttachVolume" | "FailedMount")
}

const PARTS: [Part; 8] = [
    Part {
        file: "volumeattachments.json",
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttachment",
        plural: "volumeattachments",
        keep: all,
    },
    Part {
        file: "persistentvolumes.json",
        group: "",
        version: "v1",
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        keep: all,
    },
    Part {
        file: "persistentvolumeclaims.json",
        group: "",
        version: "v1",
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        keep: all,
    },
    Part {
        file: "csinodes.json",
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSINode",
        plural: "csinodes",
        keep: all,
    },
    Part {
        file: "csidrivers.json",
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSIDriver",
        plural: "csidrivers",
        keep: all,
    },
    Part {
        file: "attacherconfigs.json",
        group: "attacher.csi.dev",
        version: "v1alpha1",
        kind: "AttacherConfig",
        plural: "attacherconfigs",
        keep: all,
    },
    Part {
        file: "leases.json",
        group: "coordination.k8s.io",
        version: "v1",
        kind: "Lease",
        plural: "leases",
        keep: is_attacher_lease,
    },
    Part {
        file: "events.json",
        group: "",
        version: "v1",
        kind: "Event",
        plural: "events",
        keep: is_about_attaching,
    },
];

/// Collects, redacts and writes.
pub(super) async fn run(context: &Context, arguments: &BundleArguments) -> Result<u8> {
    let sources = context.sources();
    let mut files = Vec::new();
    let mut missing = Vec::new();
    for part in &PARTS {
        match objects(context, part).await {
            Ok(text) => files.push((part.file.to_owned(), text)),
            Err(error) => missing.push(format!("{}: {error}\n", part.file)),
        }
    }
    files.extend(explanations(context, &sources).await);
    missing.extend(sources.reader.gaps().iter().map(|gap| format!("{gap}\n")));
    let about = format!(
        "kubectl-attacher {}\nread at {}\nnot in it, for lack of a permission or another error:\n{}",
        env!("CARGO_PKG_VERSION"),
        sources.now,
        missing.concat()
    );
    files.insert(0, ("README.txt".to_owned(), about));
    let path = &arguments.output_file;
    let failed = |error: std::io::Error| PluginError::Output(format!("{}: {error}", path.display()));
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    let seconds = u64::try_from(sources.now.as_second()).unwrap_or_default();
    archive(file, "kubectl-attacher-bundle", &files, seconds).map_err(failed)?;
    print(&format!(
        "wrote {} files to {}; look through it before you give it away\n",
        files.len(),
        path.display()
    ))?;
    Ok(EXIT_OK)
}

/// All objects of a kind, without secrets.
async fn objects(context: &Context, part: &Part) -> std::result::Result<String, String> {
    let resource = ApiResource {
        group: part.group.to_owned(),
        version: part.version.to_owned(),
        api_version: if part.group.is_empty() {
            part.version.to_owned()
        } else {
            format!("{}/{}", part.group, part.version)
        },
        kind: part.kind.to_owned(),
        plural: part.plural.to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    let mut items: Vec<Value> = Vec::new();
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&parameters).await.map_err(|error| words(&error))?;
        for object in page.items {
            let mut value = serde_json::to_value(object).map_err(|error| error.to_string())?;
            if (part.keep)(&value) {
                redact(&mut value);
                items.push(value);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => break,
        }
    }
    serde_json::to_string_pretty(&items).map_err(|error| error.to_string())
}

/// `why` of what is not settled.
async fn explanations(context: &Context, sources: &Sources) -> Vec<(String, String)> {
    let Lookup::Found(attachments) = sources.attachments().await else {
        return Vec::new();
    };
    let waits = |attachment: &Attachment| {
        let facts = DriverFacts::new(&attachment.attacher, Capabilities::default());
        is_pending(attachment, &facts.finalizer) || attachment.deleting.is_some()
    };
    let mut pending: Vec<_> = attachments.iter().filter(|attachment| waits(attachment)).collect();
    pending.sort_by_key(|attachment| attachment.deleting.or(attachment.created));
    let mut files = Vec::new();
    for attachment in pending.into_iter().take(MOST_EXPLAINED) {
        let answer = Box::pin(explain(sources, WhyKind::Va, &attachment.name, &context.namespace)).await;
        let text = match answer {
            Ok(answer) => shown(&answer, sources),
            Err(error) => format!("{error}\n"),
        };
        files.push((format!("why/{}.txt", attachment.name), redact_text(&text)));
    }
    files
}

fn shown(answer: &Explanation, sources: &Sources) -> String {
    output::tree(answer, sources.now, Style::PLAIN, true)
}
