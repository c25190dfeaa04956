//! Worlds of the provisioner: a claim, its PersistentVolume and the driver's volumes. The attempts are those of production
//! (`csi_attacher_model::provision::attempt` and `deletion`), and so are their decisions, patches and what they read of an object.
//!
//! One process holds the Lease and works. Another one takes it after a crash, or after it was lost; what it has seen of each object
//! then is any earlier version. The former one may go on with writes, and with no call. So the number of processes is any.

mod effects;
mod ends;
mod histories;
mod invariants;
mod leases;
mod machines;
mod mutants;
mod names;
mod objects;
mod others;
mod packed;
mod state;
mod steps;
mod universe;
mod view;
mod worlds;
mod zones;

use crate::explorer::{Next, Told, World};
use invariants::KEPT;
use packed::Packed;
use state::{CLAIM, Engine, FORGOTTEN, GONE, Held, History, Late, SLOTS, State};
use steps::{Calm, KEYS, Who};
use universe::Universe;

pub use histories::{BLOCK, world_of_block};
pub use mutants::mutants;
pub use worlds::worlds;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process that holds the Lease ends.
    Crash,
    /// It stands still, and loses the Lease.
    LeaseLost,
    /// A write gets no answer: it is carried out at once, later or never.
    Unanswered,
    /// The driver refuses a call.
    Refused,
    /// A call is not answered in time: it is carried out at once, later or never.
    TimedOut,
    /// A read is answered with a 404 that is not about the object.
    Lie,
}

/// What somebody may do once, at any moment at which it can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Wish {
    DeleteClaim,
    RemakeClaim,
    DeleteClass,
    /// The class comes back for another driver.
    RemakeClass,
    /// The class comes back as it was, with another UID.
    RestoreClass,
    /// The claim is bound to a PersistentVolume that a person made.
    BindElsewhere,
    /// A controller writes an annotation and a finalizer on the claim.
    AnnotateClaim,
    /// The PersistentVolume is marked Released while its claim is there.
    Mistake,
    ToRetain,
    ToDelete,
    DeleteVolume,
    DeleteOther,
    Attach,
    /// A VolumeAttachment names the PersistentVolume of the claim though that is not there.
    AttachUnsaved,
    /// A person makes a PersistentVolume under the name of the claim's.
    TakeName,
    /// Finalizers are removed by force, and another PersistentVolume gets the name.
    RemakeVolume,
    /// A person deletes the second claim as well.
    DeleteSecond,
    DeleteNode,
    RemakeNode,
    DeleteCsiNode,
    RemakeCsiNode,
    /// The Node is in another zone.
    Relabel,
    /// The other node is selected for the claim.
    MoveClaim,
}

/// What a driver knows of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Nothing.
    None,
    /// Volumes are in zones, and a class binds at once.
    Immediate,
    /// A class waits for the first consumer.
    Delayed,
    /// As before, and the zone of the selected node is the only one that is asked for.
    Strict,
}

impl Topology {
    const fn is_delayed(self) -> bool {
        matches!(self, Self::Delayed | Self::Strict)
    }

    /// `volumeBindingMode` of the class.
    const fn binding(self) -> &'static str {
        if self.is_delayed() {
            "WaitForFirstConsumer"
        } else {
            "Immediate"
        }
    }
}

/// How a world begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A claim waits.
    Waiting,
    /// A claim of another driver, with a marker of that.
    MarkedByAnother,
    /// A claim is bound, and its PersistentVolume as well.
    Bound,
    /// The claim is gone, and its PersistentVolume Released.
    Released,
    /// As before, and another PersistentVolume has the handle.
    Shared,
    /// The same, and the other one is to be deleted as well.
    BothReleased,
}

/// A world.
#[derive(Clone, Copy, Debug)]
pub struct ProvisionSetting {
    /// Its name.
    pub name: &'static str,
    beginning: Beginning,
    faults: u8,
    kinds: &'static [Fault],
    wishes: &'static [Wish],
    /// Objects whose lists are not complete when a process takes the Lease, as bits of their slots.
    unlisted: u8,
    /// Objects that a process lists once it has taken the Lease, and before it works, as bits of their slots. Of others it has any version.
    relisted: u8,
    /// The attach role writes on the PersistentVolume as well.
    attaches: bool,
    topology: Topology,
    flaw: Flaw,
}

impl ProvisionSetting {
    /// So many faults a history has at most, and of how many kinds.
    pub const fn faults(&self) -> (u8, usize) {
        (self.faults, self.kinds.len())
    }

    /// So many objects there are when it begins.
    pub fn objects(&self) -> usize {
        worlds::objects(self.beginning, self.topology)
            .into_iter()
            .flatten()
            .count()
    }

    /// Whether a process may take the Lease that has seen any earlier version.
    fn is_taken_over(&self) -> bool {
        self.kinds.contains(&Fault::Crash) || self.kinds.contains(&Fault::LeaseLost)
    }

    /// The same world with so many faults, where there are any.
    #[must_use]
    pub const fn with_faults(self, faults: u8) -> Self {
        Self { faults, ..self }
    }

    /// The same world with an operator that does nothing wrong.
    #[must_use]
    pub const fn right(self) -> Self {
        Self {
            flaw: Flaw::None,
            ..self
        }
    }
}

