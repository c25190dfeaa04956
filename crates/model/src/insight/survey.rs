//! One pass over the attachments of a driver.

use jiff::Timestamp;
use std::sync::Arc;

use super::finding::{FindingInput, FindingKind, FindingKinds, FindingThresholds, findings, is_pending};
use super::ledger::{FindingHistory, FindingState};
use super::words::finding_message;

/// How much is told in one pass: ten thousand attachments of a node pool that is gone are one piece of news, and events
/// about attaches that fail must find room.
const MOST_NEWS: usize = 20;
/// How many stuck attachments are named.
const MOST_STUCK: usize = 16;

/// Something that was found for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFinding {
    /// What is wrong.
    pub kind: FindingKind,
    /// With which VolumeAttachment; none when it is the driver as a whole.
    pub attachment: Option<Arc<str>>,
    /// What is wrong, for people.
    pub words: String,
}

/// An attach or detach that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckAttachment {
    /// Name of the VolumeAttachment.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Box<str>,
    /// When the attach or detach was asked for.
    pub since: Timestamp,
    /// What is wrong, for people.
    pub words: String,
}

/// What is wrong with the attachments of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FindingsSummary {
    counts: [usize; FindingKind::ALL.len()],
    /// One example for each kind, for people.
    examples: [Option<Box<str>>; FindingKind::ALL.len()],
    /// What is stuck, the longest first; not all when it is many.
    pub stuck: Vec<StuckAttachment>,
}

impl FindingsSummary {
    /// How many findings of a kind there are.
    pub fn count(&self, kind: FindingKind) -> usize {
        self.counts[kind as usize]
    }

    /// One of the findings of a kind, for people.
    pub fn example(&self, kind: FindingKind) -> Option<&str> {
        self.examples[kind as usize].as_deref()
    }

    /// The kinds of which there are findings, the worst first.
    pub fn kinds(&self) -> impl Iterator<Item = FindingKind> {
        FindingKind::ALL.iter().copied().filter(|kind| self.count(*kind) > 0)
    }
}

/// A pass that is under way.
pub struct FindingsPass<'l> {
    ledger: &'l mut FindingHistory,
    rules: FindingThresholds,
    now: Timestamp,
    summary: FindingsSummary,
    news: Vec<NewFinding>,
    /// Whether a later pass over the same objects may find something else, or has something left to tell.
    pending: bool,
}

impl<'l> FindingsPass<'l> {
    /// Begins a pass.
    pub fn begin(ledger: &'l mut FindingHistory, rules: FindingThresholds, now: Timestamp) -> Self {
        ledger.begin();
        Self {
            ledger,
            rules,
            now,
            summary: FindingsSummary::default(),
            news: Vec::new(),
            pending: false,
        }
    }

    /// Looks at one attachment.
    pub fn look(&mut self, looked: &FindingInput<'_>) {
        let kinds = findings(looked, self.now, &self.rules);
        // That another writes ends by time alone.
        let passes = kinds.contains(FindingKind::OtherAttacher);
        self.pending |= passes || is_pending(looked.attachment, &looked.driver.finalizer);
        if !kinds.is_empty() {
            self.take_in(looked, kinds);
        }
    }

    fn take_in(&mut self, looked: &FindingInput<'_>, kinds: FindingKinds) {
        let attachment = looked.attachment;
        for kind in kinds.iter() {
            let text = || finding_message(kind, looked);
            self.found(kind, &attachment.uid, Some(&attachment.name), text);
        }
        if kinds.iter().any(FindingKind::is_stuck) {
            self.stuck(looked);
        }
    }

    /// Takes in what is wrong with the driver as a whole. `uid` is that of the object which is at fault.
    pub fn of_driver(&mut self, kind: FindingKind, uid: &str, text: &str) {
        self.found(kind, uid, None, || text.to_owned());
    }

    fn found(&mut self, kind: FindingKind, uid: &str, attachment: Option<&Arc<str>>, text: impl Fn() -> String) {
        let standing = self.ledger.observe(kind, uid, self.now, kind.min_age(&self.rules));
        if standing == FindingState::Pending {
            self.pending = true;
            return;
        }
        self.summary.counts[kind as usize] += 1;
        let example = &mut self.summary.examples[kind as usize];
        if example.is_none() {
            *example = Some(text().into());
        }
        if standing != FindingState::New {
            return;
        }
        if self.news.len() < MOST_NEWS {
            self.ledger.mark_reported(kind, uid);
            self.news.push(NewFinding {
                kind,
                attachment: attachment.cloned(),
                words: text(),
            });
        } else {
            self.pending = true;
        }
    }

    fn stuck(&mut self, looked: &FindingInput<'_>) {
        let attachment = looked.attachment;
        let Some(since) = attachment.deleting.or(attachment.created) else {
            return;
        };
        let stuck = &mut self.summary.stuck;
        let at = stuck.partition_point(|known| (known.since, &known.name) <= (since, &attachment.name));
        if at >= MOST_STUCK {
            return;
        }
        let kind = if attachment.deleting.is_some() {
            FindingKind::DetachStuck
        } else {
            FindingKind::AttachStuck
        };
        stuck.truncate(MOST_STUCK - 1);
        stuck.insert(
            at,
            StuckAttachment {
                name: attachment.name.clone(),
                uid: attachment.uid.clone(),
                since,
                words: finding_message(kind, looked),
            },
        );
    }

    /// Ends the pass. The last answer is whether another one over the same objects would find the same, later too.
    pub fn end(self) -> (FindingsSummary, Vec<NewFinding>, bool) {
        self.ledger.end();
        (self.summary, self.news, !self.pending)
    }
}
