//! What to write for an occurrence: a new event, a count on the one that is there, or nothing yet. Pure: time is given.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use super::event::{InvolvedObject, NewEvent};
use crate::api::EventType;
use crate::api::condition::whole_seconds;
use crate::api::names::{EVENT_TRACE_ANNOTATION, FIELD_MANAGER, TRACEPARENT_ANNOTATION};
use crate::decide::{cut, plain};
use crate::queue::{Rate, TokenBucket};

/// The API server's limit on `Event.message`, in bytes.
const MAX_NOTE_BYTES: usize = 1024;
/// Occurrences of one reason on one object within this time of each other are counted on one event.
const ONE_SERIES: Duration = Duration::from_mins(10);
/// An event that is repeated is written anew no more often than this.
const REWRITE_INTERVAL: Duration = Duration::from_secs(30);
/// Most series that are remembered; what is forgotten only starts a new event.
const MAX_SERIES: usize = 4096;

/// One write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EventWrite {
    pub driver: Arc<str>,
    pub reason: &'static str,
    pub namespace: Box<str>,
    /// Name of the event to change; none to create one.
    pub change: Option<Box<str>>,
    pub body: Value,
}

impl EventWrite {
    pub fn name(&self) -> &str {
        let created = self.body["metadata"]["name"].as_str();
        self.change.as_deref().or(created).unwrap_or_default()
    }
}

/// What each driver may write: Normal events must not use up what Warnings need.
type EventBudgets = HashMap<(Arc<str>, EventType), TokenBucket>;

/// An event that was written.
#[derive(Debug)]
pub(super) struct EventEntry {
    name: Box<str>,
    namespace: Box<str>,
    driver: Arc<str>,
    note: String,
    traceparent: Option<String>,
    count: u64,
    last: Timestamp,
    seen: Instant,
    written: Instant,
    /// Whether it happened again since it was written.
    changed: bool,
}

impl EventEntry {
    fn write(&mut self, reason: &'static str, now: Instant) -> EventWrite {
        self.changed = false;
        self.written = now;
        EventWrite {
            driver: self.driver.clone(),
            reason,
            namespace: self.namespace.clone(),
            change: Some(self.name.clone()),
            body: json!({
                "count": self.count,
                "lastTimestamp": whole_seconds(self.last).to_string(),
                "message": self.note,
                "metadata": {"annotations": annotations(self.traceparent.as_deref())},
            }),
        }
    }
}

