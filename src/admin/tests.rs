use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

struct Server {
    address: SocketAddr,
    health: Health,
    shutdown: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

async fn start(metrics_path: &str) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let health = Health::new();
    let shutdown = CancellationToken::new();
    let state = AdminState {
        metrics: Metrics::default(),
        health: health.clone(),
        metrics_path: Some(metrics_path.to_owned()).filter(|path| !path.is_empty()),
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

    driver.clone().remove();
    driver.set_failing("a late handle must not bring it back");
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
    assert!(server.health.is_ready());
    watch.set_ready(false);
    assert_eq!(server.get("/readyz").await.0, 503);
}

#[tokio::test]
async fn liveness_runs_its_checks_and_ignores_readiness() {
    let server = start("/metrics").await;
    server.health.check("never").set_failing("still starting");
    for path in ["/livez", "/healthz"] {
        assert_eq!(server.get(path).await, (200, "ok\n".to_owned()));
    }
    server
        .health
        .live_check("lease", || Err("not renewed for 40 s".to_owned()));
    for path in ["/livez", "/healthz"] {
        let (status, body) = server.get(path).await;
        assert_eq!(status, 503);
        assert!(body.starts_with("[-]lease failed: not renewed for 40 s\n"), "{body}");
    }
    server.health.live_check("lease", || Ok(()));
    assert_eq!(
        server.get("/livez?verbose").await,
        (200, "[+]lease ok\nlivez check passed\n".to_owned())
    );
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
    tokio::time::timeout(LIMIT, server.task)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn metrics_that_are_served_elsewhere_are_not_served_here() {
    let server = start("").await;
    for path in ["/metrics", "/", "//"] {
        assert_eq!(server.get(path).await.0, 404, "{path}");
    }
    assert_eq!(server.get("/livez").await.0, 200);
}
