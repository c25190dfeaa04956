//! Everything that states name by a number, and what the production functions make of it.
//!
//! They are pure, so that each is asked once about the same things. This is where the model calls them: the rules of decisions, patches
//! and the cache are nowhere in this crate.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use csi_attacher_attach::cache::{AttacherKey, CacheChange, Index};
use csi_attacher_kube::reflect::{CachedKind, Origin, Tables as _};
use csi_attacher_model::decide::patch::WriteTarget;
use csi_attacher_model::decide::{
    self, Capabilities, DriverFacts, Failure, OwnedVolumeOnNode, Policy, ReleaseWithoutCall, Snapshot, VolumeOnNode,
    Write,
};
use csi_attacher_model::objects::{Attachment, CsiNode, ResourceVersion, StringMap, Volume};
use jiff::Timestamp;

use super::machine::{Advance, Glance, Machine};
use super::objects::{DRIVER, Kind, Object, Record, stored};
use super::rules::Rules;
use super::state::NONE;
use super::world::Setting;
use crate::api_server;
use crate::hash::{FastMap, Numbered, fingerprint, of_debug};

/// How a patch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patched {
    /// The object is this one now; the same one when nothing changed.
    Object(u32),
    /// Nobody holds it any more: this was its last version.
    Gone(u32),
    /// It was refused.
    Stale,
}

/// An event for a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// The watch shows it.
    Told(u32),
    /// The watch tells its end.
    Ended(u32),
    /// An answer to a request of ours shows it.
    Answered(u32),
    /// An answer says that the object in this slot with a UID of this number is not there.
    NotFound(u8, u8),
    /// Lists show these objects: all there are.
    Listed([u32; super::state::SLOTS]),
}

type Change = (u32, Rc<[u8]>);

/// See above.
pub struct Universe {
    objects: Numbered<Object>,
    writes: Numbered<Write>,
    snapshots: Numbered<Rc<Snapshot>>,
    caches: Numbered<Rc<Index>>,
    failures: Numbered<Failure>,
    places: Vec<OwnedVolumeOnNode>,
    slots: HashMap<String, u8>,
    kinds: Vec<Kind>,
    rules: Rules,
    pub(super) policy: Policy,
    pub(super) machines: Numbered<Machine>,
    pub(super) advances: FastMap<Glance, Rc<Advance>>,
    changes: FastMap<(u32, CacheEvent), Change>,
    shown: FastMap<(u32, u8), u32>,
    patched: FastMap<(u32, u32, u16), Patched>,
    releases: FastMap<(u32, u8, bool), u32>,
}

/// When everything happens: time is no part of these worlds.
pub(super) const NOW: Timestamp = Timestamp::UNIX_EPOCH;

impl Universe {
    /// An empty one.
    pub fn new(setting: &Setting) -> Self {
        let names = setting.names();
        Self {
            objects: Numbered::default(),
            writes: Numbered::default(),
            snapshots: Numbered::default(),
            caches: Numbered::default(),
            failures: Numbered::default(),
            places: setting.places(),
            slots: (0_u8..)
                .zip(&names)
                .map(|(slot, (_, name))| (name.clone(), slot))
                .collect(),
            kinds: names.iter().map(|(kind, _)| *kind).collect(),
            rules: setting.rules,
            policy: setting.policy(),
            machines: Numbered::default(),
            advances: FastMap::default(),
            changes: FastMap::default(),
            shown: FastMap::default(),
            patched: FastMap::default(),
            releases: FastMap::default(),
        }
    }

    /// The facts of the driver, as long as it has these calls.
    pub fn facts(&self, capable: bool) -> DriverFacts {
        let capabilities = Capabilities {
            publish_unpublish: capable,
            publish_readonly: true,
            ..Capabilities::default()
        };
        let release = if self.rules.unattached {
            ReleaseWithoutCall::Confirmed
        } else {
            ReleaseWithoutCall::Unclaimed
        };
        DriverFacts::new(DRIVER, capabilities).releasing(release)
    }

    /// How the operator is wrong, if it is.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The kind of the object in a slot.
    pub fn kind(&self, slot: u8) -> Kind {
        self.kinds[usize::from(slot)]
    }

    /// An object.
    pub fn object(&self, number: u32) -> &Object {
        self.objects.get(number)
    }

    /// The number of an object.
    pub fn store(&mut self, kind: Kind, value: serde_json::Value) -> u32 {
        let key = fingerprint(&(kind, value.to_string()));
        self.objects.number(key, || Object::read(kind, value))
    }

    /// A write.
    pub fn write(&self, number: u32) -> &Write {
        self.writes.get(number)
    }

    /// The slot that a write goes to, and whether it is about the status.
    pub fn target(&self, write: u32) -> (u8, bool) {
        let target = &self.write(write).target;
        (self.slot_of(target), matches!(target, WriteTarget::AttachmentStatus(_)))
    }

