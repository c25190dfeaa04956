//! Drivers that stand in silence: the connection is dead, the driver hangs, another process has its place.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, advance, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::{
    HANGING_CALLS, HangingCalls, INITIAL_MOVE_PAUSE, MAX_MOVE_PAUSE, PROBES_BEFORE_MOVE, Replacement, SILENCE,
};
use crate::DriverState;
use crate::api::attacher_config::{TlsSecretReference, TlsSpec};
use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigSpec, DriverConfig, GoDuration};
use crate::apiserver::{Requests, connect};
use crate::connect::certificates::{CertificateState, ValidCertificates};
use crate::connect::handshake::HandshakeError;
use crate::connect::{ConnectedDriver, Connector as _, DriverConnector};
use crate::csi::{ClientCertificates, ControllerUnpublishVolume, CsiClient};
use crate::decide::VolumeOnNode;
use crate::state::DriverStateSender;
use crate::telemetry::{Metrics, Span};
use csi_attacher_testbed::controlplane::pki::Authority;
use csi_mock_driver::{CallResult, ListenEndpoint, Method, MockDriver, MockHandle, Rule};

const LIMIT: Duration = Duration::from_secs(30);
/// The deadline of calls that are not answered.
const SHORT: Duration = Duration::from_millis(300);

/// A connector for this endpoint, with the state that it reports.
struct Stage {
    access: Arc<DriverConnector>,
    status: DriverStateSender,
    state: watch::Receiver<DriverState>,
    metrics: Metrics,
    _settings: watch::Sender<Arc<DriverConfig>>,
}

impl Stage {
    fn at(endpoint: String) -> Self {
        Self::of(AttacherConfigSpec::new(endpoint))
    }

    fn of(mut spec: AttacherConfigSpec) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        // It is answered in most of these tests, on a busy machine too.
        spec.timeouts.probe = GoDuration::from_secs(3);
        let (settings, config) = watch::channel(Arc::new(DriverConfig::try_from(&spec).unwrap()));
        let metrics = Metrics::default();
        // Nobody listens there: nothing is written in these tests.
        let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let requests = Requests::new(connect(&nowhere).unwrap(), "nowhere", LIMIT, metrics.clone());
        let access = Arc::new(DriverConnector::new("config".into(), config, &requests, &metrics));
        let (sender, state) = watch::channel(DriverState::default());
        Self {
            access,
            status: DriverStateSender::new(sender),
            state,
            metrics,
            _settings: settings,
        }
    }

    async fn connect(&self) -> ConnectedDriver {
        let Ok(reached) = self.access.connect().await else {
            panic!("not reached")
        };
        reached
    }

    /// What takes the place of a connection, while calls are made over it one after the other.
    async fn replaced(&self, current: &ConnectedDriver) -> Replacement {
        let calls = async {
            loop {
                unpublish(&current.client, "v", SHORT).await.ok();
            }
        };
        tokio::select! {
            replacement = timeout(LIMIT, self.access.replaced(current, &self.status)) => replacement.expect("in time"),
            () = calls => unreachable!("it never ends"),
        }
    }

    fn problem(&self) -> Option<String> {
        self.state.borrow().connection_problem.clone()
    }

    fn unanswered(&self) -> Option<String> {
        self.state.borrow().unanswered_calls.clone()
    }

    /// Waits until this is shown, while calls are made if they are asked for.
    async fn shows(&self, current: &ConnectedDriver, calls: bool, what: impl FnMut(&DriverState) -> bool) {
        let mut reported = self.state.clone();
        let shown = timeout(LIMIT, reported.wait_for(what));
        tokio::select! {
            shown = shown => assert!(shown.expect("in time").is_ok()),
            _ = self.replaced(current), if calls => panic!("the connection works"),
            _ = self.access.replaced(current, &self.status), if !calls => panic!("the connection works"),
        }
    }
}

async fn unpublish(client: &CsiClient, volume_id: &str, deadline: Duration) -> Result<(), Code> {
    let place = VolumeOnNode::new(volume_id, "n").unwrap();
    let call = ControllerUnpublishVolume { place, secrets: None };
    let answer = client.call(&call, deadline, &Span::disabled()).await;
    answer.map_err(|error| error.code)
}

