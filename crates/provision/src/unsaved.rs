//! Volumes by the IDs that the driver gave them, where no object says who has one: those that were created for a claim and that no
//! PersistentVolume names yet, and those whose DeleteVolume is under way.
//!
//! A driver may answer CreateVolume with the ID of a volume that it is deleting, where it makes IDs of something that claims have in common,
//! as their names: a claim that is made again under its name would get a volume that goes. And whoever is about to delete a volume must not
//! delete what a claim was answered a moment ago. Both are decided here, under one lock.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::key::ClaimKey;
use crate::provision::{Creation, Deletion};
use crate::telemetry::metrics::QueueCounts;

/// The claims whose volume is created, and that no PersistentVolume is known to name yet: whoever deletes a volume must not delete one of
/// theirs. They are shown as the queue that external-provisioner has for them.
pub(crate) struct UnsavedVolumes {
    volumes: Mutex<Unsaved>,
    series: QueueCounts,
}

#[derive(Default)]
struct Unsaved {
    handles: HashMap<ClaimKey, Arc<str>>,
    /// The claims of a handle, each with its volume: a driver may answer one ID for thousands.
    claims: HashMap<Arc<str>, BTreeMap<ClaimKey, UnsavedVolume>>,
    /// When the CreateVolume calls in flight began.
    creating: BTreeSet<u64>,
    /// DeleteVolume calls by their handles: those in flight, and those that ended while the oldest CreateVolume was in flight and may have
    /// deleted the volume.
    deletions: HashMap<Arc<str>, Deletions>,
    /// Counts beginnings of the ones and ends of the others.
    time: u64,
    /// Whether the engine has ended: they are not shown any more.
    has_ended: bool,
}

struct UnsavedVolume {
    name: Arc<str>,
    /// Whether a DeleteVolume for the claim may have deleted it.
    is_perhaps_deleted: bool,
}

#[derive(Default)]
struct Deletions {
    in_flight: usize,
    /// When the last one ended that may have deleted the volume; 0 when none has.
    ended: u64,
}

/// A CreateVolume in flight.
pub(crate) struct Creating<'u> {
    of: &'u UnsavedVolumes,
    began: u64,
}

/// A DeleteVolume in flight.
pub(crate) struct Deleting<'u> {
    of: &'u UnsavedVolumes,
    handle: Arc<str>,
    /// The claim whose volume it is; none of a PersistentVolume's.
    claim: Option<ClaimKey>,
    outcome: Deletion,
}

impl Deletions {
    /// Whether one of them may have deleted the volume that a CreateVolume brings which is in flight since this time.
    fn count_since(&self, began: u64) -> bool {
        self.in_flight > 0 || self.ended > began
    }
}

impl Unsaved {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Since when the oldest CreateVolume is in flight; later than all where none is.
    fn oldest(&self) -> u64 {
        self.creating.first().copied().unwrap_or(u64::MAX)
    }

    /// The handle, where no other claim has it.
    fn remove(&mut self, claim: &ClaimKey) -> Option<Arc<str>> {
        let handle = self.handles.remove(claim)?;
        let claims = self.claims.get_mut(&handle)?;
        claims.remove(claim);
        if !claims.is_empty() {
            return None;
        }
        self.claims.remove(&handle);
        Some(handle)
    }

    /// The handle that the claim had before, and that no claim has any more by that.
    fn insert(&mut self, claim: &ClaimKey, name: &str, handle: &str) -> Option<Arc<str>> {
        let left = self.remove(claim);
        let handle = Arc::<str>::from(handle);
        self.handles.insert(claim.clone(), handle.clone());
        let claims = self.claims.entry(handle).or_default();
        let volume = UnsavedVolume {
            name: Arc::from(name),
            is_perhaps_deleted: false,
        };
        claims.insert(claim.clone(), volume);
        left
    }

    fn other_claim(&self, handle: &str, except: Option<&ClaimKey>) -> Option<&Arc<str>> {
        let mut claims = self.claims.get(handle)?.iter();
        claims
            .find(|(claim, _)| Some(*claim) != except)
            .map(|(_, volume)| &volume.name)
    }

    /// Whether the volume of this handle may be gone, or about to go, for a CreateVolume of a claim that began at this time.
    fn may_be_deleted(&self, handle: &str, claim: &ClaimKey, began: u64) -> bool {
        let deletions = self.deletions.get(handle);
        let mut claims = self.claims.get(handle).into_iter().flatten();
        deletions.is_some_and(|known| known.count_since(began))
            || claims.any(|(of, volume)| of != claim && volume.is_perhaps_deleted)
    }
}

impl UnsavedVolumes {
    pub fn new(series: QueueCounts) -> Self {
        let volumes = Mutex::default();
        Self { volumes, series }
    }

