//! AttacherConfigs that cannot be used, and that another replica may serve by settings of before. The clock is paused.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::drivers::{context, provision_over, provisioning, want};
use super::writes::{follow, silent_client, supervisor};
use crate::api::AttacherConfigObject;
use crate::api::names::LEASE_HOLDER_ANNOTATION;
use crate::api::provisioning_status::ProvisioningStatus;
use crate::cache::Store;
use crate::lease::{LeaderElections, LeaseTimings};
use crate::supervisor::Supervisor;
use crate::supervisor::deletion::DeletionState;
use crate::supervisor::drivers::Drivers;
use crate::supervisor::election::LeaderElectionMode;
use crate::supervisor::provisioners::Provisioning;
use crate::supervisor::status_author::DriverLeader;
use crate::supervisor::tasks::Tasks;
use crate::supervisor::writer::StatusPart;
use csi_attacher_testbed::lease_server::{ApiServer, Trouble};

/// Until the statuses were looked at; shorter than a write may take, and than a Lease lasts.
const LOOKED: Duration = Duration::from_millis(1500);
/// Until a Lease that nobody renews has run out, and that was looked at.
const OVER: Duration = Duration::from_secs(20);

fn elections(server: &ApiServer) -> LeaderElections {
    LeaderElections {
        reports: true,
        ..LeaderElections::new(server.client(), "me".to_owned())
    }
}

fn namespace(elections: &LeaderElections) -> String {
    elections.config_for("", LeaseTimings::default()).namespace
}

/// A replica that has just started, beside the Leases of drivers. It may write the status of those that nobody leads: the Lease for that is refused.
fn started(leases: &ApiServer) -> Supervisor {
    let mut supervisor = supervisor();
    let election = LeaderElectionMode::Each(elections(leases));
    supervisor.drivers = Drivers::new(context(Store::default()), election);
    let refusing = ApiServer::default();
    supervisor.elections = elections(&refusing);
    refusing.trouble(&namespace(&supervisor.elections), Trouble::Forbidden);
    supervisor.status_lease = Some(supervisor.compete_for_status());
    supervisor
}

