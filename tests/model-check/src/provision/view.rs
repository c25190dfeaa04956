//! What an attempt sees in a state, and what it is told.

use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_model::answer::{ApiError, ApiErrorKind};
use csi_attacher_model::attempt::{CallEnd, LeaseLost};
use csi_attacher_model::decide::{Capabilities, Failure, grpc_code};
use csi_attacher_model::objects::{Claim, ClaimReference, ResourceVersion, StorageClass, Volume};
use csi_attacher_model::provision::attempt::{ClaimEvent, ClaimView, ListMoment, RoleView};
use csi_attacher_model::provision::deletion::{VolumeEvent, VolumeView};
use csi_attacher_model::provision::topology::{KnownNode, TopologyFacts, TopologyNode};
use csi_attacher_model::provision::{
    AnsweredVolume, OwningClaim, ProvisionPolicy, ProvisionerFacts, RolePhase, Seen, is_of_volume,
};

use super::objects::{ANOTHER, DRIVER, Object, name_of, number_in, slot_of};
use super::state::{ATTACHMENT, CLAIM, CLASS, CSI_NODE, Doing, GONE, Id, NODE, OWN, VOLUMES};
use super::universe::{Glance, LONGEST_BACKOFF, Universe};
use super::zones::{ZONE_OF_OTHER, absent, keys, labels_of, segment_of};
use super::{Flaw, Topology};

/// What an attempt is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It begins.
    Begin,
    /// What it asked for came to this.
    Told(Asked, Answer),
}

/// The kinds of what an attempt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    Write,
    Save,
    ReadClaim,
    ReadVolume,
    ReadOwner,
    Create,
    Delete,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It was done, of a write or of DeleteVolume.
    Done,
    /// The object is not there.
    NotFound,
    /// The write was made from a stale copy.
    Stale,
    /// There is an object of this name.
    Exists,
    /// No answer, or one that says nothing.
    Unknown,
    /// A live read brought this.
    Saw(Id),
    /// CreateVolume brought this handle, of a volume that is in this zone.
    Made { handle: u8, zone: u8 },
    /// A call was answered with this code.
    Code(i32),
    /// The fence did not let it begin.
    NotStarted,
}

impl Asked {
    /// The kind of what is waited for.
    pub const fn of(doing: Doing) -> Self {
        match doing {
            Doing::Patch { .. } | Doing::Remove { .. } => Self::Write,
            Doing::ReadClaim => Self::ReadClaim,
            Doing::ReadVolume(_) => Self::ReadVolume,
            Doing::ReadOwner => Self::ReadOwner,
            Doing::Create { .. } => Self::Create,
            Doing::Delete(_) => Self::Delete,
            Doing::Save { .. } => Self::Save,
        }
    }
}

impl Answer {
    fn request(self, flaw: Flaw) -> Result<(), ApiError> {
        let failed = |kind, status| {
            Err(ApiError {
                kind,
                message: String::new(),
                status,
                retry_after: None,
            })
        };
        match self {
            Self::Done | Self::Saw(_) => Ok(()),
            Self::NotFound => failed(ApiErrorKind::NotFound, Some(404)),
            Self::Stale => failed(ApiErrorKind::Stale, Some(422)),
            Self::Exists => failed(ApiErrorKind::Stale, Some(409)),
            _ if flaw == Flaw::LiesAreBelieved => failed(ApiErrorKind::NotFound, Some(404)),
            _ => failed(ApiErrorKind::Unknown, None),
        }
    }

    fn call(self, flaw: Flaw) -> Result<Option<AnsweredVolume>, CallEnd> {
        match self {
            Self::Made { handle, zone } => Ok(Some(AnsweredVolume {
                handle: format!("h{handle}").into(),
                topology: segment_of(zone).into_iter().collect(),
                ..AnsweredVolume::default()
            })),
            Self::Done => Ok(None),
            Self::NotStarted => Err(CallEnd::LeaseLost(LeaseLost::NotStarted)),
            Self::Code(code) => {
                let is_final = flaw == Flaw::TimeoutIsFinal && code == grpc_code::DEADLINE_EXCEEDED;
                let code = if is_final { OUT_OF_RANGE } else { code };
                Err(CallEnd::Failed(Failure {
                    message: String::new(),
                    code: Some(code),
                }))
            }
            _ => Err(CallEnd::LeaseLost(LeaseLost::Cancelled)),
        }
    }
}

/// A code that says: nothing was done.
pub const OUT_OF_RANGE: i32 = 11;

impl Event {
    /// Whether a call was answered.
    pub const fn is_answer_of_a_call(self) -> bool {
        matches!(self, Self::Told(Asked::Create | Asked::Delete, _))
    }

    /// Whether a write was carried out, or what it was about is gone.
    pub const fn is_end_of_a_write(self) -> bool {
        matches!(self, Self::Told(Asked::Write, Answer::Done | Answer::NotFound))
    }

