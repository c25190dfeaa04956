//! What CreateVolume answered (CSI spec, "CreateVolumeResponse"), and what is wrong with it.

use std::sync::Arc;
use thiserror::Error;

use super::plan::CreatePlan;
use super::topology::{MAX_TERMS, Segment};
use crate::api::names::PROVISIONER_IDENTITY_ATTRIBUTE;
use crate::objects::{ENTRY_SIZE, MAX_VOLUME_FIELD, StringMap, is_blank, kept_size};

/// Longest volume ID that is accepted, in bytes. The CSI specification allows 128; drivers that put a server and a path into it need more.
pub const MAX_HANDLE: usize = 4 << 10;

/// What the PersistentVolume says besides the context: who created it. The driver's name in it has at most 63 characters.
const IDENTITY_SIZE: usize = PROVISIONER_IDENTITY_ATTRIBUTE.len() + 128 + ENTRY_SIZE;
/// The largest context that is kept.
const MAX_CONTEXT: usize = MAX_VOLUME_FIELD - IDENTITY_SIZE;

/// The volume of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnsweredVolume {
    /// `volume_id`.
    pub handle: Box<str>,
    /// `capacity_bytes`; 0 is not known.
    pub capacity_bytes: i64,
    /// `volume_context`.
    pub context: StringMap,
    /// `accessible_topology`.
    pub topology: Vec<Segment>,
}

/// An answer without an ID that can be used. There is a volume, and nobody can say which: the call stays uncertain.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum InvalidAnswer {
    #[error("the driver answered CreateVolume with OK and without a volume: report it to the vendor of the driver")]
    NoVolume,
    #[error(
        "the driver answered CreateVolume with OK and with an empty volume ID: report it to the vendor of the driver"
    )]
    EmptyHandle,
    #[error(
        "the driver answered CreateVolume with a volume ID of {0} bytes, and at most {MAX_HANDLE} are accepted: report it to the vendor of the driver"
    )]
    LongHandle(usize),
}

/// Why a volume that was created is deleted and created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum VolumeFault {
    #[error(
        "the driver created a volume of {answered} bytes, and {asked} bytes were asked for; it is deleted and created again"
    )]
    Undersized { asked: i64, answered: i64 },
    #[error(
        "the driver answered CreateVolume with a volume context that needs {0} bytes of memory, and at most {MAX_CONTEXT} are accepted: \
         report it to the vendor of the driver; the volume is deleted and created again"
    )]
    ContextTooLarge(usize),
    #[error(
        "the driver answered CreateVolume with {0} topologies, and at most {MAX_TERMS} are accepted: report it to the vendor of the driver; \
         the volume is deleted and created again"
    )]
    TooManyTopologies(usize),
    #[error(
        "the driver answered CreateVolume with a topology that needs {0} bytes of memory, and at most {MAX_VOLUME_FIELD} are accepted: report \
         it to the vendor of the driver; the volume is deleted and created again"
    )]
    TopologyTooLarge(usize),
}

/// A volume that CreateVolume answered in this process, and no PersistentVolume is known to name.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVolume {
    /// What it was created with.
    pub plan: Arc<CreatePlan>,
    /// Its ID for the driver.
    pub handle: Box<str>,
    /// Its size; the requested one where the driver does not say it.
    pub capacity_bytes: i64,
    /// Its context.
    pub context: StringMap,
    /// Where it is reachable from.
    pub topology: Vec<Segment>,
    /// What is wrong with it.
    pub fault: Option<VolumeFault>,
    /// Whether DeleteVolume was called for it, as nobody wants it, and not answered with OK.
    pub undo_failed: bool,
    /// Another PersistentVolume of the driver that was seen with its handle.
    pub owner: Option<Box<str>>,
}

impl NewVolume {
    /// Whether a claim may get it: nothing is wrong with it, and no call may be about to delete it.
    pub fn is_usable(&self) -> bool {
        self.fault.is_none() && !self.undo_failed
    }

    /// The volume of an answer.
    ///
    /// # Errors
    ///
    /// It has no ID that can be used.
    pub fn of_answer(plan: &Arc<CreatePlan>, answer: Option<AnsweredVolume>) -> Result<Self, InvalidAnswer> {
        let mut answer = answer.ok_or(InvalidAnswer::NoVolume)?;
        answer.topology.retain(|_| plan.has_topology);
        if is_blank(&answer.handle) {
            return Err(InvalidAnswer::EmptyHandle);
        }
        if answer.handle.len() > MAX_HANDLE {
            return Err(InvalidAnswer::LongHandle(answer.handle.len()));
        }
        let asked = plan.required_bytes;
        let answered = answer.capacity_bytes;
        let unusable = unusable(&answer);
        // Of what cannot be kept a PersistentVolume says nothing: one that is made so that its volume is deleted needs none of it.
        let (context, topology) = match unusable {
            None => (answer.context, answer.topology),
            Some(_) => (StringMap::default(), Vec::new()),
        };
        let undersized = || (answered != 0 && answered < asked).then_some(VolumeFault::Undersized { asked, answered });
        Ok(Self {
            plan: plan.clone(),
            handle: answer.handle,
            capacity_bytes: if answered <= 0 { asked } else { answered },
            context,
            topology,
            fault: unusable.or_else(undersized),
            undo_failed: false,
            owner: None,
        })
    }
}

/// What of an answer is more than is kept of a volume.
fn unusable(answer: &AnsweredVolume) -> Option<VolumeFault> {
    let entries = answer.context.iter();
    let bytes = kept_size(entries.map(|(key, value)| key.len() + value.len()));
    // What is written must be read again: a PersistentVolume with more is never attached.
    if bytes > MAX_CONTEXT {
        return Some(VolumeFault::ContextTooLarge(bytes));
    }
    let count = answer.topology.len();
    if count > MAX_TERMS {
        return Some(VolumeFault::TooManyTopologies(count));
    }
    let mut sizes = answer.topology.iter().map(Segment::kept_size);
    sizes
        .find(|size| *size > MAX_VOLUME_FIELD)
        .map(VolumeFault::TopologyTooLarge)
}
