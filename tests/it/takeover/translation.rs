//! In-tree volumes: the operator calls a driver exactly as the sidecar does, and says the same words when it cannot.

use std::collections::BTreeMap;

use csi_attacher_model::objects::{InTreePlugin, MIGRATED_TO_ANNOTATION};
use csi_mock_driver::{CallRecord, CapabilityFacts, Method};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::rig::{Driver, World, operator_options};
use crate::support::operator::grant_secret;
use crate::support::stage::PUBLISH_SECRET;
use crate::support::{Result, Sidecar};

const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What an attacher made of a volume: the calls of an attach and a detach, or its error.
#[derive(Debug, PartialEq)]
enum Seen {
    Calls(Box<[Call; 2]>),
    Error(String),
}

/// What a driver was asked.
#[derive(Debug, PartialEq)]
struct Call {
    method: Method,
    volume: Option<String>,
    node: Option<String>,
    capability: Option<CapabilityFacts>,
    read_only: Option<bool>,
    context: BTreeMap<String, String>,
    secrets: Vec<String>,
}

impl From<CallRecord> for Call {
    fn from(record: CallRecord) -> Self {
        Self {
            method: record.method,
            volume: record.volume,
            node: record.node,
            capability: record.capability,
            read_only: record.readonly,
            context: record.volume_context,
            secrets: record.secret_keys,
        }
    }
}

/// A volume: its plug-in, labels and annotations, access modes, and source.
struct Case {
    plugin: InTreePlugin,
    metadata: Value,
    modes: &'static [&'static str],
    source: Value,
}

const ONCE: &[&str] = &["ReadWriteOnce"];

fn case(plugin: InTreePlugin, source: Value) -> Case {
    Case {
        plugin,
        metadata: json!({}),
        modes: ONCE,
        source,
    }
}

impl Case {
    fn with(mut self, metadata: Value) -> Self {
        self.metadata = metadata;
        self
    }

    fn modes(mut self, modes: &'static [&'static str]) -> Self {
        self.modes = modes;
        self
    }
}

fn gce_cases() -> Vec<Case> {
    let disk = || {
        case(
            InTreePlugin::GcePersistentDisk,
            json!({ "gcePersistentDisk": { "pdName": "d" } }),
        )
    };
    let labels = |key: &str, value: &str| json!({ "labels": { key: value } });
    let full = json!({ "gcePersistentDisk": { "pdName": "d", "partition": 3, "fsType": "xfs", "readOnly": true } });
    vec![
        disk(),
        case(InTreePlugin::GcePersistentDisk, full),
        disk().with(labels(BETA_ZONE, "us-central1-a")),
        disk().with(labels(ZONE, "us-central1-b")),
        disk().with(json!({ "labels": { BETA_ZONE: "us-central1-a", ZONE: "us-central1-b" } })),
        disk().with(labels(ZONE, "us-central1-a__us-central1-c")),
        disk().with(labels(ZONE, "us-east1-a__us-central1-c")),
        disk().with(labels(ZONE, "us-central1-a__somewhere")),
        disk().modes(&["ReadWriteMany"]),
        disk().modes(&["ReadOnlyMany"]),
        disk().modes(&["ReadOnlyMany", "ReadWriteOnce"]),
        disk().modes(&["ReadOnlyMany", "ReadWriteMany"]),
        disk().modes(&["ReadWriteOncePod"]),
    ]
}

fn aws_cases() -> Vec<Case> {
    let volume = |source: Value| {
        case(
            InTreePlugin::AwsElasticBlockStore,
            json!({ "awsElasticBlockStore": source }),
        )
    };
    vec![
        volume(json!({ "volumeID": "vol-1" })),
        volume(json!({ "volumeID": "aws://us-east-1a/vol-2", "partition": 2, "fsType": "ext3", "readOnly": true })),
        volume(json!({ "volumeID": "aws:///vol-3/" })),
        volume(json!({ "volumeID": "aws:///vol-4?a=b" })),
        volume(json!({ "volumeID": "aws://us-east-1a/disk-1" })),
        volume(json!({ "volumeID": "aws:///vol-1/vol-2" })),
        volume(json!({ "volumeID": "aws://" })),
    ]
}

