//! What is wrong with claims and PersistentVolumes, and how it is shown.

use std::time::Duration;

use super::super::attempt::{ClaimNote, UndoFailure};
use super::super::deletion::VolumeNote;
use super::super::{
    ClaimReason, CreateOutcome, InvalidAnswer, PendingObject, PendingOperation, ProvisionHealth, ProvisionRefusal,
    Trouble, TroubleKind as Kind, VolumeReason,
};
use super::builders::{volume_json, volume_of};
use crate::answer::{ApiError, ApiErrorKind};
use crate::api::condition::{ConditionReason, ConditionType};
use crate::decide::Failure;
use crate::findings::FindingKind;
use crate::objects::SecretReference;
use jiff::Timestamp;

const STUCK_AFTER: Duration = Duration::from_mins(5);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn refused() -> ProvisionRefusal {
    ProvisionRefusal::Selector
}

fn waits(reason: ClaimReason) -> ClaimNote {
    ClaimNote::Waits(reason, Box::new(refused()))
}

fn failed(outcome: CreateOutcome) -> ClaimNote {
    ClaimNote::CallFailed(Box::new(outcome), Failure::plain("no room"), true)
}

fn api_error(kind: ApiErrorKind) -> ApiError {
    ApiError::without_answer(kind, "the webhook says no".to_owned())
}

/// Of one of several API servers, which does not know us.
fn unauthenticated() -> ApiError {
    ApiError::of_answer(401, "Unauthorized")
}

fn undo_failure(handle: &str) -> UndoFailure {
    UndoFailure {
        handle: handle.into(),
        failure: Failure::plain("busy"),
    }
}

/// No PersistentVolume tells of the volume.
#[test]
fn a_deletion_that_failed_before_there_is_a_persistent_volume_names_the_volume() {
    let words = |handle: &str| {
        let mut known = None;
        Trouble::after_claim_notes(&mut known, &[ClaimNote::UndoFailed(undo_failure(handle))]);
        known.unwrap().words
    };
    assert_eq!(&*words("vol-1"), "DeleteVolume of vol-1: busy");
    let long = "v".repeat(300);
    assert_eq!(&*words(&long), format!("DeleteVolume of {}: busy", &long[..256]));
}

#[test]
fn each_note_about_a_claim_tells_one_trouble() {
    use Kind::{
        ClassMissing, DriverInvalid, HandleShared, MarkerOfAnotherDriver, PossiblyLeaked, ProvisioningFailing,
        SecretForbidden,
    };
    let shared = ClaimNote::HandleShared("pvc-1".into(), Box::new(refused()));
    let recorded = ClaimNote::Recorded(ClaimReason::UndoVolume, "pvc-1".into(), "h".into());
    let unsaved = ClaimNote::SaveFailed(api_error(ApiErrorKind::Refused), Some(Duration::from_secs(1)));
    let rows = [
        (failed(CreateOutcome::Failed), Some(ProvisioningFailing)),
        (failed(CreateOutcome::Uncertain), Some(ProvisioningFailing)),
        (failed(CreateOutcome::Infeasible), Some(ProvisioningFailing)),
        (ClaimNote::InvalidAnswer(InvalidAnswer::NoVolume), Some(DriverInvalid)),
        (ClaimNote::UndoFailed(undo_failure("vol-1")), Some(ProvisioningFailing)),
        (waits(ClaimReason::SecretForbidden), Some(SecretForbidden)),
        (waits(ClaimReason::SecretMissing), Some(ProvisioningFailing)),
        (waits(ClaimReason::ClassMissing), Some(ClassMissing)),
        (waits(ClaimReason::MarkerOfAnotherDriver), Some(MarkerOfAnotherDriver)),
        (waits(ClaimReason::TopologyMissing), Some(ProvisioningFailing)),
        (waits(ClaimReason::HandleShared), Some(ProvisioningFailing)),
        (ClaimNote::LeftAlone(Box::new(refused())), Some(HandleShared)),
        (shared, Some(HandleShared)),
        (recorded, None),
        (unsaved, Some(ProvisioningFailing)),
        (ClaimNote::SaveFailed(api_error(ApiErrorKind::Unknown), None), None),
        (ClaimNote::RequestFailed(api_error(ApiErrorKind::Unknown)), None),
        (ClaimNote::RequestFailed(unauthenticated()), None),
        (ClaimNote::PossiblyLeaked("pvc-1".into(), "gone"), Some(PossiblyLeaked)),
        (ClaimNote::Cancelled, None),
    ];
    for (note, kind) in rows {
        let mut known = None;
        Trouble::after_claim_notes(&mut known, std::slice::from_ref(&note));
        assert_eq!(known.map(|trouble| trouble.kind), kind, "{note:?}");
    }
}

