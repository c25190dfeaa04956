//! Traces as people see them: sent to a real Jaeger, together with those of the API server and of etcd, and read back by
//! its HTTP API.

mod config;
mod document;
mod driver;
mod ids;

use std::path::PathBuf;
use std::time::Duration;

use csi_mock_driver::{Method, MockDriver, MockDriverBuilder, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use tokio::sync::{Mutex, OnceCell};
use tonic::Code;

use crate::support::controlplane::Tracing;
use crate::support::operator::IDENTITY;
use crate::support::wait::wait_for;
use crate::support::{
    ControlPlane, Error, Fixtures, Jaeger, Operator, OperatorOptions, Options, Result, Stage, Volume,
};

/// The bound of every wait: generous, as the machine may be busy.
const LIMIT: Duration = Duration::from_mins(1);
/// Of pods and claims.
const NAMESPACE: &str = "default";
/// Where a VolumeAttachment names its trace.
const TRACEPARENT: &str = "attacher.csi.dev/traceparent";
/// The services in the traces.
const SERVICE: &str = "csi-attacher-operator";
const APISERVER: &str = "apiserver";
const ETCD: &str = "etcd";
/// The spans of the operator.
const ROOT: &str = "VolumeAttachment.attach";
const ATTEMPT: &str = "VolumeAttachment.attach.attempt";
const PUBLISH: &str = "csi.v1.Controller/ControllerPublishVolume";

/// A turn on a cluster which traces to a Jaeger, both shared by these tests. The operators in it are those of one test.
struct Scene {
    stage: Stage,
    jaeger: &'static Jaeger,
}

impl Scene {
    async fn enter() -> Result<Self> {
        static TURN: Mutex<()> = Mutex::const_new(());
        static SHARED: OnceCell<std::result::Result<(ControlPlane, Jaeger), String>> = OnceCell::const_new();
        let turn = TURN.lock().await;
        let shared = SHARED.get_or_init(|| async { Box::pin(start()).await.map_err(|error| error.to_string()) });
        let (cluster, jaeger) = shared
            .await
            .as_ref()
            .map_err(|message| Error::SharedControlPlane(message.clone()))?;
        let stage = Stage::on(cluster, turn).await?;
        Ok(Self { stage, jaeger })
    }

    /// Made with a client of this test, and patient.
    fn fixtures(&self) -> Fixtures {
        self.stage.fixtures.clone().with_limit(LIMIT)
    }

    /// How an operator is started that traces to the Jaeger.
    fn options(&self) -> OperatorOptions {
        OperatorOptions::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
            .variable(
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                format!("http://{}", self.jaeger.otlp_grpc()),
            )
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
            .variable("OTEL_BSP_SCHEDULE_DELAY", "100")
    }

    /// Starts an operator under the name of its ServiceAccount, but as a member of `system:monitoring`, whose traces the
    /// API server continues.
    async fn trusted_operator(&self, options: OperatorOptions) -> Result<Operator> {
        let operator = Operator::start_with(&self.trusted_kubeconfig()?, options)?;
        operator.wait_ready().await?;
        Ok(operator)
    }

    fn trusted_kubeconfig(&self) -> Result<PathBuf> {
        let user = format!("system:serviceaccount:{IDENTITY}:{IDENTITY}");
        self.stage.cluster.kubeconfig_for_member(&user, "system:monitoring")
    }
}

/// What all objects of one test are called after.
struct Names {
    short: &'static str,
}

impl Names {
    fn driver(&self) -> String {
        format!("{}.csi.test", self.short)
    }

    fn of(&self, what: &str) -> String {
        format!("{}-{what}", self.short)
    }

    fn node(&self) -> String {
        self.of("node")
    }

    fn volume(&self) -> String {
        self.of("pv")
    }
}

/// A mock driver whose calls to publish fail so often before they succeed.
fn failing(names: &Names, times: u32) -> MockDriverBuilder {
    let failure = Rule::on(Method::ControllerPublishVolume).times(times);
    MockDriver::builder(names.driver())
        .accept_any_volume()
        .rule(failure.fail(Code::Unavailable, "the array restarts"))
}

impl Scene {
    /// Makes node, driver and volume, and a pod that uses it, and waits for the VolumeAttachment that the attach/detach
    /// controller makes for it.
    async fn run_pod(&self, names: &Names) -> Result<VolumeAttachment> {
        let volume = Volume::new(&names.volume(), &names.driver(), &names.of("handle"));
        self.run_pod_with(&volume, &names.node(), &names.of("claim"), &names.of("pod"))
            .await
    }

    async fn run_pod_with(&self, volume: &Volume, node: &str, claim: &str, pod: &str) -> Result<VolumeAttachment> {
        let fixtures = self.fixtures();
        fixtures.csi_driver(&volume.driver, true).await?;
        fixtures.node(node).await?;
        fixtures.csi_node(node, &volume.driver, &format!("{node}-id")).await?;
        fixtures.bound_claim(volume, NAMESPACE, claim).await?;
        // What other controllers write later could meet a write of the operator, which would be tried again.
        let volumes = Api::<PersistentVolume>::all(self.stage.client.clone());
        wait_for(volumes, &volume.name, "is settled", LIMIT, |volume| {
            let is_bound = |volume: &PersistentVolume| {
                let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
                phase == Some("Bound")
            };
            let is_protected = |volume: &PersistentVolume| {
                let mut finalizers = volume.metadata.finalizers.iter().flatten();
                finalizers.any(|finalizer| finalizer == "kubernetes.io/pv-protection")
            };
            volume.is_some_and(|volume| is_bound(volume) && is_protected(volume))
        })
        .await?;
        fixtures.pod(NAMESPACE, pod, node, &[claim]).await?;
        fixtures.wait_for_attachment_of(&volume.name, node).await
    }
}

/// The trace and the span that the VolumeAttachment names.
fn told_context(attachment: &VolumeAttachment) -> (String, String) {
    let annotations = attachment.metadata.annotations.clone().unwrap_or_default();
    let told = annotations.get(TRACEPARENT);
    let told = told.unwrap_or_else(|| panic!("no {TRACEPARENT} in {annotations:?}"));
    let parts: Vec<&str> = told.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[3]), (4, "00", "01"), "{told}");
    (parts[1].to_owned(), parts[2].to_owned())
}

async fn start() -> Result<(ControlPlane, Jaeger)> {
    let jaeger = Jaeger::start().await?;
    let options = Options {
        controller_manager: true,
        audit: true,
        tracing: Some(Tracing {
            collector: jaeger.otlp_grpc(),
            sampling_rate_per_million: 1_000_000,
        }),
        ..Options::default()
    };
    let cluster = ControlPlane::start(options).await?;
    Ok((cluster, jaeger))
}
