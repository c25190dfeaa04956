//! Requests against an HTTP server in this process: what is sent, and what is made of each answer.

mod limits;
mod truth;

use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, header};
use http_body_util::Full;
use k8s_openapi::ByteString;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

use crate::apiserver::connect::USER_AGENT;
use crate::apiserver::{
    ApiError, ApiErrorKind, CapacityWire, CsiDriver, CsiDriverWire, HeldSecret, Requests, Returned, SecretData,
    SecretWire, connect,
};
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use crate::objects::{CsiNodeWire, SecretReference};
use crate::trace_pipeline::pipeline;

use crate::telemetry::{Metrics, SHUTDOWN_CAP, Span, SpanKind, SpanOptions, TelemetryGuard, Tracer};
use csi_attacher_model::provision::CapacityManager;
use csi_attacher_testbed::api_answers::not_found;
use csi_attacher_testbed::otlp::{Attribute, OtlpReceiver};

const CANARY: &str = "canary-51c0";
const LIMIT: Duration = Duration::from_secs(20);

/// A request as it arrived.
struct Arrived {
    line: String,
    headers: HeaderMap,
    body: Bytes,
}

/// What is answered to the next request; nothing means silence.
type Script = Arc<Mutex<VecDeque<Option<Response>>>>;

struct Server {
    arrived: Arc<Mutex<Vec<Arrived>>>,
    script: Script,
    requests: Requests,
    metrics: Metrics,
}

