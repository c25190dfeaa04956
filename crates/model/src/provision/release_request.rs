//! A person asks to let a PersistentVolumeClaim go, though nobody knows whether a volume was created for it.
//!
//! A driver that never gives a final answer would hold the claim, and its namespace, for ever. The request is that of VolumeAttachments:
//! it counts for the object and the deletion that it names only. The volume may be left in the storage system then, and that is told.

use jiff::Timestamp;
use thiserror::Error;

use crate::decide::{MAX_REQUEST_AGE, ReleaseAnswer, ReleaseRequest, quoted};
use crate::objects::Claim;

/// Why a request is not granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum ClaimReleaseRefusal {
    #[error("the annotation attacher.csi.dev/release cannot be read: {0}")]
    Unreadable(Box<str>),
    #[error("the PersistentVolumeClaim is not being deleted: delete it first")]
    NotDeleted,
    #[error("the request is for an object with UID {0}, which is not that of this PersistentVolumeClaim")]
    OtherObject(Box<str>),
    #[error("the request is for a deletion at {0}, which is not that of this PersistentVolumeClaim")]
    OtherDeletion(Timestamp),
    #[error("the request of {0} is more than 15 minutes from the time of the operator; ask again")]
    Expired(Timestamp),
    #[error("the outcome of CreateVolume has not been unknown for long: ask again after the time of --stuck-after")]
    TooEarly,
    #[error("a call for its volume is under way: ask again once it has ended")]
    CallUnderWay,
}

impl ClaimReleaseRefusal {
    /// Stable name, for the answer on the object.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "Unreadable",
            Self::NotDeleted => "NotDeleted",
            Self::OtherObject(_) => "OtherObject",
            Self::OtherDeletion(_) => "OtherDeletion",
            Self::Expired(_) => "Expired",
            Self::TooEarly => "TooEarly",
            Self::CallUnderWay => "CallUnderWay",
        }
    }
}

/// What becomes of the request on a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimRelease {
    /// There is none, or it was answered.
    None,
    /// It is granted: in whose words.
    Granted(String),
    /// It is refused: the answer as JSON, for the object.
    Refused(ClaimReleaseRefusal, String),
}

/// Judges the request on a claim. `obstacle` is why one that is as it should be is refused all the same, if so.
pub fn judge(claim: &Claim, obstacle: Option<ClaimReleaseRefusal>, now: Timestamp) -> ClaimRelease {
    let Some(text) = claim.release.as_deref() else {
        return ClaimRelease::None;
    };
    let (request, refusal) = match serde_json::from_str::<ReleaseRequest>(text) {
        Ok(request) => match refused(&request, claim, obstacle, now) {
            None => return ClaimRelease::Granted(request.words()),
            Some(refusal) => (request.at.to_string(), refusal),
        },
        Err(error) => {
            let error = quoted(&error.to_string());
            (quoted(text), ClaimReleaseRefusal::Unreadable(error.into()))
        }
    };
    let answer = ReleaseAnswer {
        request,
        reason: refusal.reason().to_owned(),
        message: refusal.to_string(),
    };
    let given = claim.release_refused.as_deref();
    let given = given.and_then(|given| serde_json::from_str::<ReleaseAnswer>(given).ok());
    if given.is_some_and(|given| given.request == answer.request) {
        return ClaimRelease::None;
    }
    ClaimRelease::Refused(refusal, serde_json::to_string(&answer).unwrap_or_default())
}

fn refused(
    request: &ReleaseRequest,
    claim: &Claim,
    obstacle: Option<ClaimReleaseRefusal>,
    now: Timestamp,
) -> Option<ClaimReleaseRefusal> {
    let Some(deleted) = claim.deleting else {
        return Some(ClaimReleaseRefusal::NotDeleted);
    };
    if *request.uid != *claim.uid {
        return Some(ClaimReleaseRefusal::OtherObject(quoted(&request.uid).into()));
    }
    if request.deleted != deleted {
        return Some(ClaimReleaseRefusal::OtherDeletion(request.deleted));
    }
    if now.duration_since(request.at).abs() > MAX_REQUEST_AGE {
        return Some(ClaimReleaseRefusal::Expired(request.at));
    }
    obstacle
}
