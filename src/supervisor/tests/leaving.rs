//! When an AttacherConfig that is being deleted is let go of.

use futures::{StreamExt, stream};
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::drivers::{config, drivers_over, want};
use super::writes::{follow as follow_events, supervisor};
use crate::api::names::WAIT_FOR_DETACH_FINALIZER;
use crate::api::{AttacherConfigObject, DriverConfig};
use crate::cache::{Index, Store};
use crate::health::Health;
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::reflect::{CachedKind, WatchedKind, follow_from_list};
use crate::runtime::reservation::ReservationState;
use crate::supervisor::deletion::DeletionState;
use crate::supervisor::drivers::Drivers;
use crate::supervisor::leaving::{self, has_status, remaining};
use crate::supervisor::writer::TrackedConfig;

/// What the next list shows.
type Listed<K> = Arc<Mutex<Vec<K>>>;

fn follow<K: WatchedKind + Clone + Sync>(store: &Store) -> (JoinHandle<()>, Listed<K>)
where
    K::Record: CachedKind<Index>,
{
    let listed = Listed::<K>::default();
    let (shown, store, check) = (listed.clone(), store.clone(), Health::new().check(K::PLURAL));
    let watch = move || {
        let objects = shown.lock().clone().into_iter().map(Event::InitApply);
        let all = std::iter::once(Event::Init).chain(objects).chain([Event::InitDone]);
        stream::iter(all.map(Ok).collect::<Vec<_>>()).chain(stream::pending())
    };
    (tokio::spawn(follow_from_list(watch, store, check)), listed)
}

fn leaving_object() -> AttacherConfigObject {
    let object = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig",
        "metadata": {
            "name": "one", "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["attacher.csi.dev/wait-for-detach"],
        },
        "spec": {"endpoint": "unix:///does-not-exist/a", "driverName": "a.test", "deletionPolicy": "WaitForDetach"},
    });
    serde_json::from_value(object).expect("readable")
}

fn leaving(path: &str) -> Arc<DriverConfig> {
    Arc::new(DriverConfig {
        leaving: true,
        ..(*config(path)).clone()
    })
}

fn waits_for_nothing(drivers: &Drivers, name: &str, entry: &mut TrackedConfig) -> bool {
    let remaining = remaining(drivers, name, entry);
    leaving::waits_for_nothing(drivers, name, entry, remaining.as_ref())
}

fn state(drivers: &Drivers, name: &str, entry: &TrackedConfig) -> DeletionState {
    leaving::state(drivers, name, entry, remaining(drivers, name, entry))
}

