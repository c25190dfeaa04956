//! The attachments of one PersistentVolume, by what the others of that volume need to know of them.
//!
//! A volume for many nodes can have thousands of attachments, which may all be deleted at the same time. What one of them
//! needs of the others is therefore found without going through them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::decide;
use crate::objects::Attachment;

/// The names of some attachments: mostly one, which costs no more than itself.
#[derive(Clone, Debug)]
pub(super) enum Names {
    One(Arc<str>),
    Many(BTreeSet<Arc<str>>),
}

impl Names {
    pub fn add(&mut self, name: &Arc<str>) {
        match self {
            Self::One(known) if known == name => {}
            Self::One(known) => *self = Self::Many([known.clone(), name.clone()].into()),
            Self::Many(names) => {
                names.insert(name.clone());
            }
        }
    }

    /// Takes a name out; true when none is left.
    pub fn remove(&mut self, name: &Arc<str>) -> bool {
        match self {
            Self::One(known) => known == name,
            Self::Many(names) => {
                names.remove(name);
                names.is_empty()
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, many) = match self {
            Self::One(name) => (Some(name), None),
            Self::Many(names) => (None, Some(names)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// Attachments by driver and by where they are: a node or a node ID. The last part is the name; none comes before all.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(BTreeSet<Entry>);

type Entry = (Arc<str>, Arc<str>, Option<Arc<str>>);

impl Places {
    fn add(&mut self, record: &Attachment, place: &str) {
        self.0
            .insert((record.attacher.clone(), place.into(), Some(record.name.clone())));
    }

    fn remove(&mut self, record: &Attachment, place: &str) {
        self.0
            .remove(&(record.attacher.clone(), place.into(), Some(record.name.clone())));
    }

    /// Those of a driver at a place.
    pub fn at<'a>(&'a self, driver: &Arc<str>, place: &str) -> impl Iterator<Item = &'a Arc<str>> {
        let (from, to) = (start(driver, place), after(driver, place));
        self.0.range(from..to).filter_map(|(_, _, name)| name.as_ref())
    }

    /// Those of a driver at other places.
    pub fn elsewhere<'a>(&'a self, driver: &Arc<str>, place: &str) -> impl Iterator<Item = &'a Arc<str>> {
        let before = self.0.range(start(driver, "")..start(driver, place));
        let after = self.0.range(after(driver, place)..after_driver(driver));
        before.chain(after).filter_map(|(_, _, name)| name.as_ref())
    }

    /// All those of a driver.
    pub fn of<'a>(&'a self, driver: &Arc<str>) -> impl Iterator<Item = &'a Arc<str>> {
        let all = self.0.range(start(driver, "")..after_driver(driver));
        all.filter_map(|(_, _, name)| name.as_ref())
    }

    /// At how many places those of a driver are; 2 stands for all numbers from there on.
    pub fn count(&self, driver: &Arc<str>) -> usize {
        let end = after_driver(driver);
        let first = self.0.range(start(driver, "")..end.clone()).next();
        let Some((_, place, _)) = first else { return 0 };
        let others = self.0.range(after(driver, place)..end).next();
        1 + usize::from(others.is_some())
    }
}

fn start(driver: &Arc<str>, place: &str) -> Entry {
    (driver.clone(), place.into(), None)
}

/// No text is between another one and that with a NUL behind it.
fn after(driver: &Arc<str>, place: &str) -> Entry {
    (driver.clone(), format!("{place}\0").into(), None)
}

fn after_driver(driver: &Arc<str>) -> Entry {
    (format!("{driver}\0").into(), "".into(), None)
}

/// The attachments of a volume that has several.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    names: BTreeSet<Arc<str>>,
    /// Being deleted; by node, and by node ID.
    pub deleting: Places,
    pub deleting_from: Places,
    /// For whose detach an attach on another node waits ([`decide::is_leaving`]); by node.
    pub leaving: Places,
    /// Attached and wanted ([`decide::is_in_use`]); by node, and by node ID.
    pub in_use: Places,
    pub in_use_at: Places,
    /// Wanted, and attached or carrying the driver's finalizer ([`decide::holds_its_place`]); by node ID.
    pub claimed_at: Places,
    /// Wanted and not attached yet; by node.
    pub waiting: Places,
}

impl Shared {
    fn add(&mut self, record: &Attachment, finalizer: &str) {
        self.names.insert(record.name.clone());
        self.each_place(record, finalizer, Places::add);
    }

    fn remove(&mut self, record: &Attachment, finalizer: &str) {
        self.names.remove(&record.name);
        self.each_place(record, finalizer, Places::remove);
    }

    /// Does something to each set that an attachment belongs to.
    fn each_place(&mut self, record: &Attachment, finalizer: &str, act: fn(&mut Places, &Attachment, &str)) {
        let (node, id) = (&*record.node, record.node_id.as_deref());
        if record.deleting.is_some() {
            act(&mut self.deleting, record, node);
            if let Some(id) = id {
                act(&mut self.deleting_from, record, id);
            }
        } else if !record.attached {
            act(&mut self.waiting, record, node);
        }
        if decide::is_leaving(record, finalizer) {
            act(&mut self.leaving, record, node);
        }
        if decide::is_in_use(record) {
            act(&mut self.in_use, record, node);
            if let Some(id) = id {
                act(&mut self.in_use_at, record, id);
            }
        }
        if let Some(id) = id.filter(|_| decide::holds_its_place(record, finalizer)) {
            act(&mut self.claimed_at, record, id);
        }
    }
}

/// The attachments of one volume, of any driver. Almost every volume has one.
#[derive(Clone, Debug)]
pub(super) enum OfVolume {
    One(Arc<str>),
    Several(Box<Shared>),
}

impl OfVolume {
    /// Puts an attachment in. `first` is the one that was alone before, with the finalizer of its driver.
    pub fn add(&mut self, record: &Attachment, finalizer: &str, first: Option<(&Attachment, &str)>) {
        match self {
            Self::One(name) if *name == record.name => {}
            Self::One(_) => {
                let mut shared = Box::<Shared>::default();
                if let Some((first, finalizer)) = first {
                    shared.add(first, finalizer);
                }
                shared.add(record, finalizer);
                *self = Self::Several(shared);
            }
            Self::Several(shared) => shared.add(record, finalizer),
        }
    }

    /// Takes an attachment out; true when none is left.
    pub fn remove(&mut self, record: &Attachment, finalizer: &str) -> bool {
        match self {
            Self::One(name) => *name == record.name,
            Self::Several(shared) => {
                shared.remove(record, finalizer);
                if shared.names.len() == 1
                    && let Some(last) = shared.names.pop_first()
                {
                    *self = Self::One(last);
                    return false;
                }
                shared.names.is_empty()
            }
        }
    }

    /// Puts an attachment in the place of its earlier copy.
    pub fn replace(&mut self, previous: &Attachment, theirs: &str, current: &Attachment, finalizer: &str) {
        if let Self::Several(shared) = self {
            shared.remove(previous, theirs);
            shared.add(current, finalizer);
        }
    }

    /// What is known of the attachments if there are several.
    pub fn shared(&self) -> Option<&Shared> {
        match self {
            Self::One(_) => None,
            Self::Several(shared) => Some(shared),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several(shared) => shared.names.len(),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, several) = match self {
            Self::One(name) => (Some(name), None),
            Self::Several(shared) => (None, Some(&shared.names)),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }
}
