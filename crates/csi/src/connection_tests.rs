//! What a failed dial is called, and what a lost connection is.

use futures::FutureExt as _;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpSocket;

use super::client_tests::{ask, client_of, within};
use super::dial::{DialTarget, connect_by};
use super::{CsiClient, DialError, DialFault, DriverConnection, Probe};
use crate::api::condition::ConditionReason;
use crate::api::validated::{Endpoint, LoopbackHost};
use crate::telemetry::{Metrics, Span};
use csi_mock_driver::{Method, MockDriver};

const LONG: Duration = Duration::from_secs(30);

/// The error of a call over an endpoint that cannot be dialled.
async fn refused(client: &CsiClient) -> DialError {
    let error = ask(client, &Probe).await.unwrap_err();
    assert!(error.transport && error.unsent, "{error}");
    let dial = client.connection().dial_error().expect("the dial failed");
    assert_eq!(error.message, dial.fault.without_address(), "the call says why");
    assert!(!error.message.contains(&dial.address), "and not where: {error}");
    dial
}

#[tokio::test]
async fn a_missing_socket_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["csi.sock", "no/folder/csi.sock"] {
        let client = client_of(&folder.path().join(path));
        let error = refused(&client).await;
        assert!(
            matches!(error.fault, DialFault::SocketMissing(_)) && error.address.ends_with(path),
            "{error}"
        );
        assert_eq!(error.reason(), ConditionReason::SocketMissing);
        assert_eq!(
            client.connection().address(),
            folder.path().join(path).to_str().unwrap()
        );
    }
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_named() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let host = LoopbackHost::Ipv4;
    let client = CsiClient::new(
        DriverConnection::new(&Endpoint::Http { host, port }),
        Metrics::default(),
    );
    let error = refused(&client).await;
    assert_eq!(
        error,
        DialError {
            address: format!("127.0.0.1:{port}"),
            fault: DialFault::Refused(None),
        }
    );
}

#[tokio::test]
async fn a_driver_that_appears_is_dialled_by_the_next_call() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let client = client_of(&socket);
    refused(&client).await;
    let _driver = MockDriver::builder("late.test").start(&socket).await.unwrap();
    assert!(ask(&client, &Probe).await.unwrap());
    assert_eq!(client.connection().dial_error(), None);
}

#[tokio::test]
async fn a_loss_is_seen_at_once_and_only_then() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let driver = MockDriver::builder("lost.test").start(&socket).await.unwrap();
    for stop in [false, true] {
        let client = client_of(&socket);
        let connection = client.connection();
        assert!(connection.lost().now_or_never().is_none(), "not dialled yet");
        assert!(ask(&client, &Probe).await.unwrap());
        assert!(connection.lost().now_or_never().is_none());
        if stop {
            within(driver.stop()).await;
        } else {
            driver.drop_connections();
        }
        within(connection.lost()).await;
        // It stays lost, for everybody who asks.
        within(connection.clone().lost()).await;
    }
}

/// The same over the loopback interface.
#[tokio::test]
async fn a_loss_is_seen_on_tcp_as_well() {
    let any = csi_mock_driver::ListenEndpoint::Tcp("127.0.0.1:0".parse().unwrap());
    let driver = MockDriver::builder("tcp.test").start_on(any).await.unwrap();
    let csi_mock_driver::ListenEndpoint::Tcp(address) = driver.endpoint() else {
        panic!("no port")
    };
    let endpoint = Endpoint::Http {
        host: LoopbackHost::Localhost,
        port: address.port(),
    };
    let client = CsiClient::new(DriverConnection::new(&endpoint), Metrics::default());
    assert!(ask(&client, &Probe).await.unwrap());
    within(driver.stop()).await;
    within(client.connection().lost()).await;
}

