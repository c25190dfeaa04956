use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::*;
use crate::telemetry::metrics::{Metrics, OPENMETRICS_CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE};

const LIMIT: Duration = Duration::from_secs(10);

struct Server {
    address: SocketAddr,
    health: Health,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn start(metrics_path: &str) -> Server {
    start_with(metrics_path, Arc::new(Metrics::default())).await
}

async fn start_with(metrics_path: &str, scraped: Arc<dyn Scrape>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let health = Health::new();
    let shutdown = CancellationToken::new();
    let state = AdminState {
        metrics: scraped,
        health: health.clone(),
        metrics_path: metrics_path.to_owned(),
        leases: None,
    };
    let task = tokio::spawn(serve(listener, state, shutdown.clone()));
    Server {
        address,
        health,
        shutdown,
        task,
    }
}

impl Server {
    async fn request(&self, method: &str, path: &str, accept: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: t\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LIMIT, stream.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), body.to_owned())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.request("GET", path, "*/*").await;
        (status, body)
    }
}

#[tokio::test]
async fn readiness_follows_the_checks_and_names_the_failing_ones() {
    let server = start("/metrics").await;
    let (status, body) = server.get("/readyz").await;
    assert_eq!(
        (status, body.as_str()),
        (
            503,
            "[-]startup failed: no component has registered yet\nreadyz check failed\n"
        )
    );

    let watch = server.health.check("watch/volumeattachments");
    let driver = server.health.check("driver/a");
    watch.set_ready(true);
    let (status, body) = server.get("/readyz").await;
    assert_eq!(
        (status, body.as_str()),
        (503, "[-]driver/a failed: not ready yet\nreadyz check failed\n")
    );

    driver.set_failing("socket is missing");
    let (status, body) = server.get("/readyz?verbose").await;
    let expected = "[-]driver/a failed: socket is missing\n[+]watch/volumeattachments ok\nreadyz check failed\n";
    assert_eq!((status, body.as_str()), (503, expected));

    let (status, head, body) = server.request("GET", "/readyz", "application/json").await;
    assert_eq!(status, 503);
    assert!(head.contains("content-type: application/json"), "{head}");
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"status": "failed", "checks": [{"name": "driver/a", "ok": false, "reason": "socket is missing"}]})
    );

    driver.set_ready(true);
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
    assert!(server.health.is_ready());
    watch.set_ready(false);
    assert_eq!(server.get("/readyz").await.0, 503);
}

#[tokio::test]
async fn liveness_ignores_readiness() {
    let server = start("/metrics").await;
    server.health.check("never").set_failing("still starting");
    for path in ["/livez", "/healthz"] {
        assert_eq!(server.get(path).await, (200, "ok\n".to_owned()));
    }
    assert_eq!(server.get("/livez?verbose").await, (200, "ok\n".to_owned()));
}

