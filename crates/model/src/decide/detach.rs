//! Detaching: everything that is needed may have changed or gone since the attach, so each piece has a fall-back on
//! the attachment itself.

use super::action::{Action, IgnoreReason};
use super::attach::is_detaching;
use super::calls::UnpublishRequest;
use super::judge_release;
use super::observed::{Observed, SecretState};
use super::published_volume::{attachment_still_using, claims_to_renew, places, published_volume, user_of};
use super::refusal::Refusal;
use crate::objects::SecretReference;

pub(super) fn decide<'a>(observed: &Observed<'a>) -> Action<'a> {
    if !is_detaching(observed.attachment, &observed.driver.finalizer) && !observed.forced {
        return Action::Ignore(IgnoreReason::NothingToDetach);
    }
    if let Some(action) = judge_release::requested(observed) {
        return action;
    }
    steps(observed).unwrap_or_else(Action::Refuse)
}

fn steps<'a>(observed: &Observed<'a>) -> Result<Action<'a>, Refusal> {
    let (volume_id, secret) = published_volume(observed.attachment, observed.volume)?;
    let (confirmed, mut places) = places(observed, volume_id)?;
    let current = places.first().copied();
    let user = attachment_still_using(observed);
    if let Some(other) = user.or_else(|| user_of(observed, current?)) {
        return Err(Refusal::SharedOnNode {
            attachment: other.name.clone(),
            node: other.node.clone(),
        });
    }
    if let (Some(secret), SecretState::NotLoaded) = (allowed(observed, secret)?, observed.credentials) {
        return Ok(Action::LoadCredentials(secret));
    }
    places.retain(|place| user_of(observed, *place).is_none());
    Ok(Action::Unpublish(UnpublishRequest {
        renew: claims_to_renew(observed, &places),
        places,
        confirmed,
    }))
}

/// The publish secret that the detach needs.
pub(super) fn secret<'a>(observed: &Observed<'a>) -> Result<Option<&'a SecretReference>, Refusal> {
    if !is_detaching(observed.attachment, &observed.driver.finalizer) && !observed.forced {
        return Ok(None);
    }
    let (_, secret) = published_volume(observed.attachment, observed.volume)?;
    allowed(observed, secret)
}

/// The Secret that the volume names, if the driver may be given it; else the one that was noted when the attachment was
/// claimed. That one was allowed then, and without it the volume could never be detached.
fn allowed<'a>(
    observed: &Observed<'a>,
    named: Option<&'a SecretReference>,
) -> Result<Option<&'a SecretReference>, Refusal> {
    match (named, &observed.attachment.volume_note) {
        (Some(secret), _) if observed.may_give(secret) => Ok(named),
        (Some(_), Some(note)) => Ok(note.secret.as_ref()),
        (Some(secret), None) => Err(observed.secret_refusal(secret)),
        (None, _) => Ok(None),
    }
}
