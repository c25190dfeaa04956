//! How long a term lasts, by both clocks.

use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, advance, timeout};

use super::candidate::pass;
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

/// What may be done when this much has passed by each clock since the last renewal: whichever clock went further counts, also when the
/// monotonic one, and each timer with it, stood still with the machine.
#[tokio::test(start_paused = true)]
async fn it_is_over_by_the_clock_that_went_further() {
    const PASSED: [u64; 7] = [0, 1, 9_999, 10_000, 14_999, 15_000, 3_600_000];
    for (monotonic, boot) in PASSED.into_iter().flat_map(|passed| PASSED.map(|boot| (passed, boot))) {
        let further = monotonic.max(boot);
        let (may_start, may_run) = (further < 10_000, further < 15_000);
        let (clock, _) = begun();
        let seen = now(&clock);
        advance(seconds(10_000)).await;
        let later = now(&clock);
        let renewed = Moment {
            monotonic: later.monotonic - Duration::from_millis(monotonic),
            boot: later.boot.saturating_sub(Duration::from_millis(boot)),
        };
        let (term, row) = (renewed_at(&clock, renewed), format!("{monotonic} ms and {boot} ms"));
        assert_eq!(term.may_start(), may_start, "{row}");
        assert_eq!(term.may_run(), may_run, "{row}");
        assert_eq!(term.over().now_or_never().is_none(), may_run, "{row}");
        assert_eq!(term.extend(later), may_start, "{row}");
        assert_eq!(seen.since(later), Duration::ZERO, "clocks do not go back");
    }
}

/// Otherwise a renewal that the API server answers would make good a standstill in which another may have worked.
#[tokio::test(start_paused = true)]
async fn one_that_ran_out_is_not_renewed() {
    for (row, passes, boot_jumps, ends) in [
        ("it ran out", 10, 0, false),
        ("the machine was suspended", 0, 10, false),
        ("the request was begun before that, and is answered later", 5, 6, false),
        ("ended before its time", 0, 0, true),
    ] {
        let (clock, term) = begun();
        advance(seconds(passes)).await;
        let before = now(&clock);
        clock.boot_jumps(seconds(boot_jumps));
        if ends {
            term.end();
        }
        for request_begun in [before, now(&clock)] {
            assert!(!term.extend(request_begun), "{row}");
        }
        assert_eq!((term.may_start(), term.may_run()), (false, !ends), "{row}");
    }
}

#[tokio::test(start_paused = true)]
async fn its_end_is_waited_for_whatever_the_renewals() {
    let (clock, term) = begun();
    let began = Instant::now();
    let renewals = async {
        for _ in 0..5 {
            pass(seconds(5)).await;
            let request_begun = now(&clock);
            pass(seconds(2)).await;
            assert!(term.extend(request_begun));
        }
    };
    tokio::join!(term.over(), renewals);
    // From the beginning of the request that renewed it last.
    assert_eq!(began.elapsed().as_secs(), 33 + 15);

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

#[test]
fn a_term_equals_that_of_the_same_leases_which_began_with_the_same_writes() {
    let clock = ShiftedClock::default();
    let taken = now(&clock);
    let [one, other] = [taken; 2].map(|taken| renewed_at(&clock, taken));
    assert!(one == one.clone() && one != other);
    let both = || Term::of_all([&one, &other]);
    assert!(both() == both() && both() != one && both() != Term::of_all([&other, &one]));
}
