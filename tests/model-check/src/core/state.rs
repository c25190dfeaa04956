//! A state of a world, small enough that millions of them fit: objects, caches, writes and snapshots are numbers of the
//! [`super::universe::Universe`].

/// How many objects a world has at most.
pub const SLOTS: usize = 6;
/// How many places: a volume handle with a node ID.
pub const PLACES: usize = 8;
/// No object, no place, nobody.
pub const NONE: u32 = 0;
/// No place, nobody.
pub const NOBODY: u8 = u8::MAX;

/// Everything that matters for what can happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// What the API server holds.
    pub objects: [u32; SLOTS],
    /// How many objects had each name.
    pub uids: [u8; SLOTS],
    /// The last resource version of each name. Versions are compared for copies of one object only, so that no common count is needed.
    pub versions: [u16; SLOTS],
    /// What the watches have still to tell somebody.
    pub logs: [Vec<Told>; 3],
    /// The processes.
    pub replicas: Vec<Replica>,
    /// Who holds the Lease.
    pub leader: u8,
    /// Writes on their way whose sender does not wait for them any more.
    pub late: Vec<u32>,
    /// Calls at the driver whose caller does not wait for them any more.
    pub orphans: Vec<Orphan>,
    /// Where volumes are published.
    pub published: u16,
    /// Which publish contexts were answered for each place: none, the first, both and the second one last, both and the first one last.
    pub contexts: [u8; PLACES],
    /// How many faults may still happen.
    pub faults: u8,
    /// How often people and controllers may still do each of their actions.
    pub users: [u8; 8],
    /// Whether the driver has ControllerPublishVolume.
    pub capable: bool,
    /// Whether the publish Secret is there.
    pub secret: bool,
}

/// An event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Told {
    /// Which object.
    pub slot: u8,
    /// Its version; the last one when it has ended.
    pub object: u32,
    /// It has ended.
    pub ends: bool,
}

/// A call that goes on without its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Orphan {
    /// Where.
    pub place: u8,
    /// ControllerPublishVolume, or ControllerUnpublishVolume.
    pub publishes: bool,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// Its cache.
    pub cache: u32,
    /// How many events of each log it has seen.
    pub seen: [u8; 3],
    /// Keys that wait for an attempt, keys that changed during one, keys that were forgotten during one, attaches that were held back.
    pub ready: u8,
    /// Keys that changed during an attempt.
    pub dirty: u8,
    /// Keys that were forgotten during an attempt.
    pub forgotten: u8,
    /// Attaches that were held back for another node.
    pub waited: u8,
    /// UIDs of attachments that may be recorded as attached.
    pub unanswered: [u8; SLOTS],
    /// Publishes whose outcome was not recorded when an engine of this term ended: the key, the attempt that finds out what became of it,
    /// and the place.
    pub unfinished: Vec<(u8, u32, u8)>,
    /// Attempts under way, by slot.
    pub attempts: Vec<(u8, Attempt)>,
}

/// An attempt that waits for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// The attempt of production by its number; none for one at a PersistentVolume.
    pub machine: u32,
    /// What it waits for.
    pub phase: Phase,
    /// It was begun to detach. What is to be detached by now is left to another attempt.
    pub of_detach: bool,
    /// The attach was held back for as long as is good.
    pub expired: bool,
    /// How often the release of a PersistentVolume was written.
    pub tries: u8,
}

impl Attempt {
    /// One that begins.
    pub fn new(machine: u32, of_detach: bool, expired: bool) -> Self {
        Self {
            machine,
            phase: Phase::Begins,
            of_detach,
            expired,
            tries: 0,
        }
    }
}

/// What an attempt waits for. The UIDs are those of the copies that a request was made from, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Nothing yet.
    Begins,
    /// The answer to a write.
    Write { write: u32, uid: u8, request: Request },
    /// The answer to a read of the object in this slot; live, when only a 404 goes into the cache.
    Read {
        slot: u8,
        uid: u8,
        live: bool,
        request: Request,
    },
    /// The answer of the driver.
    Call { publishes: bool, place: u8 },
}

/// A request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// It is on its way.
    Sent,
    /// It was answered by this object.
    Object(u32),
    /// The object is not there.
    NotFound,
    /// The write was made from a stale copy (409, 422).
    Stale,
    /// There was no answer that counts.
    Lost,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// There is nothing to do any more.
    Done,
    /// It is tried again later.
    Failed,
    /// The attach is held back for another node, and tried again later.
    HeldBack,
}

impl Replica {
    /// The attempt at a key.
    pub fn attempt(&self, slot: u8) -> Option<&Attempt> {
        self.attempts
            .iter()
            .find(|(of, _)| *of == slot)
            .map(|(_, attempt)| attempt)
    }

    /// Puts an attempt in its place.
    pub fn put(&mut self, slot: u8, attempt: Attempt) {
        self.take(slot);
        let at = self.attempts.partition_point(|(of, _)| *of < slot);
        self.attempts.insert(at, (slot, attempt));
    }

    /// Takes an attempt out.
    pub fn take(&mut self, slot: u8) -> Option<Attempt> {
        let at = self.attempts.iter().position(|(of, _)| *of == slot)?;
        Some(self.attempts.remove(at).1)
    }
}

impl State {
    /// The same state, with the replicas in an order that their names do not decide: they are alike.
    #[must_use]
    pub fn canonical(mut self, events_seen_by_all: bool) -> Self {
        if events_seen_by_all {
            self.forget_told();
        }
        self.late.sort_unstable();
        self.late.dedup();
        self.orphans.sort_unstable();
        if let [one, other] = &self.replicas[..]
            && (one, self.leader == 0) > (other, self.leader == 1)
        {
            self.replicas.swap(0, 1);
            if self.leader != NOBODY {
                self.leader = 1 - self.leader;
            }
        }
        self
    }

    /// Drops the events that nobody waits for.
    fn forget_told(&mut self) {
        for kind in 0..3 {
            let leader = usize::from(self.leader);
            let Some(replica) = self.replicas.get_mut(leader) else {
                self.logs[kind].clear();
                continue;
            };
            let seen = usize::from(std::mem::take(&mut replica.seen[kind]));
            self.logs[kind].drain(..seen.min(self.logs[kind].len()));
        }
    }
}
