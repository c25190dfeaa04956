//! Driver tasks that start, change, fail and end. The endpoints do not exist, so that nothing is connected; the clock is
//! paused.

use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, advance, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::apiserver::Requests;
use crate::cache::Store;
use crate::driver::SharedContext;
use crate::runtime::DriverPhase;
use crate::runtime::reservation::ReservationState;
use crate::supervisor::ProvisionSetup;
use crate::supervisor::deletion::DeletionState;
use crate::supervisor::drivers::Drivers;
use crate::supervisor::election::LeaderElectionMode;
use crate::supervisor::writer::TrackedConfig;
use crate::telemetry::Metrics;

/// No request is sent here; one that is fails.
fn unused_client() -> Client {
    let service = tower::service_fn(|_request: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("there is no API server"))
    });
    Client::new(service, "default")
}

/// Drivers of a cluster that is known.
pub(super) fn drivers_over(store: Store) -> Drivers {
    Drivers::new(context(store), LeaderElectionMode::None)
}

/// Has these drivers run, and no other ones; these settings are what the next ones are compared with.
pub(super) fn want(drivers: &mut Drivers, wanted: &[(&str, Arc<DriverConfig>)]) {
    let wanted = wanted.iter().map(|(name, config)| ((*name).to_owned(), config.clone()));
    let wanted: BTreeMap<_, _> = wanted.collect();
    drivers.apply(wanted.clone());
    assert_eq!(*drivers.tasks.wanted(), wanted);
}

/// What drivers of a cluster that is known share.
pub(super) fn context(store: Store) -> SharedContext {
    let metrics = Metrics::default();
    let requests = Requests::new(unused_client(), "none", Duration::from_secs(1), metrics.clone());
    SharedContext::new(store, requests, metrics)
}

pub(super) fn config(path: &str) -> Arc<DriverConfig> {
    let spec = AttacherConfigSpec::new(format!("unix:///does-not-exist/{path}"));
    Arc::new(DriverConfig::try_from(&spec).unwrap())
}

/// The same with the section for provisioning, and the name of its driver.
pub(super) fn provisioning(path: &str) -> Arc<DriverConfig> {
    let mut spec = AttacherConfigSpec::new(format!("unix:///does-not-exist/{path}"));
    spec.driver_name = Some("a.test".to_owned());
    spec.provisioning = serde_json::from_value(serde_json::json!({})).expect("a section");
    Arc::new(DriverConfig::try_from(&spec).unwrap())
}

/// Lets drivers provision, with what is watched over a client. Tells what is cancelled when a watch fails.
pub(super) fn provision_over(drivers: &mut Drivers, client: Client) -> CancellationToken {
    let failed = CancellationToken::new();
    drivers.provisioners.kind.setup = Some(ProvisionSetup {
        client,
        stuck_after: Duration::from_mins(10),
        failed: failed.clone(),
    });
    failed
}

pub(super) fn suspended(config: &DriverConfig) -> Arc<DriverConfig> {
    Arc::new(DriverConfig {
        suspend: true,
        ..config.clone()
    })
}

/// The reason of a condition.
fn reason(drivers: &Drivers, name: &str, kind: &str) -> String {
    condition(drivers, name, kind).reason
}

fn condition(drivers: &Drivers, name: &str, kind: &str) -> Condition {
    let object = serde_json::json!({
        "metadata": {"name": name, "generation": 1},
        "spec": {"endpoint": "unix:///does-not-exist/a"},
    });
    let entry = TrackedConfig::new(serde_json::from_value(object).unwrap(), None);
    let status = drivers.status(name, &entry, "me", DeletionState::default());
    let condition = status.conditions.into_iter().find(|condition| condition.type_ == kind);
    condition.unwrap()
}

async fn until_reason(drivers: &Drivers, name: &str, wanted: &str) {
    let look = async {
        while reason(drivers, name, "DriverReachable") != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(10), look).await.expect(wanted);
}

