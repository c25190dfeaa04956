//! States of a world of the provisioner. Objects, attempts and writes are numbers of what the [`Universe`](super::universe::Universe)
//! keeps, so that a state is small and is compared fast.

/// A version of an object; [`GONE`] where there is none.
pub type Id = u16;
/// There is no object.
pub const GONE: Id = 0;

/// The claim, under its one name.
pub const CLAIM: usize = 0;
/// The PersistentVolume that has the name of the volume of the first claim.
pub const OWN: usize = 1;
/// The one that has the name of the volume of the claim that comes after it.
pub const SECOND: usize = 2;
/// A PersistentVolume of another name.
pub const OTHER: usize = 3;
/// The class.
pub const CLASS: usize = 4;
/// A VolumeAttachment that names [`OWN`].
pub const ATTACHMENT: usize = 5;
/// The Node n1, which is in a zone; n2 is always there, in another one.
pub const NODE: usize = 6;
/// The CSINode of n1, on which the driver is registered.
pub const CSI_NODE: usize = 7;
/// So many objects there can be.
pub const SLOTS: usize = 8;
/// Those which are PersistentVolumes.
pub const VOLUMES: [usize; 3] = [OWN, SECOND, OTHER];

/// What happened to an object since the oldest copy that somebody may still see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History(pub Vec<Id>);

impl History {
    /// As the API server has it.
    pub fn now(&self) -> Id {
        self.0.last().copied().unwrap_or(GONE)
    }
}

/// What an attempt waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// A JSON patch; whether a policy of the object asks for it.
    Patch { slot: u8, write: u32, by_policy: bool },
    /// A live read of the claim into the cache.
    ReadClaim,
    /// A live read of a PersistentVolume into the cache.
    ReadVolume(u8),
    /// A live read of the claim that a PersistentVolume was made for.
    ReadOwner,
    /// CreateVolume under the name of the volume of this claim; the zone of the first preferred topology, 0 for none.
    Create { of: u8, zone: u8 },
    /// DeleteVolume of this handle.
    Delete(u8),
    /// A POST of this PersistentVolume.
    Save { slot: u8, body: u32 },
    /// A DELETE on condition of this UID.
    Remove { slot: u8, uid: u8 },
}

/// A key of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// No attempt runs; what is remembered, 0 for nothing. `of` is the UID of a PersistentVolume.
    Idle { memory: u32, of: u8 },
    /// One runs. `live` is what a live read of the PersistentVolume in this attempt brought, if there was one.
    Running {
        attempt: u32,
        doing: Doing,
        live: Option<Id>,
        of: u8,
    },
}

/// Nothing is remembered.
pub const FORGOTTEN: Key = Key::Idle { memory: 0, of: 0 };

/// The work of a process that holds the Lease, or held it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    /// Its identity.
    pub number: u8,
    /// How far the watch of each object, or an answer, has come.
    pub cursor: [u8; SLOTS],
    /// Objects whose list is not complete.
    pub unlisted: u8,
    /// The keys of the two claims.
    pub claims: [Key; 2],
    /// The keys of the PersistentVolumes.
    pub volumes: [Key; 3],
    /// Of an operator that takes any 409 for success: the PersistentVolume that it takes for saved.
    pub believed: Id,
}

/// Something that was sent, and that nobody waits for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Late {
    Create {
        of: u8,
        zone: u8,
    },
    Delete(u8),
    Patch {
        slot: u8,
        write: u32,
        by_policy: bool,
    },
    Save {
        slot: u8,
        body: u32,
    },
    Remove {
        slot: u8,
        uid: u8,
    },
    /// A patch of the attach role.
    Attach {
        slot: u8,
        write: u32,
    },
}

/// A volume of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// The UID of its claim.
    pub of: u8,
    /// Its handle.
    pub handle: u8,
    /// Where it is: the number of a zone, 0 for a driver without topology.
    pub zone: u8,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The objects.
    pub history: [History; SLOTS],
    /// Who holds the Lease.
    pub engine: Option<Engine>,
    /// Who held it before, and has not noticed yet.
    pub ghost: Option<Engine>,
    /// What may arrive late.
    pub late: Vec<Late>,
    /// The driver's volumes.
    pub driver: Vec<Held>,
    /// Handles of volumes of which it was told that they may be left, or which somebody keeps by a policy, as bits.
    pub told: u32,
    /// Faults that may still happen.
    pub faults: u8,
    /// What people and others may still do, by the number of the wish.
    pub wishes: u16,
}

impl State {
    /// An object as it is.
    pub fn now(&self, slot: usize) -> Id {
        self.history[slot].now()
    }

    /// What an engine sees of an object.
    pub fn shown(&self, engine: &Engine, slot: usize) -> Id {
        let known = &self.history[slot].0;
        known.get(usize::from(engine.cursor[slot])).copied().unwrap_or(GONE)
    }

    /// All that an engine sees.
    pub fn view(&self, engine: &Engine) -> [Id; SLOTS] {
        std::array::from_fn(|slot| self.shown(engine, slot))
    }

    /// The driver's volume of a claim.
    pub fn handle_of(&self, claim: u8) -> Option<u8> {
        self.driver.iter().find(|held| held.of == claim).map(|held| held.handle)
    }

    /// Whether the driver has a volume.
    pub fn has(&self, handle: u8) -> bool {
        self.driver.iter().any(|held| held.handle == handle)
    }

    /// The same state in its shortest form: what nobody can see any more is left out. Of the objects in `may_change` another process may
    /// have seen any version, which takes the Lease after a fault.
    pub fn shortened(mut self, may_change: u8) -> Self {
        self.late.sort_unstable();
        if self.engine.is_none() {
            return self;
        }
        let may_change = if self.faults > 0 { may_change } else { 0 };
        let engines = [&self.engine, &self.ghost];
        let oldest: [u8; SLOTS] = std::array::from_fn(|slot| {
            let cursors = engines
                .iter()
                .filter_map(|engine| engine.as_ref().map(|known| known.cursor[slot]));
            cursors.min().unwrap_or(0)
        });
        for (slot, oldest) in oldest.into_iter().enumerate() {
            if may_change & (1 << slot) != 0 {
                continue;
            }
            self.history[slot].0.drain(..usize::from(oldest));
            for engine in [&mut self.engine, &mut self.ghost].into_iter().flatten() {
                engine.cursor[slot] -= oldest;
            }
        }
        self
    }
}
