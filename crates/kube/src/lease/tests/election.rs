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

/// One named "we", which knows nothing yet, and when it begins. Those of client-go do not wait when they create a Lease.
fn candidate(creators_wait: bool) -> (ElectionState, Instant) {
    let rules = LeaseRules {
        creators_wait,
        ..LeaseRules::default()
    };
    (ElectionState::new("we".to_owned(), seconds(15), rules), Instant::now())
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
        acquired: acquired.map(clock),
        transitions,
        ..held_by("we", 50)
    }
}

fn but(mut record: LeaderElectionRecord, change: impl FnOnce(&mut LeaderElectionRecord)) -> LeaderElectionRecord {
    change(&mut record);
    record
}

#[test]
fn what_follows_from_a_record() {
    use LeaseAction::{Create, Wait, Write};
    let (just, past, future) = (held_by("they", 49), held_by("they", -9999), held_by("they", 9999));
    let lasting = |seconds| but(just.clone(), |record| record.duration_seconds = seconds);
    let (long, negative, none) = (lasting(60), lasting(-5), LeaderElectionRecord::default());
    let released = but(lasting(1), |record| record.holder.clear());
    let often = but(just.clone(), |record| record.transitions = i32::MAX);
    let mine = held_by("we", 45);
    let timeless = but(mine.clone(), |record| record.acquired = None);
    let take = |transitions| Ok(Write(ours(Some(50), transitions)));
    let renew = |acquired| Ok(Write(ours(acquired, 4)));
    let rows = [
        // What is seen, for how many seconds, what follows or how long it is another's, and whether it is renewed without a look.
        ("another's, just seen", Some(&just), 0, Err(15), false),
        ("another's, to its last second", Some(&just), 14, Err(1), false),
        ("a renew time long past", Some(&past), 0, Err(15), false),
        ("the duration that another wrote", Some(&long), 15, Err(45), false),
        ("no object", None, 0, Ok(Create(ours(Some(50), 0))), false),
        ("no record", Some(&none), 0, take(1), false),
        ("released, at once", Some(&released), 0, take(5), false),
        ("what another let run out", Some(&just), 15, take(5), false),
        ("a renew time in the future", Some(&future), 15, take(5), false),
        ("a duration below nothing is none", Some(&negative), 0, take(5), false),
        ("transitions do not overflow", Some(&often), 15, take(i32::MAX), false),
        ("ours", Some(&mine), 5, renew(Some(0)), true),
        ("ours of an earlier life, at once", Some(&mine), 0, renew(Some(0)), true),
        ("ours that ran out", Some(&mine), 15, renew(Some(0)), false),
        ("ours without an acquire time", Some(&timeless), 1, renew(None), true),
    ];
    for (row, seen, for_seconds, expected, renews) in rows {
        let (mut election, start) = candidate(false);
        election.observe(seen.cloned(), start);
        let now = start + seconds(for_seconds);
        let next = match election.next(now, clock(50), false) {
            Wait(until) => Err(until.duration_since(now).as_secs()),
            next => Ok(next),
        };
        assert_eq!(next, expected, "{row}");
        let renewal = election.renewed_record(now, clock(50), false);
        assert_eq!(renewal.map(Write), expected.ok().filter(|_| renews), "{row}");
        let is_ours = seen.is_some_and(|seen| seen.holder == "we");
        assert_eq!(election.is_ours(false), is_ours, "{row}");
        let resignation = but(ours(Some(50), 4), |record| {
            record.holder.clear();
            record.duration_seconds = 1;
        });
        let resigns = election.release_record(clock(50), false);
        assert_eq!(resigns, is_ours.then_some(resignation), "{row}");
    }
}

/// What it does at this time, in words.
fn next(election: &ElectionState, now: Instant, holds: bool) -> String {
    let holder = election.holder().unwrap_or_default();
    match election.next(now, clock(50), holds) {
        LeaseAction::Wait(until) => format!("wait {} s for {holder}", until.duration_since(now).as_secs()),
        LeaseAction::Create(record) => format!("create {} {}", record.holder, record.transitions),
        LeaseAction::Write(record) => format!("write {} {}", record.holder, record.transitions),
    }
}

#[test]
fn only_a_change_of_the_record_shows_life() {
    let (mut election, start) = candidate(false);
    let at = |second| start + seconds(second);
    // Looking again and again changes nothing.
    for second in 0..15 {
        election.observe(Some(held_by("they", 1)), at(second));
        let waits = format!("wait {} s for they", 15 - second);
        assert_eq!(next(&election, at(second), false), waits);
    }
    assert_eq!(next(&election, at(15), false), "write we 5");
    // A renewal starts the time anew, even one whose clock runs backwards.
    election.observe(Some(held_by("they", 0)), at(14));
    assert_eq!(next(&election, at(28), false), "wait 1 s for they");
    assert_eq!(next(&election, at(29), false), "write we 5");
    // Gone is free when its holder must have noticed: it renews what it does not know to be gone, and may have renewed it just
    // before, unseen.
    for second in [20, 28] {
        election.observe(None, at(second));
        let waits = format!("wait {} s for they", 35 - second);
        assert_eq!(next(&election, at(second), false), waits);
    }
    assert_eq!(next(&election, at(34), false), "wait 1 s for they");
    assert_eq!(next(&election, at(35), false), "create we 0");
    // What nobody held is free at once.
    election.observe(Some(held_by("", 1)), at(30));
    election.observe(None, at(30));
    assert_eq!(next(&election, at(30), false), "create we 0");
    assert_eq!(election.holder(), None);
}

