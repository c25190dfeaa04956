use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;

use super::super::Backoff;
use super::SECOND;

#[test]
fn refuses_numbers_that_make_no_backoff() {
    let cases = [
        (Duration::ZERO, SECOND, 2.0, 0),
        (2 * SECOND, SECOND, 2.0, 0),
        (SECOND, SECOND, 0.5, 0),
        (SECOND, SECOND, f64::INFINITY, 0),
        (SECOND, SECOND, f64::NAN, 0),
        (SECOND, SECOND, 2.0, 101),
    ];
    for (initial, max, factor, jitter) in cases {
        let made = Backoff::new(initial, max, factor, jitter);
        assert_eq!(made, None, "{initial:?} {max:?} {factor} {jitter}");
    }
    assert!(Backoff::new(SECOND, SECOND, 1.0, 100).is_some());
}

#[test]
fn grows_by_the_factor_up_to_the_maximum() {
    let doubled = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000];
    let tripled = [100, 300, 900, 1_000, 1_000, 1_000, 1_000, 1_000];
    let cases = [
        (SECOND, 60 * SECOND, 2.0, doubled),
        (SECOND / 10, SECOND, 3.0, tripled),
        (SECOND, 60 * SECOND, 1.0, [1_000; 8]),
        (SECOND, SECOND, 10.0, [1_000; 8]),
    ];
    for (initial, max, factor, want) in cases {
        let backoff = Backoff::new(initial, max, factor, 0).unwrap();
        for (failures, millis) in (0..).zip(want) {
            let delay = backoff.delay(failures, &mut Rng::with_seed(1));
            let (base, want) = (backoff.base(failures), Duration::from_millis(millis));
            assert_eq!([base, delay], [want; 2], "{backoff:?} after {failures}");
        }
    }
}

#[test]
fn the_jitter_is_drawn_from_the_seed_and_only_extends() {
    let backoff = Backoff::new(10 * SECOND, 10 * SECOND, 2.0, 10).unwrap();
    let draw = |seed| {
        let mut rng = Rng::with_seed(seed);
        (0..200).map(|_| backoff.delay(0, &mut rng)).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    let (least, most) = (draw(7).into_iter().min().unwrap(), draw(7).into_iter().max().unwrap());
    let (low, high) = (Duration::from_millis(10_100), Duration::from_millis(10_900));
    assert!(least >= 10 * SECOND && least < low, "{least:?}");
    assert!(most <= 11 * SECOND && most > high, "{most:?}");
}

#[test]
fn a_full_jitter_doubles_the_shortest_delay_at_most() {
    let nano = Duration::from_nanos(1);
    let backoff = Backoff::new(nano, nano, 1.0, 100).unwrap();
    let mut rng = Rng::with_seed(1);
    let drawn: std::collections::BTreeSet<_> = (0..100).map(|_| backoff.delay(0, &mut rng)).collect();
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [nano, 2 * nano]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_zero_never_above_the_bound_and_never_a_panic(
        initial in 1u64..=u64::MAX,
        more in 0u64..=u64::MAX,
        nanos in 0u32..1_000_000_000,
        in_nanos in any::<bool>(),
        factor in prop_oneof![1.0..4.0, Just(f64::MAX), Just(1.0)],
        jitter in 0u8..=100,
        failures in prop_oneof![0u32..40, Just(u32::MAX)],
        seed in any::<u64>(),
    ) {
        let initial = if in_nanos { Duration::from_nanos(initial) } else { Duration::new(initial, nanos) };
        let max = initial.saturating_add(Duration::from_secs(more));
        let backoff = Backoff::new(initial, max, factor, jitter).unwrap();
        let delay = backoff.delay(failures, &mut Rng::with_seed(seed));
        prop_assert!(!delay.is_zero());
        prop_assert!(delay >= backoff.base(failures));
        prop_assert!(delay.as_nanos() * 100 <= max.as_nanos() * (100 + u128::from(jitter)));
        let base = backoff.base(failures);
        prop_assert!(base >= initial && base <= max);
        prop_assert!(base <= backoff.base(failures.saturating_add(1)));
    }
}
