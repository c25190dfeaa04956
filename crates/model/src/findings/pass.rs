//! One pass over the attachments of a driver, and what is remembered from pass to pass.

use jiff::Timestamp;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use super::finding::{FindingInput, FindingKind, age, findings};
use super::message::finding_message;
use crate::decide::is_settled;

/// How many new findings one pass reports: ten thousand attachments of a node pool that is gone have one cause, and Events
/// about attaches that fail must find room.
const MAX_NEW: usize = 20;
/// How many stuck attachments have their names listed.
const MAX_STUCK: usize = 16;

/// Since when each finding of one driver has been there, and how far it is: some 30 bytes for each, kept by a hash of
/// kind and UID.
#[derive(Clone, Debug, Default)]
pub struct FindingHistory {
    seen: HashMap<u64, FindingRecord>,
    pass: u64,
}

#[derive(Clone, Copy, Debug)]
struct FindingRecord {
    first: Timestamp,
    /// The last pass in which it was there.
    pass: u64,
    /// It goes forward only: what counts goes on counting while it is there, also when the clock is set back.
    state: FindingState,
}

/// How far a finding is on its way to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingState {
    /// It is there, and may pass by itself.
    Pending,
    /// It counts, and was not reported.
    New,
    /// It counts, and was reported in an earlier pass.
    Reported,
}

impl FindingHistory {
    /// Begins a pass.
    pub fn begin(&mut self) {
        self.pass += 1;
    }

    /// Records that a finding about the object of this UID is there. It counts once it is older than `min_age`.
    pub fn observe(&mut self, kind: FindingKind, uid: &str, now: Timestamp, min_age: Duration) -> FindingState {
        let pass = self.pass;
        let seen = self.seen.entry(hash(kind, uid)).or_insert(FindingRecord {
            first: now,
            pass,
            state: FindingState::Pending,
        });
        // A clock that was set back makes no wait longer.
        (seen.pass, seen.first) = (pass, seen.first.min(now));
        if seen.state == FindingState::Pending && age(seen.first, now) >= min_age {
            seen.state = FindingState::New;
        }
        seen.state
    }

    /// Records that a finding was reported.
    pub fn mark_reported(&mut self, kind: FindingKind, uid: &str) {
        if let Some(seen) = self.seen.get_mut(&hash(kind, uid)) {
            seen.state = FindingState::Reported;
        }
    }

    /// Ends a pass: what was not seen in it is over.
    pub fn end(&mut self) {
        let pass = self.pass;
        self.seen.retain(|_, seen| seen.pass == pass);
        // After a day on which everything was wrong.
        if self.seen.capacity() > 4 * self.seen.len() + 64 {
            self.seen.shrink_to_fit();
        }
    }
}

fn hash(kind: FindingKind, uid: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((kind, uid))
}

/// A finding that counts for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFinding {
    /// Which problem it is.
    pub kind: FindingKind,
    /// Name of the object; none when it is about the driver as a whole.
    pub object: Option<Arc<str>>,
    /// Its UID, or that of the object which is at fault.
    pub uid: Box<str>,
    /// The sentence of the Event ([`finding_message`]).
    pub words: String,
}

/// An attach or detach that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckAttachment {
    /// Name of the VolumeAttachment.
    pub name: Arc<str>,
    /// UID of the VolumeAttachment.
    pub uid: Box<str>,
    /// When the attach or detach was requested.
    pub since: Timestamp,
    /// The sentence of the condition ([`finding_message`]).
    pub words: String,
}

/// What one pass found out about the attachments of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FindingsSummary {
    counts: [usize; FindingKind::ALL.len()],
    /// The sentence of one finding of each kind.
    examples: [Option<Box<str>>; FindingKind::ALL.len()],
    /// The stuck attachments, the oldest first; at most [`MAX_STUCK`] of them.
    pub stuck: Vec<StuckAttachment>,
}

