//! From the answer of a call to what is known of the volume then. Nothing else changes that.

use std::sync::Arc;

use super::classify::{CreateErrorClass, create_error, delete_answer};
use super::creation::{Creation, Deletion, UncertainCall};
use super::marker::is_open_call;
use super::patch::{self, ClaimWrite};
use super::plan::CreatePlan;
use super::policy::OrphanVolumePolicy;
use super::refusal::cut_handle;
use super::response::{AnsweredVolume, InvalidAnswer, NewVolume, VolumeFault};
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::{Failure, grpc_code};
use crate::objects::Claim;

/// How a CreateVolume ended.
#[derive(Clone, Debug, PartialEq)]
pub enum CreateOutcome {
    /// The volume is there.
    Created,
    /// It is there, and something is wrong with it: it is deleted and created again.
    Faulty(VolumeFault),
    /// There is a volume, and the answer has no ID of it that can be used.
    InvalidAnswer(InvalidAnswer),
    /// Nobody knows whether there is one: the same call is made again after its backoff.
    Uncertain,
    /// As [`Self::Uncertain`]: an earlier call with other arguments is open, and these ones were refused.
    OtherCallOpen,
    /// There is none, and it is retried after its backoff.
    Failed,
    /// As [`Self::Failed`]: a volume of this name with other arguments exists.
    NameInUse,
    /// There is none, and it cannot succeed with these arguments: retried after 5 minutes, or the longest backoff when that is longer,
    /// unless an input changes.
    Infeasible,
    /// There is no room where the selected node is: this patch takes the node off the claim, and kube-scheduler selects again.
    Rescheduled(ClaimWrite),
}

/// The failure of a CreateVolume whose answer is a volume that is being deleted, that of the PersistentVolume `of` where one is known, or
/// that was deleted during the call: nothing is known of what there will be, as when a driver answers ABORTED, and the same call is made
/// again.
pub fn going(handle: &str, of: Option<&str>) -> Failure {
    let handle = cut_handle(handle);
    let whose = of.map_or_else(String::new, |volume| {
        format!(", as that of PersistentVolume {volume} (to keep it, set the policy of that one to Retain)")
    });
    Failure {
        message: format!(
            "the driver answered with volume {handle}, for which DeleteVolume is or was under way{whose}: CreateVolume is called again"
        ),
        code: Some(grpc_code::ABORTED),
    }
}

/// The failure of a DeleteVolume that is not sent, as `other` was made of that volume for another claim since it was looked for: nothing is
/// deleted.
pub fn answered_meanwhile(handle: &str, other: &str) -> Failure {
    let handle = cut_handle(handle);
    Failure {
        message: format!(
            "volume {handle} was not deleted: the driver has just answered with it for PersistentVolume {other}"
        ),
        code: Some(grpc_code::FAILED_PRECONDITION),
    }
}

/// What is known of the volume after an answer to CreateVolume, and how the call ended. `answer` has the volume, or the failure.
pub fn created(
    before: &Creation,
    plan: &Arc<CreatePlan>,
    answer: Result<Option<AnsweredVolume>, &Failure>,
    claim: &Claim,
) -> (Creation, CreateOutcome) {
    let uncertain = |doubtful| Creation::uncertain(plan.clone(), doubtful);
    let was_doubtful = match before {
        Creation::Uncertain(call) => Some(call.doubtful),
        Creation::Never | Creation::Refused | Creation::Created(_) => None,
    };
    let is_unplanned = matches!(before, Creation::Uncertain(call) if call.plan.is_none());
    let failure = match answer {
        Ok(answer) => {
            return match NewVolume::of_answer(plan, answer) {
                Ok(volume) => {
                    let outcome = volume.fault.map_or(CreateOutcome::Created, CreateOutcome::Faulty);
                    (Creation::Created(Box::new(volume)), outcome)
                }
                Err(invalid) => (uncertain(false), CreateOutcome::InvalidAnswer(invalid)),
            };
        }
        Err(failure) => failure,
    };
    let is_of_another_call = was_doubtful.is_some() && !is_open_call(claim, plan);
    match create_error(failure.code) {
        CreateErrorClass::Uncertain => (uncertain(false), CreateOutcome::Uncertain),
        // A refusal of other arguments says nothing of the call that is open, as when the settings were changed before a restart. What they
        // brought is not what that is repeated with: it is planned anew, from settings that may be put back.
        _ if is_of_another_call => (
            Creation::Uncertain(UncertainCall::default()),
            CreateOutcome::OtherCallOpen,
        ),
        // Nor does this, where nobody knows what was called with: settings of now may be what is wrong.
        CreateErrorClass::NameInUse if is_unplanned => {
            (Creation::Uncertain(UncertainCall::default()), CreateOutcome::NameInUse)
        }
        // Nor does this: the volume that exists may be the one which that call created.
        CreateErrorClass::NameInUse if was_doubtful.is_some() => (uncertain(false), CreateOutcome::NameInUse),
        // Nor does this, as when a Secret was changed since. The specification takes it for final; the volume would be lost by that.
        CreateErrorClass::NotAdmitted if was_doubtful.is_some() => (uncertain(false), CreateOutcome::Uncertain),
        CreateErrorClass::NameInUse => (Creation::Refused, CreateOutcome::NameInUse),
        CreateErrorClass::Doubtful | CreateErrorClass::Exhausted if was_doubtful == Some(false) => {
            (uncertain(true), CreateOutcome::Uncertain)
        }
        CreateErrorClass::NotAdmitted | CreateErrorClass::Doubtful | CreateErrorClass::Final => {
            (Creation::Refused, CreateOutcome::Failed)
        }
        CreateErrorClass::Infeasible => (Creation::Refused, CreateOutcome::Infeasible),
        CreateErrorClass::Exhausted => (Creation::Refused, exhausted(plan, claim)),
    }
}

/// Only a claim that still wants the volume on the node that the call was made for is scheduled again.
fn exhausted(plan: &CreatePlan, claim: &Claim) -> CreateOutcome {
    let write = is_wanted_there(plan, claim).then(|| patch::reschedule(claim)).flatten();
    write.map_or(CreateOutcome::Failed, CreateOutcome::Rescheduled)
}

/// Whether a claim wants the volume on the node that a call was made for. For immediate binding no node counts.
pub(super) fn is_wanted_there(plan: &CreatePlan, claim: &Claim) -> bool {
    let is_placed = plan.segment.is_some() && plan.node.is_some() && plan.node == claim.selected_node;
    is_placed && claim.deleting.is_none() && claim.volume_name.is_none()
}

/// What is known of the deletion of a volume by a DeleteVolume that ended so, and was the first one.
pub const fn deletion_of(answer: &Result<(), CallEnd>, orphans: OrphanVolumePolicy) -> Deletion {
    match answer {
        Ok(()) => Deletion::Deleted,
        Err(CallEnd::Failed(failure)) => delete_answer(failure.code, orphans),
        Err(CallEnd::LeaseLost(LeaseLost::NotStarted)) => Deletion::NotDeleted,
        Err(CallEnd::LeaseLost(LeaseLost::Cancelled)) => Deletion::Uncertain,
    }
}

/// What an answer to the DeleteVolume of a volume that nobody wants says; `code` is none where there was no status. After OK there is
/// none, as after a refusal.
pub fn undone(volume: &NewVolume, code: Option<i32>, orphans: OrphanVolumePolicy) -> Creation {
    if delete_answer(code, orphans) == Deletion::Deleted {
        return Creation::Refused;
    }
    Creation::Created(Box::new(NewVolume {
        undo_failed: true,
        ..volume.clone()
    }))
}