    /// What is known of the volume of a claim from now on. To be told before the queue is, and of whatever the queue remembers: until then a
    /// volume that was created is nobody's. The handle that no claim has any more by that.
    pub fn set(&self, claim: &ClaimKey, known: Option<&Creation>) -> Option<Arc<str>> {
        let created = match known {
            Some(Creation::Created(volume)) => Some((&*volume.plan.name, &*volume.handle)),
            _ => None,
        };
        self.change(&mut self.volumes.lock(), claim, created)
    }

    fn change(&self, volumes: &mut Unsaved, claim: &ClaimKey, created: Option<(&str, &str)>) -> Option<Arc<str>> {
        let before = volumes.handles.get(claim).map(|handle| &**handle);
        if before == created.map(|(_, handle)| handle) {
            return None;
        }
        let is_new = before.is_none();
        let left = match created {
            Some((name, handle)) => volumes.insert(claim, name, handle),
            None => volumes.remove(claim),
        };
        if volumes.has_ended {
            return None;
        }
        if is_new {
            self.series.added();
        }
        self.series.depth(volumes.handles.len());
        left
    }

    /// The name of one with this ID, of another claim than `except`.
    pub fn of_handle(&self, handle: &str, except: Option<&ClaimKey>) -> Option<Arc<str>> {
        self.volumes.lock().other_claim(handle, except).cloned()
    }

    /// A CreateVolume begins.
    pub fn begin_create(&self) -> Creating<'_> {
        let mut volumes = self.volumes.lock();
        let began = volumes.tick();
        volumes.creating.insert(began);
        Creating { of: self, began }
    }

    /// A DeleteVolume begins, for the volume of the claim `of`, or of a PersistentVolume: unless another claim has been answered that volume
    /// since it was looked for. An error is the name of what was made for that one.
    pub fn begin_delete(&self, handle: &str, of: Option<&ClaimKey>) -> Result<Deleting<'_>, Arc<str>> {
        let mut volumes = self.volumes.lock();
        if let Some(other) = volumes.other_claim(handle, of) {
            return Err(other.clone());
        }
        let handle = Arc::<str>::from(handle);
        volumes.deletions.entry(handle.clone()).or_default().in_flight += 1;
        Ok(Deleting {
            of: self,
            handle,
            claim: of.cloned(),
            outcome: Deletion::Uncertain,
        })
    }

    /// Of how many handles something is known of a DeleteVolume.
    #[cfg(test)]
    pub fn deletions(&self) -> usize {
        self.volumes.lock().deletions.len()
    }

    /// One of them could not be saved, and is saved again.
    pub fn retried(&self) {
        self.series.retried();
    }

    /// Nobody saves them here any more, and none is shown. An attempt that is cut off late sees them yet.
    pub fn end(&self) {
        self.volumes.lock().has_ended = true;
        self.series.depth(0);
    }
}

impl Creating<'_> {
    /// The call brought the volume of this name for the claim, with this handle: it is the claim's from now on. False where a DeleteVolume of
    /// the handle is in flight, may have deleted it during the call, or has ended before so that nobody knows, for a claim that has it yet.
    pub fn take(&self, claim: &ClaimKey, name: &str, handle: &str) -> bool {
        let volumes = &mut *self.of.volumes.lock();
        if volumes.may_be_deleted(handle, claim, self.began) {
            return false;
        }
        self.of.change(volumes, claim, Some((name, handle)));
        true
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let volumes = &mut *self.of.volumes.lock();
        let was_oldest = volumes.creating.first() == Some(&self.began);
        volumes.creating.remove(&self.began);
        if was_oldest {
            let oldest = volumes.oldest();
            volumes.deletions.retain(|_, known| known.count_since(oldest));
        }
    }
}

impl Deleting<'_> {
    /// How it ended. One that is cut off may have deleted the volume.
    pub fn ended(&mut self, outcome: Deletion) {
        self.outcome = outcome;
    }
}

impl Drop for Deleting<'_> {
    fn drop(&mut self) {
        let volumes = &mut *self.of.volumes.lock();
        let of_handle = volumes.claims.get_mut(&self.handle);
        if let Some(volume) = of_handle
            .zip(self.claim.as_ref())
            .and_then(|(claims, claim)| claims.get_mut(claim))
        {
            // What a refusal says of this call, it does not say of an earlier one.
            volume.is_perhaps_deleted |= self.outcome == Deletion::Uncertain;
        }
        let (ended, oldest) = (volumes.tick(), volumes.oldest());
        let Some(known) = volumes.deletions.get_mut(&self.handle) else {
            return;
        };
        known.in_flight -= 1;
        if self.outcome != Deletion::NotDeleted {
            known.ended = ended;
        }
        if !known.count_since(oldest) {
            volumes.deletions.remove(&self.handle);
        }
    }
}
