//! The rows of client-go's TestTryAcquireOrRenew and TestReleaseLease, as far as they are about decisions, and what the
//! clocks of others may not do.

use jiff::Timestamp;
use tokio::time::Instant;

use super::super::{ElectionState, LeaderElectionRecord, LeaseAction, LeaseRules};
use super::seconds;
use crate::api::names::NEW_LEASE_HOLDER;

fn clock(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// Those of client-go.
fn rules() -> LeaseRules {
    LeaseRules {
        creators_wait: false,
        ..LeaseRules::default()
    }
}

/// One named "we", which knows nothing yet.
fn candidate(rules: LeaseRules) -> ElectionState {
    ElectionState::new("we".to_owned(), seconds(15), rules)
}

fn held_by(holder: &str, renewed: i64) -> LeaderElectionRecord {
    LeaderElectionRecord {
        holder: holder.to_owned(),
        duration_seconds: 15,
        acquired: Some(clock(0)),
        renewed: Some(clock(renewed)),
        transitions: 4,
    }
}

/// What we would write at `clock(50)`.
fn ours(acquired: Option<i64>, transitions: i32) -> LeaderElectionRecord {
    LeaderElectionRecord {
        holder: "we".to_owned(),
        duration_seconds: 15,
        acquired: acquired.map(clock),
        renewed: Some(clock(50)),
        transitions,
    }
}

/// A record, seen for so many seconds as it is, and what follows from it.
struct Row {
    name: &'static str,
    seen: Option<LeaderElectionRecord>,
    for_seconds: u64,
    next: Result<LeaseAction, u64>,
    renewal: Option<LeaderElectionRecord>,
    resigns: bool,
}

/// A record that does not name us.
fn other(name: &'static str, seen: LeaderElectionRecord, for_seconds: u64, next: Result<LeaseAction, u64>) -> Row {
    Row {
        name,
        seen: Some(seen),
        for_seconds,
        next,
        renewal: None,
        resigns: false,
    }
}

/// A record that names us.
fn own(
    name: &'static str,
    seen: LeaderElectionRecord,
    for_seconds: u64,
    next: LeaderElectionRecord,
    valid: bool,
) -> Row {
    Row {
        name,
        seen: Some(seen),
        for_seconds,
        renewal: valid.then(|| next.clone()),
        next: Ok(LeaseAction::Write(next)),
        resigns: true,
    }
}

/// A record that lasts so long.
fn lasting(duration_seconds: i32) -> LeaderElectionRecord {
    LeaderElectionRecord {
        duration_seconds,
        ..held_by("they", 49)
    }
}

fn rows_of_what_is_held() -> Vec<Row> {
    let (just, far) = (held_by("they", 49), held_by("they", -9999));
    vec![
        other("leave alone what another holds, just seen", just.clone(), 0, Err(15)),
        other("leave alone what another holds, to its last second", just, 14, Err(1)),
        other("its own renew time, long past, is not believed", far, 0, Err(15)),
        other("the duration that the other wrote counts", lasting(60), 15, Err(45)),
    ]
}

fn rows_of_what_is_free() -> Vec<Row> {
    let write = |acquired, transitions| Ok(LeaseAction::Write(ours(acquired, transitions)));
    let free = write(Some(50), 5);
    let (none, just, late) = (
        LeaderElectionRecord::default(),
        held_by("they", 49),
        held_by("they", 9999),
    );
    let released = LeaderElectionRecord {
        holder: String::new(),
        ..lasting(1)
    };
    let often = LeaderElectionRecord {
        transitions: i32::MAX,
        ..just.clone()
    };
    let create = Ok(LeaseAction::Create(ours(Some(50), 0)));
    let absent = Row {
        seen: None,
        ..other("acquire from no object", none.clone(), 0, create)
    };
    vec![
        absent,
        other("acquire from no record", none, 0, write(Some(50), 1)),
        other("acquire from a released object at once", released, 0, free.clone()),
        other("acquire what another let run out", just, 15, free.clone()),
        other("a renew time in the future is not believed", late, 15, free.clone()),
        other("a duration below nothing is none", lasting(-5), 0, free),
        other("transitions do not overflow", often, 15, write(Some(50), i32::MAX)),
    ]
}

fn rows_of_ours() -> Vec<Row> {
    let mine = || held_by("we", 45);
    let timeless = LeaderElectionRecord {
        acquired: None,
        ..mine()
    };
    vec![
        own("renew our own", mine(), 5, ours(Some(0), 4), true),
        own(
            "renew our own of an earlier life, at once",
            mine(),
            0,
            ours(Some(0), 4),
            true,
        ),
        own(
            "our own that ran out is looked at before it is written",
            mine(),
            15,
            ours(Some(0), 4),
            false,
        ),
        own(
            "our own without an acquire time keeps that",
            timeless,
            1,
            ours(None, 4),
            true,
        ),
    ]
}

#[test]
fn what_follows_from_a_record() {
    let rows = [rows_of_what_is_held(), rows_of_what_is_free(), rows_of_ours()];
    for row in rows.into_iter().flatten() {
        let mut election = candidate(rules());
        let seen = Instant::now();
        election.observe(row.seen, seen);
        let now = seen + seconds(row.for_seconds);
        let next = match election.next(now, clock(50), false) {
            LeaseAction::Wait { holder, until } => {
                assert_eq!(holder, "they", "{}", row.name);
                Err(until.duration_since(now).as_secs())
            }
            next => Ok(next),
        };
        assert_eq!(next, row.next, "{}", row.name);
        assert_eq!(
            election.renewed_record(now, clock(50), false),
            row.renewal,
            "{}",
            row.name
        );
        let resignation = election.release_record(clock(50), false);
        assert_eq!(resignation.is_some(), row.resigns, "{}", row.name);
        assert_eq!(election.is_ours(false), row.resigns, "{}", row.name);
        if let Some(resignation) = resignation {
            let expected = LeaderElectionRecord {
                holder: String::new(),
                duration_seconds: 1,
                acquired: Some(clock(50)),
                renewed: Some(clock(50)),
                transitions: 4,
            };
            assert_eq!(resignation, expected, "{}", row.name);
        }
    }
}

#[test]
fn only_a_change_of_the_record_shows_life() {
    let mut election = candidate(rules());
    let start = Instant::now();
    let at = |second| start + seconds(second);
    let is_free =
        |election: &ElectionState, second| matches!(election.next(at(second), clock(0), false), LeaseAction::Write(_));
    election.observe(Some(held_by("they", 1)), at(0));
    // Looking again and again changes nothing.
    for second in 1..15 {
        election.observe(Some(held_by("they", 1)), at(second));
        assert!(!is_free(&election, second), "{second}");
    }
    assert!(is_free(&election, 15));
    // A renewal starts the time anew, even one whose clock runs backwards.
    election.observe(Some(held_by("they", 0)), at(14));
    assert!(!is_free(&election, 28));
    assert!(is_free(&election, 29));
    // Gone is free when its holder must have noticed: it renews what it does not know to be gone, and may have renewed it just
    // before, unseen.
    let waits = |election: &ElectionState, second| {
        let next = election.next(at(second), clock(0), false);
        matches!(next, LeaseAction::Wait { .. })
    };
    for second in [20, 28] {
        election.observe(None, at(second));
        assert!(waits(&election, second), "{second}");
    }
    assert!(waits(&election, 34));
    assert!(matches!(election.next(at(35), clock(0), false), LeaseAction::Create(_)));
    // What nobody held is free at once.
    election.observe(Some(held_by("", 1)), at(30));
    election.observe(None, at(30));
    assert!(matches!(election.next(at(30), clock(0), false), LeaseAction::Create(_)));
    assert_eq!(election.holder(), None);
}

#[test]
fn what_another_process_of_our_name_writes_is_not_ours() {
    let start = Instant::now();
    let mut election = candidate(rules());
    // That of an earlier life is taken back.
    election.stand();
    election.observe(Some(held_by("we", 1)), start);
    assert!(election.is_ours(false));
    election.record_written(held_by("we", 2), start);
    // A write whose end is not known may have happened, and so may the one after it.
    for renewed in [3, 4] {
        election.attempts(&held_by("we", renewed));
    }
    for renewed in [3, 2, 4] {
        election.observe(Some(held_by("we", renewed)), start);
        assert!(election.is_ours(false), "{renewed}");
        assert_eq!(election.renewed_in_our_name(), None, "{renewed}");
    }
    election.record_written(held_by("we", 5), start);
    // The API server went back, or another process wrote over ours; its clock may be behind.
    for renewed in [4, 6] {
        election.observe(Some(held_by("we", renewed)), start);
        assert!(!election.is_ours(false), "{renewed}");
        assert_eq!(election.renewed_in_our_name(), Some(clock(renewed)));
    }
    assert_eq!(election.release_record(clock(50), false), None);
    assert_eq!(election.renewed_record(start, clock(50), false), None);
    // It is waited for as for anybody else.
    assert!(matches!(
        election.next(start + seconds(14), clock(50), false),
        LeaseAction::Wait { .. }
    ));
    assert!(
        matches!(election.next(start + seconds(15), clock(50), false), LeaseAction::Write(record) if record.transitions == 5)
    );
    // One that does not compete believes the name: another candidate of this process may lead.
    election.withdraw();
    assert!(election.is_ours(false));
    // One that competes again knows that this is a stranger's, and so is what comes after it.
    election.stand();
    assert!(!election.is_ours(false));
    assert_eq!(election.renewed_in_our_name(), Some(clock(6)));
    election.observe(Some(held_by("we", 7)), start);
    assert!(!election.is_ours(false));
    assert_eq!(election.renewed_in_our_name(), Some(clock(7)));
}

#[test]
fn a_namesake_that_takes_a_lease_of_others_first_is_a_stranger() {
    let start = Instant::now();
    let mut election = candidate(rules());
    election.observe(Some(held_by("they", 1)), start);
    election.stand();
    election.observe(Some(held_by("we", 2)), start);
    assert!(!election.is_ours(false));
    assert_eq!(election.renewed_in_our_name(), Some(clock(2)));
}

#[test]
fn a_record_of_ours_that_somebody_edits_stays_ours_and_is_written_over() {
    let start = Instant::now();
    let mut election = candidate(rules());
    election.stand();
    election.record_written(held_by("we", 1), start);
    let edited = LeaderElectionRecord {
        duration_seconds: i32::MAX,
        transitions: 9,
        acquired: None,
        ..held_by("we", 1)
    };
    election.observe(Some(edited), start);
    assert!(election.is_ours(true));
    assert_eq!(election.renewed_in_our_name(), None);
    let LeaseAction::Write(renewal) = election.next(start, clock(50), true) else {
        panic!("it is renewed")
    };
    assert_eq!((renewal.duration_seconds, renewal.holder.as_str()), (15, "we"));
    // Who wrote a time of its own is another process.
    election.observe(Some(held_by("we", 2)), start);
    assert_eq!(election.renewed_in_our_name(), Some(clock(2)));
}

#[test]
fn our_own_write_counts_from_its_answer_even_when_nothing_in_it_changed() {
    let mut election = candidate(rules());
    let start = Instant::now();
    election.record_written(held_by("we", 1), start);
    election.record_written(held_by("we", 1), start + seconds(10));
    assert!(election.renewed_record(start + seconds(24), clock(0), false).is_some());
    assert!(election.renewed_record(start + seconds(25), clock(0), false).is_none());
    assert_eq!(election.holder(), Some("we"));
}

#[test]
fn who_creates_a_lease_holds_it_in_a_term_alone() {
    let start = Instant::now();
    let mut election = candidate(LeaseRules::default());
    election.stand();
    election.observe(None, start);
    let created = |election: &ElectionState, holds| match election.next(start, clock(50), holds) {
        LeaseAction::Create(record) => record,
        action => panic!("{action:?}"),
    };
    assert_eq!(created(&election, true).holder, "we");
    let new = created(&election, false);
    assert_eq!((&*new.holder, new.transitions), (NEW_LEASE_HOLDER, 0));
    election.attempts(&new);
    election.record_written(new, start);
    let next = |election: &ElectionState, second, holds| election.next(start + seconds(second), clock(50), holds);
    assert!(
        matches!(next(&election, 14, false), LeaseAction::Wait { .. }),
        "its creator waits, too"
    );
    assert!(matches!(next(&election, 15, false), LeaseAction::Write(record) if record.transitions == 1));
    // A request of a former term has created it.
    let late = LeaderElectionRecord {
        transitions: 0,
        ..held_by("we", 1)
    };
    election.attempts(&late);
    election.observe(Some(late), start);
    assert!(election.is_ours(true) && !election.is_ours(false));
    assert_eq!(election.renewed_in_our_name(), None);
    assert_eq!(election.release_record(clock(50), false), None);
    assert!(
        election.release_record(clock(50), true).is_some(),
        "it was created again in a term that ends"
    );
    assert!(matches!(next(&election, 14, false), LeaseAction::Wait { .. }));
    // In a term, it is renewed, and ours from then on.
    assert!(matches!(next(&election, 14, true), LeaseAction::Write(record) if record.transitions == 1));
}
