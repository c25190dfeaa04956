//! Passes over several attachments, one after the other.

use super::*;

#[test]
fn what_may_pass_by_itself_counts_after_a_while_and_is_reported_once() {
    let mut history = FindingHistory::default();
    let gone = [Case {
        node: Entry::Missing,
        ..well()
    }];
    let (summary, new, lasting) = pass(&mut history, &gone, 1000);
    assert_eq!(
        (summary.count(FindingKind::NodeGone), new.len(), lasting),
        (0, 0, false)
    );
    let (summary, new, _) = pass(&mut history, &gone, 1299);
    assert_eq!((summary.count(FindingKind::NodeGone), new.len()), (0, 0));
    let (summary, new, lasting) = pass(&mut history, &gone, 1300);
    // What was reported stays as it is while the objects do, and needs no further pass.
    assert_eq!((summary.count(FindingKind::NodeGone), new.len(), lasting), (1, 1, true));
    assert_eq!(new[0].object.as_deref(), Some("va"));
    let (summary, new, _) = pass(&mut history, &gone, 1400);
    assert_eq!((summary.count(FindingKind::NodeGone), new.len()), (1, 0));
    // It was back for one pass: the time begins anew.
    let (summary, _, lasting) = pass(&mut history, &[well()], 1500);
    assert_eq!((summary, lasting), (FindingsSummary::default(), true));
    let (summary, new, _) = pass(&mut history, &gone, 1600);
    assert_eq!((summary.count(FindingKind::NodeGone), new.len()), (0, 0));
    // Nor does it count for another object of the same name.
    let mut other = gone[0].clone();
    other.name = "other".to_owned();
    assert_eq!(pass(&mut history, &[other], 1900).0.count(FindingKind::NodeGone), 0);
}

#[test]
fn a_clock_that_is_set_back_takes_no_finding_back_and_makes_no_wait_longer() {
    let gone = |name: &str| Case {
        name: name.to_owned(),
        node: Entry::Missing,
        ..well()
    };
    let mut history = FindingHistory::default();
    let mut count = |cases: &[Case], now: i64| {
        let (summary, new, _) = pass(&mut history, cases, now);
        (summary.count(FindingKind::NodeGone), new.len())
    };
    assert_eq!(count(&[gone("told")], 10_000), (0, 0));
    assert_eq!(count(&[gone("told")], 10_300), (1, 1));
    let both = [gone("told"), gone("waits")];
    assert_eq!(count(&both, 10_400), (1, 0));
    // By an hour and more.
    assert_eq!(count(&both, 6000), (1, 0));
    assert_eq!(count(&both, 6299), (1, 0));
    assert_eq!(count(&both, 6300), (2, 1));
}

#[test]
fn a_flood_is_counted_in_full_and_reported_in_parts() {
    let mut history = FindingHistory::default();
    let case = |number: i64| Case {
        name: format!("va-{number:03}"),
        error: Some("no"),
        created: 100 - number,
        ..waiting()
    };
    let many: Vec<Case> = (0..50).map(case).collect();
    let (summary, new, lasting) = pass(&mut history, &many, 3600);
    assert_eq!(
        (summary.count(FindingKind::AttachStuck), new.len(), lasting),
        (50, 20, false)
    );
    let oldest: Vec<&str> = summary.stuck.iter().map(|stuck| &*stuck.name).collect();
    assert_eq!((oldest.len(), oldest[0], oldest[15]), (16, "va-049", "va-034"));
    let reported: usize = (0..3).map(|_| pass(&mut history, &many, 3600).1.len()).sum();
    assert_eq!(reported, 30, "each is reported once");
}

#[test]
fn a_pass_that_could_not_tell_everything_is_followed_by_another() {
    let mut history = FindingHistory::default();
    let case = |number: i64| Case {
        name: format!("va-{number:03}"),
        node: Entry::Missing,
        ..well()
    };
    let many: Vec<Case> = (0..50).map(case).collect();
    pass(&mut history, &many, 1000);
    let passes = (0..4).map(|_| pass(&mut history, &many, 1300));
    let seen: Vec<(usize, bool)> = passes.map(|(_, new, lasting)| (new.len(), lasting)).collect();
    assert_eq!(seen, [(20, false), (20, false), (10, true), (0, true)]);
}

#[test]
fn what_is_wrong_with_the_driver_is_found_beside_its_attachments() {
    let mut history = FindingHistory::default();
    for (now, count) in [(0, 0), (300, 1), (400, 1)] {
        let mut pass_of_driver = FindingsPass::begin(&mut history, STUCK_AFTER, at(now));
        pass_of_driver.found(FindingKind::CSIDriverMissing, DRIVER, None, || "missing".to_owned());
        let (summary, new, _) = pass_of_driver.end();
        assert_eq!(summary.count(FindingKind::CSIDriverMissing), count);
        assert_eq!(new.len(), usize::from(now == 300));
        assert_eq!(
            summary.example(FindingKind::CSIDriverMissing),
            (count > 0).then_some("missing")
        );
    }
}
