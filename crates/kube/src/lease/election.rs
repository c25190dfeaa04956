//! The rules of an election, without effects: client-go's `LeaderElector`, with the time handed in, and three rules more.
//!
//! Who creates a Lease outside of a term creates it in nobody's name ([`NEW_LEASE_HOLDER`]), and waits until it has run out as everybody
//! does: somebody may have deleted a Lease whose holder works until its next renewal. Everything that matters of that is in the Lease,
//! so that it lasts when the process ends. A Lease that vanished while another held it is left alone for its duration, so that its
//! holder can create it again and work on. And a Lease that names this candidate is its own only as long as
//! nobody else writes it: of two processes of one name, the one that finds a record that it did not write competes from then on as with a stranger.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::record::LeaderElectionRecord;
use crate::api::names::NEW_LEASE_HOLDER;

/// One rule each. All are true in production; the drop-in mode creates Leases as the sidecar does. Tests leave one of them out, to show
/// that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRules {
    /// Who creates a Lease outside of a term waits until it has run out: the holder of a Lease that was deleted may not know.
    pub creators_wait: bool,
    /// A call is made only while the Lease is held by both clocks.
    pub calls_need_the_lease: bool,
}

impl Default for LeaseRules {
    fn default() -> Self {
        Self {
            creators_wait: true,
            calls_need_the_lease: true,
        }
    }
}

/// So many writes may be on their way whose end is not known.
const MAX_OWN_WRITES: usize = 16;

/// What one candidate knows of the Lease, and what follows from that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElectionState {
    /// Whether the candidate competes. If not, a Lease that names it may be held by another candidate of this process.
    pub competes: bool,
    identity: String,
    duration: Duration,
    known: Option<ObservedRecord>,
    /// The renew times of what this candidate wrote, or may have written, since the record that it took over: each write of a holder has a
    /// time of its own.
    own_writes: VecDeque<Option<Timestamp>>,
    has_looked: bool,
    rules: LeaseRules,
}

/// What was seen of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObservedRecord {
    /// What it said last.
    pub record: LeaderElectionRecord,
    /// When this process first saw the record as it is, or that it is gone.
    pub since: Instant,
    /// Whether the Lease is there; one that vanished is believed to be held on.
    pub exists: bool,
}

impl ObservedRecord {
    fn new(record: LeaderElectionRecord, since: Instant) -> Self {
        Self {
            record,
            since,
            exists: true,
        }
    }

    /// When it ends if it is not renewed.
    pub fn until(&self) -> Instant {
        self.since + self.record.duration()
    }
}

/// What to do about the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// It belongs to another, at least until this time, at which it ends if it is not renewed.
    Wait(Instant),
    /// There is none: create it with this record.
    Create(LeaderElectionRecord),
    /// It is free, or ours: write this record over the one that is known.
    Write(LeaderElectionRecord),
}

impl ElectionState {
    /// A candidate of this name, for a Lease of this duration, that knows nothing yet.
    pub fn new(identity: String, duration: Duration, rules: LeaseRules) -> Self {
        Self {
            competes: false,
            identity,
            duration,
            known: None,
            own_writes: VecDeque::new(),
            has_looked: false,
            rules,
        }
    }

    /// Takes in what was read. The time counts from when a record was first seen as it is: a holder is alive when it
    /// changes its record, whatever the times in it say. A Lease that names this candidate when it first looks is its own, of before this process
    /// started again. What another candidate of this process wrote later, and could not release, is waited for.
    pub fn observe(&mut self, seen: Option<LeaderElectionRecord>, now: Instant) {
        let ours = self.is_written_by_us();
        if !std::mem::replace(&mut self.has_looked, true)
            && let Some(record) = seen.as_ref().filter(|record| record.holder == self.identity)
        {
            self.own_writes.push_back(record.renewed);
        }
        match (seen, &mut self.known) {
            (None, Some(known)) if !ours && !known.record.holder.is_empty() => {
                if std::mem::replace(&mut known.exists, false) {
                    known.since = now;
                }
            }
            (None, known) => *known = None,
            (Some(record), Some(known)) if known.record == record => known.exists = true,
            (Some(record), known) => *known = Some(ObservedRecord::new(record, now)),
        }
    }

