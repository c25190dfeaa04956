//! An OTLP receiver inside the test process, over gRPC or HTTP, and some that never take anything.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use futures::Stream;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span, span::SpanKind, status::StatusCode as SpanStatus};
use prost::Message;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::codec::CompressionEncoding;
use tonic::transport::{Identity, Server, ServerTlsConfig};

/// One span as it arrived, in plain types.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedSpan {
    pub name: String,
    pub kind: SpanKind,
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// 16 hexadecimal digits; `None` for a root span.
    pub parent_span_id: Option<String>,
    /// Attributes by key; a key that arrived twice fails the test.
    pub attributes: BTreeMap<String, Attribute>,
    /// Names and attributes of the events, in order.
    pub events: Vec<(String, BTreeMap<String, Attribute>)>,
    /// Trace and span id of what it is linked to, in order.
    pub links: Vec<(String, String)>,
    /// Whether the status is Error.
    pub failed: bool,
    pub status_message: String,
    pub start_unix_nano: u64,
    pub end_unix_nano: u64,
    /// Attributes of the resource.
    pub resource: BTreeMap<String, Attribute>,
    /// Name of the instrumentation scope.
    pub scope: String,
}

/// Attribute value in plain types.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Str(String),
    I64(i64),
    F64(f64),
    Bool(bool),
    StrArray(Vec<String>),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl ReceivedSpan {
    /// The text of a string attribute; fails the test when it is missing or of another type.
    pub fn text(&self, key: &str) -> &str {
        match self.attributes.get(key) {
            Some(Attribute::Str(text)) => text,
            other => panic!("attribute {key} of {} is {other:?}", self.name),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Received {
    spans: Vec<ReceivedSpan>,
    /// Headers or metadata of each request.
    requests: Vec<HeaderMap>,
}

type Sender = watch::Sender<Received>;

/// A running receiver; stops when dropped.
pub struct OtlpReceiver {
    address: SocketAddr,
    received: watch::Receiver<Received>,
    _task: AbortOnDropHandle<()>,
}

impl OtlpReceiver {
    /// Serves in a task of its own what this makes of a listener and of where it tells what it receives.
    async fn serving<F: Future<Output = ()> + Send + 'static>(serve: impl FnOnce(TcpListener, Sender) -> F) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = watch::channel(Received::default());
        let task = tokio::spawn(serve(listener, sender));
        Self {
            address,
            received,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Receives OTLP over gRPC.
    pub async fn grpc() -> Self {
        Self::serving(|listener, sender| serve_grpc(Server::builder(), TcpListenerStream::new(listener), sender)).await
    }

    /// Receives OTLP over gRPC and TLS.
    pub async fn grpc_over_tls(certificate: &str, key: &str) -> Self {
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
        let server = Server::builder().tls_config(tls).unwrap();
        Self::serving(|listener, sender| serve_grpc(server, TcpListenerStream::new(listener), sender)).await
    }

    /// Receives OTLP over gRPC once the gate is opened; until then it accepts connections, reads nothing and never answers.
    pub async fn gated() -> (Self, watch::Sender<bool>) {
        let (gate, open) = watch::channel(false);
        let serve = |listener: TcpListener, sender: Sender| {
            let begin = (listener, open, Vec::new(), sender.clone());
            let incoming = futures::stream::unfold(begin, |(listener, mut open, mut held, told)| async move {
                loop {
                    let stream = tokio::select! {
                        accepted = listener.accept() => accepted.unwrap().0,
                        // Whoever waits for an answer comes again when the connection is gone.
                        Ok(()) = open.changed() => { held.clear(); continue }
                    };
                    if *open.borrow() {
                        return Some((Ok::<_, std::io::Error>(stream), (listener, open, held, told)));
                    }
                    told.send_modify(|received| received.requests.push(HeaderMap::new()));
                    held.push(stream);
                }
            });
            serve_grpc(Server::builder(), incoming, sender)
        };
        (Self::serving(serve).await, gate)
    }

    /// Receives OTLP as protobuf or JSON over HTTP at `/v1/traces`.
    pub async fn http() -> Self {
        Self::serving(|listener, sender| async move {
            let router = axum::Router::new().route("/v1/traces", axum::routing::post(receive_http));
            axum::serve(listener, router.with_state(sender)).await.unwrap();
        })
        .await
    }

    /// Accepts connections, reads what comes and never answers.
    pub async fn silent() -> Self {
        Self::serving(|listener, sender| async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                sender.send_modify(|received| received.requests.push(HeaderMap::new()));
                connections.spawn(async move {
                    let mut sink = vec![0; 65536];
                    while stream.read(&mut sink).await.is_ok_and(|read| read > 0) {}
                });
            }
        })
        .await
    }

    /// The endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// All spans received so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.received.borrow().spans.clone()
    }

    /// Headers or metadata of the requests received so far.
    pub fn requests(&self) -> Vec<HeaderMap> {
        self.received.borrow().requests.clone()
    }

    /// Waits until `enough` of the spans received so far; fails the test after `limit`.
    pub async fn wait_until(&self, limit: Duration, enough: impl Fn(&[ReceivedSpan]) -> bool) -> Vec<ReceivedSpan> {
        let spans = self.wait_for_spans(limit, &enough).await;
        assert!(enough(&spans), "only these spans arrived: {spans:#?}");
        spans
    }

    /// Waits until `enough` of the spans received so far, for `limit` at most, and returns what arrived.
    pub async fn wait_for_spans(&self, limit: Duration, enough: impl Fn(&[ReceivedSpan]) -> bool) -> Vec<ReceivedSpan> {
        let mut received = self.received.clone();
        let wait = received.wait_for(|received| enough(&received.spans));
        let found = tokio::time::timeout(limit, wait).await;
        found.map_or_else(|_| self.spans(), |received| received.unwrap().spans.clone())
    }

    /// Waits until a connection (silent receiver) or a request came in.
    pub async fn wait_for_request(&self, limit: Duration) {
        let mut received = self.received.clone();
        let wait = received.wait_for(|received| !received.requests.is_empty());
        tokio::time::timeout(limit, wait).await.unwrap().unwrap();
    }
}

async fn serve_grpc(
    mut server: Server,
    incoming: impl Stream<Item = std::io::Result<TcpStream>> + Send + 'static,
    sender: Sender,
) {
    let service = TraceServiceServer::new(GrpcSink(sender)).accept_compressed(CompressionEncoding::Gzip);
    server.add_service(service).serve_with_incoming(incoming).await.unwrap();
}

fn store(sender: &Sender, headers: HeaderMap, request: ExportTraceServiceRequest) {
    let spans: Vec<_> = request.resource_spans.into_iter().flat_map(plain).collect();
    sender.send_modify(|received| {
        received.requests.push(headers);
        received.spans.extend(spans);
    });
}

struct GrpcSink(Sender);

#[tonic::async_trait]
impl TraceService for GrpcSink {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let (metadata, _, request) = request.into_parts();
        store(&self.0, metadata.into_headers(), request);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn receive_http(State(sender): State<Sender>, headers: HeaderMap, body: Bytes) -> (StatusCode, Vec<u8>) {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|header| header == value);
    let mut plain = body.to_vec();
    if is("content-encoding", "gzip") {
        plain.clear();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
    }
    let (request, answer) = if is("content-type", "application/json") {
        (serde_json::from_slice(&plain).ok(), b"{}".to_vec())
    } else if is("content-type", "application/x-protobuf") {
        let answer = ExportTraceServiceResponse::default().encode_to_vec();
        (ExportTraceServiceRequest::decode(plain.as_slice()).ok(), answer)
    } else {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, Vec::new());
    };
    let Some(request) = request else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    store(&sender, headers, request);
    (StatusCode::OK, answer)
}

