use super::super::settings::namespace;
use super::super::{LeaseTimings, LeaseTimingsError};
use super::seconds;
use std::time::Duration;

#[test]
fn times_must_leave_room_for_a_second_try_and_for_the_end() {
    use LeaseTimingsError::{LeaseDuration, RenewDeadline, RetryPeriod, Zero};
    let millis = Duration::from_millis;
    let rows = [
        (seconds(15), seconds(10), seconds(5), Ok(seconds(15))),
        (seconds(120), seconds(60), seconds(30), Ok(seconds(120))),
        (seconds(3), seconds(2), seconds(1), Ok(seconds(3))),
        // The Lease counts whole seconds.
        (millis(3900), seconds(2), seconds(1), Ok(seconds(3))),
        (millis(900), millis(500), millis(100), Err(LeaseDuration)),
        (seconds(10), seconds(10), seconds(5), Err(RenewDeadline)),
        (millis(10_900), millis(10_500), seconds(5), Err(RenewDeadline)),
        (seconds(15), seconds(6), seconds(5), Err(RetryPeriod)),
        (seconds(15), millis(6001), seconds(5), Ok(seconds(15))),
        (seconds(15), seconds(10), seconds(0), Err(Zero)),
    ];
    for (lease, renew, retry, expected) in rows {
        let timing = LeaseTimings::new(lease, renew, retry);
        assert_eq!(
            timing.map(|timing| timing.lease_duration),
            expected,
            "{lease:?} {renew:?} {retry:?}"
        );
    }
}

/// Typing mistakes, such as 2ms for 2s, are stored and must not flood the API server.
#[test]
fn no_pause_is_shorter_than_the_api_server_can_bear() {
    let millis = Duration::from_millis;
    for (renew, retry, used) in [
        (millis(900), millis(2), (millis(900), millis(100))),
        (millis(5), millis(1), (millis(200), millis(100))),
        (millis(150), millis(100), (millis(200), millis(100))),
        (millis(500), millis(101), (millis(500), millis(101))),
    ] {
        let timing = LeaseTimings::new(seconds(1), renew, retry).unwrap();
        let found = (timing.renew_deadline, timing.retry_period);
        assert_eq!(found, used, "{renew:?} {retry:?}");
    }
}

#[test]
fn the_namespace_is_found_in_the_order_of_the_sidecar() {
    for (asked, of_pod, expected) in [
        ("asked", Some("pod"), "asked"),
        ("", Some("pod"), "pod"),
        (" ", Some("pod"), "pod"),
        ("", None, "default"),
    ] {
        assert_eq!(namespace(asked, || of_pod.map(str::to_owned)), expected);
    }
}
