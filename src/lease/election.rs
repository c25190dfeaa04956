//! The rules of an election, without effects: client-go's `LeaderElector`, with the time handed in.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::record::Record;

/// What one candidate knows of the Lease, and what follows from that.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    duration: Duration,
    known: Option<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    record: Record,
    /// When this process first saw the record as it is.
    since: Instant,
}

/// What to do about the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It belongs to another, at least until this time.
    Wait {
        /// Whose it is.
        holder: String,
        /// When it ends if it is not renewed.
        until: Instant,
    },
    /// There is none: create it with this record.
    Create(Record),
    /// It is free, or ours: write this record over the one that is known.
    Write(Record),
}

impl Election {
    /// A candidate of this name, for a Lease of this duration, that knows nothing yet.
    pub fn new(identity: String, duration: Duration) -> Self {
        Self {
            identity,
            duration,
            known: None,
        }
    }

    /// Takes in what was read. The time counts from when a record was first seen as it is: a holder is alive when it
    /// changes its record, whatever the times in it say.
    pub fn observe(&mut self, seen: Option<Record>, now: Instant) {
        match seen {
            None => self.known = None,
            Some(record) if self.known.as_ref().is_some_and(|known| known.record == record) => {}
            Some(record) => self.known = Some(Known { record, since: now }),
        }
    }

    /// Takes in what the API server made of our own write.
    pub fn written(&mut self, record: Record, now: Instant) {
        self.known = Some(Known { record, since: now });
    }

    /// Whether the known record names us.
    pub fn is_ours(&self) -> bool {
        self.known
            .as_ref()
            .is_some_and(|known| known.record.holder == self.identity)
    }

    /// Who holds the Lease, as far as known.
    pub fn holder(&self) -> Option<&str> {
        let known = self.known.as_ref()?;
        Some(known.record.holder.as_str()).filter(|holder| !holder.is_empty())
    }

    /// Since when the Lease is known to be as it is.
    pub fn since(&self) -> Option<Instant> {
        self.known.as_ref().map(|known| known.since)
    }

    /// What to do.
    pub fn next(&self, now: Instant, clock: Timestamp) -> Next {
        let Some(known) = &self.known else {
            return Next::Create(self.record(clock, Some(clock), 0));
        };
        let (record, until) = (&known.record, known.since + known.record.duration());
        if self.is_ours() {
            return Next::Write(self.record(clock, record.acquired, record.transitions));
        }
        if !record.holder.is_empty() && until > now {
            return Next::Wait {
                holder: record.holder.clone(),
                until,
            };
        }
        Next::Write(self.record(clock, Some(clock), record.transitions.saturating_add(1)))
    }

    /// The renewal that may be written without reading first: while the Lease is ours and did not run out.
    pub fn renewal(&self, now: Instant, clock: Timestamp) -> Option<Record> {
        let known = self.known.as_ref()?;
        let valid = known.since + known.record.duration() > now;
        (self.is_ours() && valid).then(|| self.record(clock, known.record.acquired, known.record.transitions))
    }

    /// The record that gives the Lease up: nobody's, and over in a second. None while it is not ours.
    pub fn resignation(&self, clock: Timestamp) -> Option<Record> {
        let known = self.known.as_ref()?;
        self.is_ours().then(|| Record {
            holder: String::new(),
            duration_seconds: 1,
            acquired: Some(clock),
            renewed: Some(clock),
            transitions: known.record.transitions,
        })
    }

    fn record(&self, clock: Timestamp, acquired: Option<Timestamp>, transitions: i32) -> Record {
        Record {
            holder: self.identity.clone(),
            duration_seconds: i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX),
            acquired,
            renewed: Some(clock),
            transitions,
        }
    }
}
