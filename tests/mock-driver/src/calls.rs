//! The log of calls: in memory for tests, as JSON lines for people and scripts.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use tokio::sync::{oneshot, watch};
use tonic::Code;

use super::facts::{CapabilityFacts, CreationFacts, Method, MockFacts, code_name};

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CallResult {
    /// It still runs.
    Running,
    /// It was answered; see the code.
    Answered,
    /// The caller gave up, or the connection went away, before the answer. Nothing was done unless a record says `late`.
    Cancelled,
    /// The caller gave up, and the work was done afterwards; the code is what the caller would have got.
    Late,
    /// The script closed the connection instead of an answer.
    ConnectionDropped,
}

/// One call that arrived at the mock driver. Secrets are listed by their keys only.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallRecord {
    /// Number of the call, from 0 in the order of arrival.
    pub id: u64,
    /// What was called.
    pub method: Method,
    /// Volume id (for CreateVolume: name).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Node id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How the volume is to be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability: Option<CapabilityFacts>,
    /// Whether the volume is attached without the right to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// The volume's context as the caller sent it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub volume_context: BTreeMap<String, String>,
    /// What the volume is to be made with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation: Option<CreationFacts>,
    /// Longest page the caller wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<i32>,
    /// Page the caller wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting_token: Option<String>,
    /// Keys of the secrets the caller sent, never their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secret_keys: Vec<String>,
    /// The caller's deadline in milliseconds from the start, as the `grpc-timeout` header says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The W3C trace context the caller sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Process ID of the caller, if it came by a unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller_pid: Option<u32>,
    /// When it arrived.
    #[serde(serialize_with = "write_time")]
    pub started: Timestamp,
    /// When it ended.
    #[serde(serialize_with = "write_optional_time", skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// How it went.
    pub outcome: CallResult,
    /// Status code of the answer, or of the work that came too late.
    #[serde(serialize_with = "write_code", skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// True when another call for the same volume and node ran at the same time.
    pub overlap: bool,
}

fn write_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}

#[allow(clippy::ref_option)] // serde asks for this shape.
fn write_optional_time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(time),
        None => serializer.serialize_none(),
    }
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde asks for this shape.
fn write_code<S: Serializer>(code: &Option<Code>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.map_or("", code_name))
}

/// What a request's headers said.
#[derive(Default)]
pub(super) struct Headers {
    pub deadline_ms: Option<u64>,
    pub traceparent: Option<String>,
    pub caller_pid: Option<u32>,
}

/// How many calls run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Now.
    pub now: usize,
    /// At the same time at most, since the mock driver was made.
    pub peak: usize,
}

impl InFlight {
    fn enter(&mut self) {
        self.now += 1;
        self.peak = self.peak.max(self.now);
    }

    fn leave(&mut self) {
        self.now = self.now.saturating_sub(1);
    }
}

type Predicate = Box<dyn Fn(&CallRecord) -> bool + Send>;

struct Waiter {
    wanted: Predicate,
    found: oneshot::Sender<CallRecord>,
}

/// All calls, the oldest forgotten when there are too many.
pub(super) struct CallLog {
    keep: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    first_id: u64,
    records: VecDeque<CallRecord>,
    /// The calls that run now, by volume and node.
    running: HashMap<(String, String), Vec<u64>>,
    in_flight: InFlight,
    in_flight_of: BTreeMap<Method, InFlight>,
    waiters: Vec<Waiter>,
    writer: Option<Box<dyn Write + Send>>,
    /// Told whenever a call arrives or ends.
    changes: watch::Sender<()>,
}

impl CallLog {
    /// An empty log that keeps so many records and writes each finished call as a line of JSON.
    pub fn new(keep: usize, writer: Option<Box<dyn Write + Send>>) -> Self {
        let inner = Inner {
            first_id: 0,
            records: VecDeque::new(),
            running: HashMap::new(),
            in_flight: InFlight::default(),
            in_flight_of: BTreeMap::new(),
            waiters: Vec::new(),
            writer,
            changes: watch::Sender::default(),
        };
        Self {
            keep: keep.max(1),
            inner: Mutex::new(inner),
        }
    }

    /// Writes down that a call arrived. The guard writes down how it ends, also when it is dropped.
    pub fn begin(self: &Arc<Self>, method: Method, facts: &MockFacts, headers: Headers) -> CallGuard {
        let mut inner = self.inner.lock();
        let id = inner.first_id + inner.records.len() as u64;
        let key = facts
            .volume
            .clone()
            .map(|volume| (volume, facts.node.clone().unwrap_or_default()));
        let mut overlap = false;
        if let Some(key) = &key {
            let others = inner.running.entry(key.clone()).or_default();
            overlap = !others.is_empty();
            let earlier = others.clone();
            others.push(id);
            for other in earlier {
                inner.change(other, |record| record.overlap = true);
            }
        }
        inner.records.push_back(new_record(id, method, facts, headers, overlap));
        inner.in_flight.enter();
        inner.in_flight_of.entry(method).or_default().enter();
        while inner.records.len() > self.keep {
            inner.records.pop_front();
            inner.first_id += 1;
        }
        inner.tell(id);
        CallGuard {
            log: Arc::clone(self),
            id,
            method,
            key,
            overlap,
            done: false,
        }
    }