/// What takes the place of a connection that is lost.
fn reconnected(replacement: Replacement) -> ConnectedDriver {
    match replacement {
        Replacement::Reconnected(next) => *next,
        Replacement::Ready(_) => panic!("the connection is lost"),
        Replacement::Unanswered(obstacle) => panic!("{}", obstacle.message),
    }
}

async fn tcp_driver() -> (MockHandle, SocketAddr) {
    let any = ListenEndpoint::Tcp("127.0.0.1:0".parse().unwrap());
    let driver = MockDriver::builder("a.test").accept_any_volume();
    let driver = driver.start_on(any).await.unwrap();
    let ListenEndpoint::Tcp(address) = driver.endpoint().clone() else {
        panic!("no port")
    };
    (driver, address)
}

/// A proxy that can swallow its connections: nothing more comes over them, and they do not end. New ones come through.
struct Tunnel {
    address: SocketAddr,
    swallowed: watch::Sender<u32>,
    _server: AbortOnDropHandle<()>,
}

impl Tunnel {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (swallowed, seen) = watch::channel(0);
        let server = tokio::spawn(async move {
            let mut carried = tokio::task::JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let mut seen = seen.clone();
                seen.mark_unchanged();
                carried.spawn(async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        ended = copy_bidirectional(&mut near, &mut far) => drop(ended),
                        _ = seen.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self {
            address,
            swallowed,
            _server: AbortOnDropHandle::new(server),
        }
    }

    fn swallow(&self) {
        self.swallowed.send_modify(|times| *times += 1);
    }
}

#[tokio::test]
async fn a_connection_that_is_swallowed_is_replaced_by_one_that_is_answered() {
    let (_driver, address) = tcp_driver().await;
    let tunnel = Tunnel::to(address).await;
    let stage = Stage::at(format!("http://{}", tunnel.address));
    let mut current = stage.connect().await;
    for _ in 0..2 {
        assert_eq!(unpublish(&current.client, "v", LIMIT).await, Ok(()));
        tunnel.swallow();
        let next = reconnected(stage.replaced(&current).await);
        assert!(next.restores, "what failed is tried at once");
        assert_eq!(next.facts(), current.facts());
        current = next;
    }
    assert_eq!(unpublish(&current.client, "v", LIMIT).await, Ok(()));
    assert!(!current.client.connection().is_lost());
    let text = stage.metrics.encode_prometheus();
    assert!(
        !text.contains("driver_reconnects_total{"),
        "that is for the task: {text}"
    );
}

#[tokio::test]
async fn a_driver_that_answers_nothing_any_more_is_unreachable() {
    let (driver, address) = tcp_driver().await;
    let stage = Stage::at(format!("http://{address}"));
    let current = stage.connect().await;
    driver.script(Rule::any().hang());
    let Replacement::Unanswered(obstacle) = stage.replaced(&current).await else {
        panic!("nobody answers")
    };
    assert!(!obstacle.is_stalled);
    assert_eq!(obstacle.reason, ConditionReason::Timeout);
}

#[tokio::test]
async fn a_driver_that_answers_probe_alone_is_connected_to_again_and_its_backoffs_stay() {
    let (driver, address) = tcp_driver().await;
    let stage = Stage::at(format!("http://{address}"));
    let current = stage.connect().await;
    driver.script(Rule::on(Method::ControllerUnpublishVolume).hang());
    let Replacement::Ready(next) = stage.replaced(&current).await else {
        panic!("nothing is lost")
    };
    assert!(!next.restores, "the driver may only be slow");
    assert_eq!(stage.unanswered().as_deref(), Some(HANGING_CALLS));
    let handshakes = driver.calls_of(Method::GetPluginInfo).len();
    assert_eq!(handshakes, 2, "one connection for all these deadlines");
    let probes = driver.calls_of(Method::Probe).len() - handshakes;
    assert_eq!(probes, PROBES_BEFORE_MOVE as usize);

    // It answers at last, and that is shown.
    driver.clear_rules();
    stage.shows(&next, true, |state| state.unanswered_calls.is_none()).await;
}

/// What was called for may be gone: nobody would ever learn that the driver answers again.
#[tokio::test]
async fn calls_without_an_answer_are_told_only_as_long_as_somebody_makes_them() {
    let (driver, address) = tcp_driver().await;
    let stage = Stage::at(format!("http://{address}"));
    let current = stage.connect().await;
    driver.script(Rule::on(Method::ControllerUnpublishVolume).hang());
    let Replacement::Ready(next) = stage.replaced(&current).await else {
        panic!("nothing is lost")
    };
    let longest_wait = stage.access.config.borrow().backoff.max;
    let mut shown = stage.state.clone();
    let idle = async {
        let told = || stage.unanswered();
        assert_eq!(told().as_deref(), Some(HANGING_CALLS));
        tokio::time::sleep(Duration::from_millis(50)).await;
        jump(longest_wait).await;
        // Longer than the task needs to look again.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(told().as_deref(), Some(HANGING_CALLS), "an attempt may wait");
        tokio::time::sleep(Duration::from_millis(50)).await;
        jump(longest_wait + SILENCE).await;
        let ended = timeout(LIMIT, shown.wait_for(|state| state.unanswered_calls.is_none()));
        assert!(ended.await.expect("in time").is_ok());
    };
    tokio::select! {
        () = idle => {}
        _ = stage.access.replaced(&next, &stage.status) => panic!("the connection works"),
    }
}

/// Lets time go on at once, while nothing happens on the connections.
async fn jump(by: Duration) {
    tokio::time::pause();
    advance(by).await;
    tokio::time::resume();
}

/// The deadline of a call may be many minutes: it is not waited for to ask whether anybody is there.
#[tokio::test]
async fn a_call_that_is_out_for_long_is_reason_to_ask_who_is_there() {
    let (driver, address) = tcp_driver().await;
    let tunnel = Tunnel::to(address).await;
    let stage = Stage::at(format!("http://{}", tunnel.address));
    let current = stage.connect().await;
    tunnel.swallow();
    let replaced = stage.access.replaced(&current, &stage.status);
    let jumped = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        jump(SILENCE).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        replacement = timeout(LIMIT + SILENCE, replaced) => drop(reconnected(replacement.expect("in time"))),
        _ = unpublish(&current.client, "v", 24 * SILENCE) => panic!("nobody is there"),
        () = jumped => unreachable!("it never ends"),
    }
    assert_eq!(driver.calls_of(Method::GetPluginInfo).len(), 2);
}

#[tokio::test]
async fn a_driver_that_is_slow_and_answers_probe_keeps_its_calls() {
    let (driver, address) = tcp_driver().await;
    let stage = Stage::at(format!("http://{address}"));
    let current = stage.connect().await;
    driver.script(Rule::on(Method::ControllerUnpublishVolume).delay(4 * SILENCE));
    let probes = || driver.calls_of(Method::Probe).len();
    let before = probes();
    let jumped = async {
        let called = driver.wait_for_call(|call| call.method == Method::ControllerUnpublishVolume);
        called.await;
        for asked in 1..4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            jump(SILENCE).await;
            let answered = || {
                let last = driver.calls_of(Method::Probe).pop();
                last.is_some_and(|probe| probe.outcome == CallResult::Answered)
            };
            while probes() < before + asked || !answered() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        jump(SILENCE).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = stage.access.replaced(&current, &stage.status) => panic!("it answers Probe"),
        answer = timeout(LIMIT + 4 * SILENCE, unpublish(&current.client, "v", 24 * SILENCE)) => {
            assert_eq!(answer.expect("in time"), Ok(()));
        }
        () = jumped => unreachable!("it never ends"),
    }
    assert!(probes() >= before + 3, "it is asked again and again");
    assert_eq!(stage.unanswered(), None, "no deadline has passed");
    assert_eq!(driver.calls_of(Method::GetPluginInfo).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_is_connected_to_more_and_more_rarely() {
    let mut hanging = HangingCalls::default();
    let mut moves = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < 4 * MAX_MOVE_PAUSE {
        advance(Duration::from_secs(1)).await;
        if hanging.note(Instant::now()) {
            moves.push(begun.elapsed().as_secs());
        }
    }
    let first = u64::from(PROBES_BEFORE_MOVE);
    let pauses: Vec<u64> = moves.windows(2).map(|pair| (pair[1] - pair[0]) / 60).collect();
    assert_eq!((moves[0], &pauses[..]), (first, &[1, 2, 4, 8, 16, 16, 16][..]));

    // One that answers now and then is not connected to more often than that.
    hanging.clear();
    for _ in 0..INITIAL_MOVE_PAUSE.as_secs() {
        assert!(!hanging.note(Instant::now()));
    }
    advance(INITIAL_MOVE_PAUSE).await;
    assert!(hanging.note(Instant::now()));
}

fn socket_driver(folder: &tempfile::TempDir) -> (PathBuf, csi_mock_driver::MockDriverBuilder) {
    let socket = folder.path().join("csi.sock");
    (socket, MockDriver::builder("a.test").accept_any_volume())
}

/// The old process is there and hangs; what it may still answer is waited for.
#[tokio::test]
async fn a_socket_that_was_replaced_is_dialled_at_once_and_calls_end_at_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, builder) = socket_driver(&folder);
    let slow = Rule::on(Method::ControllerUnpublishVolume).delay(Duration::from_secs(3));
    let old = builder.rule(slow).start(&socket).await.unwrap();
    let stage = Stage::at(format!("unix://{}", socket.display()));
    let current = stage.connect().await;
    let client = current.client.clone();
    let call = tokio::spawn(async move { unpublish(&client, "slow", LIMIT).await });
    let begun = old.wait_for_call(|call| call.method == Method::ControllerUnpublishVolume);
    timeout(LIMIT, begun).await.expect("it is called");
    std::fs::remove_file(&socket).unwrap();
    let new = socket_driver(&folder).1.start(&socket).await.unwrap();
    let replacement = stage.access.replaced(&current, &stage.status);
    let next = reconnected(timeout(LIMIT, replacement).await.expect("in time"));
    assert!(next.restores);
    drop(current);
    assert_eq!(unpublish(&next.client, "v", LIMIT).await, Ok(()));
    assert_eq!(new.calls_of(Method::ControllerUnpublishVolume).len(), 1);
    assert_eq!(call.await.unwrap(), Ok(()), "it ends where it began");
    timeout(LIMIT, old.wait_for_connections(0))
        .await
        .expect("the old connection is closed");
}

/// A connection to a driver, whose socket somebody replaced by one at which nobody listens.
async fn connected_by_a_former_socket(folder: &tempfile::TempDir) -> (PathBuf, MockHandle, Stage, ConnectedDriver) {
    let (socket, builder) = socket_driver(folder);
    let driver = builder.start(&socket).await.unwrap();
    let stage = Stage::at(format!("unix://{}", socket.display()));
    let current = stage.connect().await;
    std::fs::remove_file(&socket).unwrap();
    drop(UnixListener::bind(&socket).unwrap());
    (socket, driver, stage, current)
}

/// Somebody removed the socket, or made one at which nobody listens: the connection that stands is the only one.
#[tokio::test]
async fn a_socket_without_a_driver_leaves_the_connection_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, old, stage, current) = connected_by_a_former_socket(&folder).await;
    stage
        .shows(&current, false, |state| state.connection_problem.is_some())
        .await;
    let problem = stage.problem().unwrap();
    assert!(
        problem.contains("csi.sock was replaced") && problem.contains("(ConnectionRefused)"),
        "{problem}"
    );
    assert_eq!(unpublish(&current.client, "v", LIMIT).await, Ok(()));
    assert_eq!(old.calls_of(Method::ControllerUnpublishVolume).len(), 1);

    std::fs::remove_file(&socket).unwrap();
    let _new = socket_driver(&folder).1.start(&socket).await.unwrap();
    let replacement = stage.access.replaced(&current, &stage.status);
    drop(reconnected(timeout(LIMIT, replacement).await.expect("in time")));
    assert_eq!(stage.problem(), None);
}