/// The task works with the settings that have this path.
async fn until_missing(drivers: &Drivers, name: &str, path: &str) {
    until_reason(drivers, name, "SocketMissing").await;
    let message = condition(drivers, name, "DriverReachable").message;
    assert!(message.contains(&format!("/does-not-exist/{path}: ")), "{message}");
}

/// A task ends, which changes nothing of what is wanted.
async fn end(drivers: &mut Drivers) {
    let wanted = drivers.tasks.wanted().clone();
    let ended = timeout(Duration::from_secs(10), drivers.ended()).await;
    ended.expect("a task ends");
    assert_eq!(*drivers.tasks.wanted(), wanted);
}

#[tokio::test(start_paused = true)]
async fn a_driver_starts_shows_what_is_wrong_and_stops() {
    let mut drivers = drivers_over(Store::default());
    assert!(drivers.is_empty());
    assert_eq!(reason(&drivers, "one", "Ready"), "Connecting", "not started yet");
    want(&mut drivers, &[("one", config("a"))]);
    until_missing(&drivers, "one", "a").await;
    want(&mut drivers, &[]);
    end(&mut drivers).await;
    assert!(drivers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn other_settings_reach_the_task_that_runs() {
    let mut drivers = drivers_over(Store::default());
    want(&mut drivers, &[("one", config("a"))]);
    until_missing(&drivers, "one", "a").await;
    want(&mut drivers, &[("one", suspended(&config("a")))]);
    until_reason(&drivers, "one", "Suspended").await;
    want(&mut drivers, &[("one", config("a"))]);
    until_missing(&drivers, "one", "a").await;
    let ended = timeout(Duration::from_secs(10), drivers.ended()).await;
    assert!(ended.is_err(), "it is the same task");
}

/// Another endpoint needs another task, which begins when the one before has ended.
#[tokio::test(start_paused = true)]
async fn a_restart_waits_for_the_end_and_takes_the_latest_wish() {
    let mut drivers = drivers_over(Store::default());
    for path in ["a", "b", "c"] {
        want(&mut drivers, &[("one", config(path))]);
    }
    end(&mut drivers).await;
    until_missing(&drivers, "one", "c").await;
    // Deleted and made again while the old one finishes; and deleted again.
    want(&mut drivers, &[]);
    want(&mut drivers, &[("one", config("d"))]);
    end(&mut drivers).await;
    until_missing(&drivers, "one", "d").await;
    want(&mut drivers, &[("one", config("e"))]);
    want(&mut drivers, &[]);
    end(&mut drivers).await;
    assert!(drivers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_is_started_again_after_a_growing_pause() {
    let mut drivers = drivers_over(Store::default());
    want(&mut drivers, &[("one", config("a")), ("two", config("b"))]);
    until_missing(&drivers, "two", "b").await;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        drivers.tasks.abort_for_test("one");
        end(&mut drivers).await;
        assert_eq!(reason(&drivers, "one", "DriverReachable"), "Restarting");
        let since = Instant::now();
        while reason(&drivers, "one", "DriverReachable") == "Restarting" {
            advance(Duration::from_millis(500)).await;
            drivers.restart_due();
        }
        pauses.push(since.elapsed().as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    let other = reason(&drivers, "two", "DriverReachable");
    assert_eq!(other, "SocketMissing", "it did not notice");
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_with_a_change_that_needs_a_start_or_with_a_stop() {
    let mut drivers = drivers_over(Store::default());
    let all = ["restarted", "stopped", "reloaded"].map(|name| (name, config(name)));
    want(&mut drivers, &all);
    for (name, _) in &all {
        drivers.tasks.abort_for_test(name);
        end(&mut drivers).await;
    }
    let reloaded = suspended(&config("reloaded"));
    want(&mut drivers, &[("restarted", config("b")), ("reloaded", reloaded)]);
    assert_eq!(reason(&drivers, "reloaded", "DriverReachable"), "Restarting");
    until_missing(&drivers, "restarted", "b").await;
    advance(Duration::from_secs(2)).await;
    drivers.restart_due();
    until_reason(&drivers, "reloaded", "Suspended").await;
}

/// A driver may answer any name, also while the task of the right one ends, or is started again after a fault.
#[tokio::test(start_paused = true)]
async fn a_name_that_settings_have_is_kept_for_them_whether_their_task_runs_or_not() {
    let mut drivers = drivers_over(Store::default());
    let named = provisioning("a");
    // Of each role, whether another AttacherConfig may work for a driver that answers the name.
    let may_another = |drivers: &Drivers| {
        let roles = [&drivers.tasks.reservations, &drivers.provisioners.reservations];
        roles.map(|reservations| {
            let claim = reservations.reserve(&"other".into(), &"a.test".into());
            claim.state() == ReservationState::Granted
        })
    };
    want(&mut drivers, &[("named", named.clone())]);
    assert_eq!(may_another(&drivers), [false; 2], "before it runs");
    drivers.tasks.abort_for_test("named");
    end(&mut drivers).await;
    assert_eq!(may_another(&drivers), [false; 2], "in the pause after a fault");
    let mut leaving = (*named).clone();
    leaving.leaving = true;
    for released in [suspended(&named), Arc::new(leaving)] {
        want(&mut drivers, &[("named", released)]);
        assert_eq!(may_another(&drivers), [true; 2]);
        want(&mut drivers, &[("named", named.clone())]);
        assert_eq!(may_another(&drivers), [false; 2]);
    }
    want(&mut drivers, &[]);
    assert_eq!(may_another(&drivers), [true; 2]);
}

/// No new claim would be seen again, and a claim that is gone from the cache would count as deleted.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_watch_of_provisioning_is_told_while_it_is_needed() {
    let panics = tower::service_fn(|_request: http::Request<kube::client::Body>| {
        let asked = std::future::ready(());
        asked.map(|()| -> Result<http::Response<kube::client::Body>, Infallible> { panic!("a bug") })
    });
    for (client, fails) in [(Client::new(panics, "default"), true), (unused_client(), false)] {
        let mut drivers = drivers_over(Store::default());
        let failed = provision_over(&mut drivers, client);
        want(&mut drivers, &[("one", provisioning("a"))]);
        let is_told = timeout(Duration::from_secs(10), failed.cancelled()).await.is_ok();
        assert_eq!(is_told, fails);
        // Nobody provisions any more: that ends the watches as well.
        want(&mut drivers, &[("one", config("a"))]);
        while drivers.provisioners.get("one").is_some() {
            end(&mut drivers).await;
        }
        advance(Duration::from_secs(1)).await;
        assert_eq!(failed.is_cancelled(), fails);
    }
}

/// Its last calls may run for hours, and the spec asks for no provisioning.
#[tokio::test(start_paused = true)]
async fn of_a_section_that_was_removed_nothing_is_said() {
    let mut drivers = drivers_over(Store::default());
    provision_over(&mut drivers, unused_client());
    let says = |drivers: &Drivers| {
        let of_provisioning = &drivers.provisioners;
        let said = [
            of_provisioning.state("one").is_some(),
            of_provisioning.lead("one").is_some(),
            of_provisioning.saturation("one").is_some(),
        ];
        (said, of_provisioning.markers("one"))
    };
    want(&mut drivers, &[("one", provisioning("a"))]);
    // Without a queue this replica does not provision: its limits delay nothing.
    assert_eq!(says(&drivers), ([true, true, false], None));
    want(&mut drivers, &[("one", config("a"))]);
    assert_eq!(says(&drivers), ([false; 3], None), "it ends yet, and its claims count");
}

#[tokio::test(start_paused = true)]
async fn all_stop_together() {
    let mut drivers = drivers_over(Store::default());
    want(&mut drivers, &["a", "b", "c"].map(|name| (name, config(name))));
    drivers.tasks.abort_for_test("a");
    end(&mut drivers).await;
    drivers.stop_all();
    for _ in 0..2 {
        end(&mut drivers).await;
    }
    assert!(drivers.is_empty());
    assert!(drivers.tasks.wanted().is_empty());
    for name in ["b", "c"] {
        let last = drivers.phase(name);
        assert_eq!(last, Some(DriverPhase::Stopped), "the last status says so");
    }
}
