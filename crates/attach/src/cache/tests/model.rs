//! The cache against a server whose watch is late, is made anew, and whose answers come in any order, which goes back to an
//! older state, and in whose place somebody else answers now and then.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use kube::runtime::watcher::Event;
use proptest::prelude::*;
use proptest::sample::{Index as Pick, select};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{FINALIZER, attachment_wire};
use crate::cache::Store;
use crate::decide::patch::WriteTarget;
use crate::objects::{Attachment, ResourceVersion, VolumeAttachmentWire};
use crate::reflect::{Origin, Sink as _, Tables as _, apply};
use csi_attacher_base::health::Health;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Somebody makes, changes, deletes an object, or takes all its finalizers away.
    Create,
    Change,
    Delete,
    Free,
    /// We send a patch that changes it, one that lets it go, and a read.
    Write,
    Release,
    Read,
    /// We create an object under a name that was never used.
    Make,
    /// An answer arrives, any of those under way.
    Answer,
    /// The watch delivers one event.
    Watch,
    /// The watch is made anew: what is under way is lost, and a list comes instead.
    Relist,
    /// Somebody answers that the object which the cache shows is gone, though it is not.
    Lie,
    /// A backup is made.
    BackUp,
    /// The server goes back to the backup, and all connections break. Versions go back too, or are far greater from now on.
    Restore {
        bumped: bool,
    },
}

/// An object at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    name: &'static str,
    uid: u64,
    version: u64,
    deleting: bool,
    ours: bool,
}

impl Stored {
    fn wire(&self) -> VolumeAttachmentWire {
        let mut wire = attachment_wire(self.name, &self.uid.to_string(), self.version);
        wire.metadata.finalizers = self.ours.then(|| vec![FINALIZER.to_owned()]);
        let deleted = "2026-01-01T00:00:00Z".parse().unwrap();
        wire.metadata.deletion_timestamp = self.deleting.then_some(Time(deleted));
        wire
    }
}

