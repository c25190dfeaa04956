//! The life of a driver that this role works for, with a mock driver and a Lease.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use csi_attacher_base::health::Health;
use csi_attacher_kube::apiserver::{Requests, connect};
use csi_attacher_kube::lease::{LeaderElectionConfig, LeaderElections, LeaseTimings};
use csi_attacher_kube::reflect::follow_from_list;
use csi_attacher_model::api::{AttacherConfigSpec, DriverConfig};
use csi_attacher_runtime::reservation::Reservations;
use csi_attacher_runtime::{DriverPhase, DriverState, DriverStateSender, DriverTask};
use csi_attacher_telemetry::Metrics;
use csi_attacher_testbed::lease_server::ApiServer;
use csi_mock_driver::{Method, MockDriver};
use futures::{StreamExt as _, stream};
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::{ClaimRole, ClaimWire};

const LIMIT: Duration = Duration::from_secs(20);
/// So long something that must not happen is waited for.
const MOMENT: Duration = Duration::from_millis(300);

/// The claims of a cluster, and who watches them.
#[derive(Clone)]
struct Claims {
    all: Arc<Mutex<Vec<ClaimWire>>>,
    events: broadcast::Sender<Change>,
}

/// What the watch reports.
#[derive(Clone)]
enum Change {
    Made(ClaimWire),
    Deleted(ClaimWire),
}

impl Claims {
    fn make(&self, name: &str, class: &str) {
        let mut all = self.all.lock();
        let version = (all.len() + 1).to_string();
        let claim: ClaimWire = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version},
            "spec": {"storageClassName": class},
        }))
        .unwrap();
        all.push(claim.clone());
        // Nobody may watch yet.
        drop(self.events.send(Change::Made(claim)));
    }

    /// Deletes the claim that was made last.
    fn delete_last(&self) {
        let claim = self.all.lock().pop().unwrap();
        drop(self.events.send(Change::Deleted(claim)));
    }

    /// A list and what follows it, as a watch of a real API server tells them.
    fn watch(&self) -> impl futures::Stream<Item = kube::runtime::watcher::Result<Event<ClaimWire>>> + use<> {
        let all = self.all.lock();
        let listed: Vec<_> = all.iter().cloned().map(|claim| Ok(Event::InitApply(claim))).collect();
        let events = stream::unfold(self.events.subscribe(), |mut events| async move {
            let event = match events.recv().await.ok()? {
                Change::Made(claim) => Event::Apply(claim),
                Change::Deleted(claim) => Event::Delete(claim),
            };
            Some((Ok(event), events))
        });
        stream::iter([Ok(Event::Init)])
            .chain(stream::iter(listed))
            .chain(stream::iter([Ok(Event::InitDone)]))
            .chain(events)
    }
}

fn elections(leases: &ApiServer) -> LeaderElectionConfig {
    leases.release_in("default");
    let (duration, renewed) = (Duration::from_secs(15), Duration::from_secs(10));
    let timing = LeaseTimings::new(duration, renewed, Duration::from_millis(50)).unwrap();
    LeaderElections::new(leases.client(), "ours".to_owned())
        .with_status_writer()
        .config_for("default", timing)
}

async fn until(state: &mut watch::Receiver<DriverState>, is_so: impl Fn(&DriverState) -> bool) {
    let seen = timeout(LIMIT, state.wait_for(|state| is_so(state))).await;
    drop(seen.expect("in time").unwrap());
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a whole life")]
async fn a_second_role_lives_on_the_same_layers() {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let driver = MockDriver::builder("claims.test").start(&socket).await.unwrap();
    let spec = AttacherConfigSpec::new(format!("unix://{}", socket.display()));
    let (_settings, config) = watch::channel(Arc::new(DriverConfig::try_from(&spec).unwrap()));
    let metrics = Metrics::default();
    let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let requests = Requests::new(connect(&nowhere).unwrap(), "nowhere", LIMIT, metrics.clone());
    let role = ClaimRole::new("fast", requests, metrics);
    let claims = Claims {
        all: Arc::default(),
        events: broadcast::Sender::new(16),
    };
    claims.make("a", "fast");
    claims.make("of-another-class", "slow");

    // Watched.
    let (watched, check) = (claims.clone(), Health::new().check("claims"));
    let follows = follow_from_list::<ClaimWire, _>(move || watched.watch(), role.clone(), check);
    let _watch = AbortOnDropHandle::new(tokio::spawn(follows));

    let leases = ApiServer::default();
    let (status, mut state) = watch::channel(DriverState::default());
    let stop = CancellationToken::new();
    let task = DriverTask {
        role: role.clone(),
        name: "config".into(),
        config,
        election: Some(elections(&leases)),
        reservations: Reservations::default(),
        known_as: Arc::default(),
        lease_state: Arc::default(),
        stop: stop.clone(),
        cut_off: CancellationToken::new(),
        removed: Arc::new(AtomicBool::new(false)),
        status: DriverStateSender::new(status),
    };
    let task = tokio::spawn(task.run());

    // Led, and queued: what was there before is worked off.
    until(&mut state, |state| {
        state.phase == DriverPhase::Running && state.attempts == 1
    })
    .await;
    assert_eq!(state.borrow().plugin.as_ref().unwrap().name, "claims.test");
    assert_eq!(role.count(), 1);
    let probes = || driver.calls_of(Method::Probe).len();
    let before = probes();
    claims.make("b", "fast");
    until(&mut state, |state| state.attempts == 2).await;
    assert_eq!((probes() - before, role.count()), (1, 2));

    // Fenced: another replica has the Lease.
    leases.change(|lease| lease.spec.get_or_insert_default().holder_identity = Some("another".to_owned()));
    until(&mut state, |state| matches!(state.phase, DriverPhase::Standby { .. })).await;
    claims.make("c", "fast");
    assert!(
        timeout(MOMENT, state.wait_for(|state| state.attempts > 2))
            .await
            .is_err()
    );
    assert_eq!(role.count(), 3, "it is watched all the while");

    // And back: everything is looked at again, as the other one may have done anything.
    leases.change(|lease| lease.spec.get_or_insert_default().holder_identity = None);
    until(&mut state, |state| {
        state.phase == DriverPhase::Running && state.attempts == 5
    })
    .await;

    // What is deleted is known no more, though its name is that of a namespace and a name.
    claims.delete_last();
    timeout(LIMIT, async {
        while role.count() > 2 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("in time");

    // Drained.
    stop.cancel();
    timeout(LIMIT, task).await.expect("in time").unwrap();
    assert_eq!(state.borrow().phase, DriverPhase::Stopped);
}