#[tokio::test]
async fn metrics_are_negotiated_at_the_configured_path() {
    // A path that a router would refuse to parse is only a path here.
    for path in ["/custom/{metrics", "metrics"] {
        let server = start(path).await;
        let target = format!("/{}", path.trim_start_matches('/'));
        let (status, head, body) = server.request("GET", &target, "*/*").await;
        assert_eq!(status, 200);
        assert!(
            head.contains(&format!("content-type: {PROMETHEUS_CONTENT_TYPE}")),
            "{head}"
        );
        assert!(body.contains("\ncsi_attacher_build_info{version="), "{body}");
        assert!(!body.contains("# EOF"));
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        let (_, head, body) = server.request("GET", &target, accept).await;
        assert!(
            head.contains(&format!("content-type: {OPENMETRICS_CONTENT_TYPE}")),
            "{head}"
        );
        assert!(body.ends_with("# EOF\n"));
        for (accept, openmetrics) in [
            ("application/openmetrics-text;q=0.2,text/plain;q=0.5", false),
            (
                "text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1",
                true,
            ),
            ("application/openmetrics-text;q=0", false),
            ("Application/OpenMetrics-Text, text/plain", true),
            ("application/openmetrics-text;q=much", true),
            ("*/*", false),
        ] {
            let (_, _, body) = server.request("GET", &target, accept).await;
            assert_eq!(body.ends_with("# EOF\n"), openmetrics, "{accept}");
        }
        assert_eq!(server.get("/unknown").await.0, 404);
        assert_eq!(server.request("POST", &target, "*/*").await.0, 405);
        let (status, _, body) = server.request("HEAD", "/livez", "*/*").await;
        assert_eq!((status, body.as_str()), (200, ""));
    }
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_client_that_says_nothing() {
    let server = start("/metrics").await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    assert_eq!(server.get("/livez").await.0, 200);
    server.shutdown.cancel();
    tokio::time::timeout(LIMIT, server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_that_is_too_large_or_never_ends_is_not_answered_with_metrics() {
    let server = start("/metrics").await;
    let filler = "x".repeat(64 << 10);
    for request in [
        format!("GET /metrics HTTP/1.1\r\nHost: t\r\nX-Filler: {filler}\r\n\r\n"),
        "GET /metrics HTTP/1.1\r\nHost: t\r\n".to_owned(),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The end may come as a reset, also while the request is sent.
        drop(stream.write_all(request.as_bytes()).await);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        drop(tokio::time::timeout(LIMIT, read).await.expect("it is hung up on"));
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("csi_attacher"), "{answer}");
    }
    assert_eq!(server.get("/metrics").await.0, 200);
}

/// More peers than there is room for say nothing, or half of something, and hold on.
#[tokio::test]
async fn peers_that_say_nothing_neither_keep_a_probe_waiting_nor_stay() {
    const PEERS: usize = 200;
    let server = start("/metrics").await;
    let mut silent = Vec::new();
    for number in 0..PEERS {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: t\r\n").await.unwrap();
        }
        silent.push(stream);
    }
    let asked = Instant::now();
    assert_eq!(server.get("/livez").await.0, 200);
    // Without the room that is made, three rounds of them come before it, each of 5 s.
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    // Most are hung up on to make room, and the rest when they had time enough to ask.
    let all = async {
        for stream in &mut silent {
            let mut rest = Vec::new();
            drop(stream.read_to_end(&mut rest).await);
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("they are hung up on");
}

/// HTTP/2 makes floods cheap, and nobody who scrapes or probes needs it.
#[tokio::test]
async fn http_2_is_not_spoken() {
    let server = start("/metrics").await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    drop(tokio::time::timeout(LIMIT, read).await.expect("it is hung up on"));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
}

#[tokio::test]
async fn a_connection_is_good_for_one_request() {
    let server = start("/metrics").await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = "GET /livez HTTP/1.1\r\nHost: t\r\n\r\n".repeat(3);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    drop(tokio::time::timeout(LIMIT, read).await.expect("it is hung up on"));
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
}

/// Metrics whose first scrape takes as long as the test wants.
#[derive(Debug)]
struct Slow {
    /// Held during a scrape: there is one at a time.
    alone: std::sync::Mutex<()>,
    first: std::sync::Mutex<Option<(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>)>>,
}

impl Scrape for Slow {
    fn encode(&self, _openmetrics: bool) -> String {
        let _alone = self.alone.try_lock().unwrap();
        let first = self.first.lock().unwrap().take();
        if let Some((signal, gate)) = first {
            signal.send(()).unwrap();
            let _released = gate.recv_timeout(LIMIT * 2);
        }
        String::new()
    }
}

/// A scrape takes long; many others come, and some of them do not read their answers.
#[tokio::test]
async fn scrapes_wait_in_a_short_queue_and_hold_up_nothing_else() {
    const REFUSED: usize = 23;
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let (signal, begun) = std::sync::mpsc::channel::<()>();
    let slow = Slow {
        alone: std::sync::Mutex::default(),
        first: std::sync::Mutex::new(Some((signal, gate))),
    };
    let server = start_with("/metrics", Arc::new(slow)).await;
    let scrape = async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
            .await
            .unwrap();
        stream
    };
    let mut scrapes = vec![scrape().await];
    let wait = async {
        while begun.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap();
    // The scrape is held without end.
    let asked = tokio::time::timeout(LIMIT, server.get("/livez")).await;
    assert_eq!(asked.unwrap().0, 200);
    for _ in 0..30 {
        scrapes.push(scrape().await);
    }
    // Those beyond the queue are answered while the first one still waits.
    let mut answered: FuturesUnordered<_> = scrapes.iter().map(TcpStream::readable).collect();
    for _ in 0..REFUSED {
        let next = tokio::time::timeout(LIMIT, answered.next()).await;
        next.unwrap().unwrap().unwrap();
    }
    drop(answered);
    let (status, head, _) = server.request("GET", "/metrics", "*/*").await;
    assert_eq!(status, 503);
    assert!(head.contains("retry-after: "), "{head}");
    assert_eq!(server.get("/readyz").await.0, 503);
    release.send(()).unwrap();
    let mut answered = [0; 2];
    for mut stream in scrapes {
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(LIMIT, read).await.unwrap().unwrap();
        match &answer[..12] {
            "HTTP/1.1 200" => answered[0] += 1,
            "HTTP/1.1 503" => answered[1] += 1,
            _ => panic!("{answer}"),
        }
    }
    assert_eq!(answered, [8, REFUSED]);
    assert_eq!(server.request("GET", "/metrics", "*/*").await.0, 200);
}