/// An answer under way. That to a request which creates an object has the number of the read that it counts as.
enum Answer {
    Object(Stored),
    Made(Stored, u64),
    NotFound { name: &'static str, uid: u64 },
    Untrue { name: &'static str, uid: u64 },
}

/// What the watch has still to do.
#[allow(clippy::large_enum_variant, reason = "there are few at a time")]
enum Next {
    Tell(Event<VolumeAttachmentWire>),
    /// Ask for a list, which shows what is there then.
    List,
}

#[derive(Default)]
struct Model {
    store: Store,
    health: Health,
    seen: HashSet<Arc<str>>,
    objects: BTreeMap<&'static str, Stored>,
    clock: u64,
    uids: u64,
    backup: (u64, BTreeMap<&'static str, Stored>),
    events: VecDeque<Next>,
    answers: Vec<Answer>,
    /// What the cache showed last: version by UID.
    shown: HashMap<Box<str>, u64>,
    /// UIDs of objects whose end the cache was told: by the watch, by a list that was made after it, or by an answer.
    ended: HashSet<u64>,
    /// UIDs of objects that had ended when the list that comes in was made.
    missing: HashSet<u64>,
    /// The names that were ever used.
    used: HashSet<&'static str>,
    /// The UIDs of objects that we made and of which the answers have come, by name.
    made: HashMap<&'static str, u64>,
    /// UIDs of objects that the cache need not know though they were made: somebody lied about them, or the server went back meanwhile.
    excused: HashSet<u64>,
    /// Whether the server went back, and no list that was made since has come in.
    went_back: bool,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn tell(&mut self, event: Event<VolumeAttachmentWire>) {
        self.events.push_back(Next::Tell(event));
    }

    /// Stores a change; an object that is deleted and held by nobody ends with it.
    fn change(&mut self, name: &'static str, edit: impl FnOnce(&mut Stored)) {
        let version = self.tick();
        let Some(object) = self.objects.get_mut(name) else {
            return;
        };
        edit(object);
        object.version = version;
        if object.deleting && !object.ours {
            let wire = object.wire();
            self.objects.remove(name);
            self.tell(Event::Delete(wire));
        } else {
            let wire = object.wire();
            self.tell(Event::Apply(wire));
        }
    }

    /// A request of ours about the object that the cache shows.
    fn request(&mut self, name: &'static str, edit: Option<fn(&mut Stored)>) {
        let Some(known) = self.store.attachment(name) else {
            return;
        };
        let uid: u64 = known.attachment.uid.parse().unwrap();
        let Some(current) = self.objects.get(name).cloned() else {
            self.answers.push(Answer::NotFound { name, uid });
            return;
        };
        match edit {
            // A read, also after a patch whose test of the UID failed, brings what has the name now.
            None => self.answers.push(Answer::Object(current)),
            Some(_) if current.uid != uid => self.answers.push(Answer::Object(current)),
            Some(edit) => {
                let mut answer = current;
                edit(&mut answer);
                self.change(name, edit);
                answer.version = self.clock;
                self.answers.push(Answer::Object(answer));
            }
        }
    }

    fn answer(&mut self, at: usize) {
        if self.answers.is_empty() {
            return;
        }
        let at = at % self.answers.len();
        match self.answers.swap_remove(at) {
            Answer::Object(object) => {
                if object.deleting && !object.ours && self.knows(object.uid) {
                    self.ended.insert(object.uid);
                }
                self.store.apply_response::<Attachment>(object.wire().into());
            }
            Answer::Made(object, read) => {
                if !self.excused.contains(&object.uid) && !self.went_back {
                    self.made.insert(object.name, object.uid);
                }
                let record = Attachment::from(object.wire());
                self.store.change(|index| {
                    let is_current = index.attachments.finish_read(read, record.resource_version);
                    is_current.then(|| index.take_copy(record, Origin::Answer)).flatten()
                });
            }
            Answer::NotFound { name, uid } => {
                if self.knows(uid) {
                    self.ended.insert(uid);
                }
                self.store
                    .mark_deleted(&WriteTarget::Attachment(name.into()), &uid.to_string());
            }
            Answer::Untrue { name, uid } => {
                self.excused.insert(uid);
                self.made.retain(|_, made| *made != uid);
                self.store
                    .mark_deleted(&WriteTarget::Attachment(name.into()), &uid.to_string());
            }
        }
    }

    fn knows(&self, uid: u64) -> bool {
        self.cached().iter().any(|record| *record.uid == *uid.to_string())
    }

    fn watch(&mut self) -> bool {
        let event = match self.events.pop_front() {
            None => return false,
            Some(Next::Tell(event)) => event,
            Some(Next::List) => {
                self.list();
                return true;
            }
        };
        match &event {
            Event::Delete(object) => {
                let uid = object.metadata.uid.as_ref();
                self.ended.extend(uid.and_then(|uid| uid.parse::<u64>().ok()));
            }
            Event::InitDone => {
                self.ended.extend(&self.missing);
                if std::mem::take(&mut self.went_back) {
                    self.shown.clear();
                    self.made.clear();
                    self.excused.extend(0..=self.uids);
                }
            }
            _ => {}
        }
        apply(event, &self.store, &mut self.seen, &self.health.check("watch"), 0);
        true
    }

    fn relist(&mut self) {
        self.events.clear();
        self.tell(Event::Init);
        self.events.push_back(Next::List);
    }

    /// What happened since the list was announced is in it. Its first page tells its version.
    fn list(&mut self) {
        self.events.clear();
        let version = ResourceVersion(self.tick());
        let path = VolumeAttachmentWire::url_path(&(), None);
        self.store.lists().answers().listed(&path, version);
        let wires: Vec<_> = self.objects.values().map(Stored::wire).collect();
        for wire in wires {
            self.tell(Event::InitApply(wire));
        }
        self.tell(Event::InitDone);
        self.missing = (0..=self.uids).collect();
        for object in self.objects.values() {
            self.missing.remove(&object.uid);
        }
    }

    fn restore(&mut self, bumped: bool) {
        let (clock, objects) = self.backup.clone();
        self.clock = if bumped { self.clock + 1_000_000 } else { clock };
        self.objects = objects;
        self.answers.clear();
        self.ended.clear();
        self.went_back = true;
        self.relist();
    }

    fn lie(&mut self, name: &'static str) {
        if let Some(known) = self.store.attachment(name) {
            let uid = known.attachment.uid.parse().unwrap();
            self.answers.push(Answer::Untrue { name, uid });
        }
    }

    fn create(&mut self, name: &'static str) -> Stored {
        let version = self.tick();
        self.uids += 1;
        let object = Stored {
            name,
            uid: self.uids,
            version,
            deleting: false,
            ours: false,
        };
        self.tell(Event::Apply(object.wire()));
        self.used.insert(name);
        self.objects.insert(name, object.clone());
        object
    }

    /// We create an object. Before the request is sent, the cache is told that it is about that name.
    fn make(&mut self, name: &'static str) {
        if self.used.contains(name) {
            return;
        }
        let read = self.store.inner.index.write().attachments.start_read(&name.into());
        let object = self.create(name);
        self.answers.push(Answer::Made(object, read));
    }

    fn step(&mut self, step: Step, name: &'static str, pick: Pick) {
        match step {
            Step::Create => {
                if !self.objects.contains_key(name) {
                    self.create(name);
                }
            }
            Step::Make => self.make(name),
            Step::Change => self.change(name, |_| {}),
            Step::Delete => self.change(name, |object| object.deleting = true),
            Step::Free => self.change(name, |object| object.ours = false),
            Step::Write => self.request(name, Some(|object| object.ours |= !object.deleting)),
            Step::Release => self.request(name, Some(|object| object.ours = false)),
            Step::Read => self.request(name, None),
            Step::Answer => self.answer(pick.index(1000)),
            Step::Watch => {
                self.watch();
            }
            Step::Relist => self.relist(),
            Step::Lie => self.lie(name),
            Step::BackUp => self.backup = (self.clock, self.objects.clone()),
            Step::Restore { bumped } => self.restore(bumped),
        }
    }

    fn cached(&self) -> Vec<Arc<Attachment>> {
        self.store.inner.index.read().attachments.values().cloned().collect()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let cached = self.cached();
        let mut shown = HashMap::new();
        for record in &cached {
            let version = record.resource_version.0;
            let before = self.shown.get(&record.uid).copied().unwrap_or(0);
            prop_assert!(
                version >= before || self.went_back,
                "went back from {} to {}",
                before,
                version
            );
            let uid: u64 = record.uid.parse().unwrap();
            prop_assert!(!self.ended.contains(&uid), "{} came back", uid);
            prop_assert!(!record.is_gone());
            shown.insert(record.uid.clone(), version);
        }
        self.shown = shown;
        // What we made and is there is known from the answer on.
        for (name, uid) in &self.made {
            let is_there = self.objects.get(name).is_some_and(|object| object.uid == *uid);
            let is_shown = cached.iter().any(|record| *record.uid == *uid.to_string());
            prop_assert!(is_shown || !is_there || self.went_back, "{} was forgotten", uid);
        }
        let named = self.store.inner.index.read().links.counts(crate::cache::tests::DRIVER);
        prop_assert_eq!(named.attaching + named.detaching + named.attached, cached.len());
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_cache_goes_back_with_the_server_only_and_ends_where_that_is(
        steps in prop::collection::vec(
            (
                select(vec![
                    Step::Create, Step::Create, Step::Change, Step::Delete, Step::Free, Step::Write, Step::Write,
                    Step::Release, Step::Release, Step::Read, Step::Make, Step::Make, Step::Answer, Step::Answer,
                    Step::Watch, Step::Watch, Step::Watch, Step::Relist, Step::Lie, Step::BackUp,
                    Step::Restore { bumped: false }, Step::Restore { bumped: true },
                ]),
                select(vec!["a", "a", "b", "b", "c", "d"]),
                any::<Pick>(),
            ),
            1..80,
        ),
    ) {
        let mut model = Model::default();
        for (step, name, pick) in steps {
            model.step(step, name, pick);
            model.check()?;
        }
        // All that is under way arrives, the answers between the events.
        while !model.answers.is_empty() || !model.events.is_empty() {
            model.watch();
            model.check()?;
            model.answer(0);
            model.check()?;
        }
        // What somebody said to be gone is there again with the next list.
        model.relist();
        while model.watch() {
            model.check()?;
        }
        let mut cached: Vec<_> = model.cached().iter().map(|record| (record.uid.parse().unwrap(), record.resource_version.0)).collect();
        cached.sort_unstable();
        let mut stored: Vec<(u64, u64)> = model.objects.values().map(|object| (object.uid, object.version)).collect();
        stored.sort_unstable();
        prop_assert_eq!(cached, stored);
        // Ghosts are laid by the report of the watch, or by the next list.
        prop_assert_eq!(model.store.inner.index.read().attachments.tombstones(), 0);
    }
}
