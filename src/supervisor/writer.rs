//! What was written on an AttacherConfig, by whom, and the writing.

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::status;
use super::status_author::StatusAuthor;
use crate::api::names::FIELD_MANAGER;
use crate::api::{AttacherConfigObject, AttacherConfigStatus};
use crate::queue::Backoff;

/// Long enough for a busy API server; a status write is never worth more.
const WRITE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a change of counts waits, so that a burst of attaches is not a burst of status writes.
const UNHURRIED: Duration = Duration::from_secs(2);
/// How long a status that shows everything is not computed anew while nothing of the cache and of its driver has changed. Queues
/// and findings tell of no change.
const REST: Duration = Duration::from_secs(5);
/// The longest rest after writes that failed.
const LONGEST_REST: Duration = Duration::from_secs(15);

/// An AttacherConfig and what is known of its status.
pub(super) struct TrackedConfig {
    pub object: AttacherConfigObject,
    /// The newest status that is known, whoever wrote it.
    pub written: AttacherConfigStatus,
    /// When we last wrote it.
    written_at: Option<Instant>,
    /// Until when no write is tried after so many failed in a row.
    failed: Option<(u32, Instant)>,
    /// The version that our last write made: copies of the object up to this one tell nothing new of the status.
    version: Option<u64>,
    /// Whether somebody else wrote after us. What is put right then is never urgent.
    overwritten: bool,
    /// When it was last seen that the status shows everything, and what the cache's generation was.
    at_rest: Option<(Instant, u64)>,
    pub voice: StatusAuthor,
    /// A list that began when nothing could be claimed any more for an object that is being deleted.
    pub last_list: Option<Arc<AbortOnDropHandle<()>>>,
}

/// What [`StatusWriter`] writes of a status: where the Lease is has a writer of its own, with other rules.
fn without_place(status: &AttacherConfigStatus) -> AttacherConfigStatus {
    AttacherConfigStatus {
        leader_election: None,
        ..status.clone()
    }
}

fn version(object: &AttacherConfigObject) -> Option<u64> {
    object.metadata.resource_version.as_deref()?.parse().ok()
}

impl TrackedConfig {
    /// An object from the watch; `known` is what was known of the same object before.
    pub fn new(object: AttacherConfigObject, known: Option<&Self>) -> Self {
        let same = known.filter(|known| known.object.metadata.uid == object.metadata.uid);
        let Some(known) = same else {
            return Self {
                written: object.status.clone(),
                object,
                written_at: None,
                failed: None,
                version: None,
                overwritten: false,
                at_rest: None,
                voice: StatusAuthor::default(),
                last_list: None,
            };
        };
        let echo = known.version.is_some() && version(&object) <= known.version;
        let written = if echo { &known.written } else { &object.status };
        Self {
            overwritten: known.overwritten || without_place(written) != without_place(&known.written),
            written: written.clone(),
            written_at: known.written_at,
            failed: known.failed,
            version: known.version,
            at_rest: None,
            voice: known.voice.clone(),
            last_list: known.last_list.clone(),
            object,
        }
    }

    /// A list begins: what it shows tells something new of the status, whatever its version. After a restore of the API
    /// server from a backup it is older than what we wrote.
    pub fn is_listed_again(&mut self) {
        self.version = None;
    }

    /// The status shows everything, as of this generation of the cache.
    pub fn rest(&mut self, cached: u64) {
        self.at_rest = Some((Instant::now(), cached));
    }

    /// The status may not show everything any more.
    pub fn wake(&mut self) {
        self.at_rest = None;
    }

    /// Whether the status shows everything still, as far as the cache's generation and the time since tell.
    pub fn is_at_rest(&self, cached: u64) -> bool {
        let is_so = |(since, generation): (Instant, u64)| generation == cached && since.elapsed() < REST;
        self.at_rest.is_some_and(is_so)
    }

    /// Whether a wanted status that differs should be written now, or is better put off.
    pub fn is_due(&self, wanted: &AttacherConfigStatus) -> bool {
        if self.failed.is_some_and(|(_, until)| Instant::now() < until) {
            return false;
        }
        let urgent = !self.overwritten && status::is_urgent(&self.written, wanted);
        urgent || self.written_at.is_none_or(|at| at.elapsed() >= UNHURRIED)
    }

    /// We wrote this, and the answer was this object.
    pub fn wrote(&mut self, wanted: AttacherConfigStatus, answer: &AttacherConfigObject) {
        self.written = wanted;
        self.written_at = Some(Instant::now());
        self.failed = None;
        self.version = version(answer);
        self.overwritten = false;
    }

    /// A write failed; how long the next one waits.
    pub fn failed(&mut self) -> Duration {
        let failures = self.failed.map_or(0, |(failures, _)| failures);
        let rest = Backoff::default().base(failures).min(LONGEST_REST);
        self.failed = Some((failures.saturating_add(1), Instant::now() + rest));
        rest
    }
}

/// Writes AttacherConfig status by server-side apply.
pub(super) struct StatusWriter {
    api: Api<AttacherConfigObject>,
}

impl StatusWriter {
    pub fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Writes the status of the object with this UID; an error in words.
    pub async fn write(
        &self,
        name: &str,
        uid: Option<&str>,
        status: &AttacherConfigStatus,
    ) -> Result<AttacherConfigObject, String> {
        let status = without_place(status);
        let body = json!({
            "apiVersion": "attacher.csi.dev/v1alpha1",
            "kind": "AttacherConfig",
            "metadata": {"name": name, "uid": uid},
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        bounded(self.api.patch_status(name, &params, &Patch::Apply(&body))).await
    }

    /// Sends a merge patch of the metadata; an error in words.
    pub async fn write_metadata(&self, name: &str, body: &Value) -> Result<AttacherConfigObject, String> {
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        bounded(self.api.patch(name, &params, &Patch::Merge(body))).await
    }
}

async fn bounded<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(WRITE_DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(with_fix(error.to_string())),
        Err(_) => Err(format!("no answer within {} s", WRITE_DEADLINE.as_secs())),
    }
}

/// Server-side apply refuses a status that the schema of the CRD does not have.
fn with_fix(error: String) -> String {
    if error.contains("field not declared in schema") {
        format!(
            "the CRD in the cluster is older than this operator; upgrade the CRD (docs/operate/UPGRADE.md): {error}"
        )
    } else {
        error
    }
}
