//! Claims that come, win, lose and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;

use super::{Reservation, ReservationState, ReservationTable, Reservations};
use crate::api::condition::ConditionReason;

/// A table, and what it was told.
struct Scene {
    table: ReservationTable,
    /// The driver that each AttacherConfig claims.
    drivers: BTreeMap<String, Arc<str>>,
    pins: BTreeMap<Arc<str>, Arc<str>>,
}

impl Scene {
    fn new() -> Self {
        let mut table = ReservationTable::default();
        table.set_ages(ages(&[]));
        Self {
            table,
            drivers: BTreeMap::new(),
            pins: BTreeMap::new(),
        }
    }

    /// What happens, in words: `old: a.b` claims, `old take` works if it may, `old back` and `old gone` as they say; `old names a.b` and
    /// `old unnames` are about its spec, and `old deleted` is for one that is being deleted.
    fn happen(&mut self, step: &str) {
        let table = &mut self.table;
        if let Some((config, driver)) = step.split_once(": ") {
            self.drivers.insert(config.to_owned(), Arc::from(driver));
            return table.claim(Arc::from(config), Arc::from(driver));
        }
        let (config, what) = step.split_once(' ').unwrap();
        let name: Arc<str> = Arc::from(config);
        if let Some(driver) = what.strip_prefix("names ") {
            self.pins.insert(name, Arc::from(driver));
            table.set_pins(self.pins.clone());
            return;
        }
        if what == "unnames" {
            self.pins.remove(config);
            table.set_pins(self.pins.clone());
            return;
        }
        let driver = self.drivers[config].clone();
        match what {
            "take" => drop(table.activate(&name, &driver)),
            "back" => table.deactivate(config, &driver),
            "gone" => table.remove(config, &self.drivers.remove(config).unwrap()),
            "deleted" => {
                self.pins.remove(config);
                table.set_ages(ages(&[config]));
                table.set_pins(self.pins.clone());
            }
            _ => panic!("{step}"),
        }
    }
}

/// `old` is older than `mid`, and that than `new`.
fn ages(without: &[&str]) -> BTreeMap<Arc<str>, Option<Timestamp>> {
    let made = [("old", 10), ("mid", 20), ("new", 30), ("same", 30)];
    made.into_iter()
        .filter(|(config, _)| !without.contains(config))
        .map(|(config, second)| (Arc::from(config), Timestamp::from_second(second).ok()))
        .collect()
}

fn told(verdict: &ReservationState) -> String {
    match verdict {
        ReservationState::Granted => "granted".to_owned(),
        ReservationState::Waiting { after } => format!("after {after}"),
        ReservationState::Refused(rival) => format!("{} {}", rival.reason().as_str(), rival.config),
    }
}