fn plain(group: ResourceSpans) -> Vec<ReceivedSpan> {
    let resource = attributes(group.resource.map(|resource| resource.attributes).unwrap_or_default());
    let scoped = group.scope_spans.into_iter().flat_map(|scoped| {
        let scope = scoped.scope.map(|scope| scope.name).unwrap_or_default();
        scoped.spans.into_iter().map(move |span| (scope.clone(), span))
    });
    scoped
        .map(|(scope, span)| plain_span(span, scope, resource.clone()))
        .collect()
}

fn plain_span(span: Span, scope: String, resource: BTreeMap<String, Attribute>) -> ReceivedSpan {
    let kind = span.kind();
    let status = span.status.unwrap_or_default();
    let events = span.events.into_iter();
    let events = events.map(|event| (event.name, attributes(event.attributes)));
    let links = span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id)));
    ReceivedSpan {
        kind,
        name: span.name,
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent_span_id: (!span.parent_span_id.is_empty()).then(|| hex(&span.parent_span_id)),
        attributes: attributes(span.attributes),
        events: events.collect(),
        links: links.collect(),
        failed: status.code() == SpanStatus::Error,
        status_message: status.message,
        start_unix_nano: span.start_time_unix_nano,
        end_unix_nano: span.end_time_unix_nano,
        resource,
        scope,
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, Attribute> {
    let mut attributes = BTreeMap::new();
    for pair in pairs {
        let before = attributes.insert(pair.key.clone(), plain_value(pair.value));
        assert!(before.is_none(), "attribute {} arrived twice", pair.key);
    }
    attributes
}

fn plain_value(value: Option<AnyValue>) -> Attribute {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => Attribute::Str(text),
        Some(Value::IntValue(number)) => Attribute::I64(number),
        Some(Value::DoubleValue(number)) => Attribute::F64(number),
        Some(Value::BoolValue(truth)) => Attribute::Bool(truth),
        Some(Value::ArrayValue(array)) => {
            let texts = array.values.into_iter().map(|value| match value.value {
                Some(Value::StringValue(text)) => text,
                other => panic!("array element {other:?} is not text"),
            });
            Attribute::StrArray(texts.collect())
        }
        other => panic!("attribute value {other:?} is of a type this program does not send"),
    }
}