/// Waits for the list that was asked for.
async fn listed_for(entry: &TrackedConfig) {
    let list = entry.last_list.clone().expect("a list");
    while !list.is_finished() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// An attachment that another replica, or a write that was under way, claimed, and that no watch has told of.
fn claimed() -> VolumeAttachmentWire {
    let attachment = json!({
        "metadata": {
            "name": "va", "uid": "va-uid", "resourceVersion": "5", "finalizers": ["external-attacher/a-test"],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "n"},
        },
        "spec": {"attacher": "a.test", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
    });
    serde_json::from_value(attachment).expect("readable")
}

#[tokio::test(start_paused = true)]
async fn it_goes_when_a_list_that_began_after_the_last_claim_shows_nothing() {
    let store = Store::default();
    let (_attachments, listed) = follow::<VolumeAttachmentWire>(&store);
    let _others = (follow::<PersistentVolumeWire>(&store), follow::<CsiNodeWire>(&store));
    store.lists().wait_synced().await;
    let mut drivers = drivers_over(store.clone());
    want(&mut drivers, &[("one", config("a"))]);
    let mut entry = TrackedConfig::new(leaving_object(), None);
    // Nothing is claimed, but the driver does not know yet that it must not claim any more.
    assert!(!waits_for_nothing(&drivers, "one", &mut entry));
    assert!(entry.last_list.is_none(), "no list counts that begins now");

    want(&mut drivers, &[("one", leaving("a"))]);
    listed.lock().push(claimed());
    assert!(
        !waits_for_nothing(&drivers, "one", &mut entry),
        "the cache may be behind"
    );
    listed_for(&entry).await;
    assert!(
        !waits_for_nothing(&drivers, "one", &mut entry),
        "the list shows a claim"
    );
    assert!(entry.last_list.is_none());

    listed.lock().clear();
    store.lists().relist().await;
    assert!(!waits_for_nothing(&drivers, "one", &mut entry));
    listed_for(&entry).await;
    assert!(waits_for_nothing(&drivers, "one", &mut entry));
}

/// Another AttacherConfig that works for the driver detaches its volumes: nobody waits for them, unless that one goes as well.
#[tokio::test(start_paused = true)]
async fn it_does_not_wait_for_what_another_one_detaches() {
    let store = Store::default();
    let (_attachments, listed) = follow::<VolumeAttachmentWire>(&store);
    let _others = (follow::<PersistentVolumeWire>(&store), follow::<CsiNodeWire>(&store));
    listed.lock().push(claimed());
    store.lists().wait_synced().await;
    store.lists().relist().await;
    let (one, driver): (Arc<str>, Arc<str>) = ("one".into(), "a.test".into());
    // Who works for the driver, which AttacherConfigs there are, and whether the first waits.
    let rows = [
        (None, vec![("one", leaving("a")), ("two", config("b"))], true),
        (Some(&*one), vec![("one", leaving("a")), ("two", config("b"))], true),
        (Some("two"), vec![("one", leaving("a")), ("two", config("b"))], false),
        (Some("two"), vec![("two", config("b"))], false),
        (Some("two"), vec![("one", leaving("a")), ("two", leaving("b"))], true),
        // It is being deleted and does not wait itself: its task ends.
        (Some("two"), vec![("one", leaving("a"))], true),
    ];
    for (number, (holder, wanted, waits)) in rows.into_iter().enumerate() {
        let mut drivers = drivers_over(store.clone());
        want(&mut drivers, &wanted);
        let reservation = holder.map(|holder| drivers.tasks.reservations.reserve(&holder.into(), &driver));
        if let Some(reservation) = &reservation {
            reservation.activate();
        }
        let mut entry = TrackedConfig::new(leaving_object(), None);
        let mut goes = waits_for_nothing(&drivers, "one", &mut entry);
        assert!(!goes, "row {number}: no list was made");
        if entry.last_list.is_some() {
            listed_for(&entry).await;
            goes = waits_for_nothing(&drivers, "one", &mut entry);
        }
        assert_eq!(goes, !waits, "row {number}");
    }
}

/// Its driver may have answered an operator that could not write so. What other AttacherConfigs work for is none of its.
#[tokio::test(start_paused = true)]
async fn one_whose_driver_is_not_known_waits_for_what_may_be_of_it() {
    let store = Store::default();
    let (_attachments, listed) = follow::<VolumeAttachmentWire>(&store);
    let _others = (follow::<PersistentVolumeWire>(&store), follow::<CsiNodeWire>(&store));
    let mut object = leaving_object();
    object.spec.as_mut().unwrap().driver_name = None;
    let wanted = [("one", leaving("a")), ("two", config("b"))];
    let mut unsynced = drivers_over(Store::default());
    want(&mut unsynced, &wanted);
    let mut entry = TrackedConfig::new(object.clone(), None);
    assert!(!waits_for_nothing(&unsynced, "one", &mut entry));
    assert_eq!(state(&unsynced, "one", &entry).remaining, None, "nobody knows yet");

    let driver: Arc<str> = "a.test".into();
    // What there is, who works for the driver, and whether the first waits.
    for (is_claimed, holder, waits) in [
        (false, None, false),
        (true, None, true),
        (true, Some("one"), true),
        (true, Some("two"), false),
    ] {
        *listed.lock() = is_claimed.then(claimed).into_iter().collect();
        store.lists().wait_synced().await;
        store.lists().relist().await;
        let mut drivers = drivers_over(store.clone());
        want(&mut drivers, &wanted);
        let reservation = holder.map(|holder: &str| drivers.tasks.reservations.reserve(&holder.into(), &driver));
        if let Some(reservation) = &reservation {
            reservation.activate();
        }
        let mut entry = TrackedConfig::new(object.clone(), None);
        assert!(!waits_for_nothing(&drivers, "one", &mut entry), "no list was made");
        assert_eq!(entry.last_list.is_none(), waits, "{is_claimed}, {holder:?}");
        let told = state(&drivers, "one", &entry);
        assert!(told.is_unnamed);
        let remaining = told.remaining.expect("everything is listed");
        assert_eq!(remaining.attachments, usize::from(waits), "{is_claimed}, {holder:?}");
    }
}

/// As that of a policy, a backup or an owner that is deleted first.
#[tokio::test(start_paused = true)]
async fn one_that_only_others_keep_is_served_by_nobody() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let object = |name: &str, made: &str, deleted: bool| -> AttacherConfigObject {
        let mut object = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": made, "finalizers": ["example.com/keep"]},
            "spec": {"endpoint": format!("unix:///does-not-exist/{name}"), "driverName": "a.test"},
        });
        if deleted {
            object["metadata"]["deletionTimestamp"] = made.into();
        }
        serde_json::from_value(object).expect("readable")
    };
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let second = Duration::from_secs(1);
    for deleted in [false, true] {
        let event = Event::Apply(object("old", old, deleted));
        follow_events(&mut supervisor, vec![event], &stop, second).await;
        let configured = supervisor.configured().iter().any(|config| config.name == "old");
        let (is_known, entry) = (supervisor.known_drivers(), &supervisor.objects["old"]);
        assert_eq!((configured, is_known.contains("a.test")), (!deleted, !deleted));
        assert!(has_status(&supervisor.drivers, "old", entry));
        let kept_by = state(&supervisor.drivers, "old", entry).kept_by;
        assert_eq!(kept_by.is_some(), deleted);
    }
    // A new one for the driver is not younger than one that is gone but for its object.
    follow_events(
        &mut supervisor,
        vec![Event::Apply(object("new", new, false))],
        &stop,
        second,
    )
    .await;
    let reservations = &supervisor.drivers.tasks.reservations;
    let driver: Arc<str> = "a.test".into();
    let [former, next] = ["old", "new"].map(|name| reservations.reserve(&name.into(), &driver));
    assert!(matches!(next.state(), ReservationState::Granted));
    assert!(!matches!(former.state(), ReservationState::Granted));
}

