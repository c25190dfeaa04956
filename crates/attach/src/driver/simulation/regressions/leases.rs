//! Leases that somebody deletes while a driver is served.

use super::super::scenario::{Event, Scenario};
use super::{Regression, of, regression};

/// Leases that somebody deletes while a driver is worked for.
pub(super) fn of_leases() -> Vec<Regression> {
    use Event::{Attach, Crash, Detach, LeaseGoes, LeaseMoves, StandStill};
    let frozen = Scenario {
        faultless: false,
        nodes: 2,
        ..of(
            5,
            &[
                (0, Attach(0, 0)),
                (8_000, LeaseGoes(0)),
                (800, StandStill(0, 12_900)),
                (200, LeaseMoves(1)),
                (1_500, Attach(0, 1)),
            ],
        )
    };
    vec![
        regression(
            "a former Lease that was deleted counted as over while its holder worked (seeds 25865 and 53285)",
            frozen,
            None,
        ),
        regression(
            "a replica that had never seen a Lease that was deleted worked beside its holder",
            Scenario {
                faultless: false,
                nodes: 2,
                ..of(
                    5,
                    &[
                        (0, Attach(0, 0)),
                        (8_000, LeaseMoves(1)),
                        (900, Attach(0, 1)),
                        (100, LeaseGoes(0)),
                        (0, Detach(0, 0)),
                        (900, Attach(0, 0)),
                    ],
                )
            },
            None,
        ),
        regression(
            "a replica that came back to a Lease that it had made worked beside who held the deleted one (seed 1086170)",
            Scenario {
                seed: 1_086_170,
                faultless: false,
                nodes: 5,
                ..of(
                    5,
                    &[
                        (0, Attach(0, 0)),
                        (26, Attach(0, 1)),
                        (1_064, Crash),
                        // The process that takes the place of the one that died has not seen the Lease yet.
                        (6, LeaseGoes(0)),
                        (300, LeaseMoves(1)),
                        (2_000, LeaseMoves(0)),
                    ],
                )
            },
            None,
        ),
    ]
}
