//! Which places must be over before a replica works: the rules alone.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::seconds;
use crate::api::LeaderElectionStatus;
use crate::lease::{FormerLease, FormerPlace, LeaderElectionRecord, LeaseRules, Place};

fn place(namespace: Option<&str>) -> Place {
    Place {
        namespace: namespace.map(str::to_owned),
        identity: "me".to_owned(),
        sidecar_namespaces: Vec::new(),
        runs_out_after: seconds(15),
    }
}

fn status(namespace: Option<&str>, seconds: Option<i64>, without_lease: &[&str]) -> LeaderElectionStatus {
    LeaderElectionStatus {
        namespace: namespace.map(str::to_owned),
        runs_out_after_seconds: seconds,
        without_lease: without_lease.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// A Lease in a namespace, or replicas in a list; and the seconds.
type Expected<'a> = (Option<&'a str>, &'a [&'a str], u64);

#[test]
#[allow(clippy::too_many_lines, clippy::type_complexity, reason = "a table")]
fn which_places_must_be_over_and_what_is_recorded() {
    let nothing: &[&str] = &[];
    let (x, y) = (Some("x"), Some("y"));
    // Recorded, seen, wanted; what must be over; what is recorded then.
    let rows: [(
        &str,
        LeaderElectionStatus,
        &[(&str, u64)],
        Option<&str>,
        &[Expected<'_>],
        LeaderElectionStatus,
    ); 15] = [
        (
            "first of all",
            status(None, None, nothing),
            &[],
            x,
            &[],
            status(x, Some(15), nothing),
        ),
        (
            "nothing changes",
            status(x, Some(15), nothing),
            &[],
            x,
            &[],
            status(x, Some(15), nothing),
        ),
        (
            "other times",
            status(x, Some(60), nothing),
            &[],
            x,
            &[],
            status(x, Some(15), nothing),
        ),
        (
            "no namespace at all",
            status(Some("../../pods"), Some(60), nothing),
            &[],
            y,
            &[],
            status(y, Some(15), nothing),
        ),
        (
            "another namespace",
            status(x, Some(60), nothing),
            &[],
            y,
            &[(x, nothing, 60)],
            status(y, Some(15), nothing),
        ),
        (
            "times not recorded",
            status(x, None, nothing),
            &[],
            y,
            &[(x, nothing, 15)],
            status(y, Some(15), nothing),
        ),
        (
            "times of a person",
            status(x, Some(-1), nothing),
            &[],
            y,
            &[(x, nothing, 15)],
            status(y, Some(15), nothing),
        ),
        (
            "no Lease any more",
            status(x, Some(60), nothing),
            &[],
            None,
            &[(x, nothing, 60)],
            status(None, Some(15), &["me"]),
        ),
        (
            "others without one",
            status(None, Some(15), &["a"]),
            &[],
            None,
            &[],
            status(None, Some(15), &["a", "me"]),
        ),
        (
            "without one again",
            status(None, Some(15), &["me", "a"]),
            &[],
            None,
            &[],
            status(None, Some(15), &["a", "me"]),
        ),
        (
            "a Lease after all",
            status(None, Some(60), &["a", "me"]),
            &[],
            x,
            &[(None, &["a"], 60)],
            status(x, Some(15), nothing),
        ),
        (
            "of all that ended",
            status(None, Some(60), nothing),
            &[],
            x,
            &[],
            status(x, Some(15), nothing),
        ),
        (
            "made again",
            status(None, None, nothing),
            &[("x", 30)],
            y,
            &[(x, nothing, 30)],
            status(y, Some(15), nothing),
        ),
        (
            "made again as it was",
            status(None, None, nothing),
            &[("x", 30)],
            x,
            &[],
            status(x, Some(15), nothing),
        ),
        (
            "what is recorded is newer",
            status(y, Some(15), nothing),
            &[("x", 30)],
            y,
            &[],
            status(y, Some(15), nothing),
        ),
    ];
    for (name, recorded, seen, wanted, former, written) in rows {
        let seen: BTreeMap<_, _> = seen
            .iter()
            .map(|(place, time)| ((*place).to_owned(), seconds(*time)))
            .collect();
        let expected: BTreeMap<_, _> = former
            .iter()
            .map(|(lease, replicas, time)| {
                let replicas = || FormerPlace::Replicas(replicas.iter().map(|name| (*name).to_owned()).collect());
                let former = lease.map_or_else(replicas, |lease| FormerPlace::Lease(lease.to_owned()));
                (former, seconds(*time))
            })
            .collect();
        let place = place(wanted);
        assert_eq!(place.former(&recorded, &seen), expected, "{name}");
        assert_eq!(place.recorded(&recorded), written, "{name}");
    }
    assert_eq!(
        place(None).left(&status(None, Some(15), &["a", "me"])),
        status(None, Some(15), &["a"])
    );
    // However often pods without a Lease are killed.
    let many: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let recorded = place(None).recorded(&status(None, Some(15), &many)).without_lease;
    assert_eq!(
        recorded.iter().map(String::as_str).collect::<Vec<_>>(),
        ["13", "14", "15", "16", "17", "18", "19", "me"]
    );
}

fn held_by(holder: &str, duration_seconds: i32, renewed: i64) -> LeaderElectionRecord {
    LeaderElectionRecord {
        holder: holder.to_owned(),
        duration_seconds,
        renewed: Timestamp::from_second(renewed).ok(),
        ..LeaderElectionRecord::default()
    }
}

/// What is read of a former Lease, and when.
enum Read {
    Nothing,
    Held(LeaderElectionRecord),
    Forbidden,
}

#[test]
#[allow(clippy::type_complexity, clippy::too_many_lines, reason = "a table")]
fn when_a_former_lease_is_over() {
    use Read::{Forbidden, Held, Nothing};
    // What is read at which second, the last one; how long it is in use from then on.
    let rows: [(&str, Vec<(u64, Read)>, Option<u64>); 18] = [
        // Somebody deleted it, and who held it finds out at its next renewal only. A release leaves it without a holder.
        ("there is none", vec![(0, Nothing)], Some(20)),
        ("there is none any more", vec![(0, Nothing), (19, Nothing)], Some(1)),
        ("there was none for long", vec![(0, Nothing), (20, Nothing)], None),
        (
            "its holder made it again",
            vec![(0, Nothing), (10, Held(held_by("they", 15, 1)))],
            Some(15),
        ),
        (
            "released after it was made again",
            vec![(0, Nothing), (10, Held(held_by("", 1, 1)))],
            None,
        ),
        (
            "vanished again",
            vec![(0, Nothing), (19, Held(held_by("they", 15, 1))), (25, Nothing)],
            Some(20),
        ),
        (
            "the holder wrote that it lasts longer",
            vec![(0, Held(held_by("they", 30, 1))), (10, Nothing)],
            Some(30),
        ),
        ("released", vec![(0, Held(held_by("", 1, 1)))], None),
        (
            "our own, maybe made where that of another was deleted",
            vec![(0, Held(held_by("me", 15, 1)))],
            Some(15),
        ),
        (
            "our own, released",
            vec![(0, Held(held_by("me", 15, 1))), (1, Held(held_by("", 1, 2)))],
            None,
        ),
        ("held by another", vec![(0, Held(held_by("they", 15, 1)))], Some(15)),
        (
            "and renewed",
            vec![(0, Held(held_by("they", 15, 1))), (10, Held(held_by("they", 15, 2)))],
            Some(15),
        ),
        (
            "and not renewed",
            vec![(0, Held(held_by("they", 15, 1))), (10, Held(held_by("they", 15, 1)))],
            Some(5),
        ),
        (
            "run out",
            vec![(0, Held(held_by("they", 15, 1))), (15, Held(held_by("they", 15, 1)))],
            None,
        ),
        (
            "vanished while it was held, maybe just renewed",
            vec![(0, Held(held_by("they", 15, 1))), (10, Nothing)],
            Some(20),
        ),
        ("it may not be read", vec![(0, Forbidden)], Some(20)),
        (
            "for so long",
            vec![(0, Held(held_by("they", 30, 1))), (10, Forbidden), (25, Forbidden)],
            Some(15),
        ),
        (
            "now and then",
            vec![(0, Forbidden), (19, Held(held_by("they", 15, 1))), (20, Forbidden)],
            Some(20),
        ),
    ];
    for (name, reads, expected) in rows {
        let start = Instant::now();
        let mut former = FormerLease::new(seconds(20), LeaseRules::default());
        let mut now = start;
        for (second, read) in reads {
            now = start + seconds(second);
            match read {
                Nothing => former.observe(None, now),
                Held(record) => former.observe(Some(record), now),
                Forbidden => assert!(!former.unreadable(now), "{name}"),
            }
        }
        let until = former.in_use_until(now).map(|until| until.duration_since(now));
        assert_eq!(until, expected.map(Duration::from_secs), "{name}");
    }
}