/// What cannot be read goes on with the settings that it had, and claims nothing new once it is being deleted.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_claims_nothing_new_either() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let object = |deleted: bool, endpoint: &str| -> AttacherConfigObject {
        let mut object = json!({
            "metadata": {"name": "one", "uid": "one", "finalizers": [WAIT_FOR_DETACH_FINALIZER]},
            "spec": {"endpoint": endpoint, "deletionPolicy": "WaitForDetach"},
        });
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(object).expect("readable")
    };
    let moment = Duration::from_millis(100);
    for (deleted, endpoint, leaving) in [
        (false, "unix:///does-not-exist/a", false),
        (false, "nonsense", false),
        (true, "nonsense", true),
        (true, "nonsense", true),
    ] {
        let event = Event::Apply(object(deleted, endpoint));
        follow_events(&mut supervisor, vec![event], &stop, moment).await;
        let drivers = &supervisor.drivers;
        assert_eq!(drivers.tasks.wanted()["one"].endpoint, config("a").endpoint);
        assert_eq!(drivers.tasks.wanted()["one"].leaving, leaving);
        assert_eq!(drivers.claims_ended("one"), leaving);
    }
    assert!(supervisor.drivers.claims_ended("nobody"));
}

/// Whichever is older, or names the driver: else the one that leaves would keep the other one from the volumes for which it waits.
#[tokio::test(start_paused = true)]
async fn one_that_is_being_deleted_goes_after_another_one_for_its_driver() {
    for next_names_it in [true, false] {
        one_goes_after(next_names_it).await;
    }
}

async fn one_goes_after(next_names_it: bool) {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let object = |name: &str, made: &str, deleted: bool| -> AttacherConfigObject {
        let mut object = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": made, "finalizers": [WAIT_FOR_DETACH_FINALIZER]},
            "spec": {"endpoint": format!("unix:///does-not-exist/{name}"), "driverName": "a.test", "deletionPolicy": "WaitForDetach"},
        });
        if deleted {
            object["metadata"]["deletionTimestamp"] = made.into();
        }
        if name == "new" && !next_names_it {
            object["spec"]["driverName"] = serde_json::Value::Null;
        }
        serde_json::from_value(object).expect("readable")
    };
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    for deleted in [false, true] {
        let events = [("old", old, deleted), ("new", new, false)];
        let events = events.map(|(name, made, deleted)| Event::Apply(object(name, made, deleted)));
        follow_events(&mut supervisor, events.into(), &stop, Duration::from_millis(100)).await;
        let reservations = &supervisor.drivers.tasks.reservations;
        let driver: Arc<str> = "a.test".into();
        let [first, second] = ["old", "new"].map(|name| reservations.reserve(&name.into(), &driver));
        let is_first = matches!(first.state(), ReservationState::Granted);
        let is_second = matches!(second.state(), ReservationState::Granted);
        assert_eq!((is_first, is_second), (!deleted, deleted), "{next_names_it}");
    }
}