    /// The slot of the object that a request is about.
    pub fn slot_of(&self, target: &WriteTarget) -> u8 {
        match target {
            WriteTarget::Volume(name) | WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => {
                self.slot(name)
            }
        }
    }

    /// The slot of the object of this name.
    pub fn slot(&self, name: &str) -> u8 {
        self.slots[name]
    }

    pub(super) fn number_of_write(&mut self, write: Write) -> u32 {
        self.writes.number(of_debug(&write), || write)
    }

    /// A snapshot.
    pub fn snapshot(&self, number: u32) -> Rc<Snapshot> {
        self.snapshots.get(number).clone()
    }

    fn number_of_snapshot(&mut self, snapshot: Snapshot) -> u32 {
        self.snapshots.number(of_debug(&snapshot), || Rc::new(snapshot))
    }

    /// The object of a slot as the target of a request.
    pub fn whole(&self, slot: u8) -> WriteTarget {
        match self.kind(slot) {
            Kind::Volume => WriteTarget::Volume(self.name(slot)),
            Kind::Attachment | Kind::Node => WriteTarget::Attachment(self.name(slot)),
        }
    }

    /// A failure.
    pub fn failure(&self, number: u16) -> &Failure {
        self.failures.get(number.into())
    }

    /// The number of a failure.
    pub fn fails(&mut self, failure: Failure) -> u16 {
        let number = self.failures.number(of_debug(&failure), || failure);
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// A place by its handle and node ID.
    pub fn place(&self, volume_id: &str, node_id: &str) -> Option<u8> {
        let found = self
            .places
            .iter()
            .position(|known| (known.borrow().volume_id, known.borrow().node_id) == (volume_id, node_id));
        found.and_then(|at| u8::try_from(at).ok())
    }

    /// Handle and node ID of a place.
    pub fn at(&self, place: u8) -> VolumeOnNode<'_> {
        self.places[usize::from(place)].borrow()
    }

    /// The same, as facts have them.
    pub fn here(&self, place: u8) -> (String, String) {
        let at = self.at(place);
        (at.volume_id.to_owned(), at.node_id.to_owned())
    }

    /// The cache of a process that knows nothing.
    pub fn empty_cache(&mut self) -> u32 {
        let empty = Index::default();
        self.caches.number(fingerprint(&empty.content()), || Rc::new(empty))
    }

    /// A cache.
    pub fn cache(&self, number: u32) -> Rc<Index> {
        self.caches.get(number).clone()
    }

    /// What a cache makes of an event: its number then, and the slots that have to be looked at again.
    pub fn change(&mut self, cache: u32, event: CacheEvent) -> Change {
        if let Some(known) = self.changes.get(&(cache, event)) {
            return known.clone();
        }
        let mut value = (*self.cache(cache)).clone();
        let looks = self.take_event(&mut value, event);
        let slots: Rc<[u8]> = looks
            .iter()
            .filter_map(|key| match key {
                AttacherKey::Attachment(name) | AttacherKey::Volume(name) => self.slots.get(&**name).copied(),
            })
            .collect();
        let number = self.caches.number(fingerprint(&value.content()), || Rc::new(value));
        self.changes.insert((cache, event), (number, slots.clone()));
        (number, slots)
    }