    /// A record is about to be written; whether it was is not known before the answer.
    pub fn attempts(&mut self, record: &LeaderElectionRecord) {
        if self.competes {
            if self.own_writes.len() >= MAX_OWN_WRITES {
                self.own_writes.pop_front();
            }
            // As it is read again: times in a Lease have microseconds.
            let stored = |time: Timestamp| Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time);
            self.own_writes.push_back(record.renewed.map(stored));
        }
    }

    /// Takes in what the API server made of our own write.
    pub fn record_written(&mut self, record: LeaderElectionRecord, now: Instant) {
        if self.competes {
            self.own_writes = VecDeque::from([record.renewed]);
        }
        self.known = Some(ObservedRecord::new(record, now));
    }

    /// Whether the Lease was seen at all, or seen not to be there.
    pub fn has_looked(&self) -> bool {
        self.has_looked
    }

    /// What was seen of the Lease last.
    pub fn known(&self) -> Option<&ObservedRecord> {
        self.known.as_ref()
    }

    /// Whether this candidate wrote a record that names it, or may have written it, since the one that it took over. One with the time of
    /// ours is ours, whatever else somebody has edited in it.
    pub fn has_written(&self, record: &LeaderElectionRecord) -> bool {
        self.own_writes.contains(&record.renewed)
    }

    /// Whether the Lease is ours, `holds` says whether we are in a term. Outside of a term a record that created the Lease is not: the
    /// request may have been under way for long, and another replica may have held the Lease meanwhile. Such a record has no transition.
    pub fn is_ours(&self, holds: bool) -> bool {
        let is_created = |known: &ObservedRecord| self.rules.creators_wait && known.record.transitions == 0;
        self.is_written_by_us() && (holds || !self.known.as_ref().is_some_and(is_created))
    }

    /// Whether the known record names us, and was not written by somebody else of our name.
    fn is_written_by_us(&self) -> bool {
        let Some(ObservedRecord { record, .. }) = &self.known else {
            return false;
        };
        record.holder == self.identity && (!self.competes || self.has_written(record))
    }

    /// When the Lease was renewed, if it names us and is not ours. Another process of our name holds it then, or the API server went back to a
    /// record from before our own: the former alone is renewed again. The times of two processes cannot be compared.
    pub fn renewed_in_our_name(&self) -> Option<Timestamp> {
        let record = &self.known.as_ref()?.record;
        record
            .renewed
            .filter(|_| record.holder == self.identity && !self.is_written_by_us())
    }

    /// Who holds the Lease, as far as known.
    pub fn holder(&self) -> Option<&str> {
        let known = self.known.as_ref()?;
        Some(known.record.holder.as_str()).filter(|holder| !holder.is_empty())
    }

    /// What to do about the Lease at this moment, `clock` by the clock of the machine; `holds` says whether we are in a term.
    pub fn next(&self, now: Instant, clock: Timestamp, holds: bool) -> LeaseAction {
        let Some(known) = &self.known else {
            return LeaseAction::Create(self.first_record(clock, holds));
        };
        let (record, until) = (&known.record, known.until());
        if self.is_ours(holds) {
            return LeaseAction::Write(self.renewal(clock, record));
        }
        if !record.holder.is_empty() && until > now {
            return LeaseAction::Wait(until);
        }
        if !known.exists {
            return LeaseAction::Create(self.first_record(clock, holds));
        }
        LeaseAction::Write(self.record(clock, Some(clock), record.transitions.saturating_add(1)))
    }

    /// The renewal that may be written without reading first: while the Lease is ours and did not run out.
    pub fn renewed_record(&self, now: Instant, clock: Timestamp, holds: bool) -> Option<LeaderElectionRecord> {
        let known = self.known.as_ref()?;
        let is_valid = known.exists && known.until() > now;
        (is_valid && self.is_ours(holds)).then(|| self.renewal(clock, &known.record))
    }

    /// The record that gives the Lease up: nobody's, and over in a second. None while it is not ours; `held` says whether we were in a term.
    pub fn release_record(&self, clock: Timestamp, held: bool) -> Option<LeaderElectionRecord> {
        let known = self.known.as_ref()?;
        self.is_ours(held).then(|| LeaderElectionRecord {
            holder: String::new(),
            duration_seconds: 1,
            acquired: Some(clock),
            renewed: Some(clock),
            transitions: known.record.transitions,
        })
    }

    /// The record that creates the Lease: ours in a term, and nobody's outside of one.
    fn first_record(&self, clock: Timestamp, holds: bool) -> LeaderElectionRecord {
        let mut record = self.record(clock, Some(clock), 0);
        if self.rules.creators_wait && !holds {
            NEW_LEASE_HOLDER.clone_into(&mut record.holder);
        }
        record
    }

    /// The record that renews ours. It has a transition, as it is written over a version that was seen.
    fn renewal(&self, clock: Timestamp, over: &LeaderElectionRecord) -> LeaderElectionRecord {
        let least = i32::from(self.rules.creators_wait);
        self.record(clock, over.acquired, over.transitions.max(least))
    }

    fn record(&self, clock: Timestamp, acquired: Option<Timestamp>, transitions: i32) -> LeaderElectionRecord {
        LeaderElectionRecord {
            holder: self.identity.clone(),
            duration_seconds: i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX),
            acquired,
            renewed: Some(clock),
            transitions,
        }
    }
}