impl FindingsSummary {
    /// How many findings of a kind there are.
    pub fn count(&self, kind: FindingKind) -> usize {
        self.counts[kind as usize]
    }

    /// The sentence of one finding of a kind.
    pub fn example(&self, kind: FindingKind) -> Option<&str> {
        self.examples[kind as usize].as_deref()
    }

    /// The kinds of which there are findings, the worst first.
    pub fn kinds(&self) -> impl Iterator<Item = FindingKind> {
        FindingKind::ALL.iter().copied().filter(|kind| self.count(*kind) > 0)
    }
}

/// A pass that is under way.
pub struct FindingsPass<'h> {
    history: &'h mut FindingHistory,
    stuck_after: Duration,
    now: Timestamp,
    summary: FindingsSummary,
    new: Vec<NewFinding>,
    most_new: usize,
    /// Whether a later pass over the same objects may find something else, or has something left to report.
    pending: bool,
}

impl<'h> FindingsPass<'h> {
    /// Begins a pass.
    pub fn begin(history: &'h mut FindingHistory, stuck_after: Duration, now: Timestamp) -> Self {
        history.begin();
        Self {
            history,
            stuck_after,
            now,
            summary: FindingsSummary::default(),
            new: Vec::new(),
            most_new: MAX_NEW,
            pending: false,
        }
    }

    /// Reports one new finding at most: for passes that follow each other within a second.
    #[must_use]
    pub fn frequent(self) -> Self {
        Self { most_new: 1, ..self }
    }

    /// Examines one attachment.
    pub fn examine(&mut self, input: &FindingInput<'_>) {
        let attachment = input.attachment;
        let kinds = findings(input, self.now, self.stuck_after);
        // Another attacher's write counts for some minutes, so this finding ends by time alone.
        let passes = kinds.contains(&FindingKind::OtherAttacher);
        self.pending |= passes || !is_settled(attachment, &input.driver.finalizer);
        for kind in kinds.iter().copied() {
            let text = || finding_message(kind, input);
            self.found(kind, &attachment.uid, Some(&attachment.name), text);
        }
        if kinds.iter().any(|kind| kind.is_stuck()) {
            self.stuck(input);
        }
    }

    /// Records a finding about an object that was examined elsewhere, or about the driver as a whole; `uid` is that of the object which is
    /// at fault. The text is asked for only where it is told.
    pub fn found(&mut self, kind: FindingKind, uid: &str, object: Option<&Arc<str>>, text: impl Fn() -> String) {
        let min_age = kind.min_age(self.stuck_after);
        let state = self.history.observe(kind, uid, self.now, min_age);
        if state == FindingState::Pending {
            self.pending = true;
            return;
        }
        self.summary.counts[kind as usize] += 1;
        self.summary.examples[kind as usize].get_or_insert_with(|| text().into());
        if state != FindingState::New {
            return;
        }
        if self.new.len() < self.most_new {
            self.history.mark_reported(kind, uid);
            self.new.push(NewFinding {
                kind,
                object: object.cloned(),
                uid: uid.into(),
                words: text(),
            });
        } else {
            self.pending = true;
        }
    }

    fn stuck(&mut self, input: &FindingInput<'_>) {
        let attachment = input.attachment;
        let Some(since) = attachment.pending_since() else {
            return;
        };
        let stuck = &mut self.summary.stuck;
        let at = stuck.partition_point(|known| (known.since, &known.name) <= (since, &attachment.name));
        if at >= MAX_STUCK {
            return;
        }
        stuck.truncate(MAX_STUCK - 1);
        stuck.insert(
            at,
            StuckAttachment {
                name: attachment.name.clone(),
                uid: attachment.uid.clone(),
                since,
                words: finding_message(FindingKind::stuck(attachment), input),
            },
        );
    }

    /// Ends the pass. The last answer is whether another one over the same objects would find the same, later too.
    pub fn end(self) -> (FindingsSummary, Vec<NewFinding>, bool) {
        self.history.end();
        (self.summary, self.new, !self.pending)
    }
}
