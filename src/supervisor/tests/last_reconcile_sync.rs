//! When the last comparison with ListVolumes is shown.

use super::status::{at, driver, facts};
use crate::api::AttacherConfigStatus;
use crate::runtime::{DriverPhase, ReconcileSyncResult};
use crate::supervisor::status::{Comparisons, StatusInput, status};

#[test]
fn a_comparison_that_finds_the_same_is_shown_after_ten_minutes() {
    let shown = |known: &AttacherConfigStatus, second: i64, volumes: usize, error: Option<&str>| {
        let mut driver = driver(DriverPhase::Running);
        driver.last_reconcile = Some(ReconcileSyncResult {
            finished_at: at(second),
            volumes,
            mismatches: 0,
            without_attachment: None,
            error: error.map(ToOwned::to_owned),
        });
        status(&facts(Some(&driver)), known, at(second))
    };
    let time = |status: &AttacherConfigStatus| {
        let last = status.last_reconcile_sync.as_ref();
        last.map(|last| last.completion_time.0)
    };
    let first = shown(&AttacherConfigStatus::default(), 100, 7, None);
    assert_eq!(time(&first), Some(at(100)));
    for (second, volumes, error, expected) in [
        (160, 7, None, 100),
        (699, 7, None, 100),
        (700, 7, None, 700),
        (160, 8, None, 160),
        (160, 0, Some("no answer"), 160),
        // The clock was put back.
        (99, 7, None, 99),
    ] {
        let next = shown(&first, second, volumes, error);
        assert_eq!(time(&next), Some(at(expected)), "{second}: {volumes}, {error:?}");
        assert_eq!(next == first, expected == 100, "{second}: {volumes}, {error:?}");
    }
}

/// Else an error, or volumes without an attachment, would be shown for ever.
#[test]
fn a_comparison_that_none_follows_is_not_shown() {
    use Comparisons::{Made, NotMade};
    let shown = |phase: DriverPhase, comparisons: Comparisons, made: Option<i64>, known: &AttacherConfigStatus| {
        let mut driver = driver(phase);
        driver.last_reconcile = made.map(|second| ReconcileSyncResult {
            finished_at: at(second),
            volumes: 0,
            mismatches: 0,
            without_attachment: None,
            error: Some("no answer".to_owned()),
        });
        let input = StatusInput {
            comparisons,
            ..facts(Some(&driver))
        };
        status(&input, known, at(200))
    };
    let known = shown(DriverPhase::Running, Made, Some(100), &AttacherConfigStatus::default());
    assert!(known.last_reconcile_sync.is_some());
    for (phase, comparisons, made, stays) in [
        (DriverPhase::Running, Made, None, true),
        (DriverPhase::Running, NotMade, None, false),
        // Of before the settings changed.
        (DriverPhase::Running, NotMade, Some(100), false),
        (DriverPhase::Connecting, NotMade, None, true),
        (DriverPhase::Suspended, Made, Some(100), true),
    ] {
        let row = format!("{phase:?}, {comparisons:?}, {made:?}");
        let now = shown(phase, comparisons, made, &known);
        assert_eq!(now.last_reconcile_sync.is_some(), stays, "{row}");
    }
}