/// Whether a stranger wrote what it sees, which has its name and was renewed at this second.
fn is_strange(election: &mut ElectionState, now: Instant, renewed: i64) -> bool {
    election.observe(Some(held_by("we", renewed)), now);
    let is_ours = election.is_ours(false);
    let told = (!is_ours).then(|| clock(renewed));
    assert_eq!(election.renewed_in_our_name(), told, "{renewed}");
    !is_ours
}

#[test]
fn what_another_process_of_our_name_writes_is_not_ours() {
    let (mut election, start) = candidate(false);
    election.competes = true;
    assert!(!is_strange(&mut election, start, 1), "of an earlier life");
    election.record_written(held_by("we", 2), start);
    // A write whose end is not known may have happened, and so may the one after it.
    for renewed in [3, 4] {
        election.attempts(&held_by("we", renewed));
    }
    for renewed in [3, 2, 4] {
        assert!(!is_strange(&mut election, start, renewed), "{renewed}");
    }
    election.record_written(held_by("we", 5), start);
    // The API server went back, or another process wrote over ours; its clock may be behind.
    for renewed in [4, 6] {
        assert!(is_strange(&mut election, start, renewed), "{renewed}");
    }
    assert_eq!(election.release_record(clock(50), false), None);
    assert_eq!(election.renewed_record(start, clock(50), false), None);
    // It is waited for as for anybody else.
    assert_eq!(next(&election, start + seconds(14), false), "wait 1 s for we");
    assert_eq!(next(&election, start + seconds(15), false), "write we 5");
    // One that does not compete believes the name: another candidate of this process may lead.
    election.competes = false;
    assert!(election.is_ours(false));
    // One that competes again knows that this is a stranger's, and so is what comes after it.
    election.competes = true;
    for renewed in [6, 7] {
        assert!(is_strange(&mut election, start, renewed), "{renewed}");
    }
    // One that was faster to take the Lease of another.
    let (mut election, start) = candidate(false);
    election.observe(Some(held_by("they", 1)), start);
    election.competes = true;
    assert!(is_strange(&mut election, start, 2));
}

#[test]
fn a_record_of_ours_that_somebody_edits_stays_ours_and_is_written_over() {
    let (mut election, start) = candidate(false);
    election.competes = true;
    election.record_written(held_by("we", 1), start);
    let edited = but(held_by("we", 1), |record| {
        record.duration_seconds = i32::MAX;
        (record.transitions, record.acquired) = (9, None);
    });
    election.observe(Some(edited), start);
    assert!(election.is_ours(true));
    assert_eq!(election.renewed_in_our_name(), None);
    let renewal = election.next(start, clock(50), true);
    assert_eq!(renewal, LeaseAction::Write(ours(None, 9)));
    // Who wrote a time of its own is another process.
    assert!(is_strange(&mut election, start, 2));
}

#[test]
fn our_own_write_counts_from_its_answer_even_when_nothing_in_it_changed() {
    let (mut election, start) = candidate(false);
    election.record_written(held_by("we", 1), start);
    election.record_written(held_by("we", 1), start + seconds(10));
    assert!(election.renewed_record(start + seconds(24), clock(0), false).is_some());
    assert!(election.renewed_record(start + seconds(25), clock(0), false).is_none());
    assert_eq!(election.holder(), Some("we"));
}

#[test]
fn who_creates_a_lease_holds_it_in_a_term_alone() {
    let (mut election, start) = candidate(true);
    let at = |second| start + seconds(second);
    election.competes = true;
    election.observe(None, start);
    assert_eq!(next(&election, start, true), "create we 0");
    let LeaseAction::Create(new) = election.next(start, clock(50), false) else {
        panic!("{election:?}");
    };
    assert_eq!((&*new.holder, new.transitions), (NEW_LEASE_HOLDER, 0));
    election.attempts(&new);
    election.record_written(new, start);
    // Its creator waits, too.
    let waits = format!("wait 1 s for {NEW_LEASE_HOLDER}");
    assert_eq!(next(&election, at(14), false), waits);
    assert_eq!(next(&election, at(15), false), "write we 1");
    // A request of a former term has created it.
    let late = but(held_by("we", 1), |record| record.transitions = 0);
    election.attempts(&late);
    election.observe(Some(late), start);
    assert!(election.is_ours(true) && !election.is_ours(false));
    assert_eq!(election.renewed_in_our_name(), None);
    assert_eq!(election.release_record(clock(50), false), None);
    let is_released = election.release_record(clock(50), true).is_some();
    assert!(is_released, "it was created again in a term that ends");
    assert_eq!(next(&election, at(14), false), "wait 1 s for we");
    // In a term, it is renewed, and ours from then on.
    assert_eq!(next(&election, at(14), true), "write we 1");
}
