//! What the operator did about a volume: its requests to the API server and its calls of the driver, in one order.

use csi_mock_driver::CallRecord;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Driver, World};
use crate::support::{AuditEvent, Result};

/// The beginning of the operator's user agent.
const USER_AGENT: &str = "csi-attacher-operator/";
/// What stands for the UID of the PersistentVolume that a request is about in expected bodies.
pub const VOLUME_UID: &str = "<uid of the volume>";
/// What stands for the version that an attachment had before it was written in expected bodies.
pub const VERSION: &str = "<version as it was read>";

/// One request of the operator to the API server, or one call of a driver.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// `patch volumeattachments/status NAME`, or `ControllerPublishVolume HANDLE NODE-ID`.
    pub what: String,
    /// The body of the request, or the code of the answer of the driver.
    pub body: Value,
    /// When it began.
    pub at: Timestamp,
    /// HTTP status; 0 for a call.
    pub status: u16,
}

impl World {
    /// All requests of the operator that name one of these objects, be they reads or writes, in the order in which they
    /// came in.
    ///
    /// A volume that was read is left out: a test makes a volume and its attachment at nearly the same time, so that the
    /// operator may hear of the attachment first and then asks for the volume.
    pub fn requests(&self, names: &[&str]) -> Result<Vec<Step>> {
        let events = self.cluster.audit_events()?;
        let mine = events
            .iter()
            .filter(|event| event.user_agent.starts_with(USER_AGENT) && names.contains(&event.name.as_str()));
        let is_late_volume = |step: &Step| step.what.starts_with("get persistentvolumes ") && step.status == 200;
        let mut steps: Vec<Step> = mine
            .map(|event| request(event))
            .filter(|step| !is_late_volume(step))
            .collect();
        steps.sort_by_key(|step| step.at);
        Ok(steps)
    }
}

impl Driver<'_> {
    /// Requests about these objects and calls about one volume, in the order in which they began.
    pub fn steps(&self, names: &[&str], volume: &str) -> Result<Vec<Step>> {
        let mut steps = self.world.requests(names)?;
        steps.extend(self.calls_for(volume).iter().map(call));
        steps.sort_by_key(|step| step.at);
        Ok(steps)
    }
}

fn request(event: &AuditEvent) -> Step {
    let slash = if event.subresource.is_empty() { "" } else { "/" };
    Step {
        what: format!(
            "{} {}{slash}{} {}",
            event.verb, event.resource, event.subresource, event.name
        ),
        body: blank_version(event, blank_volume_uid(event)),
        at: event.request_timestamp,
        status: event.response_code,
    }
}

/// The body with [`VOLUME_UID`] in the place of the UID that a patch of a PersistentVolume tests, if it is the UID of the
/// object which the API server answered with.
fn blank_volume_uid(event: &AuditEvent) -> Value {
    let mut body = event.request_body.clone().unwrap_or_default();
    let answered = event
        .response_body
        .as_ref()
        .and_then(|answer| answer.pointer("/metadata/uid"));
    let tests_uid = body.pointer("/0/path").is_some_and(|path| path == "/metadata/uid");
    if event.resource == "persistentvolumes"
        && tests_uid
        && let Some(uid) = body.pointer_mut("/0/value")
        && Some(&*uid) == answered
    {
        *uid = VOLUME_UID.into();
    }
    body
}

/// The body with [`VERSION`] in the place of the resource version that is a precondition of a status or of a patch of an attachment, if
/// it is not newer than the one which the API server answered with: they are the same when the write changed nothing.
fn blank_version(event: &AuditEvent, mut body: Value) -> Value {
    let number = |value: Option<&Value>| value.and_then(Value::as_str)?.parse::<u64>().ok();
    let answer = event.response_body.as_ref();
    let answered = number(answer.and_then(|answer| answer.pointer("/metadata/resourceVersion")));
    let tests_version = body
        .pointer("/1/path")
        .is_some_and(|path| path == "/metadata/resourceVersion");
    let precondition = if event.subresource == "status" {
        Some("/metadata/resourceVersion")
    } else if event.resource == "volumeattachments" && tests_version {
        Some("/1/value")
    } else {
        None
    };
    if let Some(version) = precondition.and_then(|path| body.pointer_mut(path))
        && number(Some(version)) <= answered
    {
        *version = VERSION.into();
    }
    body
}

fn call(call: &CallRecord) -> Step {
    Step {
        what: format!(
            "{:?} {} {}",
            call.method,
            call.volume.as_deref().unwrap_or_default(),
            call.node.as_deref().unwrap_or_default()
        ),
        body: json!(call.code.map(|code| format!("{code:?}"))),
        at: call.started,
        status: 0,
    }
}

/// Fails unless these are the steps, in this order, with exactly these bodies, and none was refused by the API server.
#[track_caller]
pub fn assert_steps(seen: &[Step], expected: &[(&str, Value)]) {
    let shown: Vec<_> = seen
        .iter()
        .map(|step| (step.what.as_str(), step.body.clone()))
        .collect();
    assert_eq!(shown, expected, "{seen:#?}");
    let refused: Vec<_> = seen.iter().filter(|step| step.status >= 400).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
