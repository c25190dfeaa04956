//! Before a driver is worked for: it is not where its nodes provision for it, and what proofs rest on is listed.

use super::*;
use crate::api::condition::ConditionReason;
use crate::role::{ProvisionRole, RoleLinks, TOLD_WITHIN};
use crate::runtime::{Refusal, Role as _};
use csi_attacher_testbed::Logged;
use tracing::Level;

const CAPACITIES: &str = "/apis/storage.k8s.io/v1/csistoragecapacities";
const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers/";
const MOMENT: Duration = Duration::from_millis(100);

fn role(world: &World) -> ProvisionRole {
    ProvisionRole {
        context: world.context.clone(),
        links: RoleLinks {
            open_calls: world.open_calls.clone(),
            ..RoleLinks::default()
        },
    }
}

/// The CSIStorageCapacities of the driver, one for each of these labels.
fn capacities(world: &World, managed_by: &[&str]) {
    let object = |managed_by: &&str| {
        json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "name": "csisc-1", "namespace": "storage", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"csi.storage.k8s.io/drivername": DRIVER, "csi.storage.k8s.io/managed-by": managed_by},
            },
        })
    };
    let items: Vec<Value> = managed_by.iter().map(object).collect();
    let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items});
    world.api.put(CAPACITIES, list);
}

