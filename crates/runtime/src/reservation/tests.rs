//! Claims that come, win, lose and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;

use super::{Reservation, ReservationState, ReservationTable, Reservations};

/// A table, and what it was told.
#[derive(Default)]
struct Scene {
    table: ReservationTable,
    /// The driver that each AttacherConfig claims.
    drivers: BTreeMap<String, Arc<str>>,
    pins: BTreeMap<Arc<str>, Arc<str>>,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self::default();
        scene.table.set_ages(ages(&[]));
        scene
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
        match what {
            "take" => drop(table.activate(&Arc::from(config), &self.drivers[config])),
            "back" => table.deactivate(config, &self.drivers[config]),
            "gone" => table.remove(config, &self.drivers.remove(config).unwrap()),
            "unnames" => drop(self.pins.remove(config)),
            "deleted" => {
                self.pins.remove(config);
                table.set_ages(ages(&[config]));
            }
            names => {
                let driver = names.strip_prefix("names ").unwrap();
                self.pins.insert(Arc::from(config), Arc::from(driver));
            }
        }
        table.set_pins(self.pins.clone());
    }

    /// The state of each claim.
    fn verdicts(&self) -> String {
        let verdicts = self.drivers.iter().map(|(config, driver)| {
            let state = self.table.state(&Arc::from(config.as_str()), driver);
            format!("{config} {}", told(&state))
        });
        verdicts.collect::<Vec<_>>().join(", ")
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

/// Each row says what happens, and the state of each claim after that.
fn are_so(rows: &[&str]) {
    for row in rows {
        let (steps, wanted) = row.split_once(" => ").unwrap();
        let mut scene = Scene::new();
        for step in steps.split(", ") {
            scene.happen(step);
        }
        assert_eq!(scene.verdicts(), wanted, "{row}");
    }
}

const BY_AGE: &[&str] = &[
    "old: a.b => old granted",
    "old: a.b, new: c.d => new granted, old granted",
    "old: a.b, new: a.b => new EndpointConflict old, old granted",
    "old: a.b, new: a-b => new FinalizerCollision old, old granted",
    // Names of Leases have no upper-case letters.
    "old: a.b, new: A.B => new FinalizerCollision old, old granted",
    // The younger came first: it is refused at once, and the older waits for its end.
    "new: a.b, new take, old: a.b => new EndpointConflict old, old after new",
    "new: a.b, new take, old: a.b, new back, old take => new EndpointConflict old, old granted",
    // The younger comes back by itself when the older goes, and not before it has finished.
    "old: a.b, new: a.b, old take, old back => new EndpointConflict old, old granted",
    "old: a.b, new: a.b, old take, old gone => new granted",
    // Deleted, it finishes; nobody else begins before, and it stops nobody who works.
    "old: a.b, old take, new: a.b, old deleted => new after old, old EndpointConflict new",
    "new: a.b, old: a.b, old take, new deleted => new EndpointConflict old, old granted",
    "old: a.b, old take, new: a.b, old deleted, old gone => new granted",
    // Three: the second takes the place of the first.
    "new: a.b, new take, mid: a-b, old: a.b, new back, old take, old gone => mid granted, new FinalizerCollision mid",
    // Of the same age by name.
    "same: a.b, same take, new: a.b => new after same, same EndpointConflict new",
    // A driver with another name makes way for those that claim the old one.
    "old: a.b, old take, new: a.b, old gone, old: c.d => new granted, old granted",
    // And one that gets the name of a younger one takes its place.
    "new: a.b, new take, old: c.d, old take, old gone, old: a.b => new EndpointConflict old, old after new",
];

#[test]
fn the_oldest_is_granted_once_the_younger_has_finished() {
    are_so(BY_AGE);
}

/// A driver may answer any name, and one that is compromised does.
const BY_SPEC: &[&str] = &[
    "old: a.b, new names a.b, new: a.b => new granted, old EndpointConflict new",
    // It comes back under the name of another one, which works.
    "new names a.b, new: a.b, new take, old: a.b => new granted, old EndpointConflict new",
    "new names a.b, new: a.b, new take, old: A-B => new granted, old FinalizerCollision new",
    // Who has the driver loses it when it is named, and finishes first.
    "old: a.b, old take, new names a.b, new: a.b => new after old, old EndpointConflict new",
    "old: a.b, old take, new names a.b, new: a.b, old back, new take => new granted, old EndpointConflict new",
    // It is kept for one whose driver is away, too, and not for one whose spec changed.
    "old: a.b, new names a.b => old EndpointConflict new",
    "old: a.b, new names a.b, new unnames => old granted",
    // Not for one that is being deleted, which waits for its volumes: another one takes them over, whether its spec has the name or not.
    "new names a.b, new: a.b, new deleted, old: a.b => new EndpointConflict old, old granted",
    "old names a.b, old: a.b, old take, new: a.b, old deleted => new after old, old EndpointConflict new",
    // Of two that name it the older one; who is away keeps no other from it.
    "old names a.b, new names a.b, new: a.b, old: a.b => new EndpointConflict old, old granted",
    "old names a.b, new names a.b, new: a.b => new granted",
    "old names a.b, old: a.b, new names a-b, new: a-b => new FinalizerCollision old, old granted",
    // Another name is another matter.
    "old: a.b, new names c.d, new: c.d => new granted, old granted",
];

#[test]
fn a_driver_that_a_spec_names_is_not_granted_to_who_only_answers_its_name() {
    are_so(BY_SPEC);
}

#[test]
fn two_never_work_at_once() {
    const STEPS: [&str; 8] = ["gone", "back", "deleted", "take", "take", "take", "names", "unnames"];
    let mut random = fastrand::Rng::with_seed(7);
    let (configs, names) = (["old", "mid", "new", "same"], ["a.b", "a-b", "c"]);
    let mut granted = 0;
    for _ in 0..300 {
        let mut scene = Scene::new();
        let mut places: BTreeMap<&str, String> = BTreeMap::new();
        for _ in 0..30 {
            let config = configs[random.usize(0..configs.len())];
            let Some(driver) = scene.drivers.get(config).cloned() else {
                let driver = names[random.usize(0..names.len())];
                scene.happen(&format!("{config}: {driver}"));
                continue;
            };
            match STEPS[usize::from(random.u8(0..8))] {
                "take" if scene.table.activate(&Arc::from(config), &driver) == ReservationState::Granted => {
                    granted += 1;
                    places.insert(config, driver.replace('.', "-"));
                }
                "take" => {}
                "names" => scene.happen(&format!("{config} names {driver}")),
                step => {
                    if step == "gone" || step == "back" {
                        places.remove(config);
                    }
                    scene.happen(&format!("{config} {step}"));
                }
            }
            let different: BTreeSet<_> = places.values().collect();
            assert_eq!(different.len(), places.len(), "{places:?}");
        }
    }
    assert!(granted > 500, "{granted}");
}

async fn soon(wait: impl Future<Output = ()>) {
    timeout(Duration::from_secs(1), wait).await.expect("it happens");
}

/// What is said of who goes first.
fn message(claim: &Reservation, finalizer: Option<&str>) -> String {
    let ReservationState::Refused(rival) = claim.state() else {
        panic!("{:?}", claim.state());
    };
    let lease = |driver: &str| format!("lease-of-{}", driver.replace('.', "-"));
    rival.message(lease, |_| finalizer.map(str::to_owned))
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_claims_change() {
    let claims = Reservations::default();
    claims.set_ages(ages(&[]));
    let younger = claims.reserve(&"new".into(), &"a.b".into());
    assert_eq!(younger.activate(), ReservationState::Granted);
    assert!(timeout(Duration::from_secs(9), younger.refused()).await.is_err());
    let older = claims.reserve(&"old".into(), &"a-b".into());
    soon(younger.refused()).await;
    assert_eq!(told(&younger.state()), "FinalizerCollision old");
    for (finalizer, same) in [
        (Some("f"), "the same finalizer f and the same Lease"),
        (None, "the same Lease lease-of-a-b"),
    ] {
        let message = message(&younger, finalizer);
        for part in ["a.b", "a-b", "AttacherConfig old", same] {
            assert!(message.contains(part), "{message}");
        }
    }
    let waiting = older.activate();
    assert_eq!(told(&waiting), "after new");
    let ((), ()) = tokio::join!(soon(older.differs_from(&waiting)), async { younger.deactivate() });
    assert_eq!(older.activate(), ReservationState::Granted);
    let refused = younger.activate();
    let ((), ()) = tokio::join!(soon(younger.differs_from(&refused)), async { drop(older) });
    assert_eq!(younger.activate(), ReservationState::Granted);
    assert_eq!(&**younger.driver(), "a.b");
}

#[tokio::test(start_paused = true)]
async fn who_only_answers_a_name_leaves_it_to_the_one_whose_spec_has_it() {
    let claims = Reservations::default();
    claims.set_ages(ages(&[]));
    let answers = claims.reserve(&"old".into(), &"a.b".into());
    assert_eq!(answers.activate(), ReservationState::Granted);
    claims.set_pins(BTreeMap::from([("new".into(), "a.b".into())]));
    soon(answers.refused()).await;
    let message = message(&answers, None);
    for part in [
        "AttacherConfig new, whose spec.driverName names it",
        "set spec.driverName of this one, too",
    ] {
        assert!(message.contains(part), "{message}");
    }
}