/// Over TCP the kernel asks the peer's now and then, as the operator has no other way: a keep-alive timer is set.
#[tokio::test]
async fn the_kernel_looks_after_a_connection_over_tcp() {
    let any = csi_mock_driver::ListenEndpoint::Tcp("127.0.0.1:0".parse().unwrap());
    let driver = MockDriver::builder("tcp.test").start_on(any).await.unwrap();
    let csi_mock_driver::ListenEndpoint::Tcp(address) = driver.endpoint() else {
        panic!("no port")
    };
    for host in [LoopbackHost::Ipv4, LoopbackHost::Localhost] {
        let port = address.port();
        let client = CsiClient::new(
            DriverConnection::new(&Endpoint::Http { host, port }),
            Metrics::default(),
        );
        ask(&client, &Probe).await.unwrap();
        // Columns: number, local address, remote address, state, queues, timer and when it is due. 02 is that of keep-alive; 01
        // is that of what is not confirmed yet.
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let remote = format!("0100007F:{port:04X}");
        let ours = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ours: Vec<_> = ours
            .filter(|columns| columns[2] == remote && columns[3] == "01")
            .collect();
        let timers: Vec<&str> = ours.iter().map(|columns| &columns[5][..2]).collect();
        assert!(timers.iter().all(|timer| ["01", "02"].contains(timer)), "{timers:?}");
        assert_eq!(timers.len(), 1);
    }
}

/// A call waits in queues of the connection until that gets its turn. A process that stands still in between must not send it
/// when it goes on, however long it took.
#[tokio::test]
async fn what_waits_in_the_connection_is_not_sent_without_permission() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let driver = MockDriver::builder("a.test").start(&socket).await.unwrap();
    let client = client_of(&socket);
    let (span, open) = (Span::disabled(), Arc::new(AtomicBool::new(true)));
    let permit = open.clone();
    client
        .connection()
        .writes_only_while(move || permit.load(Ordering::SeqCst));
    within(client.call(&Probe, LONG, &span)).await.unwrap();
    let before = driver.calls_of(Method::Probe).len();
    let mut call = std::pin::pin!(client.call(&Probe, LONG, &span));
    // The call is made, and the task of the connection has not had its turn.
    assert!(call.as_mut().now_or_never().is_none());
    open.store(false, Ordering::SeqCst);
    within(call).await.unwrap_err();
    within(client.connection().lost()).await;
    assert_eq!(driver.calls_of(Method::Probe).len(), before);
}

/// The first address of the name swallows packets, as the queue of its listener is full.
#[tokio::test(start_paused = true)]
async fn an_address_that_swallows_packets_leaves_time_for_the_next() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let swallows = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&swallows, Duration::from_millis(300)) {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue has no end");
    }
    let answers = SocketAddr::new("127.0.0.2".parse().unwrap(), swallows.port());
    let _answering = std::net::TcpListener::bind(answers).unwrap();
    let dial = async |addresses: Vec<SocketAddr>| {
        let resolver = tower::service_fn(move |_: Name| {
            let addresses = addresses.clone();
            async move { Ok::<_, std::io::Error>(addresses.into_iter()) }
        });
        let address = format!("driver.test:{}", swallows.port());
        let dialled = connect_by(HttpConnector::new_with_resolver(resolver), &address);
        // That of the whole dial.
        let dialled = tokio::time::timeout(Duration::from_secs(10), dialled).await;
        dialled.expect("in time").map(|stream| stream.peer_addr().unwrap())
    };
    assert_eq!(dial(vec![swallows, answers]).await, Ok(answers));
    let fault = dial(vec![swallows]).await.unwrap_err();
    assert!(matches!(fault, DialFault::TimedOut(_)), "{fault}");
}

#[test]
fn calls_have_the_endpoint_as_their_origin() {
    let https = |host: &str| Endpoint::Https {
        host: host.to_owned(),
        port: 9000,
    };
    let rows = [
        (Endpoint::Unix("/csi/csi.sock".into()), "http://localhost/"),
        (
            Endpoint::Http {
                host: LoopbackHost::Ipv6,
                port: 9000,
            },
            "http://[::1]:9000/",
        ),
        (https("driver.example"), "https://driver.example:9000/"),
        (https("10.0.0.1"), "https://10.0.0.1:9000/"),
        (https("[2001:db8::1]"), "https://[2001:db8::1]:9000/"),
    ];
    for (endpoint, origin) in rows {
        let target = DialTarget { endpoint, tls: None };
        assert_eq!(target.origin().to_string(), origin);
    }
}