/// All Leases of the driver are held by a replica, as long as it renews them.
fn hold(leases: &ApiServer) {
    let held = json!({
        "metadata": {"annotations": {LEASE_HOLDER_ANNOTATION: "other"}},
        "spec": {
            "holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 1,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    });
    let held: Lease = serde_json::from_value(held).expect("readable");
    leases.change_in(&namespace(&elections(leases)), |lease| *lease = held);
}

/// One whose spec is refused. The name of its driver is known by the spec or the status.
fn refused(is_named: bool, policy: &str) -> AttacherConfigObject {
    let answered = json!({"driver": {"name": "a.test", "mode": "Attach"}, "holder": "other"});
    let (named, status) = if is_named {
        (json!("a.test"), Value::Null)
    } else {
        (Value::Null, answered)
    };
    let object = json!({
        "metadata": {"name": "one", "uid": "one", "resourceVersion": "7"},
        "spec": {"endpoint": "https://[1:2]:9000", "driverName": named, "deletionPolicy": policy},
        "status": status,
    });
    serde_json::from_value(object).expect("readable")
}

/// It has none of the settings by which the other one goes on.
#[tokio::test(start_paused = true)]
async fn a_replica_that_started_later_writes_nothing_over_the_one_that_goes_on() {
    // Whether another one leads, and whether the spec names the driver.
    for (is_led, is_named) in [(true, true), (true, false), (false, true), (false, false)] {
        let row = format!("{is_led}, {is_named}");
        let (leases, stop) = (ApiServer::default(), CancellationToken::new());
        if is_led {
            hold(&leases);
        }
        let mut supervisor = started(&leases);
        let listed = Event::InitApply(refused(is_named, "Orphan"));
        let listed = vec![Event::Init, listed, Event::InitDone];
        follow(&mut supervisor, listed, &stop, LOOKED).await;
        assert!(supervisor.objects["one"].problem.is_some(), "{row}");
        assert_eq!(supervisor.writes.is_writing("one"), !is_led, "{row}: the status");
        let waits = Event::Apply(refused(is_named, "WaitForDetach"));
        follow(&mut supervisor, vec![waits], &stop, LOOKED).await;
        assert_eq!(supervisor.writes.is_writing("one"), !is_led, "{row}: the finalizer");
        assert_eq!(supervisor.drivers.claims_ended("one"), !is_led, "{row}");
        let part = supervisor.drivers.part_of_status("one", true);
        assert_eq!(part == Some(StatusPart::AllButProvisioning), is_led, "{row}");

        // The other one has ended without a word.
        follow(&mut supervisor, Vec::new(), &stop, OVER).await;
        assert_eq!(supervisor.drivers.lead("one"), DriverLeader::Nobody, "{row}");
        assert!(supervisor.drivers.claims_ended("one"), "{row}");
    }
}

/// It would never be let go of else: whoever leads works for the other one.
#[tokio::test(start_paused = true)]
async fn what_is_done_for_another_one_of_the_driver_is_not_waited_for() {
    let used = |section: Value| -> AttacherConfigObject {
        let object = json!({
            "metadata": {"name": "two", "uid": "two", "resourceVersion": "7"},
            "spec": {"endpoint": "unix:///does-not-exist/two", "driverName": "a.test", "provisioning": section},
        });
        serde_json::from_value(object).expect("readable")
    };
    // The section of the other one, and whether there is nobody else who claims something.
    for (section, has_ended) in [(json!({}), true), (Value::Null, false)] {
        let (leases, stop) = (ApiServer::default(), CancellationToken::new());
        hold(&leases);
        let mut supervisor = started(&leases);
        let mut one = refused(true, "Orphan");
        one.status.provisioning = Some(ProvisioningStatus::default());
        let all = [one, used(section.clone())].map(Event::InitApply);
        let listed = std::iter::once(Event::Init).chain(all).chain([Event::InitDone]);
        follow(&mut supervisor, listed.collect(), &stop, LOOKED).await;
        assert_eq!(supervisor.drivers.lead("one"), DriverLeader::Other, "{section}");
        assert_eq!(supervisor.drivers.claims_ended("one"), has_ended, "{section}");
        let part = supervisor.drivers.part_of_status("one", true);
        assert_eq!(part == Some(StatusPart::All), has_ended, "{section}");
        let (entry, deletion) = (&supervisor.objects["one"], DeletionState::default());
        let told = supervisor.drivers.status("one", entry, "me", deletion);
        assert_eq!(told.provisioning.is_none(), has_ended, "{section}");
    }
}

/// The one that attaches does so for another AttacherConfig, and waits with this one for who provisions.
#[tokio::test(start_paused = true)]
async fn who_provisions_writes_metadata_where_another_replica_attaches_for_another_one() {
    let (one, leases) = (provisioning("one"), ApiServer::default());
    let of_one = |provisions: bool| {
        let mut config = (*one).clone();
        config.leaving = true;
        config.provisioning = config.provisioning.filter(|_| provisions);
        Arc::new(config)
    };
    let mut two = (*provisioning("two")).clone();
    two.provisioning = None;
    let two = Arc::new(two);
    hold(&leases);
    // Whether it provisions here, whether there is another one for the driver, and whether the other replica writes.
    for (provisions, has_other, is_left) in [(true, true, false), (false, true, true), (true, false, true)] {
        let row = format!("{provisions}, {has_other}");
        let shared = context(Store::default());
        let mut drivers = Drivers::new(shared.clone(), LeaderElectionMode::Each(elections(&leases)));
        drivers.provisioners = Tasks::new(Provisioning::new(shared, LeaderElectionMode::None));
        provision_over(&mut drivers, silent_client());
        let mut wanted = vec![("one", of_one(provisions))];
        wanted.extend(has_other.then(|| ("two", two.clone())));
        want(&mut drivers, &wanted);
        sleep(LOOKED).await;
        assert_eq!(drivers.lead("one"), DriverLeader::Other, "{row}");
        let is_left_here = drivers.is_metadata_left_to_another("one", Some("a.test"));
        assert_eq!(is_left_here, is_left, "{row}");
    }
}

/// Who does not know that writes nothing yet.
#[tokio::test(start_paused = true)]
async fn who_leads_is_not_known_before_the_first_look_nor_without_a_name() {
    let (leases, stop) = (ApiServer::default(), CancellationToken::new());
    leases.0.lock().down = true;
    let mut supervisor = started(&leases);
    let listed = vec![Event::Init, Event::InitApply(refused(true, "Orphan")), Event::InitDone];
    follow(&mut supervisor, listed, &stop, LOOKED).await;
    assert_eq!(supervisor.drivers.lead("one"), DriverLeader::Unknown);
    assert!(!supervisor.writes.is_writing("one") && !supervisor.drivers.claims_ended("one"));
    // It is made again without a name by which a Lease could be found.
    let mut unnamed = refused(true, "Orphan");
    unnamed.metadata.uid = Some("another".to_owned());
    unnamed.spec.as_mut().expect("readable").driver_name = None;
    follow(&mut supervisor, vec![Event::Apply(unnamed)], &stop, LOOKED).await;
    assert_eq!(supervisor.drivers.lead("one"), DriverLeader::Nobody);
}
