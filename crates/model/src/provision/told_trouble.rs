//! What is wrong with an object, by what an attempt has told of it.

use super::action::{ClaimReason, VolumeReason};
use super::attempt::ClaimNote;
use super::deletion::VolumeNote;
use super::event;
use super::settle::CreateOutcome;
use super::trouble::{Trouble, TroubleKind};
use crate::objects::Volume;

impl Trouble {
    fn of_claim(note: &ClaimNote) -> Option<Self> {
        use TroubleKind as Kind;
        let (kind, words) = match note {
            ClaimNote::CallFailed(outcome, ..) if matches!(**outcome, CreateOutcome::Rescheduled(_)) => return None,
            ClaimNote::CallFailed(outcome, failure, _) => {
                (Kind::ProvisioningFailing, event::call_failed(outcome, &failure.message))
            }
            ClaimNote::InvalidAnswer(invalid) => (Kind::DriverInvalid, invalid.to_string()),
            ClaimNote::Faulty(fault) => (Kind::DriverInvalid, fault.to_string()),
            ClaimNote::UndoFailed(undo) => (Kind::ProvisioningFailing, undo.to_string()),
            ClaimNote::SaveFailed(error, Some(_)) => (Kind::ProvisioningFailing, event::save_refused(&error.message)),
            ClaimNote::RequestFailed(error) if !error.is_transient() => {
                (Kind::ProvisioningFailing, event::request_refused(error)?)
            }
            ClaimNote::Waits(ClaimReason::SecretForbidden, cause) => (Kind::SecretForbidden, cause.to_string()),
            ClaimNote::Waits(ClaimReason::ClassMissing, cause) => (Kind::ClassMissing, cause.to_string()),
            ClaimNote::Waits(ClaimReason::MarkerOfAnotherDriver, cause) => {
                (Kind::MarkerOfAnotherDriver, cause.to_string())
            }
            ClaimNote::Waits(_, cause) => (Kind::ProvisioningFailing, cause.to_string()),
            ClaimNote::HandleShared(_, cause) | ClaimNote::LeftAlone(cause) => (Kind::HandleShared, cause.to_string()),
            ClaimNote::PossiblyLeaked(volume, cause) => (Kind::PossiblyLeaked, event::possibly_leaked(volume, cause)),
            ClaimNote::TwoVolumes { volume, saved, lost } => {
                (Kind::PossiblyLeaked, event::two_volumes(volume, saved, lost))
            }
            _ => return None,
        };
        Some(Self {
            // Of a handle that is shared the driver is asked again.
            keeps_call: matches!(note, ClaimNote::Waits(reason, _) if *reason != ClaimReason::HandleShared),
            ..Self::new(kind, &words)
        })
    }

    fn of_volume(note: &VolumeNote, volume: &Volume) -> Option<Self> {
        use TroubleKind as Kind;
        Some(match note {
            VolumeNote::CallFailed(failure) => Self::new(Kind::DeletesFailing, &failure.message),
            VolumeNote::Refused(_, cause) => Self::new(Kind::DeletesFailing, &cause.to_string()),
            VolumeNote::RequestFailed(error) if !error.is_transient() => {
                Self::new(Kind::DeletesFailing, &event::volume_request_refused(error)?)
            }
            VolumeNote::Waits(reason, of) => {
                let kind = match reason {
                    VolumeReason::Held => Kind::VolumesHeld,
                    VolumeReason::HandleShared => Kind::HandleShared,
                    VolumeReason::ReleasedWhileBound => Kind::ReleasedWhileBound,
                    VolumeReason::NeedsDecision => Kind::NeedsDecision,
                    VolumeReason::StillAttached | VolumeReason::Syncing => Kind::DeletesStuck,
                    _ => Kind::DeletesFailing,
                };
                Self::new(kind, &event::volume_waits(*reason, volume, of)?)
            }
            _ => return None,
        })
    }

    /// What is wrong with a claim after notes about it. A volume that may be lost stays that.
    pub(super) fn after_claim_notes(known: &mut Option<Self>, notes: &[ClaimNote]) {
        for note in notes {
            let is_over = |known: &mut Self| match note {
                ClaimNote::Saved(..) => true,
                // The volume is lost no more, and what the driver answered is as wrong as before.
                ClaimNote::Recorded(..) => known.kind != TroubleKind::DriverInvalid,
                _ => false,
            };
            known.take_if(is_over);
            if let Some(told) = Self::of_claim(note)
                && (told.is_lost() || !known.as_ref().is_some_and(Self::is_lost))
            {
                *known = Some(told);
            }
        }
    }

    pub(super) fn after_volume_notes(known: &mut Option<Self>, notes: &[VolumeNote], volume: &Volume) {
        if let Some(told) = notes.iter().rev().find_map(|note| Self::of_volume(note, volume)) {
            *known = Some(told);
        }
    }
}
