//! When an AttacherConfig that is being deleted is let go of.

use futures::{StreamExt, stream};
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::drivers::{config, drivers_over, provision_over, provisioning, suspended, want};
use super::writer::refused;
use super::writes::{follow as follow_events, supervisor};
use crate::api::names::WAIT_FOR_DETACH_FINALIZER;
use crate::api::{AttacherConfigObject, DriverConfig};
use crate::cache::{Index, Store};
use crate::health::Health;
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::reflect::{CachedKind, WatchedKind, follow_from_list};
use crate::runtime::reservation::{Reservation, ReservationState};
use crate::supervisor::deletion::{DeletionState, MetadataChange};
use crate::supervisor::drivers::Drivers;
use crate::supervisor::leaving::{self, has_status, remaining};
use crate::supervisor::writer::TrackedConfig;

/// What the next list shows.
type Listed<K> = Arc<Mutex<Vec<K>>>;

const OLD: &str = "2026-01-01T00:00:00Z";
const NEW: &str = "2026-01-02T00:00:00Z";
const MOMENT: Duration = Duration::from_millis(100);

#[test]
fn the_volumes_that_keep_a_finalizer_are_told_in_their_number() {
    let told = |names: &[&str]| {
        let names: Vec<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
        leaving::left_finalizers(&names, "f", "a.test").unwrap_or_default()
    };
    let one = "PersistentVolume pv1 keeps the finalizer f: once deleted, it waits until an attacher of driver a.test takes it off; ";
    let two = "2 PersistentVolumes (pv1 for one) keep the finalizer f: once deleted, each waits until ";
    assert!(told(&["pv1"]).starts_with(one), "{}", told(&["pv1"]));
    assert!(told(&["pv1", "pv2"]).starts_with(two), "{}", told(&["pv1", "pv2"]));
    assert_eq!(told(&[]), "");
}

fn follow<K: WatchedKind + Clone + Sync>(store: &Store) -> Listed<K>
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
    tokio::spawn(follow_from_list(watch, store, check));
    listed
}

/// A cluster of which everything is listed: of the VolumeAttachments what the test says.
struct Cluster {
    store: Store,
    attachments: Listed<VolumeAttachmentWire>,
}

impl Cluster {
    async fn listed(attachments: Vec<VolumeAttachmentWire>) -> Self {
        let store = Store::default();
        let cluster = Self {
            attachments: follow(&store),
            store,
        };
        follow::<PersistentVolumeWire>(&cluster.store);
        follow::<CsiNodeWire>(&cluster.store);
        cluster.lists(attachments).await;
        cluster
    }

    async fn lists(&self, attachments: Vec<VolumeAttachmentWire>) {
        *self.attachments.lock() = attachments;
        self.store.lists().wait_synced().await;
        self.store.lists().relist().await;
    }

    /// Its drivers, of which this one works.
    fn drivers(&self, wanted: &[(&str, Arc<DriverConfig>)], worker: Option<&str>) -> (Drivers, Option<Reservation>) {
        let mut drivers = drivers_over(self.store.clone());
        let reservation = worker.map(|worker| drivers.tasks.reservations.reserve(&worker.into(), &"a.test".into()));
        if let Some(reservation) = &reservation {
            reservation.activate();
        }
        want(&mut drivers, wanted);
        (drivers, reservation)
    }
}

/// One that is named like its driver's endpoint and, while it is being deleted, waits until everything is detached.
fn config_of(name: &str, made: &str, deleted: bool) -> Value {
    let endpoint = format!("unix:///does-not-exist/{name}");
    let mut object = json!({
        "metadata": {
            "name": name, "uid": name, "resourceVersion": "7", "creationTimestamp": made,
            "finalizers": [WAIT_FOR_DETACH_FINALIZER],
        },
        "spec": {"endpoint": endpoint, "driverName": "a.test", "deletionPolicy": "WaitForDetach"},
    });
    if deleted {
        object["metadata"]["deletionTimestamp"] = made.into();
    }
    object
}

fn read(object: Value) -> AttacherConfigObject {
    serde_json::from_value(object).expect("readable")
}