    /// A write and its answer are one step: `view` has what was stored.
    pub fn of_claim(self, view: &View<'_>) -> ClaimEvent {
        let Self::Told(asked, answer) = self else {
            return ClaimEvent::Begin;
        };
        let flaw = view.universe.flaw;
        match asked {
            Asked::Write => ClaimEvent::Patched(answer.request(flaw).map(|()| ClaimView::claim(view).here())),
            Asked::Save => ClaimEvent::Saved(answer.request(flaw)),
            Asked::ReadClaim | Asked::ReadVolume | Asked::ReadOwner => ClaimEvent::Read(answer.request(flaw)),
            Asked::Create => ClaimEvent::Created(answer.call(flaw)),
            Asked::Delete => ClaimEvent::Deleted(answer.call(flaw).map(drop)),
        }
    }

    /// As [`Self::of_claim`].
    pub fn of_volume(self, view: &View<'_>) -> VolumeEvent {
        let Self::Told(asked, answer) = self else {
            return VolumeEvent::Begin;
        };
        let flaw = view.universe.flaw;
        let seen = match answer {
            Answer::Saw(id) => view.universe.get(id),
            _ => None,
        };
        match asked {
            Asked::ReadVolume => {
                let version = || {
                    seen.and_then(Object::volume)
                        .map_or(ResourceVersion(0), |volume| volume.resource_version)
                };
                VolumeEvent::VolumeRead(answer.request(flaw).map(|()| version()))
            }
            Asked::ReadClaim | Asked::ReadOwner => {
                let claim = seen.and_then(Object::claim).cloned();
                let read = answer.request(flaw);
                VolumeEvent::ClaimRead(read.and_then(|()| claim.ok_or_else(|| ApiError::garbled("no claim"))))
            }
            Asked::Create | Asked::Delete => VolumeEvent::Deleted(answer.call(flaw).map(drop)),
            Asked::Write | Asked::Save => {
                let stored = VolumeView::volume(view).here();
                let shown = stored.map(|volume| volume.lifecycle.finalizer_at.is_some());
                VolumeEvent::Written(answer.request(flaw).map(|()| shown))
            }
        }
    }
}

/// What is known of the driver.
pub fn driver(flaw: Flaw, topology: Topology) -> ProvisionerFacts {
    ProvisionerFacts {
        name: if flaw == Flaw::ObeysAnotherMarker {
            ANOTHER
        } else {
            DRIVER
        }
        .into(),
        in_tree: None,
        capabilities: Capabilities {
            create_delete_volume: true,
            accessibility_constraints: topology != Topology::None,
            ..Capabilities::default()
        },
    }
}

/// What an attempt sees.
pub struct View<'w> {
    universe: &'w Universe,
    glance: &'w Glance,
    policy: &'w ProvisionPolicy,
    driver: &'w ProvisionerFacts,
}

impl<'w> View<'w> {
    pub const fn new(
        universe: &'w Universe,
        glance: &'w Glance,
        policy: &'w ProvisionPolicy,
        driver: &'w ProvisionerFacts,
    ) -> Self {
        Self {
            universe,
            glance,
            policy,
            driver,
        }
    }

    fn shown(&self, slot: usize) -> Option<&Object> {
        self.universe.get(self.glance.shown[slot])
    }

    fn is_listed(&self, slot: usize) -> bool {
        self.glance.unlisted & (1 << slot) == 0 || self.universe.flaw == Flaw::UnknownIsGone
    }

    fn seen<T>(&self, slot: usize, object: Option<&Arc<T>>) -> Seen<Arc<T>> {
        match object {
            // A list that is not complete may have any part.
            Some(object) if self.glance.unlisted & (1 << slot) == 0 => Seen::Here(object.clone()),
            _ if self.is_listed(slot) => Seen::Gone,
            _ => Seen::Unknown,
        }
    }
}

impl RoleView for View<'_> {
    fn driver(&self) -> &ProvisionerFacts {
        self.driver
    }

    fn policy(&self) -> &ProvisionPolicy {
        self.policy
    }

    fn role(&self) -> RolePhase {
        RolePhase::Serving
    }

    fn is_away(&self) -> bool {
        false
    }

    fn may_start(&self) -> bool {
        self.glance.may_start
    }

    fn class(&self, name: &str) -> Seen<Arc<StorageClass>> {
        if name == name_of(CLASS) {
            self.seen(CLASS, self.shown(CLASS).and_then(Object::class))
        } else {
            Seen::Gone
        }
    }

    fn handle_owner(&self, handle: &str, except: &str) -> Seen<Arc<str>> {
        if self.universe.flaw == Flaw::NoLookForSharers {
            return Seen::Gone;
        }
        for slot in VOLUMES.into_iter().filter(|slot| name_of(*slot) != except) {
            if !self.is_listed(slot) {
                return Seen::Unknown;
            }
            let csi = self
                .shown(slot)
                .and_then(Object::volume)
                .and_then(|volume| volume.spec.csi());
            if csi.is_some_and(|source| *source.handle == *handle && source.driver == self.driver.name) {
                return Seen::Here(name_of(slot).into());
            }
        }
        Seen::Gone
    }

    fn attached_to(&self, name: &str, _: &str) -> Seen<Arc<str>> {
        if slot_of(name) != Some(OWN) || self.universe.flaw == Flaw::NoLookForAttachments {
            return Seen::Gone;
        }
        let node: Option<Arc<str>> = self.shown(ATTACHMENT).map(|_| Arc::from("n1"));
        match node {
            Some(node) if self.glance.unlisted & (1 << ATTACHMENT) == 0 => Seen::Here(node),
            _ if self.is_listed(ATTACHMENT) => Seen::Gone,
            _ => Seen::Unknown,
        }
    }
}