/// Each problem ends with its own cause.
#[tokio::test]
async fn a_driver_that_hangs_and_whose_socket_is_replaced_shows_both() {
    let folder = tempfile::tempdir().unwrap();
    let (_, driver, stage, current) = connected_by_a_former_socket(&folder).await;
    driver.script(Rule::on(Method::ControllerUnpublishVolume).hang());
    let both = |state: &DriverState| state.connection_problem.is_some() && state.unanswered_calls.is_some();
    stage.shows(&current, true, both).await;
    driver.clear_rules();
    stage
        .shows(&current, true, |state| state.unanswered_calls.is_none())
        .await;
    assert!(stage.problem().is_some(), "the socket is as it was");
}

/// How often Probe was counted as failed.
fn refused_probes(metrics: &Metrics) -> Option<u32> {
    let text = metrics.encode_prometheus();
    let is_meant = |line: &&str| {
        line.starts_with("csi_sidecar_operations_seconds_count{driver_name=\"a.test\"")
            && line.contains("grpc_status_code=\"Internal\"")
            && line.contains("/csi.v1.Identity/Probe")
    };
    let line = text.lines().find(is_meant)?;
    line.rsplit(' ').next()?.parse().ok()
}

/// An alert on errors of a driver would else never see the ones for which there is no connection.
#[tokio::test]
async fn calls_of_handshakes_that_fail_are_counted_once_it_is_known_whose_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, builder) = socket_driver(&folder);
    let refuses = || Rule::on(Method::Probe).times(1).fail(Code::Internal, "no");
    let driver = builder.rule(refuses()).start(&socket).await.unwrap();
    let mut spec = AttacherConfigSpec::new(format!("unix://{}", socket.display()));
    let stage = Stage::of(spec.clone());
    assert!(stage.access.connect().await.is_err());
    assert_eq!(refused_probes(&stage.metrics), None, "it has not told its name");
    drop(stage.connect().await);
    assert_eq!(refused_probes(&stage.metrics), Some(1));
    driver.script(refuses());
    assert!(stage.access.connect().await.is_err());
    assert_eq!(refused_probes(&stage.metrics), Some(2), "its name is known");

    spec.driver_name = Some("a.test".to_owned());
    let stage = Stage::of(spec);
    driver.script(refuses());
    assert!(stage.access.connect().await.is_err());
    assert_eq!(refused_probes(&stage.metrics), Some(1), "the spec names it");
}

