//! What the tests of the operator start from: a cluster, the operator in it, and mock drivers.
//!
//! An operator serves every AttacherConfig of its cluster, so there is one operator for each cluster. Most tests share
//! one such pair and keep apart by the names of their drivers; those that stop the operator or the API server have a
//! pair of their own, of which only a few run at a time.

mod driver;
mod edit;
mod leases;
mod record;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use kube::Client;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use crate::drop_in;
use crate::provision_topology::grant_nodes;
use crate::support::operator::{Operator, OperatorOptions, grant_provisioning};
use crate::support::{ControlPlane, Error, Fixtures, Options, Refusals, Result};

pub use driver::{Driver, condition};
pub use edit::{delete_volume, detach, merge, merge_status, strip};
pub use leases::{held, host, leads, renewals, stands_by};
pub use record::{VERSION, VOLUME_UID, assert_steps};

/// The bound of every wait that has none of its own.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Control planes besides the shared ones that may run at a time.
static OWN: Semaphore = Semaphore::const_new(3);

/// Waits for the right to start a control plane of one's own; held until it is dropped.
pub async fn own_control_plane() -> SemaphorePermit<'static> {
    OWN.acquire().await.expect("the semaphore is never closed")
}

/// An error of these words.
pub fn other(error: impl std::fmt::Display) -> Error {
    Error::Other(error.to_string())
}

/// Plays a part of a test whose parts share a control plane: they come one after another, and each finds what those before have left. What
/// failed names its part, and a panic follows the name of its part in the output.
pub fn part<'f>(name: &'f str, part: impl Future<Output = Result<()>> + 'f) -> LocalBoxFuture<'f, Result<()>> {
    async move {
        println!("part: {name}");
        part.await.map_err(|error| other(format!("{name}: {error}")))
    }
    .boxed_local()
}

/// Puts a limit on a wait that has none, such as those of the mock driver.
pub async fn within<T>(what: &str, wait: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(LIMIT, wait)
        .await
        .map_err(|_| Error::Other(format!("{what}: not within {LIMIT:?}")))
}

/// Asks again and again until it is so: for what tells nobody of news, such as a log file.
pub async fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let asking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(what, asking).await
}

/// How the operator under test is started unless a test wants something else.
pub fn operator_options() -> OperatorOptions {
    OperatorOptions::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
}

/// That of the shared operators: it has no collector of its own, and tells one of an AttacherConfig soon.
fn shared_options() -> OperatorOptions {
    operator_options()
        .variable("OTEL_BSP_SCHEDULE_DELAY", "50")
        .variable("OTEL_BSP_EXPORT_TIMEOUT", "10000")
        .variable("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")
}

/// A cluster as one test sees it, with a client of that test's runtime.
pub struct World {
    pub cluster: Arc<ControlPlane>,
    pub client: Client,
    pub fixtures: Fixtures,
    /// Where the sockets of the drivers are.
    pub sockets: tempfile::TempDir,
    /// The operator of a shared cluster.
    running: Option<&'static Operator>,
    /// Whether AttacherConfigs name their drivers. One that does not counts, until its driver has answered, for each driver that nobody
    /// serves: `kubectl attacher` would see those of other tests.
    names_drivers: bool,
    _refusals: Refusals,
    _permit: Option<SemaphorePermit<'static>>,
}

impl World {
    /// The cluster that tests share, with an operator which runs until the process ends.
    pub async fn shared() -> Result<Self> {
        static SHARED: Pair = OnceCell::const_new();
        Self::of(&SHARED, audited(), false).await
    }

    /// As [`World::shared`], another cluster with kube-controller-manager: for tests whose attachments are made by the
    /// attach/detach controller.
    pub async fn managed() -> Result<Self> {
        static SHARED: Pair = OnceCell::const_new();
        let world = Self::of(&SHARED, managed(), false).await?;
        Ok(Self {
            names_drivers: true,
            ..world
        })
    }

    /// As [`World::managed`], another cluster, whose operator may provision: for drivers with topology, too.
    pub async fn provisioning() -> Result<Self> {
        static SHARED: Pair = OnceCell::const_new();
        Self::of(&SHARED, managed(), true).await
    }

    async fn of(shared: &'static Pair, options: Options, may_provision: bool) -> Result<Self> {
        // On the heap, as it is large.
        let start = Box::pin(async {
            let cluster = Arc::new(ControlPlane::start(options).await?);
            if may_provision {
                grant_provisioning(&cluster).await?;
                grant_nodes(&cluster).await?;
            }
            let operator = Operator::start(&cluster, shared_options()).await?;
            operator.wait_ready().await?;
            Ok::<_, Error>((cluster, operator))
        });
        let shared = shared
            .get_or_init(|| async { start.await.map_err(|error| error.to_string()) })
            .await;
        match shared {
            Ok((cluster, operator)) => {
                let world = Self::around(Arc::clone(cluster), None).await?;
                let running = Some(operator);
                Ok(Self { running, ..world })
            }
            Err(message) => Err(Error::SharedControlPlane(message.clone())),
        }
    }

    /// A cluster for one test alone, in which no operator runs yet.
    pub async fn own() -> Result<Self> {
        let permit = own_control_plane().await;
        let cluster = Box::pin(ControlPlane::start(audited())).await?;
        Self::around(Arc::new(cluster), Some(permit)).await
    }

    /// As [`World::own`], with kube-controller-manager.
    pub async fn own_managed() -> Result<Self> {
        let permit = own_control_plane().await;
        let cluster = Box::pin(ControlPlane::start(managed())).await?;
        Self::around(Arc::new(cluster), Some(permit)).await
    }

    async fn around(cluster: Arc<ControlPlane>, permit: Option<SemaphorePermit<'static>>) -> Result<Self> {
        let client = cluster.admin_client().await?;
        Ok(Self {
            fixtures: Fixtures::new(client.clone()),
            client,
            _refusals: Refusals::of(&cluster)?.and_of_sidecar(drop_in::account(), drop_in::RBAC)?,
            cluster,
            running: None,
            names_drivers: false,
            sockets: tempfile::tempdir()?,
            _permit: permit,
        })
    }

    /// The operator of a shared cluster.
    pub fn shared_operator(&self) -> &'static Operator {
        self.running.expect("it runs in shared clusters only")
    }

    /// Starts an operator in a cluster of one's own and waits until it is ready.
    pub async fn operator(&self, options: OperatorOptions) -> Result<Operator> {
        let operator = Box::pin(Operator::start(&self.cluster, options)).await?;
        operator.wait_ready().await?;
        Ok(operator)
    }
}

/// A cluster and the operator in it.
type Pair = OnceCell<std::result::Result<(Arc<ControlPlane>, Operator), String>>;

fn audited() -> Options {
    Options {
        audit: true,
        ..Options::default()
    }
}

fn managed() -> Options {
    Options {
        controller_manager: true,
        ..audited()
    }
}
