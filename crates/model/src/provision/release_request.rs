//! A person asks to let a PersistentVolumeClaim go, though nobody knows whether a volume was created for it.
//!
//! A driver that never gives a final answer would hold the claim, and its namespace, for ever. The request is that of VolumeAttachments:
//! it counts for the object and the deletion that it names only. The volume may be left in the storage system then, and that is told.

use jiff::Timestamp;

use crate::decide::{ReleaseAnswer, ReleaseRefusal, ReleaseRequest, quoted};
use crate::objects::Claim;

/// What becomes of the request on a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimRelease {
    /// There is none, or it was answered.
    None,
    /// It is granted: in whose words.
    Granted(String),
    /// It is refused: the answer as JSON, for the object.
    Refused(ReleaseRefusal, String),
}

/// Judges the request on a claim. `obstacle` is why one that is as it should be is refused all the same, if so.
pub fn judge(claim: &Claim, obstacle: Option<ReleaseRefusal>, now: Timestamp) -> ClaimRelease {
    let Some(text) = claim.release.as_deref() else {
        return ClaimRelease::None;
    };
    let (request, refusal) = match ReleaseRequest::read(text) {
        Ok(request) => match check(&request, claim, now).and(obstacle.map_or(Ok(()), Err)) {
            Ok(()) => return ClaimRelease::Granted(request.words()),
            Err(refusal) => (request.at.to_string(), refusal),
        },
        Err(refusal) => (quoted(text), refusal),
    };
    let answer = ReleaseAnswer {
        request,
        reason: refusal.reason().to_owned(),
        message: refusal.to_string(),
    };
    let given = ReleaseAnswer::read(claim.release_refused.as_deref());
    if given.is_some_and(|given| given.request == answer.request) {
        return ClaimRelease::None;
    }
    ClaimRelease::Refused(refusal, serde_json::to_string(&answer).unwrap_or_default())
}

fn check(request: &ReleaseRequest, claim: &Claim, now: Timestamp) -> Result<(), ReleaseRefusal> {
    if claim.deleting.is_none() {
        return Err(ReleaseRefusal::NotDeleted);
    }
    request.check("PersistentVolumeClaim", &claim.uid, claim.deleting)?;
    request.check_age(now)
}