/// The state of each claim after these steps.
fn verdicts(steps: &[&str]) -> String {
    let mut scene = Scene::new();
    for step in steps {
        scene.happen(step);
    }
    let verdicts = scene.drivers.iter().map(|(config, driver)| {
        let config: Arc<str> = Arc::from(config.as_str());
        format!("{config} {}", told(&scene.table.state(&config, driver)))
    });
    verdicts.collect::<Vec<_>>().join(", ")
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn the_oldest_is_granted_once_the_younger_has_finished() {
    let rows: [(&[&str], &str); 16] = [
        (&["old: a.b"], "old granted"),
        (&["old: a.b", "new: c.d"], "new granted, old granted"),
        (&["old: a.b", "new: a.b"], "new EndpointConflict old, old granted"),
        (&["old: a.b", "new: a-b"], "new FinalizerCollision old, old granted"),
        // Names of Leases have no upper-case letters.
        (&["old: a.b", "new: A.B"], "new FinalizerCollision old, old granted"),
        // The younger came first: it is refused at once, and the older waits for its end.
        (
            &["new: a.b", "new take", "old: a.b"],
            "new EndpointConflict old, old after new",
        ),
        (
            &["new: a.b", "new take", "old: a.b", "new back", "old take"],
            "new EndpointConflict old, old granted",
        ),
        // The younger comes back by itself when the older goes, and not before it has finished.
        (
            &["old: a.b", "new: a.b", "old take", "old back"],
            "new EndpointConflict old, old granted",
        ),
        (&["old: a.b", "new: a.b", "old take", "old gone"], "new granted"),
        // Deleted, it finishes; nobody else begins before, and it stops nobody who works.
        (
            &["old: a.b", "old take", "new: a.b", "old deleted"],
            "new after old, old EndpointConflict new",
        ),
        (
            &["new: a.b", "old: a.b", "old take", "new deleted"],
            "new EndpointConflict old, old granted",
        ),
        (
            &["old: a.b", "old take", "new: a.b", "old deleted", "old gone"],
            "new granted",
        ),
        // Three: the second takes the place of the first.
        (
            &[
                "new: a.b", "new take", "mid: a-b", "old: a.b", "new back", "old take", "old gone",
            ],
            "mid granted, new FinalizerCollision mid",
        ),
        // Of the same age by name.
        (
            &["same: a.b", "same take", "new: a.b"],
            "new after same, same EndpointConflict new",
        ),
        // A driver with another name makes way for those that claim the old one.
        (
            &["old: a.b", "old take", "new: a.b", "old gone", "old: c.d"],
            "new granted, old granted",
        ),
        // And one that gets the name of a younger one takes its place.
        (
            &["new: a.b", "new take", "old: c.d", "old take", "old gone", "old: a.b"],
            "new EndpointConflict old, old after new",
        ),
    ];
    for (steps, wanted) in rows {
        assert_eq!(verdicts(steps), wanted, "{steps:?}");
    }
}

/// A driver may answer any name, and one that is compromised does.
#[test]
fn a_driver_that_a_spec_names_is_not_granted_to_who_only_answers_its_name() {
    let rows: [(&[&str], &str); 13] = [
        (
            &["old: a.b", "new names a.b", "new: a.b"],
            "new granted, old EndpointConflict new",
        ),
        // It comes back under the name of another one, which works.
        (
            &["new names a.b", "new: a.b", "new take", "old: a.b"],
            "new granted, old EndpointConflict new",
        ),
        (
            &["new names a.b", "new: a.b", "new take", "old: A-B"],
            "new granted, old FinalizerCollision new",
        ),
        // Who has the driver loses it when it is named, and finishes first.
        (
            &["old: a.b", "old take", "new names a.b", "new: a.b"],
            "new after old, old EndpointConflict new",
        ),
        (
            &[
                "old: a.b",
                "old take",
                "new names a.b",
                "new: a.b",
                "old back",
                "new take",
            ],
            "new granted, old EndpointConflict new",
        ),
        // It is kept for one whose driver is away, too, and not for one whose spec changed.
        (&["old: a.b", "new names a.b"], "old EndpointConflict new"),
        (&["old: a.b", "new names a.b", "new unnames"], "old granted"),
        // Not for one that is being deleted, which waits for its volumes: another one takes them over, whether its spec has the name or not.
        (
            &["new names a.b", "new: a.b", "new deleted", "old: a.b"],
            "new EndpointConflict old, old granted",
        ),
        (
            &["old names a.b", "old: a.b", "old take", "new: a.b", "old deleted"],
            "new after old, old EndpointConflict new",
        ),
        // Of two that name it the older one; who is away keeps no other from it.
        (
            &["old names a.b", "new names a.b", "new: a.b", "old: a.b"],
            "new EndpointConflict old, old granted",
        ),
        (&["old names a.b", "new names a.b", "new: a.b"], "new granted"),
        (
            &["old names a.b", "old: a.b", "new names a-b", "new: a-b"],
            "new FinalizerCollision old, old granted",
        ),
        // Another name is another matter.
        (&["old: a.b", "new names c.d", "new: c.d"], "new granted, old granted"),
    ];
    for (steps, wanted) in rows {
        assert_eq!(verdicts(steps), wanted, "{steps:?}");
    }
}

/// Whatever is done in whatever order, two never work for one place.
#[test]
fn two_never_work_at_once() {
    let mut random = fastrand::Rng::with_seed(7);
    let (configs, names) = (["old", "mid", "new", "same"], ["a.b", "a-b", "c"]);
    let mut granted = 0;
    for _ in 0..300 {
        let mut scene = Scene::new();
        let mut working: BTreeMap<&str, &str> = BTreeMap::new();
        for _ in 0..30 {
            let config = configs[random.usize(0..configs.len())];
            let Some(driver) = scene.drivers.get(config).cloned() else {
                let driver = names[random.usize(0..names.len())];
                scene.happen(&format!("{config}: {driver}"));
                continue;
            };
            match random.u8(0..8) {
                6 => scene.happen(&format!("{config} names {driver}")),
                7 => scene.happen(&format!("{config} unnames")),
                0 => {
                    working.remove(config);
                    scene.happen(&format!("{config} gone"));
                }
                1 => {
                    working.remove(config);
                    scene.happen(&format!("{config} back"));
                }
                2 => scene.happen(&format!("{config} deleted")),
                _ => {
                    if scene.table.activate(&Arc::from(config), &driver) == ReservationState::Granted {
                        granted += 1;
                        let place = if &*driver == "c" { "c" } else { "a-b" };
                        working.insert(config, place);
                    }
                }
            }
            for place in ["a-b", "c"] {
                let workers: Vec<_> = working.iter().filter(|(_, at)| **at == place).collect();
                assert!(workers.len() < 2, "{workers:?}");
            }
        }
    }
    assert!(granted > 500, "{granted}");
}

async fn soon<T>(wait: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(1), wait).await.expect("it happens")
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_claims_change() {
    let claims = Reservations::default();
    claims.set_ages(ages(&[]));
    let claim = |config: &str, driver: &str| -> Reservation { claims.reserve(&Arc::from(config), &Arc::from(driver)) };
    let younger = claim("new", "a.b");
    assert_eq!(younger.activate(), ReservationState::Granted);
    assert!(timeout(Duration::from_secs(9), younger.refused()).await.is_err());
    let older = claim("old", "a-b");
    soon(younger.refused()).await;
    let ReservationState::Refused(rival) = younger.state() else {
        panic!("{:?}", younger.state());
    };
    assert_eq!(rival.reason(), ConditionReason::FinalizerCollision);
    let lease = |driver: &str| format!("lease-of-{}", driver.replace('.', "-"));
    for (finalizer, same) in [
        (Some("f"), "the same finalizer f and the same Lease"),
        (None, "the same Lease lease-of-a-b"),
    ] {
        let message = rival.message(lease, |_| finalizer.map(str::to_owned));
        for part in ["a.b", "a-b", "AttacherConfig old", same] {
            assert!(message.contains(part), "{message}");
        }
    }
    let waiting = older.activate();
    assert_eq!(
        waiting,
        ReservationState::Waiting {
            after: Arc::from("new")
        }
    );
    let ((), ()) = soon(async { tokio::join!(older.differs_from(&waiting), async { younger.deactivate() }) }).await;
    assert_eq!(older.activate(), ReservationState::Granted);
    let refused = younger.activate();
    let ((), ()) = soon(async { tokio::join!(younger.differs_from(&refused), async { drop(older) }) }).await;
    assert_eq!(
        (younger.activate(), &**younger.driver()),
        (ReservationState::Granted, "a.b")
    );
}

#[tokio::test(start_paused = true)]
async fn who_only_answers_a_name_leaves_it_to_the_one_whose_spec_has_it() {
    let claims = Reservations::default();
    claims.set_ages(ages(&[]));
    let (old, new, driver): (Arc<str>, Arc<str>, Arc<str>) = ("old".into(), "new".into(), "a.b".into());
    let answers = claims.reserve(&old, &driver);
    assert_eq!(answers.activate(), ReservationState::Granted);
    claims.set_pins(BTreeMap::from([(new.clone(), driver.clone())]));
    soon(answers.refused()).await;
    let ReservationState::Refused(rival) = answers.state() else {
        panic!("{:?}", answers.state());
    };
    let message = rival.message(str::to_owned, |_| None);
    for part in [
        "AttacherConfig new, whose spec.driverName names it",
        "set spec.driverName of this one, too",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let named = claims.reserve(&new, &driver);
    assert_eq!(named.activate(), ReservationState::Waiting { after: old });
    answers.deactivate();
    assert_eq!(named.activate(), ReservationState::Granted);
    drop(named);
    assert!(matches!(answers.activate(), ReservationState::Refused(_)));
    claims.set_pins(BTreeMap::new());
    assert_eq!(answers.activate(), ReservationState::Granted);
}