#[test]
fn each_note_about_a_volume_tells_one_trouble() {
    use Kind::{DeletesFailing, DeletesStuck, HandleShared, NeedsDecision, ReleasedWhileBound, VolumesHeld};
    let waits = |reason| VolumeNote::Waits(reason, "of".to_owned());
    let forbidden = VolumeNote::Refused(VolumeReason::SecretForbidden, Box::new(refused()));
    let request = |kind| VolumeNote::RequestFailed(api_error(kind));
    let rows = [
        (VolumeNote::CallFailed(Failure::plain("busy")), Some(DeletesFailing)),
        (forbidden, Some(DeletesFailing)),
        (waits(VolumeReason::Held), Some(VolumesHeld)),
        (waits(VolumeReason::HandleShared), Some(HandleShared)),
        (waits(VolumeReason::ReleasedWhileBound), Some(ReleasedWhileBound)),
        (waits(VolumeReason::NeedsDecision), Some(NeedsDecision)),
        (waits(VolumeReason::StillAttached), Some(DeletesStuck)),
        (waits(VolumeReason::Syncing), Some(DeletesStuck)),
        (waits(VolumeReason::NotCsi), Some(DeletesFailing)),
        (request(ApiErrorKind::Refused), Some(DeletesFailing)),
        (request(ApiErrorKind::Unknown), None),
        (VolumeNote::RequestFailed(unauthenticated()), None),
        (VolumeNote::Released, None),
    ];
    for (note, kind) in rows {
        let mut known = None;
        Trouble::after_volume_notes(&mut known, std::slice::from_ref(&note), &volume_of(&volume_json()));
        assert_eq!(known.map(|trouble| trouble.kind), kind, "{note:?}");
    }
}

#[test]
fn a_volume_that_may_be_lost_stays_that_until_one_is_saved() {
    let leaked = ClaimNote::PossiblyLeaked("pvc-1".into(), "gone");
    let mut known = None;
    Trouble::after_claim_notes(&mut known, &[leaked, failed(CreateOutcome::Failed)]);
    assert_eq!(known.as_ref().map(|trouble| trouble.kind), Some(Kind::PossiblyLeaked));
    Trouble::after_claim_notes(&mut known, &[ClaimNote::Saved("pvc-1".into(), "h".into())]);
    assert_eq!(known, None);
}

/// It is no success: what is wrong with the answers of the driver stays.
#[test]
fn a_volume_that_is_recorded_for_its_end_is_lost_no_more_and_its_answer_stays_wrong() {
    let invalid = ClaimNote::InvalidAnswer(InvalidAnswer::NoVolume);
    let leaked = ClaimNote::PossiblyLeaked("pvc-1".into(), "gone");
    for (note, kind) in [
        (invalid, Some(Kind::DriverInvalid)),
        (leaked, None),
        (failed(CreateOutcome::Failed), None),
    ] {
        let recorded = ClaimNote::Recorded(ClaimReason::UndoVolume, "pvc-1".into(), "h".into());
        let mut known = None;
        Trouble::after_claim_notes(&mut known, &[note, recorded]);
        assert_eq!(known.map(|trouble| trouble.kind), kind);
    }
}

#[test]
fn what_kept_a_call_from_being_made_ends_with_the_call() {
    for (note, stays) in [
        (waits(ClaimReason::ClassMissing), false),
        (waits(ClaimReason::SecretMissing), false),
        (waits(ClaimReason::TopologyMissing), false),
        (waits(ClaimReason::Invalid), false),
        (waits(ClaimReason::HandleShared), true),
        (waits(ClaimReason::SecretForbidden), false),
        (failed(CreateOutcome::Failed), true),
    ] {
        let mut known = None;
        Trouble::after_claim_notes(&mut known, &[note]);
        Trouble::is_called(&mut known);
        assert_eq!(known.is_some(), stays);
    }
}

/// As a volume populator does what is left to do. A volume that may be lost is lost all the same.
#[test]
fn what_is_left_to_others_is_no_trouble() {
    for (note, stays) in [
        (waits(ClaimReason::ClassMissing), false),
        (waits(ClaimReason::Unconfirmed), false),
        (failed(CreateOutcome::Failed), false),
        (ClaimNote::PossiblyLeaked("pvc-1".into(), "gone"), true),
    ] {
        let mut known = None;
        Trouble::after_claim_notes(&mut known, &[note]);
        Trouble::is_left_to_others(&mut known);
        assert_eq!(known.is_some(), stays);
    }
}