fn azure_cases() -> Vec<Case> {
    let disk = |more: Value| {
        let mut source = json!({ "diskName": "d", "diskURI": "/subscriptions/s/d", "kind": "Managed" });
        json_patch::merge(&mut source, &more);
        case(InTreePlugin::AzureDisk, json!({ "azureDisk": source }))
    };
    let file = |secret: &str, more: Value| {
        let mut source = json!({ "azureFile": { "secretName": secret, "shareName": "share" } });
        json_patch::merge(&mut source, &more);
        case(InTreePlugin::AzureFile, source).modes(&["ReadWriteMany"])
    };
    let claim = || json!({ "claimRef": { "namespace": "team", "name": "data" } });
    vec![
        // The API server fills in caching mode, file system and "not read-only".
        disk(json!({})),
        disk(json!({ "cachingMode": "None", "fsType": "xfs", "readOnly": true })),
        disk(json!({ "kind": "Dedicated", "diskURI": "https://account.example.com/vhds/d.vhd" })),
        file("azure-storage-account-acc-secret", claim()),
        file("a-azure-storage-account-b-secret-c-secret-d", claim()),
        file("azure-storage-account--secret", claim()),
        file(
            "secret",
            json!({ "azureFile": { "secretNamespace": "sys", "readOnly": true } }),
        ),
        file("secret", claim()).with(json!({ "annotations": { "kubernetes.io/azure-file-resource-group": "rg" } })),
        file("secret", json!({})),
    ]
}

fn other_cases() -> Vec<Case> {
    let cinder = |source: Value| case(InTreePlugin::Cinder, json!({ "cinder": source }));
    let vsphere = |source: Value| case(InTreePlugin::VsphereVolume, json!({ "vsphereVolume": source }));
    let portworx = |source: Value| case(InTreePlugin::PortworxVolume, json!({ "portworxVolume": source }));
    let (namespace, name) = PUBLISH_SECRET;
    let token = json!({ "annotations": {
        "openstorage.io/auth-secret-name": name, "openstorage.io/auth-secret-namespace": namespace,
    } });
    let half = json!({ "annotations": { "openstorage.io/auth-secret-name": name } });
    vec![
        cinder(json!({ "volumeID": "c1" })),
        cinder(json!({ "volumeID": "c2", "fsType": "ext3", "readOnly": true })),
        vsphere(json!({ "volumePath": "[ds] a.vmdk" })),
        vsphere(json!({ "volumePath": "[ds] b.vmdk", "fsType": "xfs", "storagePolicyName": "gold" })),
        portworx(json!({ "volumeID": "p1" })),
        portworx(json!({ "volumeID": "p2", "fsType": "xfs", "readOnly": true })).with(token),
        portworx(json!({ "volumeID": "p3" })).with(half),
    ]
}

#[tokio::test]
async fn in_tree_volumes_are_attached_as_the_sidecar_does() -> Result<()> {
    let world = World::own().await?;
    let mut drivers = Vec::new();
    for plugin in InTreePlugin::ALL {
        let short = format!("{plugin:?}").to_lowercase();
        drivers.push((
            plugin,
            world.named_driver(&short, plugin.driver(), |builder| builder).await?,
        ));
    }
    let driver_of = |wanted: InTreePlugin| {
        &drivers
            .iter()
            .find(|(plugin, _)| *plugin == wanted)
            .expect("all are there")
            .1
    };
    let cases: Vec<Case> = [gce_cases(), aws_cases(), azure_cases(), other_cases()]
        .into_iter()
        .flatten()
        .collect();
    let (namespace, name) = PUBLISH_SECRET;
    let home = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    world.cluster.apply_yaml(&home.to_string()).await?;
    world.fixtures.secret(namespace, name, &[("token", "x")]).await?;
    for (number, case) in cases.iter().enumerate() {
        make_volume(&world, number, case).await?;
    }

    let mut sidecars = Vec::new();
    for (_, driver) in &drivers {
        sidecars.push(Sidecar::start(&world.cluster, &world.socket(&driver.short), &[]).await?);
    }
    let mut expected = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        expected.push(attach_and_detach(driver_of(case.plugin), number).await?);
    }
    for sidecar in &mut sidecars {
        sidecar.check()?;
    }
    drop(sidecars);
    let errors = expected.iter().filter(|seen| matches!(seen, Seen::Error(_))).count();
    assert_eq!(errors, 7, "the cases are what they are meant to be: {expected:#?}");

    let operator = world.operator(operator_options()).await?;
    grant_secret(&world.cluster, PUBLISH_SECRET.0, PUBLISH_SECRET.1).await?;
    for (plugin, driver) in &drivers {
        // The one plug-in whose volumes name a publish secret.
        let secrets = match plugin {
            InTreePlugin::PortworxVolume => json!([{ "namespace": PUBLISH_SECRET.0, "names": [PUBLISH_SECRET.1] }]),
            _ => json!([]),
        };
        driver.configure(&json!({ "publishSecrets": secrets })).await?;
    }
    for (number, case) in cases.iter().enumerate() {
        let seen = attach_and_detach(driver_of(case.plugin), number).await?;
        assert_eq!(seen, expected[number], "{} {}", case.metadata, case.source);
    }
    released_when_not_migrated(&world, &cases).await?;
    counted_as_migrated(&operator.metrics().await?);
    drop(operator);
    Ok(())
}