/// UID of the object, reason, level and cause: neither an exception nor another cause is to be counted on what is known, where its words
/// would wait.
type EventKey = (Box<str>, &'static str, EventType, Box<str>);

/// What was written, and about what.
#[derive(Debug, Default)]
pub(super) struct EventSeries {
    instance: String,
    pub entries: HashMap<EventKey, EventEntry>,
    budgets: EventBudgets,
    number: u64,
}

impl EventSeries {
    pub fn new(instance: String) -> Self {
        Self {
            instance,
            ..Self::default()
        }
    }

    /// The write that an occurrence asks for on one of its objects. An error is what the budget does not allow.
    pub fn observe(
        &mut self,
        occurrence: &NewEvent,
        subject: &InvolvedObject,
        now: Instant,
    ) -> Result<Option<EventWrite>, ()> {
        let key = (
            subject.uid.clone(),
            occurrence.reason,
            occurrence.level,
            occurrence.cause.clone(),
        );
        let note = cut(&plain(&occurrence.note), MAX_NOTE_BYTES).to_owned();
        if let Some(entry) = self.entries.get_mut(&key)
            && now.saturating_duration_since(entry.seen) < ONE_SERIES
        {
            entry.count += 1;
            entry.note = note;
            entry.traceparent.clone_from(&occurrence.traceparent);
            entry.last = occurrence.at;
            entry.seen = now;
            entry.changed = true;
            let rested = now.saturating_duration_since(entry.written) >= REWRITE_INTERVAL;
            // Otherwise it is counted, and written when its time comes.
            let is_due = rested && take_spare(&mut self.budgets, &occurrence.driver, occurrence.level, now);
            return Ok(is_due.then(|| entry.write(occurrence.reason, now)));
        }
        if !budget(&mut self.budgets, &occurrence.driver, occurrence.level, now).try_take(now) {
            return Err(());
        }
        let entry = self.entry(occurrence, subject, note, now);
        let write = create(occurrence, subject, &entry, &self.instance);
        self.make_room(now);
        self.entries.insert(key, entry);
        Ok(Some(write))
    }

    /// The counts that waited for their time, as far as the budgets allow.
    pub fn due(&mut self, now: Instant) -> Vec<EventWrite> {
        let Self { entries, budgets, .. } = self;
        let due = entries.iter_mut().filter(|((.., level, _), entry)| {
            let rested = entry.changed && now.saturating_duration_since(entry.written) >= REWRITE_INTERVAL;
            rested && take_spare(budgets, &entry.driver, *level, now)
        });
        due.map(|((_, reason, ..), entry)| entry.write(reason, now)).collect()
    }

    /// Forgets an event that is not there any more.
    pub fn forget(&mut self, name: &str) {
        self.entries.retain(|_, entry| &*entry.name != name);
    }

    fn entry(&mut self, occurrence: &NewEvent, subject: &InvolvedObject, note: String, now: Instant) -> EventEntry {
        self.number += 1;
        // As client-go names them: the object's name and a number that nobody else will think of.
        let unique = i128::from(self.number) + occurrence.at.as_nanosecond();
        let namespace = Some(&*subject.namespace).filter(|namespace| !namespace.is_empty());
        EventEntry {
            name: format!("{}.{unique:x}", short(&subject.name)).into(),
            namespace: namespace.unwrap_or("default").into(),
            driver: occurrence.driver.clone(),
            note,
            traceparent: occurrence.traceparent.clone(),
            count: 1,
            last: occurrence.at,
            seen: now,
            written: now,
            changed: false,
        }
    }

    fn make_room(&mut self, now: Instant) {
        if self.entries.len() < MAX_SERIES {
            return;
        }
        self.entries
            .retain(|_, entry| now.saturating_duration_since(entry.seen) < ONE_SERIES);
        if self.entries.len() >= MAX_SERIES {
            self.entries.clear();
        }
    }
}

/// Takes from the budget of a driver for a count, if more than half is left: thousands that are repeated must not keep new ones from being
/// made.
fn take_spare(budgets: &mut EventBudgets, driver: &Arc<str>, level: EventType, now: Instant) -> bool {
    let budget = budget(budgets, driver, level, now);
    let (rate, burst) = rate_of(level);
    budget.full_in(now) <= Duration::from_secs(u64::from(burst / rate / 2)) && budget.try_take(now)
}

fn budget<'b>(budgets: &'b mut EventBudgets, driver: &Arc<str>, level: EventType, now: Instant) -> &'b mut TokenBucket {
    let full = || {
        let (rate, burst) = rate_of(level);
        TokenBucket::new(Rate::from(rate).with_burst(burst), now)
    };
    budgets.entry((driver.clone(), level)).or_insert_with(full)
}

/// How many events in a second, and at once after a pause.
fn rate_of(level: EventType) -> (u32, u32) {
    match level {
        EventType::Normal => (10, 100),
        EventType::Warning => (5, 200),
    }
}

fn create(occurrence: &NewEvent, subject: &InvolvedObject, entry: &EventEntry, instance: &str) -> EventWrite {
    let at = whole_seconds(occurrence.at).to_string();
    EventWrite {
        driver: occurrence.driver.clone(),
        reason: occurrence.reason,
        namespace: entry.namespace.clone(),
        change: None,
        body: json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": entry.name,
                "namespace": entry.namespace,
                "annotations": annotations(occurrence.traceparent.as_deref()),
            },
            "involvedObject": subject,
            "reason": occurrence.reason,
            "type": occurrence.level.as_str(),
            "message": entry.note,
            "source": {"component": FIELD_MANAGER, "host": instance},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": instance,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }),
    }
}

/// The trace of an attempt: as programs read it, and its ID alone for people.
fn annotations(traceparent: Option<&str>) -> Value {
    let trace_id = traceparent.and_then(|context| context.split('-').nth(1));
    match (traceparent, trace_id) {
        (Some(context), Some(id)) => json!({TRACEPARENT_ANNOTATION: context, EVENT_TRACE_ANNOTATION: id}),
        _ => Value::Null,
    }
}

/// The name of an event has room for that of its object, unless that is as long as a name can be.
fn short(name: &str) -> &str {
    cut(name, 200).trim_end_matches(['.', '-'])
}