fn leaving_object() -> AttacherConfigObject {
    read(config_of("one", OLD, true))
}

/// Which of two may work for the driver.
fn may_work(drivers: &Drivers, names: [&str; 2]) -> [bool; 2] {
    let reservations = &drivers.tasks.reservations;
    let claims = names.map(|name| reservations.reserve(&name.into(), &"a.test".into()));
    claims
        .each_ref()
        .map(|claim| claim.state() == ReservationState::Granted)
}

fn leaving(path: &str) -> Arc<DriverConfig> {
    Arc::new(DriverConfig {
        leaving: true,
        ..(*config(path)).clone()
    })
}

/// The same, which names the driver.
fn naming(config: &DriverConfig) -> Arc<DriverConfig> {
    Arc::new(DriverConfig {
        driver_name: Some("a.test".to_owned()),
        ..config.clone()
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
    let cluster = Cluster::listed(Vec::new()).await;
    let mut drivers = drivers_over(cluster.store.clone());
    want(&mut drivers, &[("one", config("a"))]);
    let mut entry = TrackedConfig::new(leaving_object(), None);
    // Nothing is claimed, but the driver does not know yet that it must not claim any more.
    assert!(!waits_for_nothing(&drivers, "one", &mut entry));
    assert!(entry.last_list.is_none(), "no list counts that begins now");

    want(&mut drivers, &[("one", leaving("a"))]);
    cluster.attachments.lock().push(claimed());
    let goes = waits_for_nothing(&drivers, "one", &mut entry);
    assert!(!goes, "the cache may be behind");
    listed_for(&entry).await;
    let goes = waits_for_nothing(&drivers, "one", &mut entry);
    assert!(!goes, "the list shows a claim");
    assert!(entry.last_list.is_none());

    cluster.lists(Vec::new()).await;
    assert!(!waits_for_nothing(&drivers, "one", &mut entry));
    listed_for(&entry).await;
    assert!(waits_for_nothing(&drivers, "one", &mut entry));
}

/// An API server that answers lists of claims with these, or not at all, and tells of no change.
fn lists_claims(claims: &Arc<Mutex<Option<Vec<Value>>>>) -> Client {
    let claims = claims.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        let is_of_claims = request.uri().path().ends_with("persistentvolumeclaims");
        let shown = claims.lock().clone().filter(|_| !is_watch);
        async move {
            let Some(shown) = shown else {
                return pending().await;
            };
            let items = if is_of_claims { shown } else { Vec::new() };
            let version = json!({"resourceVersion": "9"});
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": version, "items": items});
            Ok::<_, Infallible>(http::Response::new(Body::from(list.to_string().into_bytes())))
        }
    });
    Client::new(service, "default")
}

/// Another replica provisions, and the watch of claims here is slow or broken: a list alone shows the marker that it wrote.
#[tokio::test(start_paused = true)]
async fn claims_are_listed_once_more_as_well_for_as_long_as_they_are_watched() {
    let marker = json!({"driver": "a.test", "uid": "data", "prefix": "pvc", "since": OLD}).to_string();
    let claim = json!({
        "metadata": {
            "name": "data", "namespace": "web", "uid": "data", "resourceVersion": "5",
            "finalizers": ["attacher.csi.dev/provisioning"],
            "annotations": {"attacher.csi.dev/provisioning": marker},
        },
    });
    let cluster = Cluster::listed(Vec::new()).await;
    for shows in [Some(vec![claim]), None] {
        let claims = Arc::new(Mutex::new(Some(Vec::new())));
        let mut drivers = drivers_over(cluster.store.clone());
        provision_over(&mut drivers, lists_claims(&claims));
        let provisioned = DriverConfig {
            leaving: true,
            ..(*provisioning("a")).clone()
        };
        let without = DriverConfig {
            provisioning: None,
            ..provisioned.clone()
        };
        want(&mut drivers, &[("one", Arc::new(provisioned))]);
        while drivers.provisioners.markers("one").is_none() {
            sleep(MOMENT).await;
        }
        let (is_answered, mut entry) = (shows.is_some(), TrackedConfig::new(leaving_object(), None));
        *claims.lock() = shows;
        assert!(!waits_for_nothing(&drivers, "one", &mut entry), "no list was made");
        if is_answered {
            listed_for(&entry).await;
            let goes = waits_for_nothing(&drivers, "one", &mut entry);
            assert!(!goes, "the list shows a marker");
            let waits_for = remaining(&drivers, "one", &entry).and_then(|remaining| remaining.claims);
            assert_eq!(waits_for, Some(1));
            continue;
        }
        sleep(Duration::from_mins(1)).await;
        assert!(!waits_for_nothing(&drivers, "one", &mut entry), "claims are not listed");
        // Nobody lists them any more.
        want(&mut drivers, &[("one", Arc::new(without))]);
        while drivers.provisioners.get("one").is_some() {
            drivers.ended().await;
        }
        listed_for(&entry).await;
        assert!(waits_for_nothing(&drivers, "one", &mut entry));
    }
}