/// The even volumes carry the mark of a volume whose migration is done.
fn is_marked(number: usize) -> bool {
    number.is_multiple_of(2)
}

async fn make_volume(world: &World, number: usize, case: &Case) -> Result<()> {
    let mut object = json!({
        "metadata": { "name": format!("pv-{number}") },
        "spec": { "accessModes": case.modes, "capacity": { "storage": "1Gi" }, "persistentVolumeReclaimPolicy": "Retain" },
    });
    json_patch::merge(&mut object, &json!({ "metadata": case.metadata, "spec": case.source }));
    if is_marked(number) {
        object["metadata"]["annotations"][MIGRATED_TO_ANNOTATION] = case.plugin.driver().into();
    }
    let volume: PersistentVolume = serde_json::from_value(object)?;
    let made = world.fixtures.cluster().create(&PostParams::default(), &volume).await;
    made.unwrap_or_else(|error| panic!("{}: {error}", case.source));
    Ok(())
}

/// Has the volume attached and detached by whoever is at work.
async fn attach_and_detach(driver: &Driver<'_>, number: usize) -> Result<Seen> {
    let fixtures = &driver.world.fixtures;
    let (name, volume) = (format!("va-{number}"), format!("pv-{number}"));
    let before = driver.mock.calls().len();
    driver.attachment(&name, &volume).await?;
    let ended = fixtures
        .wait_for_attachment(&name, "attached or failed", |attachment| {
            let status = attachment.status.clone().unwrap_or_default();
            status.attached || status.attach_error.is_some()
        })
        .await?;
    fixtures.delete::<VolumeAttachment>(&name).await?;
    fixtures.wait_for_attachment_gone(&name).await?;
    let error = ended.status.and_then(|status| status.attach_error);
    if let Some(message) = error.and_then(|error| error.message) {
        return Ok(Seen::Error(message));
    }
    // The sidecar may publish twice, so the last call of each kind counts.
    let calls = driver.mock.calls().split_off(before);
    let last = |method| calls.iter().rfind(|call| call.method == method).cloned();
    let published = last(Method::ControllerPublishVolume).expect("it is attached");
    let unpublished = last(Method::ControllerUnpublishVolume).expect("it is detached");
    Ok(Seen::Calls(Box::new([published.into(), unpublished.into()])))
}

/// A live in-tree volume that is not marked as migrated is not held any more, one that is stays held.
async fn released_when_not_migrated(world: &World, cases: &[Case]) -> Result<()> {
    for (number, case) in cases.iter().enumerate() {
        let name = format!("pv-{number}");
        let finalizer = csi_attacher_model::api::names::finalizer_name(case.plugin.driver());
        if !is_marked(number) {
            world
                .fixtures
                .wait_for_volume_finalizer(&name, &finalizer, false)
                .await?;
        }
    }
    // All were looked at by now: the last one that was to be released is.
    let held = world.fixtures.cluster::<PersistentVolume>().get("pv-0").await;
    let held = held.expect("it is there");
    assert_eq!(held.finalizers().len(), 1, "{:?}", held.metadata);
    Ok(())
}

fn counted_as_migrated(metrics: &str) {
    for plugin in InTreePlugin::ALL {
        for (method, migrated) in [
            ("ControllerPublishVolume", "true"),
            ("ControllerUnpublishVolume", "true"),
            ("Probe", "false"),
        ] {
            let found = metrics.lines().any(|line| {
                line.starts_with("csi_sidecar_operations_seconds_count{")
                    && line.contains(&format!("driver_name=\"{}\"", plugin.driver()))
                    && line.contains(&format!("/{method}\""))
                    && line.contains(&format!("migrated=\"{migrated}\""))
            });
            assert!(found, "{plugin:?} {method} {migrated}");
        }
    }
}
