//! One pass over the attachments of a driver.

use jiff::Timestamp;
use std::sync::Arc;

use super::finding::{Kind, Kinds, Looked, Rules, findings, is_pending};
use super::ledger::{Ledger, Standing};
use super::words::words;

/// How much is told in one pass: ten thousand attachments of a node pool that is gone are one piece of news, and events
/// about attaches that fail must find room.
const MOST_NEWS: usize = 20;
/// How many stuck attachments are named.
const MOST_STUCK: usize = 16;

/// Something that was found for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// What is wrong.
    pub kind: Kind,
    /// With which VolumeAttachment; none when it is the driver as a whole.
    pub attachment: Option<Arc<str>>,
    /// What is wrong, for people.
    pub words: String,
}

/// An attach or detach that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
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
pub struct Summary {
    counts: [usize; Kind::ALL.len()],
    /// One example for each kind, for people.
    examples: [Option<Box<str>>; Kind::ALL.len()],
    /// What is stuck, the longest first; not all when it is many.
    pub stuck: Vec<Stuck>,
}

impl Summary {
    /// How many findings of a kind there are.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize]
    }

    /// One of the findings of a kind, for people.
    pub fn example(&self, kind: Kind) -> Option<&str> {
        self.examples[kind as usize].as_deref()
    }

    /// The kinds of which there are findings, the worst first.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(|kind| self.count(*kind) > 0)
    }
}

/// A pass that is under way.
pub struct Survey<'l> {
    ledger: &'l mut Ledger,
    rules: Rules,
    now: Timestamp,
    summary: Summary,
    news: Vec<News>,
    pending: bool,
}

impl<'l> Survey<'l> {
    /// Begins a pass.
    pub fn begin(ledger: &'l mut Ledger, rules: Rules, now: Timestamp) -> Self {
        ledger.begin();
        Self {
            ledger,
            rules,
            now,
            summary: Summary::default(),
            news: Vec::new(),
            pending: false,
        }
    }

    /// Looks at one attachment.
    pub fn look(&mut self, looked: &Looked<'_>) {
        self.pending |= is_pending(looked.attachment, &looked.driver.finalizer);
        let kinds = findings(looked, self.now, &self.rules);
        if !kinds.is_empty() {
            self.take_in(looked, kinds);
        }
    }

    fn take_in(&mut self, looked: &Looked<'_>, kinds: Kinds) {
        let attachment = looked.attachment;
        for kind in kinds.iter() {
            let text = || words(kind, looked);
            self.found(kind, &attachment.uid, Some(&attachment.name), text);
        }
        if kinds.iter().any(Kind::is_stuck) {
            self.stuck(looked);
        }
    }

    /// Takes in what is wrong with the driver as a whole. `uid` is that of the object which is at fault.
    pub fn of_driver(&mut self, kind: Kind, uid: &str, text: &str) {
        self.found(kind, uid, None, || text.to_owned());
    }

    fn found(&mut self, kind: Kind, uid: &str, attachment: Option<&Arc<str>>, text: impl Fn() -> String) {
        let standing = self.ledger.see(kind, uid, self.now, kind.patience(&self.rules));
        if standing == Standing::Waiting {
            return;
        }
        self.summary.counts[kind as usize] += 1;
        let example = &mut self.summary.examples[kind as usize];
        if example.is_none() {
            *example = Some(text().into());
        }
        if standing == Standing::Untold && self.news.len() < MOST_NEWS {
            self.ledger.tell(kind, uid);
            self.news.push(News {
                kind,
                attachment: attachment.cloned(),
                words: text(),
            });
        }
    }

    fn stuck(&mut self, looked: &Looked<'_>) {
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
            Kind::DetachStuck
        } else {
            Kind::AttachStuck
        };
        stuck.truncate(MOST_STUCK - 1);
        stuck.insert(
            at,
            Stuck {
                name: attachment.name.clone(),
                uid: attachment.uid.clone(),
                since,
                words: words(kind, looked),
            },
        );
    }

    /// Ends the pass. The last answer is whether another one over the same objects would find the same, later too.
    pub fn end(self) -> (Summary, Vec<News>, bool) {
        self.ledger.end();
        let lasting = !self.pending && self.ledger.is_empty();
        (self.summary, self.news, lasting)
    }
}