async fn admit(world: &World, role: &ProvisionRole, driver: &str) -> Option<Refusal> {
    let facts = DriverFacts::new(driver, Capabilities::default());
    let config = world.settings.borrow().clone();
    role.admit(&facts, &config, "config").await.err()
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_refused_while_its_nodes_provision() {
    let world = World::new();
    let role = role(&world);
    // They are not served.
    assert_eq!(admit(&world, &role, DRIVER).await, None);
    capacities(&world, &["external-provisioner"]);
    assert_eq!(admit(&world, &role, DRIVER).await, None);
    capacities(&world, &["external-provisioner", "external-provisioner-n1"]);
    let refusal = admit(&world, &role, DRIVER).await.unwrap();
    assert_eq!(refusal.reason, ConditionReason::DistributedProvisioner);
    assert!(
        refusal.message.contains("CSIStorageCapacity storage/csisc-1"),
        "{}",
        refusal.message
    );
    capacities(&world, &[]);
    assert_eq!(admit(&world, &role, DRIVER).await, None);
    // Neither request waits for the other one.
    let asked = [CAPACITIES, CSI_DRIVERS].map(|path| world.api.asked("GET", path));
    assert_eq!(asked, [4, 4]);
}

/// What an engine that works has begun goes on while the API server gives no answer; none starts then.
#[tokio::test(start_paused = true)]
async fn what_is_not_known_keeps_an_engine_from_its_start_only() {
    let mut world = World::new();
    let role = role(&world);
    world.api.put(CAPACITIES, json!({"kind": "Status"}));
    let refusal = admit(&world, &role, DRIVER).await.unwrap();
    assert_eq!(refusal.reason, ConditionReason::Syncing);
    world.start();
    *role.links.queue.lock() = Some((DRIVER.into(), world.engine().queue().clone()));
    assert_eq!(admit(&world, &role, DRIVER).await, None);
    capacities(&world, &["external-provisioner-n1"]);
    let refusal = admit(&world, &role, DRIVER).await.unwrap();
    assert_eq!(refusal.reason, ConditionReason::DistributedProvisioner);
}

/// Also in the mode Disabled, in which only what was begun is finished.
#[tokio::test(start_paused = true)]
async fn nodes_are_looked_for_where_the_settings_ask_for_provisioning() {
    let rows = [
        (None, DRIVER.to_owned(), 0),
        (Some(json!({})), "a".repeat(64), 0),
        (Some(json!({"mode": "Disabled"})), DRIVER.to_owned(), 1),
    ];
    for (section, driver, asked) in rows {
        let world = World::traced(Tracer::disabled(), |spec| {
            spec.provisioning = section.map(|section| serde_json::from_value(section).unwrap());
        });
        capacities(&world, &["external-provisioner-n1"]);
        let refusal = admit(&world, &role(&world), &driver).await;
        assert_eq!(world.api.asked("GET", CAPACITIES), asked, "{driver}");
        assert_eq!(refusal.is_some(), asked == 1, "{driver}");
    }
}

/// Nobody writes the objects that kube-scheduler goes by then.
#[tokio::test(start_paused = true)]
async fn a_driver_is_known_whose_pods_are_scheduled_by_capacity() {
    let world = World::new();
    let role = role(&world);
    capacities(&world, &[]);
    let path = format!("{CSI_DRIVERS}{DRIVER}");
    let driver = |spec: Value| {
        json!({
            "kind": "CSIDriver", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": DRIVER, "uid": "u"}, "spec": spec,
        })
    };
    let unreadable = || Some(json!({"kind": "Status"}));
    let rows = [
        (Some(driver(json!({}))), false),
        (unreadable(), false),
        (Some(driver(json!({"storageCapacity": true}))), true),
        // What was known stays.
        (unreadable(), true),
        (Some(driver(json!({"storageCapacity": false}))), false),
        (Some(driver(json!({"storageCapacity": true}))), true),
        // There is no such object.
        (None, false),
    ];
    for (at, (object, is_known)) in rows.into_iter().enumerate() {
        match object {
            Some(object) => drop(world.api.put(&path, object)),
            None => drop(world.api.objects.lock().remove(&path)),
        }
        assert_eq!(admit(&world, &role, DRIVER).await, None);
        assert_eq!(
            role.links.scheduled_by_capacity.load(Ordering::Relaxed),
            is_known,
            "row {at}"
        );
    }
    // The provisioners of its nodes write them.
    world.api.put(&path, driver(json!({"storageCapacity": true})));
    capacities(&world, &["external-provisioner-n1"]);
    assert!(admit(&world, &role, DRIVER).await.is_some());
    assert!(!role.links.scheduled_by_capacity.load(Ordering::Relaxed));
}

/// The engine works all the same, so that no refusal is logged.
#[tokio::test(start_paused = true)]
async fn that_a_driver_makes_no_volumes_is_logged_once_until_it_does() {
    let (world, logged) = (World::new(), Logged::start());
    let (role, config) = (role(&world), world.settings.borrow().clone());
    capacities(&world, &[]);
    // Whether it makes volumes, and how often each is said by then.
    let rows = [
        (true, 0, 0),
        (false, 1, 0),
        (false, 1, 0),
        (true, 1, 1),
        (true, 1, 1),
        (false, 2, 1),
    ];
    for (create_delete_volume, lacks, has) in rows {
        let capabilities = Capabilities {
            create_delete_volume,
            ..Capabilities::default()
        };
        let facts = DriverFacts::new(DRIVER, capabilities);
        assert!(role.admit(&facts, &config, "config").await.is_ok());
        let told = [
            logged.count(Level::WARN, "cannot provision for the driver"),
            logged.count(Level::INFO, "announces CREATE_DELETE_VOLUME now"),
        ];
        assert_eq!(told, [lacks, has]);
    }
}

/// What is known of it stays meanwhile.
#[tokio::test(start_paused = true)]
async fn what_is_only_told_of_a_driver_is_not_waited_for() {
    let world = World::new();
    let role = role(&world);
    capacities(&world, &[]);
    role.links.scheduled_by_capacity.store(true, Ordering::Relaxed);
    *world.api.swallows.lock() = Some(CSI_DRIVERS);
    let began = Instant::now();
    assert_eq!(admit(&world, &role, DRIVER).await, None);
    assert!(began.elapsed() < TOLD_WITHIN + MOMENT, "{:?}", began.elapsed());
    assert!(role.links.scheduled_by_capacity.load(Ordering::Relaxed));
    // What is decided by is waited for.
    *world.api.swallows.lock() = Some(CAPACITIES);
    let began = Instant::now();
    let refusal = admit(&world, &role, DRIVER).await.unwrap();
    assert_eq!(refusal.reason, ConditionReason::Syncing);
    assert!(began.elapsed() > TOLD_WITHIN + MOMENT, "{:?}", began.elapsed());
}

/// A former leader may have saved a PersistentVolume that a watch which is behind does not show.
#[tokio::test(start_paused = true)]
async fn all_that_proofs_rest_on_is_listed_again_by_a_new_leader() {
    let world = World::new();
    let nodes = world.context.nodes.nodes().lists();
    nodes.set_failure("nodes", Some("of nodes".to_owned()));
    for (has_topology, expected) in [(false, "of volumes"), (true, "of volumes, of nodes")] {
        let capabilities = Capabilities {
            create_delete_volume: true,
            accessibility_constraints: has_topology,
            ..Capabilities::default()
        };
        let proofs = role(&world).proofs_of(&DriverFacts::new(DRIVER, capabilities));
        let shown: Vec<String> = proofs.iter().filter_map(Lists::failure).collect();
        assert_eq!(shown.join(", "), expected);
    }
}
