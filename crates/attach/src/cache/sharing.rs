//! The attachments of one PersistentVolume, by what the others of that volume need to know of them.
//!
//! A volume for many nodes can have thousands of attachments, which may all be deleted at the same time. What concerns one of them
//! is therefore found without going through the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::decide;
use crate::objects::Attachment;

/// Names of attachments by driver and by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(BTreeSet<PlaceKey>);

/// Driver, node and name; no name comes before all names.
type PlaceKey = (Arc<str>, Arc<str>, Option<Arc<str>>);

impl Places {
    fn add(&mut self, record: &Attachment) {
        self.0.insert(key_of(record));
    }

    fn remove(&mut self, record: &Attachment) {
        self.0.remove(&key_of(record));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of a driver on a node.
    pub fn at<'a>(&'a self, driver: &Arc<str>, node: &str) -> impl Iterator<Item = &'a Arc<str>> {
        self.names(start(driver, node), after(driver, node))
    }

    /// Those of a driver on other nodes.
    pub fn elsewhere<'a>(&'a self, driver: &Arc<str>, node: &str) -> impl Iterator<Item = &'a Arc<str>> {
        let before = self.names(start(driver, ""), start(driver, node));
        before.chain(self.names(after(driver, node), after_driver(driver)))
    }

    pub fn of<'a>(&'a self, driver: &Arc<str>) -> impl Iterator<Item = &'a Arc<str>> {
        self.names(start(driver, ""), after_driver(driver))
    }

    fn names(&self, from: PlaceKey, to: PlaceKey) -> impl Iterator<Item = &Arc<str>> {
        self.0.range(from..to).filter_map(|(_, _, name)| name.as_ref())
    }

    /// On how many nodes those of a driver are, counted up to 2: more make no difference.
    pub fn count_nodes(&self, driver: &Arc<str>) -> usize {
        let end = after_driver(driver);
        let first = self.0.range(start(driver, "")..end.clone()).next();
        let Some((_, node, _)) = first else { return 0 };
        let others = self.0.range(after(driver, node)..end).next();
        1 + usize::from(others.is_some())
    }
}

fn key_of(record: &Attachment) -> PlaceKey {
    (record.attacher.clone(), record.node.clone(), Some(record.name.clone()))
}

fn start(driver: &Arc<str>, node: &str) -> PlaceKey {
    (driver.clone(), node.into(), None)
}

/// No text is between another one and that with a NUL behind it.
fn after(driver: &Arc<str>, node: &str) -> PlaceKey {
    (driver.clone(), format!("{node}\0").into(), None)
}

fn after_driver(driver: &Arc<str>) -> PlaceKey {
    (format!("{driver}\0").into(), "".into(), None)
}

/// The attachments of a PersistentVolume that has several.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedVolume {
    names: BTreeSet<Arc<str>>,
    /// By the handle that they noted: a PersistentVolume that was made again under its name is another volume. Almost always there is
    /// one handle, and those without a note.
    by_note: Vec<(Option<Box<str>>, OfHandle)>,
    /// Wanted and not attached yet, whatever they noted; by node.
    pub waiting: Places,
}

/// Those attachments of a PersistentVolume that noted one handle; by node.
#[derive(Clone, Debug, Default)]
pub(super) struct OfHandle {
    pub deleting: Places,
    /// For whose detach an attach on another node waits ([`decide::is_leaving`]).
    pub leaving: Places,
    /// Whose detach is not over, whether it failed or not ([`decide::is_detaching`]).
    pub detaching: Places,
    /// Attached, and not to be detached ([`decide::is_in_use`]).
    pub in_use: Places,
    /// Wanted, and attached or carrying the driver's finalizer ([`decide::holds_its_place`]).
    pub claimed: Places,
}

/// The handle that an attachment noted when it was claimed.
pub(super) fn noted(record: &Attachment) -> Option<&str> {
    record.volume_note.as_ref().map(|note| &*note.handle)
}

