//! How long a term lasts, by both clocks.

use std::time::Duration;

use tokio::time::{Instant, advance, timeout};

use super::{seconds, usual};
use crate::lease::{Clock, LeaseRules, Moment, Term};
use csi_attacher_testbed::ShiftedClock;

/// A term that begins now, of 10 s until the renew deadline and 15 s in all.
fn begun() -> (ShiftedClock, Term) {
    let clock = ShiftedClock::default();
    let term = renewed_at(&clock, now(&clock));
    (clock, term)
}

fn now(clock: &ShiftedClock) -> Moment {
    Clock::from(clock.source()).now()
}

fn renewed_at(clock: &ShiftedClock, renewed: Moment) -> Term {
    Term::new(LeaseRules::default(), clock.source().into(), usual(), renewed)
}

/// What may be done when this much has passed by each clock since the last renewal: whichever clock went further counts.
#[tokio::test(start_paused = true)]
async fn it_is_over_by_the_clock_that_went_further() {
    const ROWS: [(u64, u64, bool, bool); 14] = [
        // monotonic, boot, may start, may run
        (0, 0, true, true),
        (9_999, 9_999, true, true),
        (10_000, 9_999, false, true),
        (9_999, 10_000, false, true),
        (10_000, 10_000, false, true),
        (0, 9_999, true, true),
        (0, 10_000, false, true),
        (10_000, 0, false, true),
        (14_999, 14_999, false, true),
        (0, 14_999, false, true),
        (0, 15_000, false, false),
        (15_000, 0, false, false),
        (1, 3_600_000, false, false),
        (3_600_000, 1, false, false),
    ];
    for (monotonic, boot, may_start, may_run) in ROWS {
        let (clock, _) = begun();
        let seen = now(&clock);
        advance(seconds(10_000)).await;
        let later = now(&clock);
        let renewed = Moment {
            monotonic: later.monotonic - Duration::from_millis(monotonic),
            boot: later.boot.saturating_sub(Duration::from_millis(boot)),
        };
        let term = renewed_at(&clock, renewed);
        assert_eq!(
            (term.may_start(), term.may_run()),
            (may_start, may_run),
            "{monotonic} ms and {boot} ms"
        );
        assert_eq!(term.extend(later), may_start, "{monotonic} ms and {boot} ms");
        assert_eq!(seen.since(later), Duration::ZERO, "clocks do not go back");
    }
}

#[tokio::test(start_paused = true)]
async fn renewed_in_time_it_goes_on_from_the_beginning_of_the_request() {
    let (clock, term) = begun();
    for _ in 0..10 {
        advance(seconds(3)).await;
        let begun = now(&clock);
        advance(seconds(2)).await;
        assert!(term.extend(begun));
    }
    advance(seconds(7)).await;
    assert!(term.may_start());
    advance(seconds(1)).await;
    assert!(!term.may_start() && term.may_run());
}

/// Otherwise a renewal that the API server answers would make good a standstill in which another may have worked.
#[tokio::test(start_paused = true)]
async fn one_that_ran_out_is_not_renewed() {
    let (clock, term) = begun();
    advance(seconds(10)).await;
    assert!(!term.extend(now(&clock)));
    assert!(!term.may_start() && term.may_run());

    let (clock, term) = begun();
    clock.boot_jumps(seconds(10));
    assert!(!term.extend(now(&clock)));
    assert!(!term.may_start() && term.may_run());

    // The request was begun before the standstill, and its answer is taken in after it.
    let (clock, term) = begun();
    advance(seconds(5)).await;
    let begun_at = now(&clock);
    clock.boot_jumps(seconds(6));
    assert!(!term.extend(begun_at));

    let (clock, term) = begun();
    term.end();
    assert!(!term.extend(now(&clock)));
    assert!(!term.may_start() && !term.may_run());
}

#[tokio::test(start_paused = true)]
async fn its_end_is_waited_for_whatever_the_renewals() {
    let (clock, term) = begun();
    let began = Instant::now();
    let over = tokio::spawn({
        let term = term.clone();
        async move {
            term.over().await;
            began.elapsed()
        }
    });
    for _ in 0..5 {
        tokio::time::sleep(seconds(8)).await;
        assert!(term.extend(now(&clock)));
    }
    assert_eq!(over.await.unwrap().as_secs(), 40 + 15);

    let (_, term) = begun();
    assert!(timeout(seconds(14), term.over()).await.is_err());
    term.end();
    timeout(Duration::from_millis(1), term.over()).await.expect("at once");
}

/// Each renewal wakes the process and its connection, so one wake-up is for all of them.
#[tokio::test(start_paused = true)]
async fn all_leases_of_a_process_are_renewed_together_and_never_later_than_the_retry_period() {
    let clock = ShiftedClock::default();
    advance(Duration::from_millis(5200)).await;
    let first = renewed_at(&clock, now(&clock));
    advance(Duration::from_millis(2900)).await;
    let second = renewed_at(&clock, now(&clock));
    assert_eq!(first.until_renewal(), Duration::from_millis(1900));
    assert_eq!(second.until_renewal(), first.until_renewal());
    // One is late, and does not take the other with it.
    advance(Duration::from_millis(1900)).await;
    assert!(first.until_renewal().is_zero() && second.until_renewal().is_zero());
    assert!(second.extend(now(&clock)));
    advance(Duration::from_millis(30)).await;
    assert!(first.until_renewal().is_zero());
    assert!(first.extend(now(&clock)));
    assert_eq!(second.until_renewal(), Duration::from_millis(4970));
    assert_eq!(second.until_renewal(), first.until_renewal());
    first.end();
    assert!(first.until_renewal().is_zero());
}

/// The monotonic clock stood still with the machine: timers come late, and what is asked is answered by the other clock.
#[tokio::test(start_paused = true)]
async fn a_suspended_machine_is_noticed_by_who_asks() {
    let (clock, term) = begun();
    advance(seconds(60)).await;
    clock.monotonic_stood_still(seconds(60));
    assert!(!term.may_start() && !term.may_run());
    timeout(Duration::from_millis(1), term.over()).await.expect("at once");
}

#[test]
fn a_term_equals_its_clones_only() {
    let clock = Clock::default();
    let taken = clock.now();
    let (one, other) = (
        Term::new(LeaseRules::default(), clock.clone(), usual(), taken),
        Term::new(LeaseRules::default(), clock, usual(), taken),
    );
    assert!(one == one.clone() && one != other);
}
