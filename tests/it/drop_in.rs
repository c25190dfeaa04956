//! The operator in the place of a sidecar: the sidecar's flags, the sidecar's rights, and nothing of ours in the cluster.

mod pods;
mod recipes;
mod sidecar;

use std::process::{Command, Output};

use csi_mock_driver::{Method, MockDriver, MockHandle};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ListParams;

use crate::capability::of_a_sidecar;
use crate::error_texts::configs::UNKNOWN_FLAG;
use crate::error_texts::index::assert_indexed;
use crate::rig::{World, detach, other, part};
use crate::support::rbac::Account;
pub use crate::support::stage::stop as end;
use crate::support::{Operator, OperatorOptions, Result, Volume};

pub const RBAC: &str = include_str!("../../config/samples/drop-in-rbac.yaml");
/// Namespace and name of the ServiceAccount in that file.
pub const ACCOUNT: (&str, &str) = ("csi-driver", "csi-attacher");

pub fn account() -> Account {
    let (namespace, name) = ACCOUNT;
    Account {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

pub const DRIVER: &str = "drop-in.csi.test";
const NODE: &str = "drop-in-node";

/// A cluster without anything of the operator, and a driver with a node.
pub struct Scene {
    pub world: World,
    pub mock: MockHandle,
}

impl Scene {
    pub async fn new() -> Result<Self> {
        let world = World::own().await?;
        world.cluster.apply_yaml(RBAC).await?;
        let mock = MockDriver::builder(DRIVER).accept_any_volume();
        let mock = mock.start(world.socket("drop-in")).await;
        let mock = mock?;
        world.fixtures.csi_node(NODE, DRIVER, "node-id").await?;
        Ok(Self { world, mock })
    }

    /// Starts the operator as a sidecar would be, with these further arguments.
    pub async fn start(&self, arguments: &[&str]) -> Result<Operator> {
        self.start_as(ACCOUNT, "drop-in", arguments).await
    }

    /// The same with another ServiceAccount, for the driver of this socket.
    pub async fn start_as(&self, account: (&str, &str), socket: &str, arguments: &[&str]) -> Result<Operator> {
        let (namespace, name) = account;
        let kubeconfig = self
            .world
            .cluster
            .kubeconfig_for_service_account(namespace, name)
            .await?;
        let mut options = OperatorOptions::new(env!("CARGO_BIN_EXE_csi-attacher-operator"));
        options.arguments = vec![format!("--csi-address={}", self.world.socket(socket).display())];
        options.arguments.extend(arguments.iter().map(ToString::to_string));
        Operator::start_with(&kubeconfig, options)
    }

    /// Makes a volume and its attachment.
    pub async fn claim(&self, name: &str) -> Result<VolumeAttachment> {
        let fixtures = &self.world.fixtures;
        fixtures.persistent_volume(&Volume::new(name, DRIVER, name)).await?;
        fixtures.volume_attachment(name, DRIVER, name, NODE).await
    }

    pub async fn attach(&self, name: &str) -> Result<VolumeAttachment> {
        self.claim(name).await?;
        self.world.fixtures.wait_for_attached(name).await
    }

    pub async fn detach(&self, name: &str) -> Result<()> {
        detach(&self.world.fixtures, name).await
    }
}

/// What an attacher in a pod of the driver does, one thing after another. Each part uses volumes of its own.
#[tokio::test]
async fn it_does_the_work_of_a_sidecar() -> Result<()> {
    let scene = &Scene::new().await?;
    part("by flags alone", by_flags_alone(scene)).await?;
    part("a call that outlasts", pods::a_call_that_outlasts(scene)).await?;
    part("one worker thread", pods::one_call_at_a_time(scene)).await?;
    part("PUBLISH_UNPUBLISH_VOLUME is lost", of_a_sidecar(scene)).await?;
    part("no CSINodes", pods::without_csi_nodes(scene)).await?;
    // The last one: it takes rights away from all.
    part("no discovery", pods::without_the_version_of_the_api_server(scene)).await
}

async fn by_flags_alone(scene: &Scene) -> Result<()> {
    let arguments = [
        "--v=5",
        "--timeout=20s",
        "-worker-threads",
        "2",
        "--metrics-path=/m",
        "--automaxprocs",
    ];
    let mut operator = scene.start(&arguments).await?;
    operator.wait_ready().await?;
    scene.attach("drop-in-1").await?;
    scene.detach("drop-in-1").await?;
    let calls: Vec<Method> = scene
        .mock
        .calls()
        .into_iter()
        .filter(|call| call.volume.is_some())
        .map(|call| call.method)
        .collect();
    assert_eq!(
        calls,
        [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume]
    );

    let (status, metrics) = operator.get("/m").await?;
    assert_eq!(status, 200);
    assert!(
        metrics.contains(&format!(
            "csi_sidecar_operations_seconds_count{{driver_name=\"{DRIVER}\""
        )),
        "{metrics}"
    );
    assert_eq!(operator.get("/metrics").await?.0, 404);
    let log = operator.log_text();
    assert_eq!(
        log.matches("accepted, but without effect here: --automaxprocs").count(),
        1,
        "{log}"
    );
    assert!(!log.contains("attacherconfigs"), "{log}");
    let definitions: Api<CustomResourceDefinition> = Api::all(scene.world.client.clone());
    let definitions = definitions.list(&ListParams::default()).await;
    let definitions = definitions?;
    assert_eq!(definitions.items.len(), 0);

    // A driver that goes away ends nothing.
    scene.mock.stop().await;
    operator.wait_for_answer("/readyz", |status, _| status == 503).await?;
    scene.claim("drop-in-2").await?;
    scene.mock.start_again().await.map_err(other)?;
    scene.world.fixtures.wait_for_attached("drop-in-2").await?;
    operator.wait_ready().await?;
    end(&mut operator).await?;

    // Without an address nothing is served, as by the sidecar. Of an address given twice the last one counts.
    let mut operator = scene.start(&["--http-endpoint="]).await?;
    scene.detach("drop-in-2").await?;
    assert!(operator.get("/livez").await.is_err());
    end(&mut operator).await
}

fn run(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
        .args(arguments)
        .output();
    output.expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn version_usage_and_exit_codes_are_those_of_the_sidecar() {
    let version = run(&["-version"]);
    let expected = format!("csi-attacher-operator {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (version.status.code(), text(&version.stdout)),
        (Some(0), expected.clone())
    );
    // Also in the middle of what a sidecar is given.
    let version = run(&["--csi-address=/csi/csi.sock", "--version"]);
    assert_eq!((version.status.code(), text(&version.stdout)), (Some(0), expected));

    let unknown = run(&["--csi-address=/csi/csi.sock", "--connection-timeout=5s"]);
    let message = text(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(2), "{message}");
    assert!(
        message.starts_with("flag provided but not defined: -connection-timeout\nUsage of "),
        "{message}"
    );
    assert!(message.contains("  -retry-interval-max duration\n"), "{message}");
    assert_indexed(UNKNOWN_FLAG, message.lines().next().unwrap_or_default());

    let help = run(&["--csi-address=/csi/csi.sock", "-help"]);
    assert_eq!(help.status.code(), Some(0));
    let refused = run(&["--csi-address=/csi/csi.sock", "--worker-threads=0"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("--worker-threads must be greater than zero"));
}
