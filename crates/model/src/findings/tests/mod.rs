//! An attachment that is written down in a few words, for the tests of findings.

mod note;
mod pass;
mod properties;
mod table;

use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

use super::*;
use crate::decide::{Capabilities, DriverFacts, NodeEntry};
use crate::objects::{Attachment, PersistentVolumeWire, Volume, VolumeAttachmentWire};

const DRIVER: &str = "d.csi.test";
const FINALIZER: &str = "external-attacher/d-csi-test";
const STUCK_AFTER: Duration = Duration::from_mins(5);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

/// One attachment and what is around it.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    attached: bool,
    claimed: bool,
    error: Option<&'static str>,
    /// When it was deleted.
    deleted: Option<i64>,
    created: i64,
    /// None for an in-line volume.
    volume: Option<Found>,
    modes: Vec<&'static str>,
    node: Entry,
    attached_at: Option<&'static str>,
    wanted_at: Option<&'static str>,
    attach_required: Option<bool>,
    /// When another client wrote the status.
    written_by_another: Option<i64>,
    leads_since: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    There,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Registered,
    WithoutDriver,
    BlankId,
    Missing,
}

/// Attached at time 10, and all is well.
fn well() -> Case {
    Case {
        name: "va".to_owned(),
        attached: true,
        claimed: true,
        error: None,
        deleted: None,
        created: 0,
        volume: Some(Found::There),
        modes: vec!["ReadWriteOnce"],
        node: Entry::Registered,
        attached_at: None,
        wanted_at: None,
        attach_required: Some(true),
        written_by_another: None,
        leads_since: Some(0),
    }
}

fn waiting() -> Case {
    Case {
        attached: false,
        ..well()
    }
}

impl Case {
    fn attachment(&self) -> Attachment {
        let source = if self.volume.is_some() {
            json!({"persistentVolumeName": "pv"})
        } else {
            json!({"inlineVolumeSpec": {"accessModes": self.modes, "csi": {"driver": DRIVER, "volumeHandle": "h"}}})
        };
        let error = self.error.map(|message| json!({"message": message}));
        let mut object = json!({
            "metadata": {
                "name": self.name, "uid": format!("{}-uid", self.name), "creationTimestamp": at(self.created),
                "finalizers": if self.claimed { json!([FINALIZER]) } else { json!(["someone/else"]) },
            },
            "spec": {"attacher": DRIVER, "nodeName": "n", "source": source},
            "status": {"attached": self.attached},
        });
        if let Some(time) = self.written_by_another {
            object["metadata"]["managedFields"] =
                json!([{"manager": "csi-attacher", "subresource": "status", "time": at(time)}]);
        }
        if let Some(deleted) = self.deleted {
            object["metadata"]["deletionTimestamp"] = json!(at(deleted));
            object["status"]["detachError"] = json!(error);
        } else {
            object["status"]["attachError"] = json!(error);
        }
        serde_json::from_value::<VolumeAttachmentWire>(object).unwrap().into()
    }

    fn volume(&self) -> Option<Volume> {
        let object: Value = json!({
            "metadata": {"name": "pv", "uid": "pv-uid"},
            "spec": {"accessModes": self.modes, "csi": {"driver": DRIVER, "volumeHandle": "h"}},
        });
        (self.volume == Some(Found::There))
            .then(|| serde_json::from_value::<PersistentVolumeWire>(object).unwrap().into())
    }

    fn with_input<T>(&self, with: impl FnOnce(&FindingInput<'_>) -> T) -> T {
        let (attachment, volume) = (self.attachment(), self.volume());
        let driver = DriverFacts::new(DRIVER, Capabilities::default());
        with(&FindingInput {
            attachment: &attachment,
            volume: volume.as_ref(),
            node: match self.node {
                Entry::Registered => NodeEntry::Registered("id"),
                Entry::WithoutDriver => NodeEntry::WithoutDriver,
                Entry::BlankId => NodeEntry::BlankId,
                Entry::Missing => NodeEntry::Missing,
            },
            attached_at: self.attached_at,
            wanted_at: self.wanted_at,
            driver: &driver,
            attach_required: self.attach_required,
            leads_since: self.leads_since.map(at),
        })
    }

    fn kinds(&self, now: i64) -> Vec<FindingKind> {
        self.with_input(|input| findings(input, at(now), STUCK_AFTER).into_iter().collect())
    }
}

/// A pass over these at a time.
fn pass(history: &mut FindingHistory, cases: &[Case], now: i64) -> (FindingsSummary, Vec<NewFinding>, bool) {
    let mut pass = FindingsPass::begin(history, STUCK_AFTER, at(now));
    for case in cases {
        case.with_input(|input| pass.examine(input));
    }
    pass.end()
}
