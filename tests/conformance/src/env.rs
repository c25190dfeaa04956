//! The surroundings of the scenarios of one setup.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;

use csi_mock_driver::{MockDriver, MockHandle};

use crate::attacher::Attacher;
use crate::command::Template;
use crate::lane::Lane;
use crate::role::Role;
use crate::scenario::{Outcome, Setup, Stop};
use crate::support::controlplane::ports::free_port;
use crate::support::proxy::Proxy;
use crate::support::{ControlPlane, Result};
use crate::test::Test;

/// The deadline that the attacher is to give each call. Longer than a busy machine holds up what a scenario does meanwhile.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// What a call takes that succeeds in time, and yet leaves a scenario the time to do something meanwhile.
pub const SLOW: Duration = Duration::from_secs(4);
/// How long the Leases of replicas last: shorter than usual, so that the place of one that works no more is taken soon.
pub const LEASE: Duration = Duration::from_secs(6);

/// Cluster, driver and attacher.
pub struct Env {
    pub role: Role,
    pub cluster: Arc<ControlPlane>,
    /// A client for a member of `system:masters`.
    pub client: Client,
    /// To steer and watch the driver.
    pub driver: MockHandle,
    pub driver_name: String,
    pub finalizer: String,
    pub attacher: Attacher,
    words: Vec<String>,
    /// Where the attacher is told to serve metrics.
    pub http: SocketAddr,
    /// What is between the attacher and its API server, in the setups that have it.
    pub proxy: Option<Proxy>,
    folder: tempfile::TempDir,
}

impl Env {
    /// Starts the driver and the attacher of a setup.
    pub async fn start(lane: &Lane, setup: &Setup, mode: &str, template: &Template) -> Result<Arc<Self>> {
        let driver_name = setup
            .driver_name
            .map_or_else(|| format!("{}.{mode}.conformance.test", setup.name), str::to_owned);
        let folder = tempfile::tempdir_in(lane.cluster.folder())?;
        let socket = folder.path().join("csi.sock");
        let builder = (setup.driver)(MockDriver::builder(&driver_name).accept_any_volume());
        let driver = builder.start(&socket).await;
        let driver = driver?;
        lane.role.release_lease(&lane.client, &driver_name).await?;
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let proxy = if setup.proxied {
            Some(Proxy::start(&lane.kubeconfig).await?)
        } else {
            None
        };
        let kubeconfig = match &proxy {
            Some(proxy) => proxy.kubeconfig(&lane.kubeconfig)?,
            None => lane.kubeconfig.clone(),
        };
        let words = template.fill(
            &placeholders(lane, &kubeconfig, &driver_name, &socket),
            &flags(lane.role, setup, http),
        );
        let attacher = Attacher::start(words.clone(), &lane.log(&format!("{mode}-{}", setup.name)))?;
        Ok(Arc::new(Self {
            role: lane.role,
            cluster: Arc::clone(&lane.cluster),
            client: lane.client.clone(),
            driver,
            finalizer: lane.role.finalizer(&driver_name),
            driver_name,
            attacher,
            words,
            http,
            proxy,
            folder,
        }))
    }

    /// One more process of the same attacher, which goes by a name of its own in Leases. They last for [`LEASE`].
    pub fn replica(&self, name: &str) -> Result<Attacher> {
        let (http, own) = (self.http.to_string(), format!("127.0.0.1:{}", free_port()?));
        let mut words: Vec<String> = self.words.iter().map(|word| word.replace(&http, &own)).collect();
        words.extend(flags_of_replica(name));
        Attacher::start(words, &self.folder.path().join(format!("{name}.log")))
    }

    /// Waits until the attacher has done its work for one volume.
    pub async fn ready(self: &Arc<Self>, id: &str) -> Outcome {
        let test = Test::new(Arc::clone(self), id);
        self.role.works(&test).await.map_err(|stop| {
            let log = self.attacher.log_tail();
            Stop::Failed(format!(
                "the {} does nothing at all: {stop}\nIts log:\n{log}",
                self.role.who()
            ))
        })?;
        test.tear_down().await
    }
}

fn placeholders(lane: &Lane, kubeconfig: &Path, driver_name: &str, socket: &Path) -> [(&'static str, String); 4] {
    [
        ("{kubeconfig}", kubeconfig.display().to_string()),
        (
            "{admin_kubeconfig}",
            lane.cluster.admin_kubeconfig().display().to_string(),
        ),
        ("{driver}", driver_name.to_owned()),
        ("{socket}", socket.display().to_string()),
    ]
}

fn flags(role: Role, setup: &Setup, http: SocketAddr) -> Vec<String> {
    let milliseconds = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut flags = vec![
        format!("--timeout={}", milliseconds(TIMEOUT)),
        format!("--retry-interval-start={}", milliseconds(setup.retry.0)),
        format!("--retry-interval-max={}", milliseconds(setup.retry.1)),
        "--worker-threads=100".to_owned(),
        "--kube-api-qps=1000".to_owned(),
        "--kube-api-burst=1000".to_owned(),
        format!("--http-endpoint={http}"),
    ];
    flags.extend(role.flags().iter().map(ToString::to_string));
    flags.extend(setup.flags.iter().cloned());
    flags
}

/// What one of several replicas is given besides.
pub fn flags_of_replica(name: &str) -> [String; 5] {
    [
        format!("--identity={name}"),
        "--leader-election=true".to_owned(),
        format!("--leader-election-lease-duration={}s", LEASE.as_secs()),
        "--leader-election-renew-deadline=4s".to_owned(),
        "--leader-election-retry-period=1s".to_owned(),
    ]
}

/// `external-attacher/` and the driver's name, with a dash for everything but letters, digits and dashes, and an `X`
/// where it would end in a dash.
pub fn finalizer_of(driver: &str) -> String {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() {
            character
        } else {
            '-'
        }
    };
    let mut name: String = driver.chars().map(plain).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    format!("external-attacher/{name}")
}