impl ClaimView for View<'_> {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.glance.second.into()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn stuck_after(&self) -> Duration {
        Duration::MAX
    }

    fn epoch(&self) -> u64 {
        0
    }

    fn longest_backoff(&self) -> Duration {
        LONGEST_BACKOFF
    }

    fn claim(&self) -> Seen<Arc<Claim>> {
        let claim = self.shown(CLAIM).filter(|claim| claim.uid == self.glance.of);
        self.seen(CLAIM, claim.and_then(Object::claim))
    }

    fn volume(&self, name: &str) -> Seen<Arc<Volume>> {
        let Some(slot) = slot_of(name) else { return Seen::Gone };
        if self.glance.believed != GONE && slot == usize::from(self.glance.of) {
            let believed = self.universe.get(self.glance.believed).and_then(Object::volume);
            return believed.map_or(Seen::Gone, |volume| Seen::Here(volume.clone()));
        }
        self.seen(slot, self.shown(slot).and_then(Object::volume))
    }

    fn topology(&self) -> Arc<TopologyFacts> {
        let known = |name: &str| match self.node(name) {
            KnownNode {
                labels: Seen::Here(labels),
                keys: Seen::Here(keys),
            } => Some(TopologyNode {
                name: name.into(),
                keys,
                labels,
            }),
            _ => None,
        };
        let is_complete = self.is_listed(NODE) && self.is_listed(CSI_NODE);
        let nodes = ["n1", "n2"].into_iter().filter_map(known).collect();
        Arc::new(TopologyFacts::new(is_complete, nodes))
    }

    fn node(&self, name: &str) -> KnownNode {
        if name != name_of(NODE) {
            return KnownNode {
                labels: Seen::Here(labels_of(ZONE_OF_OTHER)),
                keys: Seen::Here(keys()),
            };
        }
        let zone = self.shown(NODE).map(|node| labels_of(node.facts().zone));
        let is_registered = self.shown(CSI_NODE).is_some();
        KnownNode {
            labels: zone.map_or_else(|| absent(self.is_listed(NODE)), Seen::Here),
            keys: if is_registered {
                Seen::Here(keys())
            } else {
                absent(self.is_listed(CSI_NODE))
            },
        }
    }

    fn moment(&self) -> ListMoment {
        ListMoment::default()
    }

    fn knows_classes(&self, _: Option<ListMoment>) -> bool {
        true
    }

    fn knows_nodes(&self, _: Option<ListMoment>) -> bool {
        true
    }

    fn traceparent(&self) -> Option<String> {
        None
    }
}

impl VolumeView for View<'_> {
    fn volume(&self) -> Seen<Arc<Volume>> {
        let slot = usize::from(self.glance.slot);
        let volume = self.shown(slot).filter(|volume| volume.uid == self.glance.of);
        self.seen(slot, volume.and_then(Object::volume))
    }

    fn claim(&self, claim: &ClaimReference, volume: &Volume) -> OwningClaim {
        let uid = number_in(&claim.uid);
        match self.shown(CLAIM) {
            _ if !self.is_listed(CLAIM) => OwningClaim::Unknown,
            Some(known) if known.uid == uid => OwningClaim::Cached,
            Some(known) if known.claim().is_some_and(|claim| is_of_volume(claim, volume)) => OwningClaim::Cached,
            _ => OwningClaim::NotCached,
        }
    }

    fn may_make_volume(&self, claim: &ClaimReference) -> bool {
        self.glance.held & number_in(&claim.uid) != 0
    }

    /// All claims of these worlds have one name, and nobody edits a PersistentVolume's.
    fn bound_claims(&self, _: &Volume) -> Seen<Vec<ClaimReference>> {
        Seen::Gone
    }

    fn sharers(&self, handle: &str, except: &str) -> Vec<Arc<Volume>> {
        let others = VOLUMES.into_iter().filter(|slot| name_of(*slot) != except);
        let volumes = others.filter_map(|slot| self.shown(slot).and_then(Object::volume));
        let has_handle = |volume: &&Arc<Volume>| {
            let csi = volume.spec.csi();
            csi.is_some_and(|source| *source.handle == *handle && source.driver == self.driver.name)
        };
        volumes.filter(has_handle).cloned().collect()
    }

    /// No other claim is there.
    fn created_for_a_claim(&self, _: &str) -> Option<Arc<str>> {
        None
    }

    fn lacks_read(&self, _: &Volume) -> bool {
        false
    }
}