    /// All records that are kept, in the order of arrival.
    pub fn records(&self) -> Vec<CallRecord> {
        self.inner.lock().records.iter().cloned().collect()
    }

    /// How many calls arrived, the forgotten ones included.
    pub fn count(&self) -> u64 {
        let inner = self.inner.lock();
        inner.first_id + inner.records.len() as u64
    }

    /// How many calls run, of one method or of all.
    pub fn in_flight(&self, method: Option<Method>) -> InFlight {
        let inner = self.inner.lock();
        match method {
            Some(method) => inner.in_flight_of.get(&method).copied().unwrap_or_default(),
            None => inner.in_flight,
        }
    }

    /// Sees every call that arrives or ends from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.lock().changes.subscribe()
    }

    /// Gets the first record the predicate holds for: one that is there already, or one that arrives or ends later.
    pub fn wait_for(&self, wanted: Predicate) -> oneshot::Receiver<CallRecord> {
        let (found, receiver) = oneshot::channel();
        let mut inner = self.inner.lock();
        match inner.records.iter().find(|record| wanted(record)).cloned() {
            // A receiver that is gone does not want the record any more.
            Some(record) => drop(found.send(record)),
            None => inner.waiters.push(Waiter { wanted, found }),
        }
        receiver
    }

    fn finish(&self, call: &CallGuard, outcome: CallResult, code: Option<Code>) {
        let id = call.id;
        let mut inner = self.inner.lock();
        if let Some(key) = &call.key
            && let Some(running) = inner.running.get_mut(key)
        {
            running.retain(|other| *other != id);
            if running.is_empty() {
                inner.running.remove(key);
            }
        }
        inner.in_flight.leave();
        inner.in_flight_of.entry(call.method).or_default().leave();
        inner.change(id, |record| {
            record.finished = Some(Timestamp::now());
            record.outcome = outcome;
            record.code = code;
        });
        inner.write(id);
        inner.tell(id);
    }
}

fn new_record(id: u64, method: Method, facts: &MockFacts, headers: Headers, overlap: bool) -> CallRecord {
    CallRecord {
        id,
        method,
        volume: facts.volume.clone(),
        node: facts.node.clone(),
        capability: facts.capability.as_ref().map(CapabilityFacts::from),
        readonly: facts.readonly,
        volume_context: facts.volume_context.clone(),
        creation: facts.creation.as_deref().map(CreationFacts::from),
        max_entries: facts.max_entries,
        starting_token: facts.starting_token.clone(),
        secret_keys: facts.secrets.keys().cloned().collect(),
        deadline_ms: headers.deadline_ms,
        traceparent: headers.traceparent,
        caller_pid: headers.caller_pid,
        started: Timestamp::now(),
        finished: None,
        outcome: CallResult::Running,
        code: None,
        overlap,
    }
}

impl Inner {
    /// The record with that number, unless it was forgotten.
    fn record(&self, id: u64) -> Option<&CallRecord> {
        self.records.get(usize::try_from(id.checked_sub(self.first_id)?).ok()?)
    }

    fn change(&mut self, id: u64, edit: impl FnOnce(&mut CallRecord)) {
        let index = id
            .checked_sub(self.first_id)
            .and_then(|index| usize::try_from(index).ok());
        if let Some(record) = index.and_then(|index| self.records.get_mut(index)) {
            edit(record);
        }
    }

    /// Gives the record to everybody who waits for one like it.
    fn tell(&mut self, id: u64) {
        self.changes.send_replace(());
        let Some(record) = self.record(id).cloned() else { return };
        for waiter in self
            .waiters
            .extract_if(.., |waiter| waiter.found.is_closed() || (waiter.wanted)(&record))
        {
            drop(waiter.found.send(record.clone()));
        }
    }

    /// Writes the record as a line; a log that cannot be written is given up with one message.
    fn write(&mut self, id: u64) {
        let Some(line) = self.record(id).and_then(|record| serde_json::to_string(record).ok()) else {
            return;
        };
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = writeln!(writer, "{line}").and_then(|()| writer.flush()) {
            tracing::error!(%error, "cannot write the call log any more");
            self.writer = None;
        }
    }
}

/// A call that runs. Dropped without an end, it counts as cancelled by the caller.
pub(super) struct CallGuard {
    log: Arc<CallLog>,
    /// Number of the call.
    pub id: u64,
    method: Method,
    key: Option<(String, String)>,
    /// True when another call for the same volume and node ran when this one arrived.
    pub overlap: bool,
    done: bool,
}

impl CallGuard {
    /// Writes down how the call ended.
    pub fn finish(mut self, outcome: CallResult, code: Option<Code>) {
        self.done = true;
        self.log.finish(&self, outcome, code);
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if !self.done {
            self.log.finish(self, CallResult::Cancelled, None);
        }
    }
}