/// A connector for an https endpoint, and certificates to use for it.
fn secured_stage(endpoint: &str, server_name: Option<&str>) -> (Stage, ValidCertificates) {
    let secret = TlsSecretReference {
        namespace: "n".to_owned(),
        name: "s".to_owned(),
    };
    let mut spec = AttacherConfigSpec::new(endpoint.to_owned());
    spec.tls = Some(TlsSpec {
        secret,
        server_name: server_name.map(str::to_owned),
    });
    let stage = Stage::of(spec);
    let authority = Authority::new().unwrap().certificate().as_bytes().to_vec();
    let certificates = ClientCertificates::read(&BTreeMap::from([("ca.crt".to_owned(), authority)])).unwrap();
    let good = ValidCertificates {
        certificates,
        revision: 1,
    };
    (stage, good)
}

/// The API server lets some pass: it looks at their characters.
#[tokio::test]
async fn a_name_that_no_certificate_can_have_is_told_with_the_field_that_has_it() {
    let (bad, long) = ("csi-.storage.svc", "x".repeat(64));
    for (host, server_name, field) in [
        (bad, None, "spec.endpoint"),
        ("a..b", None, "spec.endpoint"),
        (long.as_str(), None, "spec.endpoint"),
        ("csi.storage.svc", Some(bad), "spec.tls.serverName"),
    ] {
        let (stage, good) = secured_stage(&format!("https://{host}:9000"), server_name);
        let known = CertificateState {
            good: Some(good),
            ..CertificateState::default()
        };
        let Err(failure) = stage.access.reach_with(&known).await else {
            panic!("{host} is no name")
        };
        let wanted = format!(
            "{} is not a DNS name or IP address that a certificate can contain; fix {field}",
            server_name.unwrap_or(host)
        );
        assert_eq!(failure.obstacle.message, wanted);
    }
}

/// Why the driver is not reached may be that it has what a spoilt Secret was meant to follow.
#[tokio::test]
async fn where_the_last_good_certificates_fail_the_spoilt_secret_is_told_of() {
    let (stage, good) = secured_stage("https://127.0.0.1:1", None);
    let trouble = HandshakeError::stalled(ConditionReason::TlsInvalid, "it is spoilt".to_owned());
    for (trouble, words) in [
        (None, "; retrying every 1 s"),
        (
            Some(trouble),
            "; retrying every 1 s; the last valid certificates are in use: it is spoilt",
        ),
    ] {
        let good = Some(good.clone());
        let known = CertificateState {
            good,
            trouble,
            revision: 2,
        };
        let Err(failure) = stage.access.reach_with(&known).await else {
            panic!("nobody listens there")
        };
        let message = failure.obstacle.message;
        assert!(message.ends_with(words), "{message}");
    }
}