impl Server {
    async fn start(deadline: Duration) -> Self {
        // Whoever is first installs it; all install the same.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let (arrived, script): (Arc<Mutex<Vec<Arrived>>>, Script) = Default::default();
        let (seen, answers) = (arrived.clone(), script.clone());
        let handler = move |request: Request| {
            let (seen, answers) = (seen.clone(), answers.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = to_bytes(body, usize::MAX).await.unwrap();
                seen.lock().push(Arrived {
                    line: format!("{} {}", parts.method, parts.uri),
                    headers: parts.headers,
                    body,
                });
                let answer = answers.lock().pop_front().flatten();
                match answer {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        tokio::spawn(axum::serve(listener, axum::Router::new().fallback(handler)).into_future());
        let config = kube::Config::new(format!("http://{host}").parse().unwrap());
        let metrics = Metrics::default();
        let url = &config.cluster_url;
        let requests = Requests::new(connect(&config).unwrap(), url, deadline, metrics.clone());
        Self {
            arrived,
            script,
            requests,
            metrics,
        }
    }

    async fn new() -> Self {
        Self::start(LIMIT).await
    }

    fn answer(&self, answer: Response) {
        self.script.lock().push_back(Some(answer));
    }

    async fn write(&self, target: WriteTarget, form: PatchType) -> Result<Returned, ApiError> {
        let body = json!({"sent": true});
        let write = Write { target, form, body };
        let quiet = Span::disabled();
        tokio::time::timeout(LIMIT, self.requests.write(&write, None, &quiet))
            .await
            .expect("in time")
    }

    async fn write_status(&self) -> Result<Returned, ApiError> {
        let status = WriteTarget::AttachmentStatus("a".into());
        self.write(status, PatchType::Merge).await
    }

    async fn read(&self, target: WriteTarget) -> Result<Returned, ApiError> {
        self.requests.read(&target, None, &Span::disabled()).await
    }

    async fn get_csi_driver(&self, name: &str) -> Result<CsiDriverWire, ApiError> {
        self.requests.get::<CsiDriverWire>(name, None, &Span::disabled()).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<SecretData, ApiError> {
        let reference = SecretReference {
            namespace: namespace.into(),
            name: name.into(),
        };
        let quiet = Span::disabled();
        let secret = self.requests.get::<SecretWire>(&reference, None, &quiet);
        secret.await?.try_into()
    }

    /// The Secret `ns/s`, as an attempt reads and holds it.
    async fn hold_secret(&self) -> Result<HeldSecret, ApiError> {
        let mut held = HeldSecret::default();
        let quiet = Span::disabled();
        held.read(&self.requests, secret_reference(), None, &quiet).await?;
        Ok(held)
    }

    fn lines(&self) -> Vec<String> {
        self.arrived.lock().iter().map(|arrived| arrived.line.clone()).collect()
    }
}

fn secret_reference() -> SecretReference {
    SecretReference {
        namespace: "ns".into(),
        name: "s".into(),
    }
}

fn attachment() -> Value {
    json!({
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "7"},
        "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv1"}},
        "status": {"attached": true},
    })
}

fn volume() -> Value {
    json!({"metadata": {"name": "pv1", "resourceVersion": "8"}, "spec": {"accessModes": ["ReadWriteOnce"]}})
}

fn ok(object: &Value) -> Response {
    axum::Json(object.clone()).into_response()
}

fn status(code: u16, message: &str) -> Response {
    let body = json!({"kind": "Status", "status": "Failure", "message": message, "code": code});
    (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response()
}

fn to_retry_after(when: &str, mut answer: Response) -> Response {
    answer.headers_mut().insert(header::RETRY_AFTER, when.parse().unwrap());
    answer
}

#[tokio::test]
async fn each_target_has_its_path_and_each_form_its_type() {
    let server = Server::new().await;
    let field = "fieldManager=csi-attacher-operator";
    let rows = [
        (
            WriteTarget::Volume("pv1".into()),
            PatchType::Json,
            "/api/v1/persistentvolumes/pv1",
            "application/json-patch+json",
        ),
        (
            WriteTarget::Attachment("a".into()),
            PatchType::Json,
            "/apis/storage.k8s.io/v1/volumeattachments/a",
            "application/json-patch+json",
        ),
        (
            WriteTarget::AttachmentStatus("a".into()),
            PatchType::Merge,
            "/apis/storage.k8s.io/v1/volumeattachments/a/status",
            "application/merge-patch+json",
        ),
    ];
    for (target, form, path, kind) in rows {
        let of_volume = matches!(target, WriteTarget::Volume(_));
        server.answer(ok(&if of_volume { volume() } else { attachment() }));
        let returned = server.write(target, form).await.unwrap();
        let arrived = server.arrived.lock().pop().unwrap();
        assert_eq!(arrived.line, format!("PATCH {path}?{field}"));
        assert_eq!(arrived.headers[header::CONTENT_TYPE], kind);
        assert_eq!(arrived.headers[header::USER_AGENT], USER_AGENT);
        assert_eq!(&arrived.body[..], br#"{"sent":true}"#);
        match returned {
            Returned::Volume(record) => assert_eq!((of_volume, record.resource_version.0), (true, 8)),
            Returned::Attachment(record) => {
                assert!(!of_volume && record.attached);
                assert_eq!(record.resource_version.0, 7);
            }
        }
    }
}

#[tokio::test]
async fn the_object_behind_a_target_is_read_whole() {
    let server = Server::new().await;
    server.answer(ok(&attachment()));
    server.answer(ok(&volume()));
    let attachment = server.read(WriteTarget::AttachmentStatus("a".into())).await;
    assert!(matches!(attachment, Ok(Returned::Attachment(_))));
    let volume = server.read(WriteTarget::Volume("pv1".into())).await;
    assert!(matches!(volume, Ok(Returned::Volume(_))));
    let lines = server.lines();
    assert_eq!(lines[0], "GET /apis/storage.k8s.io/v1/volumeattachments/a");
    assert_eq!(lines[1..], ["GET /api/v1/persistentvolumes/pv1"]);
}

#[tokio::test]
async fn each_refusal_has_its_kind_and_the_servers_words() {
    use ApiErrorKind::{Forbidden, Refused, Stale, Unavailable};
    let server = Server::new().await;
    let rows = [
        (400, Refused, false),
        (401, Forbidden, true),
        (403, Forbidden, false),
        (405, Refused, false),
        (409, Stale, false),
        (410, Refused, false),
        (415, Refused, false),
        (422, Stale, false),
        (429, Unavailable, true),
        (500, Unavailable, true),
        (503, Unavailable, true),
        (504, Unavailable, true),
    ];
    for (code, kind, transient) in rows {
        server.answer(status(code, "the words\nof the server"));
        let error = server.write_status().await.unwrap_err();
        assert_eq!((error.kind, error.status), (kind, Some(code)), "{code}");
        assert_eq!(error.is_transient(), transient, "{code}");
        assert_eq!(error.to_string(), "the words of the server", "on one line");
        assert_eq!(error.retry_after, None);
    }
    assert_eq!(server.lines().len(), rows.len(), "nothing is sent again here");
}

#[tokio::test]
async fn the_server_may_say_when_to_come_back() {
    let server = Server::new().await;
    for (value, wanted) in [("3", Some(3)), ("Wed, 21 Oct 2015 07:28:00 GMT", Some(0)), ("-1", None)] {
        server.answer(to_retry_after(value, status(429, "slow down")));
        let error = server.write_status().await.unwrap_err();
        assert_eq!(error.retry_after, wanted.map(Duration::from_secs), "{value}");
    }
}

/// It says so of one object, and must not hold up all others of the kind for minutes.
#[tokio::test]
async fn a_webhook_cannot_have_others_wait() {
    let server = Server::new().await;
    for code in [429, 503] {
        let words = "admission webhook \"w.example.com\" denied the request: come back later";
        server.answer(to_retry_after("300", status(code, words)));
        let error = server.write_status().await.unwrap_err();
        assert_eq!((error.status, error.is_transient()), (Some(code), true));
        assert_eq!(error.retry_after, None);
        server.answer(ok(&attachment()));
        server.write_status().await.unwrap();
    }
}

#[tokio::test]
async fn an_error_without_words_is_told_by_its_number() {
    let server = Server::new().await;
    for body in ["", "<html>", "{}", r#"{"message": ""}"#] {
        server.answer((StatusCode::BAD_GATEWAY, body).into_response());
        let error = server.write_status().await.unwrap_err();
        assert_eq!(error.to_string(), "the API server answered 502 Bad Gateway", "{body}");
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_not_quoted() {
    let server = Server::new().await;
    let bodies = [
        format!("{{\"data\": \"{CANARY}"),
        format!("{{\"data\": {{\"k\": \"{CANARY}, which is no base64\"}}}}"),
        format!("{{\"data\": [\"{CANARY}\"]}}"),
    ];
    for body in bodies {
        server.answer(body.into_response());
        let error = server.secret("ns", "name").await.unwrap_err();
        assert_eq!((error.kind, error.status), (ApiErrorKind::Malformed, Some(200)));
        let told = error.to_string();
        assert!(!told.contains(CANARY) && told.contains("line 1, column"), "{told}");
    }
    server.answer("not JSON".into_response());
    assert_eq!(server.write_status().await.unwrap_err().kind, ApiErrorKind::Malformed);
}

#[tokio::test]
async fn an_answer_without_measure_is_not_read() {
    let server = Server::new().await;
    server.answer(" ".repeat(9 << 20).into_response());
    let error = server.write_status().await.unwrap_err();
    assert_eq!((error.kind, error.status), (ApiErrorKind::Unknown, None), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for() {
    // Long enough for the request to arrive on a busy machine.
    let server = Server::start(Duration::from_secs(4)).await;
    let error = server.write_status().await.unwrap_err();
    assert_eq!((error.kind, error.status), (ApiErrorKind::Unknown, None));
    assert_eq!(error.to_string(), "no answer from the API server within 4 s");
    assert!(error.is_transient());
    // The request had arrived: it may have been carried out.
    assert_eq!(server.lines().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_unknown_end() {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    let requests = Requests::new(connect(&config).unwrap(), "x", LIMIT, Metrics::default());
    let (volume, quiet) = (WriteTarget::Volume("pv".into()), Span::disabled());
    let error = requests.read(&volume, None, &quiet).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Unknown);
    assert!(error.to_string().contains("onnection refused"), "{error}");
}

#[tokio::test]
async fn a_secret_is_read_live_and_as_text() {
    let server = Server::new().await;
    server.answer(ok(
        &json!({"metadata": {"name": "s"}, "data": {"user": "Ym9i"}, "type": "Opaque"}),
    ));
    let secret = server.secret("kube-system", "s").await.unwrap();
    assert_eq!(secret.expose()["user"], "bob");
    server.answer(ok(&json!({"metadata": {"name": "s"}})));
    assert!(server.secret("kube-system", "s").await.unwrap().expose().is_empty());
    assert_eq!(server.lines(), ["GET /api/v1/namespaces/kube-system/secrets/s"; 2]);
}

/// A key that the driver gets in another form is another key.
#[tokio::test]
async fn a_secret_that_is_no_text_is_refused() {
    let server = Server::new().await;
    // "hunter2", and bytes that are no text.
    server.answer(ok(
        &json!({"metadata": {"name": "s"}, "data": {"other": "aHVudGVyMg==", "passphrase": "/w=="}}),
    ));
    let error = server.secret("kube-system", "s").await.unwrap_err();
    let text = error.to_string();
    let words = "the value of one of its keys is not UTF-8 text";
    assert!(text.contains(words), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("passphrase"), "{text}");
}

/// What a tenant puts into a Secret takes a bounded amount of memory, and the refusal says which one it is.
#[tokio::test]
async fn a_secret_beyond_the_bounds_is_refused() {
    let server = Server::new().await;
    let secret = |keys: usize, bytes: usize| {
        let value = ByteString(vec![b'x'; bytes]);
        let entries = (0..keys).map(|key| (format!("key-{key}"), value.clone()));
        let data: BTreeMap<String, ByteString> = entries.collect();
        ok(&json!({"metadata": {"name": "s", "namespace": "ns"}, "data": data}))
    };
    // The largest that Kubernetes stores, of one value and of as many as are read.
    for (keys, bytes) in [(1, 1 << 20), (4096, 256)] {
        server.answer(secret(keys, bytes));
        let held = server.hold_secret().await.unwrap();
        let data = held.of(Some(&secret_reference())).unwrap();
        assert_eq!(data.expose().len(), keys);
    }
    for (keys, bytes) in [(4097, 0), (3, 1 << 20)] {
        server.answer(secret(keys, bytes));
        let error = server.hold_secret().await.unwrap_err().to_string();
        assert!(error.contains("Secret ns/s: it has more than 4096 keys"), "{error}");
        assert!(error.contains("keep in it what the driver reads"), "{error}");
    }
}

/// Thousands of claims may name one Secret, and each reads it.
#[tokio::test]
async fn a_secret_that_several_hold_is_kept_once() {
    let server = Server::new().await;
    let mut held = Vec::new();
    for value in ["Ym9i", "Ym9i", "ZXZl"] {
        server.answer(ok(&json!({"metadata": {"name": "s"}, "data": {"user": value}})));
        held.push(server.hold_secret().await.unwrap());
    }
    let reference = secret_reference();
    let data = held.iter().map(|held| held.of(Some(&reference)).unwrap());
    let [one, other, changed] = data.collect::<Vec<&SecretData>>().try_into().unwrap();
    assert!(std::ptr::eq(one.expose(), other.expose()));
    assert!(std::ptr::eq(one.values(), other.values()), "sorted once");
    assert_eq!((&*one.expose()["user"], &*changed.expose()["user"]), ("bob", "eve"));
}

/// A reference is free text of a volume, or of an annotation.
#[tokio::test]
async fn a_reference_leads_to_no_other_object_than_a_secret() {
    let server = Server::new().await;
    let rows = [
        ("", "s"),
        ("ns", ""),
        ("ns", "s/../../configmaps/c"),
        ("ns", "."),
        ("ns", ".."),
        ("..", "s"),
        ("ns/secrets/s?x=", "y"),
        ("ns", "%2e%2e"),
        ("ns", "s%2fc"),
    ];
    for (namespace, name) in rows {
        let error = server.secret(namespace, name).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Refused, "{namespace} {name}");
    }
    assert!(server.lines().is_empty(), "nothing is sent");
    let rows = [
        ("{:name}", "s", "%7B%3Aname%7D/secrets/s"),
        ("ns", "a b", "ns/secrets/a%20b"),
        ("ns", "s?fieldManager=x", "ns/secrets/s%3FfieldManager%3Dx"),
        ("ns#", "s#", "ns%23/secrets/s%23"),
        ("ns", "..\\s;\n", "ns/secrets/..%5Cs%3B%0A"),
        ("ns", "\u{e9}", "ns/secrets/%C3%A9"),
        ("ns", "S-1.a_b~", "ns/secrets/S-1.a_b~"),
    ];
    for (namespace, name, path) in rows {
        server.answer(ok(&json!({ "metadata": { "name": name, "namespace": namespace } })));
        server.secret(namespace, name).await.unwrap();
        assert_eq!(server.lines().pop(), Some(format!("GET /api/v1/namespaces/{path}")));
    }
}

/// CSI and Kubernetes allow capitals in the name of a driver.
#[tokio::test]
async fn a_csi_driver_of_any_case_is_read() {
    let server = Server::new().await;
    let name = "Disk.CSI.example.com";
    let object = json!({ "metadata": { "name": name, "uid": "u" }, "spec": { "attachRequired": false } });
    server.answer(ok(&object));
    let driver = server.get_csi_driver(name).await.unwrap();
    assert!(!driver.is_scheduled_by_capacity());
    assert!(!CsiDriver::from(driver).attach_required);
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{name}");
    server.answer((StatusCode::NOT_FOUND, axum::Json(not_found(&path))).into_response());
    let driver = server.get_csi_driver(name).await;
    assert_eq!(driver.err().unwrap().kind, ApiErrorKind::NotFound);
    assert_eq!(server.lines(), [format!("GET {path}"), format!("GET {path}")]);
}

/// Not as a page of a watcher, which would be of another size, and of the whole objects.
#[tokio::test]
async fn a_list_of_metadata_is_sent_as_it_is() {
    let server = Server::new().await;
    let object = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {
            "name": "csisc-1", "namespace": "storage", "creationTimestamp": "no time",
            "labels": {
                "csi.storage.k8s.io/drivername": "d", "other": "label",
                "csi.storage.k8s.io/managed-by": "external-provisioner-n1",
            },
        },
    });
    let list = |items: Value| ok(&json!({ "kind": "PartialObjectMetadataList", "items": items }));
    let ask = async || server.requests.list_metadata::<CapacityWire>("a/b=d,c!=e", 500).await;
    server.answer(list(json!([object, {}])));
    let found = ask().await.unwrap();
    let found: Vec<CapacityManager> = found.into_iter().map(CapacityManager::from).collect();
    let first = CapacityManager {
        namespace: "storage".into(),
        name: "csisc-1".into(),
        driver: "d".into(),
        managed_by: "external-provisioner-n1".into(),
    };
    assert_eq!((found.len(), found.first()), (2, Some(&first)));
    let unserved = (StatusCode::NOT_FOUND, "404 page not found").into_response();
    let other = |kind: &str| ok(&json!({ "kind": kind, "items": [] }));
    for (answer, expected) in [
        (list(json!([])), None),
        (list(Value::Null), None),
        (unserved, Some(ApiErrorKind::NotFound)),
        (status(403, "no"), Some(ApiErrorKind::Forbidden)),
        (status(503, "no"), Some(ApiErrorKind::Unavailable)),
        (other("Status"), Some(ApiErrorKind::Malformed)),
        (other("CSINodeList"), Some(ApiErrorKind::Malformed)),
        (ok(&json!({ "items": [] })), Some(ApiErrorKind::Malformed)),
    ] {
        server.answer(answer);
        assert_eq!(ask().await.err().map(|error| error.kind), expected);
    }
    let arrived = server.arrived.lock();
    let path = "/apis/storage.k8s.io/v1/csistoragecapacities?labelSelector=a%2Fb%3Dd%2Cc%21%3De&limit=500";
    for request in arrived.iter() {
        assert_eq!(request.line, format!("GET {path}"));
        let accepted = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(request.headers[header::ACCEPT], accepted);
    }
}

#[tokio::test]
async fn a_request_is_traced_and_counted() {
    let server = Server::new().await;
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
        ("OTEL_TRACES_EXPORTER", "otlp"),
    ];
    let (tracer, _guard) = pipeline(&environment);
    let span = tracer.open(SpanOptions::new("attempt", SpanKind::Internal));
    server.answer(status(409, "conflict"));
    let target = WriteTarget::Attachment("a".into());
    server.requests.read(&target, None, &span).await.unwrap_err();
    let arrived = server.arrived.lock().pop().unwrap();
    let parent = arrived.headers["traceparent"].to_str().unwrap().to_owned();
    let of_span = format!("00-{}-", span.trace_id().unwrap());
    assert!(parent.starts_with(&of_span), "{parent}");
    let text = server.metrics.encode_prometheus();
    let counted = |line: &str| line.starts_with("rest_client_requests_total{") && line.contains("code=\"409\"");
    assert!(text.lines().any(counted), "{text}");
}

/// A tracer, and who receives all that it tells.
async fn traced() -> (OtlpReceiver, Tracer, TelemetryGuard) {
    let receiver = OtlpReceiver::http().await;
    let (tracer, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
    ]);
    (receiver, tracer, guard)
}

/// Also where the API server asked to wait.
#[tokio::test]
async fn how_long_a_request_waited_is_on_its_span() {
    let (receiver, tracer, guard) = traced().await;
    let server = Server::new().await;
    server.answer(to_retry_after("0", status(429, "slow down")));
    server.answer(ok(&attachment()));
    let span = tracer.open(SpanOptions::new("attempt", SpanKind::Internal));
    let target = WriteTarget::Attachment("a".into());
    server.requests.read(&target, None, &span).await.unwrap_err();
    server.requests.read(&target, None, &span).await.unwrap();
    drop(span);
    assert_eq!(guard.shutdown(SHUTDOWN_CAP).await, 0);
    let spans = receiver.spans();
    let mut of_requests = spans.iter().filter(|span| span.name.starts_with("GET "));
    let answered = of_requests.find(|span| !span.failed).unwrap();
    let Some(Attribute::F64(waited)) = answered.attributes.get("attacher.k8s.limit_wait") else {
        panic!("{answered:#?}")
    };
    // "At once" is a tenth of a second.
    assert!(*waited > 0.05, "{waited}");
    let url = answered.text("url.full");
    assert!(
        url.starts_with("http://127.0.0.1:") && url.ends_with("/volumeattachments/a"),
        "{url}"
    );
}

/// As when a replica ends in the middle of it: nobody knows whether the API server carries it out.
#[tokio::test]
async fn a_request_that_is_cut_off_is_a_failed_span() {
    let (receiver, tracer, guard) = traced().await;
    let arrived = Arc::new(Notify::new());
    let seen = arrived.clone();
    let silent = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        seen.notify_one();
        std::future::pending::<std::io::Result<http::Response<Full<Bytes>>>>()
    });
    let requests = Requests::new(Client::new(silent, "default"), "none", LIMIT, Metrics::default());
    let span = tracer.open(SpanOptions::new("attempt", SpanKind::Internal));
    let target = WriteTarget::Attachment("a".into());
    tokio::select! {
        ended = requests.read(&target, None, &span) => panic!("{ended:?}"),
        () = arrived.notified() => {}
    }
    drop(span);
    assert_eq!(guard.shutdown(SHUTDOWN_CAP).await, 0);
    let spans = receiver.spans();
    let request = spans.iter().find(|span| span.name.starts_with("GET ")).unwrap();
    let is_cut_off = request.failed && request.status_message.contains("cut off");
    assert!(is_cut_off, "{request:#?}");
}