/// What an operator does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of wrong operators says it")]
pub enum Flaw {
    None,
    NoMarker,
    AnyConflictIsSuccess,
    UnmarksUncertain,
    TimeoutIsFinal,
    FinalizerBeforeOk,
    NoLiveLook,
    NoLookForSharers,
    NoLookForAttachments,
    NoLookBeforeUndo,
    LiesAreBelieved,
    DeletesByName,
    UnknownIsGone,
    ObeysAnotherMarker,
    TwoKeys,
    Unfenced,
    ReschedulesUncertain,
    FollowsNode,
}

/// What can happen next.
pub type Found = Vec<Next<Packed>>;

/// A world that is explored.
pub struct Provisioner {
    setting: ProvisionSetting,
    universe: Universe,
    words: Option<Vec<String>>,
}

impl Provisioner {
    /// A world before it is explored.
    pub fn new(setting: ProvisionSetting) -> Self {
        Self {
            universe: Universe::new(setting.flaw, setting.topology),
            setting,
            words: None,
        }
    }

    fn is_told(&self) -> bool {
        self.words.is_some()
    }

    fn push(
        &mut self,
        found: &mut Found,
        state: State,
        calm: Calm,
        violation: Option<&'static str>,
        words: impl FnOnce() -> String,
    ) {
        let violation = violation.or_else(|| self.is_lost(&state).then_some(KEPT));
        if let Some(told) = &mut self.words {
            told.push(words());
        }
        found.push(Next {
            state: self.packed(state),
            calm: calm != Calm::No,
            acts: calm == Calm::Acts,
            violation,
        });
    }

    /// The shortest form of a state, in little room.
    fn packed(&mut self, mut state: State) -> Packed {
        // What nobody can tell of any more, and what changes nothing whenever it arrives.
        let has = |driver: &[Held], handle: u8| driver.iter().any(|held| held.handle == handle);
        let driver = std::mem::take(&mut state.driver);
        state.told &= driver.iter().fold(0, |told, held| told | 1 << held.handle);
        if self.setting.flaw != Flaw::DeletesByName {
            let history = &state.history;
            state.late.retain(|late| match *late {
                Late::Patch { slot, .. } | Late::Attach { slot, .. } | Late::Remove { slot, .. } => {
                    history[usize::from(slot)].now() != GONE
                }
                Late::Delete(handle) => has(&driver, handle),
                Late::Create { .. } | Late::Save { .. } => true,
            });
        }
        state.driver = driver;
        let works = |engine: &Engine| KEYS.iter().any(|at| at.of(engine) != FORGOTTEN);
        state.ghost = state.ghost.filter(works);
        let may_change = if self.setting.is_taken_over() {
            !self.setting.relisted
        } else {
            0
        };
        let state = state.shortened(may_change);
        self.universe.parts.pack(state)
    }

    /// Whether a bound claim has lost its volume.
    fn is_lost(&self, state: &State) -> bool {
        let Some(claim) = self.universe.facts(state.now(CLAIM)) else {
            return false;
        };
        let (Some(slot), true, false) = (claim.names, claim.is_bound, claim.deleting) else {
            return false;
        };
        let volume = self.universe.facts(state.now(slot.into()));
        volume.is_some_and(|volume| volume.ours && !state.has(volume.handle))
    }
}

impl World for Provisioner {
    type State = Packed;

    fn first(&mut self) -> Packed {
        let objects = worlds::objects(self.setting.beginning, self.setting.topology);
        let history = std::array::from_fn(|slot| {
            let id = objects[slot]
                .clone()
                .map_or(GONE, |value| self.universe.object(slot, value));
            History(vec![id])
        });
        let has_volume = matches!(
            self.setting.beginning,
            Beginning::Bound | Beginning::Released | Beginning::Shared | Beginning::BothReleased
        );
        let state = State {
            history,
            engine: Some(Engine {
                number: 1,
                cursor: [0; SLOTS],
                unlisted: self.setting.unlisted,
                claims: [FORGOTTEN; 2],
                volumes: [FORGOTTEN; 3],
                believed: GONE,
            }),
            ghost: None,
            late: Vec::new(),
            driver: has_volume
                .then_some(Held {
                    of: 1,
                    handle: 1,
                    zone: 0,
                })
                .into_iter()
                .collect(),
            told: 0,
            faults: self.setting.faults,
            wishes: (1 << self.setting.wishes.len()) - 1,
        };
        self.universe.parts.pack(state)
    }

    fn next(&mut self, packed: &Packed, found: &mut Found) {
        let state = &self.universe.parts.unpack(packed);
        if state.engine.is_none() {
            // Whatever else happens before another process takes the Lease may as well happen after that: it may have seen any version.
            return self.leases(state, found);
        }
        self.process(state, Who::Leader, found);
        self.process(state, Who::Former, found);
        self.late(state, found);
        self.controller(state, found);
        self.scheduler(state, found);
        self.attach_role(state, found);
        self.leases(state, found);
        self.people(state, found);
    }

    fn unrest(&mut self, packed: &Packed) -> Option<(&'static str, String)> {
        let state = self.universe.parts.unpack(packed);
        self.unrest_of(&state)
    }
}

impl Told for Provisioner {
    fn words(&mut self) -> &mut Option<Vec<String>> {
        &mut self.words
    }
}