    fn take_event(&self, cache: &mut Index, event: CacheEvent) -> Vec<AttacherKey> {
        let record = |object| &self.object(object).record;
        let change = match event {
            CacheEvent::Told(object) => match record(object) {
                Record::Attachment(record) => cache.take_copy((**record).clone(), Origin::Watch),
                Record::Volume(record) => cache.take_copy((**record).clone(), Origin::Watch),
                Record::Node(record) => cache.take_copy((**record).clone(), Origin::Watch),
            },
            CacheEvent::Ended(object) => match record(object) {
                Record::Attachment(record) => cache.remove::<Attachment>(&record.name, &record.uid),
                Record::Volume(record) => cache.remove::<Volume>(&record.name, &record.uid),
                Record::Node(record) => cache.remove::<CsiNode>(&record.name, &record.uid),
            },
            CacheEvent::Answered(object) => match record(object) {
                Record::Attachment(record) => cache.take_response((**record).clone()),
                Record::Volume(record) => cache.take_response((**record).clone()),
                Record::Node(_) => None,
            },
            CacheEvent::NotFound(slot, uid) => {
                let name = self.name(slot);
                let uid = uid_of(&name, uid);
                cache.mark_deleted(&self.whole(slot), &uid)
            }
            CacheEvent::Listed(objects) => {
                let (mut attachments, mut volumes, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
                for object in objects.into_iter().filter(|object| *object != NONE) {
                    match record(object) {
                        Record::Attachment(record) => attachments.push((**record).clone()),
                        Record::Volume(record) => volumes.push((**record).clone()),
                        Record::Node(record) => nodes.push((**record).clone()),
                    }
                }
                let changes = [list(cache, volumes), list(cache, nodes), list(cache, attachments)];
                return changes.iter().flatten().flat_map(keys).collect();
            }
        };
        change.iter().flat_map(keys).collect()
    }

    /// Which keys of a cache may need work.
    pub fn work_of(&self, cache: u32, capable: bool) -> u8 {
        let work = self.cache(cache).work_of(&self.facts(capable));
        let slots = work.iter().map(|key| match key {
            AttacherKey::Attachment(name) | AttacherKey::Volume(name) => self.slots[&**name],
        });
        slots.fold(0, |mask, slot| mask | (1 << slot))
    }

    /// Whether a key is handed out at all, as the routing of the operator has it; none when nothing is known of it.
    pub fn needs_work(&mut self, cache: u32, slot: u8, capable: bool) -> Option<bool> {
        let facts = self.facts(capable);
        if self.kind(slot) == Kind::Volume {
            let (volume, _) = self.cache(cache).volume(&self.name(slot))?;
            return decide::may_release(&volume, &facts).then_some(true);
        }
        let shown = self.shown(cache, slot)?;
        let snapshot = self.snapshot(shown);
        Some(decide::needs_work(
            &snapshot.attachment,
            snapshot.volume.as_deref(),
            &facts,
        ))
    }

    /// The name of the object in a slot.
    pub fn name(&self, slot: u8) -> Arc<str> {
        let found = self.slots.iter().find(|(_, of)| **of == slot);
        found.map_or_else(|| "".into(), |(name, _)| name.as_str().into())
    }

    /// What a cache shows of an attachment.
    pub fn shown(&mut self, cache: u32, slot: u8) -> Option<u32> {
        if let Some(known) = self.shown.get(&(cache, slot)) {
            return Some(*known).filter(|number| *number != NONE);
        }
        let snapshot = self.cache(cache).snapshot(&self.name(slot));
        let number = snapshot.map(|snapshot| self.number_of_snapshot(snapshot));
        self.shown.insert((cache, slot), number.unwrap_or(NONE));
        number
    }

    /// What the operator writes about a PersistentVolume that its cache shows; none when it leaves it alone.
    pub fn release(&mut self, cache: u32, slot: u8, capable: bool) -> Option<u32> {
        if let Some(known) = self.releases.get(&(cache, slot, capable)) {
            return Some(*known).filter(|number| *number != NONE);
        }
        let found = self.cache(cache).volume(&self.name(slot));
        let action = found.map(|(volume, named)| (self.rules.volume)(&volume, named, &self.facts(capable)));
        let write = action.and_then(Result::ok);
        let write = write.map(|write| self.number_of_write(write));
        self.releases.insert((cache, slot, capable), write.unwrap_or(NONE));
        write
    }

    /// What the API server makes of a write. `version` is that of the object when it changes.
    pub fn apply(&mut self, object: u32, write: u32, version: u16) -> Patched {
        if let Some(known) = self.patched.get(&(object, write, version)) {
            return *known;
        }
        let before = &self.object(object).value;
        let patched = match api_server::apply(before, self.write(write)) {
            Err(_) => Patched::Stale,
            Ok(after) if after == *before => Patched::Object(object),
            Ok(after) => {
                let uid = self.object(object).uid().to_owned();
                let (slot, _) = self.target(write);
                let gone = api_server::is_gone(&after);
                let number = self.store(self.kind(slot), stored(after, &uid, version));
                if gone {
                    Patched::Gone(number)
                } else {
                    Patched::Object(number)
                }
            }
        };
        self.patched.insert((object, write, version), patched);
        patched
    }
}

/// Takes in a complete list of a kind.
fn list<R: CachedKind<Index>>(cache: &mut Index, records: Vec<R>) -> Vec<CacheChange> {
    cache.start_list::<R>();
    let seen = records.iter().map(|record| record.name().clone()).collect();
    let shown = records.into_iter();
    let mut changes: Vec<_> = shown
        .filter_map(|record| cache.take_copy(record, Origin::List))
        .collect();
    changes.extend(cache.finish_list::<R>(&seen, ResourceVersion::default()));
    changes
}

/// What has to be looked at again after a change.
fn keys(change: &CacheChange) -> impl Iterator<Item = AttacherKey> {
    change.keys().map(|(key, _)| key)
}

/// The UID of the object of this number under a name.
pub fn uid_of(name: &str, number: u8) -> String {
    format!("{name}.{number}")
}

/// The number in a UID.
pub fn uid_number(uid: &str) -> u8 {
    let number = uid.rsplit('.').next().and_then(|number| number.parse().ok());
    number.unwrap_or(0)
}

/// The publish context of this number.
pub fn context_of(number: u8) -> StringMap {
    let key = format!("key{number}");
    StringMap::from(std::iter::once((key, "value".to_owned())).collect::<std::collections::BTreeMap<_, _>>())
}