impl SharedVolume {
    fn add(&mut self, record: &Attachment, finalizer: &str) {
        self.names.insert(record.name.clone());
        if is_waiting(record) {
            self.waiting.add(record);
        }
        let noted = noted(record);
        let at = self.by_note.iter().position(|(handle, _)| handle.as_deref() == noted);
        let at = at.unwrap_or_else(|| {
            self.by_note.push((noted.map(Box::from), OfHandle::default()));
            self.by_note.len() - 1
        });
        if let Some((_, of_handle)) = self.by_note.get_mut(at) {
            of_handle.each(record, finalizer, Places::add);
        }
    }

    fn remove(&mut self, record: &Attachment, finalizer: &str) {
        self.names.remove(&record.name);
        self.waiting.remove(record);
        for (handle, of_handle) in &mut self.by_note {
            if handle.as_deref() == noted(record) {
                of_handle.each(record, finalizer, Places::remove);
            }
        }
        self.by_note.retain(|(_, of_handle)| !of_handle.is_empty());
    }

    /// Those that may be of the volume with a handle: they noted this handle, or none. All when the handle is not known.
    pub fn of_handle<'a>(&'a self, handle: Option<&'a str>) -> impl Iterator<Item = &'a OfHandle> {
        let all = self.by_note.iter();
        let these = all.filter(move |(noted, _)| handle.is_none() || noted.is_none() || noted.as_deref() == handle);
        these.map(|(_, of_handle)| of_handle)
    }

    /// Those that noted exactly this: a handle, or nothing.
    pub fn that_noted(&self, noted: Option<&str>) -> Option<&OfHandle> {
        let mut all = self.by_note.iter();
        let known = all.find(|(handle, _)| handle.as_deref() == noted);
        known.map(|(_, of_handle)| of_handle)
    }
}

fn is_waiting(record: &Attachment) -> bool {
    record.deleting.is_none() && !record.attached
}

impl OfHandle {
    /// Changes each set that an attachment belongs to.
    fn each(&mut self, record: &Attachment, finalizer: &str, act: fn(&mut Places, &Attachment)) {
        let Self {
            deleting,
            leaving,
            detaching,
            in_use,
            claimed,
        } = self;
        for (belongs, places) in [
            (record.deleting.is_some(), deleting),
            (decide::is_leaving(record, finalizer), leaving),
            (decide::is_detaching(record, finalizer), detaching),
            (decide::is_in_use(record), in_use),
            (decide::holds_its_place(record, finalizer), claimed),
        ] {
            if belongs {
                act(places, record);
            }
        }
    }

    fn is_empty(&self) -> bool {
        let all = [
            &self.deleting,
            &self.leaving,
            &self.detaching,
            &self.in_use,
            &self.claimed,
        ];
        all.iter().all(|places| places.is_empty())
    }
}

/// The attachments of one volume, of any driver. Almost every volume has one.
#[derive(Clone, Debug)]
pub(super) enum OfVolume {
    One(Arc<str>),
    Several(Box<SharedVolume>),
}

/// An attachment, and the finalizer of its driver.
type WithFinalizer<'a> = (&'a Attachment, &'a str);

impl OfVolume {
    /// Adds an attachment. `first` is the one that was alone before.
    pub fn add(&mut self, (record, finalizer): WithFinalizer<'_>, first: Option<WithFinalizer<'_>>) {
        match self {
            Self::One(name) if *name == record.name => {}
            Self::One(_) => {
                let mut shared = Box::<SharedVolume>::default();
                if let Some((first, finalizer)) = first {
                    shared.add(first, finalizer);
                }
                shared.add(record, finalizer);
                *self = Self::Several(shared);
            }
            Self::Several(shared) => shared.add(record, finalizer),
        }
    }

    /// Removes an attachment; true when none is left.
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

    pub fn replace(&mut self, previous: WithFinalizer<'_>, current: WithFinalizer<'_>) {
        if let Self::Several(shared) = self {
            shared.remove(previous.0, previous.1);
            shared.add(current.0, current.1);
        }
    }

    /// What is known of the attachments if there are several.
    pub fn shared(&self) -> Option<&SharedVolume> {
        match self {
            Self::One(_) => None,
            Self::Several(shared) => Some(shared),
        }
    }

    pub fn len(&self) -> usize {
        self.shared().map_or(1, |shared| shared.names.len())
    }

    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, several) = match self {
            Self::One(name) => (Some(name), None),
            Self::Several(shared) => (None, Some(&shared.names)),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }
}