/// Another AttacherConfig that works for the driver detaches its volumes, or will when its driver answers: nobody waits for them, unless that
/// one goes as well.
#[tokio::test(start_paused = true)]
async fn it_does_not_wait_for_what_another_one_detaches() {
    let cluster = Cluster::listed(vec![claimed()]).await;
    let named = naming(&config("b"));
    // Who works for the driver, which AttacherConfigs there are, and whether the first waits.
    let rows = [
        (None, vec![("one", leaving("a")), ("two", config("b"))], true),
        (Some("one"), vec![("one", leaving("a")), ("two", config("b"))], true),
        (Some("two"), vec![("one", leaving("a")), ("two", config("b"))], false),
        (Some("two"), vec![("two", config("b"))], false),
        (Some("two"), vec![("one", leaving("a")), ("two", leaving("b"))], true),
        // It is being deleted and does not wait itself: its task ends.
        (Some("two"), vec![("one", leaving("a"))], true),
        // The driver of the other one is away, and nobody else may work for it by then: the first was refused, or has ended its calls.
        (None, vec![("two", named.clone())], false),
        (None, vec![("one", leaving("a")), ("two", named.clone())], false),
        (Some("one"), vec![("one", leaving("a")), ("two", named.clone())], true),
        (None, vec![("one", leaving("a")), ("two", suspended(&named))], true),
        (None, vec![("one", leaving("a")), ("two", naming(&leaving("b")))], true),
    ];
    for (number, (holder, wanted, waits)) in rows.into_iter().enumerate() {
        let (drivers, _reservation) = cluster.drivers(&wanted, holder);
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
    let mut object = leaving_object();
    object.spec.as_mut().unwrap().driver_name = None;
    let wanted = [("one", leaving("a")), ("two", config("b"))];
    let mut unsynced = drivers_over(Store::default());
    want(&mut unsynced, &wanted);
    let mut entry = TrackedConfig::new(object.clone(), None);
    assert!(!waits_for_nothing(&unsynced, "one", &mut entry));
    assert_eq!(state(&unsynced, "one", &entry).remaining, None, "nobody knows yet");

    let cluster = Cluster::listed(Vec::new()).await;
    // What there is, who works for the driver, and whether the first waits.
    for (is_claimed, holder, waits) in [
        (false, None, false),
        (true, None, true),
        (true, Some("one"), true),
        (true, Some("two"), false),
    ] {
        cluster.lists(is_claimed.then(claimed).into_iter().collect()).await;
        let (drivers, _reservation) = cluster.drivers(&wanted, holder);
        let mut entry = TrackedConfig::new(object.clone(), None);
        assert!(!waits_for_nothing(&drivers, "one", &mut entry), "no list was made");
        assert_eq!(entry.last_list.is_none(), waits, "{is_claimed}, {holder:?}");
        let told = state(&drivers, "one", &entry);
        assert!(told.is_unnamed);
        let remaining = told.remaining.expect("everything is listed");
        assert_eq!(remaining.attachments, usize::from(waits), "{is_claimed}, {holder:?}");
    }
}

/// As after a restart: the former process went on with settings that this one never had. The markers of claims stay, and nobody counts them.
#[tokio::test(start_paused = true)]
async fn one_whose_section_is_not_in_use_waits_until_it_is() {
    let cluster = Cluster::listed(Vec::new()).await;
    // A field of it, whether another AttacherConfig provisions for the driver, and whether it waits.
    let rows = [
        (["spec", "provisioning"], json!({}), false, true),
        (["spec", "provisioning"], json!({}), true, false),
        (["spec", "suspend"], json!(false), false, false),
        // What cannot be read may have the section; nor does it name the driver.
        (["spec", "deletionPolicy"], json!(["?"]), false, true),
        // The section was taken out of a spec that cannot be used: settings of before had it.
        (["status", "provisioning"], json!({}), false, true),
        (["status", "provisioning"], json!({}), true, false),
    ];
    for ([part, field], value, is_left, waits) in rows {
        let row = format!("{part}.{field}: {value}, {is_left}");
        let mut object = config_of("one", OLD, true);
        object[part][field] = value;
        let mut entry = TrackedConfig::new(read(object), None);
        let other = is_left.then(|| ("two", provisioning("b")));
        let (drivers, _reservation) = cluster.drivers(other.as_slice(), None);
        assert!(!waits_for_nothing(&drivers, "one", &mut entry), "{row}");
        assert_eq!(entry.last_list.is_none(), waits, "{row}");
        let remaining = remaining(&drivers, "one", &entry).expect("everything is listed");
        assert_eq!(remaining.claims, (!waits).then_some(0), "{row}");
    }
    // The settings that are in use do not have the section: nothing was provisioned by them.
    let (mut drivers, _reservation) = cluster.drivers(&[], None);
    want(&mut drivers, &[("one", leaving("a"))]);
    let mut object = config_of("one", OLD, true);
    object["spec"]["provisioning"] = json!({});
    let entry = TrackedConfig::new(read(object), None);
    let remaining = remaining(&drivers, "one", &entry).expect("everything is listed");
    assert_eq!(remaining.claims, Some(0));
}

/// What else is undone is put right, and keeps no policy from being in effect.
#[tokio::test(start_paused = true)]
async fn a_finalizer_that_somebody_takes_off_again_and_again_is_told() {
    use MetadataChange::{Protect, Unprotect, WithdrawConfirmation};
    let drivers = drivers_over(Store::default());
    for (change, finalizers, is_told) in [
        (Protect, json!([]), true),
        (Protect, json!([WAIT_FOR_DETACH_FINALIZER]), true),
        (Unprotect, json!([WAIT_FOR_DETACH_FINALIZER]), false),
        (WithdrawConfirmation, json!([]), false),
    ] {
        let row = format!("{change:?}, {finalizers}");
        let mut object = config_of("one", OLD, false);
        object["metadata"]["finalizers"] = finalizers;
        let mut entry = TrackedConfig::new(read(object), None);
        for _ in 0..3 {
            while !entry.may_write_metadata(change) {
                sleep(Duration::from_secs(1)).await;
            }
            entry.wrote_metadata(change);
        }
        assert!(entry.is_contested(change), "{row}");
        let problem = state(&drivers, "one", &entry).problem.unwrap_or_default();
        let is_said = problem.ends_with("the operator cannot add its finalizer: another client undoes that each time");
        assert_eq!(is_said, is_told, "{row}: {problem}");
        assert_eq!(problem.is_empty(), !is_told, "{row}: {problem}");
    }
}

/// As by an operator whose ClusterRole lacks the rule. What is as it should be needs no write.
#[tokio::test(start_paused = true)]
async fn a_finalizer_that_may_not_be_written_is_told() {
    let drivers = drivers_over(Store::default());
    let error = refused("forbidden: User \"u\" cannot patch resource \"attacherconfigs\"", 403);
    for (finalizers, deleted, words) in [
        (
            json!([]),
            false,
            ["WaitForDetach is not in effect", "cannot add its finalizer: forbidden"],
        ),
        (
            json!([WAIT_FOR_DETACH_FINALIZER]),
            true,
            ["a deletion does not end", "cannot remove its finalizer: forbidden"],
        ),
        (json!([WAIT_FOR_DETACH_FINALIZER]), false, ["", ""]),
    ] {
        let row = format!("{finalizers}, {deleted}");
        let mut object = config_of("one", OLD, deleted);
        object["metadata"]["finalizers"] = finalizers;
        let mut entry = TrackedConfig::new(read(object), None);
        for _ in 0..2 {
            assert_eq!(state(&drivers, "one", &entry).problem, None, "{row}: once is no news");
            entry.metadata_failed(&error);
        }
        let problem = state(&drivers, "one", &entry).problem.unwrap_or_default();
        assert!(words.iter().all(|words| problem.contains(words)), "{row}: {problem}");
        assert_eq!(problem.is_empty(), words[0].is_empty(), "{row}: {problem}");
    }
}

/// As that of a policy, a backup or an owner that is deleted first.
#[tokio::test(start_paused = true)]
async fn one_that_only_others_keep_is_served_by_nobody() {
    let (mut supervisor, stop, second) = (supervisor(), CancellationToken::new(), Duration::from_secs(1));
    for deleted in [false, true] {
        let mut old = config_of("old", OLD, deleted);
        old["metadata"]["finalizers"] = json!(["example.com/keep"]);
        old["spec"]["deletionPolicy"] = "Orphan".into();
        follow_events(&mut supervisor, vec![Event::Apply(read(old))], &stop, second).await;
        let configured = supervisor.configured().iter().any(|config| config.name == "old");
        let (is_known, entry) = (supervisor.known_drivers(), &supervisor.objects["old"]);
        assert_eq!((configured, is_known.contains("a.test")), (!deleted, !deleted));
        assert!(has_status(&supervisor.drivers, "old", entry));
        let kept_by = state(&supervisor.drivers, "old", entry).kept_by;
        assert_eq!(kept_by.is_some(), deleted);
    }
    // A new one for the driver is not younger than one that is gone but for its object.
    let new = Event::Apply(read(config_of("new", NEW, false)));
    follow_events(&mut supervisor, vec![new], &stop, second).await;
    assert_eq!(may_work(&supervisor.drivers, ["old", "new"]), [false, true]);
}

/// What cannot be read goes on with the settings that it had, and claims nothing new once it is being deleted.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_claims_nothing_new_either() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    for (deleted, is_readable) in [(false, true), (false, false), (true, false), (true, false)] {
        let mut object = config_of("a", OLD, deleted);
        object["spec"]["driverName"] = Value::Null;
        if !is_readable {
            object["spec"]["endpoint"] = "nonsense".into();
        }
        follow_events(&mut supervisor, vec![Event::Apply(read(object))], &stop, MOMENT).await;
        let drivers = &supervisor.drivers;
        assert_eq!(drivers.tasks.wanted()["a"].endpoint, config("a").endpoint);
        assert_eq!(drivers.tasks.wanted()["a"].leaving, deleted);
        assert_eq!(drivers.claims_ended("a"), deleted);
    }
    assert!(supervisor.drivers.claims_ended("nobody"));
}

/// Whichever is older, or names the driver: else the one that leaves would keep the other one from the volumes for which it waits.
#[tokio::test(start_paused = true)]
async fn one_that_is_being_deleted_goes_after_another_one_for_its_driver() {
    for next_names_it in [true, false] {
        let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
        for deleted in [false, true] {
            let (old, mut new) = (config_of("old", OLD, deleted), config_of("new", NEW, false));
            if !next_names_it {
                new["spec"]["driverName"] = Value::Null;
            }
            let events = [old, new].map(|object| Event::Apply(read(object)));
            follow_events(&mut supervisor, events.into(), &stop, MOMENT).await;
            let may = may_work(&supervisor.drivers, ["old", "new"]);
            assert_eq!(may, [!deleted, deleted], "{next_names_it}");
        }
    }
}