/// What is done, and what was told.
struct Told(PendingOperation, Option<Kind>);

/// For how many seconds the object and its call wait, and what is shown: the trouble and the finding.
type Shown = (i64, Option<i64>, Option<Kind>, Option<FindingKind>);

impl Told {
    fn shows(&self, rows: &[Shown]) {
        for &(age, uncertain, kind, finding) in rows {
            let now = at(10_000);
            let trouble = self.1.map(|kind| Trouble::new(kind, "why"));
            let object = PendingObject {
                operation: self.0,
                name: "web/data",
                since: Some(at(10_000 - age)),
                uncertain_since: uncertain.map(|age| at(10_000 - age)),
                trouble: trouble.as_ref(),
            };
            let shown = object.trouble(STUCK_AFTER, now);
            let row = (self.1, age, uncertain);
            assert_eq!(shown.map(|(kind, _)| kind), kind, "{row:?}");
            let found = shown.and_then(|(kind, is_old)| kind.finding(is_old));
            assert_eq!(found, finding, "{row:?}");
        }
    }
}

#[test]
fn what_an_object_shows_follows_from_what_was_told_and_from_its_age() {
    use Kind::{
        ClassMissing, DeletesFailing, DeletesStuck, HandleShared, NeedsDecision, PossiblyLeaked, ProvisioningFailing,
        ProvisioningStuck, ProvisioningUncertain, SecretForbidden, VolumesHeld,
    };
    use PendingOperation::{Delete, Provision};
    const PROVISION_STUCK: Option<FindingKind> = Some(FindingKind::ProvisionStuck);
    const DELETE_STUCK: Option<FindingKind> = Some(FindingKind::DeleteStuck);
    Told(Provision, None).shows(&[
        (299, None, None, None),
        (301, None, None, None),
        (601, None, Some(ProvisioningStuck), PROVISION_STUCK),
        (601, Some(301), Some(ProvisioningUncertain), PROVISION_STUCK),
    ]);
    Told(Provision, Some(ProvisioningFailing)).shows(&[
        (10, None, Some(ProvisioningFailing), None),
        (301, Some(10), Some(ProvisioningStuck), PROVISION_STUCK),
        (310, Some(301), Some(ProvisioningUncertain), PROVISION_STUCK),
    ]);
    Told(Provision, Some(SecretForbidden)).shows(&[
        (10, None, Some(SecretForbidden), None),
        (301, None, Some(SecretForbidden), PROVISION_STUCK),
    ]);
    Told(Provision, Some(ClassMissing)).shows(&[(301, None, Some(ClassMissing), Some(FindingKind::ClassMissing))]);
    Told(Provision, Some(HandleShared)).shows(&[(1, None, Some(HandleShared), Some(FindingKind::HandleShared))]);
    Told(Provision, Some(PossiblyLeaked)).shows(&[(1, None, Some(PossiblyLeaked), Some(FindingKind::PossibleLeak))]);
    Told(Delete, Some(DeletesStuck)).shows(&[(10, None, None, None), (301, None, Some(DeletesStuck), DELETE_STUCK)]);
    Told(Delete, Some(DeletesFailing)).shows(&[
        (10, None, Some(DeletesFailing), None),
        (301, None, Some(DeletesStuck), DELETE_STUCK),
    ]);
    Told(Delete, Some(VolumesHeld)).shows(&[(9_000, None, Some(VolumesHeld), None)]);
    Told(Delete, Some(NeedsDecision)).shows(&[(1, None, Some(NeedsDecision), Some(FindingKind::NeedsDecision))]);
}

fn object<'a>(name: &'a str, since: i64, trouble: &'a Trouble) -> PendingObject<'a> {
    PendingObject {
        operation: PendingOperation::Provision,
        name,
        since: Some(at(since)),
        uncertain_since: None,
        trouble: Some(trouble),
    }
}

/// A queue tells of its keys in any order, and each other text is a write.
#[test]
fn of_objects_that_are_as_old_always_the_same_is_named() {
    let trouble = Trouble::new(Kind::ClassMissing, "why");
    let shown = |order: [usize; 3], since: Option<i64>| {
        let mut health = ProvisionHealth::default();
        for index in order {
            let object = PendingObject {
                since: since.map(at),
                ..object(["web/a", "web/b", "web/c"][index], 0, &trouble)
            };
            health.add(Kind::ClassMissing, &object);
        }
        health.condition(ConditionType::ProvisioningHealthy).message
    };
    for since in [Some(50), None] {
        let first = shown([0, 1, 2], since);
        assert!(first.contains("web/a"), "{first}");
        let wanted = [first.clone(), first];
        assert_eq!([shown([2, 1, 0], since), shown([1, 2, 0], since)], wanted);
    }
}

#[test]
fn a_condition_names_the_worst_and_the_oldest_of_each() {
    let mut health = ProvisionHealth::default();
    let shown = |health: &ProvisionHealth, kind| {
        let update = health.condition(kind);
        (update.status.as_str(), update.reason, update.message)
    };
    for kind in [ConditionType::ProvisioningHealthy, ConditionType::DeletionHealthy] {
        let (status, reason, _) = shown(&health, kind);
        assert_eq!((status, reason), ("True", ConditionReason::NoFailures));
    }
    let failing = Trouble::new(Kind::ProvisioningFailing, "no room");
    health.add(Kind::ProvisioningFailing, &object("web/b", 200, &failing));
    health.add(Kind::ProvisioningFailing, &object("web/a", 100, &failing));
    health.add(Kind::ProvisioningFailing, &object("web/c", 300, &failing));
    let missing = Trouble::new(Kind::ClassMissing, "create it");
    health.add(Kind::ClassMissing, &object("web/d", 100, &missing));
    let (status, reason, message) = shown(&health, ConditionType::ProvisioningHealthy);
    assert_eq!((status, reason), ("False", ConditionReason::ClassMissing));
    assert_eq!(
        message,
        "PersistentVolumeClaims whose StorageClass is missing: 1; web/d, since 1970-01-01T00:01:40Z: create it; \
         PersistentVolumeClaims that failed and will be retried: 3; the oldest is web/a, since 1970-01-01T00:01:40Z: no room"
    );
    assert_eq!(health.count(Kind::ProvisioningFailing), 3);
    assert_eq!(shown(&health, ConditionType::DeletionHealthy).0, "True");

    // What the settings ask for is not wrong, and is told.
    let held = Trouble::new(Kind::VolumesHeld, "Hold");
    health.add(Kind::VolumesHeld, &object("pv-1", 100, &held));
    let (status, reason, _) = shown(&health, ConditionType::DeletionHealthy);
    assert_eq!((status, reason), ("True", ConditionReason::VolumesHeld));
    let undecided = Trouble::new(Kind::NeedsDecision, "decide");
    health.add(Kind::NeedsDecision, &object("pv-2", 100, &undecided));
    let (status, reason, message) = shown(&health, ConditionType::DeletionHealthy);
    assert_eq!((status, reason), ("False", ConditionReason::NeedsDecision));
    assert!(message.contains("decide") && message.contains("Hold"), "{message}");
}

#[test]
fn every_finding_of_provisioning_has_its_trouble_and_its_reason() {
    let told = |finding| {
        Kind::ALL
            .iter()
            .copied()
            .find(|kind| kind.finding(true) == Some(finding))
    };
    for finding in FindingKind::of_role(false) {
        assert!(told(finding).is_some(), "{finding:?}");
    }
    for kind in Kind::ALL {
        let is_of_provisioning = ConditionType::is_of_provisioning(kind.condition().0.as_str());
        assert!(is_of_provisioning, "{kind:?}");
    }
    let found = FindingKind::of_role(true).count() + FindingKind::of_role(false).count();
    assert_eq!(found, FindingKind::ALL.len());
}

/// Words that a driver sends are bounded.
#[test]
fn the_words_of_a_trouble_are_short() {
    let note = VolumeNote::CallFailed(Failure::plain("x".repeat(9_000)));
    let mut known = None;
    Trouble::after_volume_notes(&mut known, &[note], &volume_of(&volume_json()));
    assert!(known.is_some_and(|trouble| trouble.words.len() <= 400));
}

/// The condition says what to do.
#[test]
fn a_secret_that_is_not_listed_says_what_to_add() {
    let secret = SecretReference {
        namespace: "storage".into(),
        name: "key".into(),
    };
    let cause = ProvisionRefusal::SecretNotAllowed {
        secret,
        config: "ebs".into(),
        driver: "d".into(),
    };
    let mut known = None;
    Trouble::after_claim_notes(
        &mut known,
        &[ClaimNote::Waits(ClaimReason::SecretForbidden, Box::new(cause))],
    );
    assert!(known.is_some_and(|trouble| trouble.words.contains("add {namespace: storage, names: [key]}")));
}
