//! How a call is made: with a deadline around the whole exchange, a CLIENT span, a metric, and an error that is free of the call's secrets.

use futures::FutureExt as _;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::client::Grpc;
use tonic::{Code, ConnectError, Request, Status};

use super::call::Call;
use super::call_error::{CallError, MAX_MESSAGE_BYTES, presentable};
use super::codec::BoundedCodec;
use super::connection::DriverConnection;
use super::grpc_status::{GrpcStatus, GrpcStatusCell};
use crate::apiserver::{SecretData, is_unprocessed};
use crate::error_chain::{causes, chain};
use crate::telemetry::metrics::{Metrics, SpanIds};
use crate::telemetry::names::{self, attr};
use crate::telemetry::{Span, SpanKind};

/// Calls that are kept until the driver's name is known: the last ones. A handshake makes four; more are of a driver that is away, or
/// never sends its name.
const MAX_UNNAMED: usize = 16;

/// Calls made before the name of the driver was known, to be counted under it. Clones are one list, of the last [`MAX_UNNAMED`] calls.
#[derive(Clone, Debug, Default)]
pub struct UnnamedCalls(Arc<Mutex<VecDeque<CallMetric>>>);

/// Calls one driver over one connection.
#[derive(Clone, Debug)]
pub struct CsiClient {
    connection: DriverConnection,
    metrics: Metrics,
    /// Label of the metrics; none until the driver has sent its name.
    driver: Option<Arc<str>>,
    /// Whether the calls are about volumes of an in-tree plug-in; a label of the metrics.
    migrated: bool,
    unnamed: UnnamedCalls,
}

#[derive(Clone, Copy, Debug)]
struct CallMetric {
    path: &'static str,
    code: Code,
    elapsed: Duration,
    migrated: bool,
    ids: Option<SpanIds>,
}

impl CsiClient {
    /// Calls over `connection` to a driver whose name is not known yet.
    pub fn new(connection: DriverConnection, metrics: Metrics) -> Self {
        Self {
            connection,
            metrics,
            driver: None,
            migrated: false,
            unnamed: UnnamedCalls::default(),
        }
    }

    /// The same connection; calls are kept in this list until the name is known, beside those that were made over others.
    #[must_use]
    pub fn keeping(self, unnamed: UnnamedCalls) -> Self {
        Self { unnamed, ..self }
    }

    /// The same connection; calls are counted under this name, those made so far included.
    #[must_use]
    pub fn with_driver_name(&self, driver: Arc<str>) -> Self {
        for call in self.unnamed.0.lock().drain(..) {
            self.record(&driver, call);
        }
        let driver = Some(driver);
        Self { driver, ..self.clone() }
    }

    /// The same connection; calls are counted as being about volumes of an in-tree plug-in.
    #[must_use]
    pub fn migrated(&self) -> Self {
        Self {
            migrated: true,
            ..self.clone()
        }
    }

    /// The connection that all calls of this client use.
    pub fn connection(&self) -> &DriverConnection {
        &self.connection
    }

    /// Makes a call, which begins with the first poll. A call whose future is dropped may still be carried out.
    ///
    /// The deadline goes to the driver as `grpc-timeout` and bounds everything here: waiting for the connection, the call and the whole
    /// answer. tonic's own timer covers less and reports CANCELLED.
    pub async fn call<C: Call>(&self, call: &C, deadline: Duration, parent: &Span) -> Result<C::Answer, CallError> {
        let mut open = OpenCall {
            client: self,
            path: C::PATH,
            span: self.start_span(call, deadline, parent),
            started: Instant::now(),
            has_ended: false,
        };
        let mut request = Request::new(call.request());
        request.set_timeout(deadline);
        open.span.inject(request.metadata_mut().as_mut());
        let status = GrpcStatusCell::default();
        request.extensions_mut().insert(status.clone());
        let mut client = Grpc::new(self.connection.service.clone()).max_decoding_message_size(C::MAX_ANSWER_BYTES);
        let codec = BoundedCodec::of::<C>();
        let pending = self.connection.answers.begin(C::PATH);
        let exchange = client.unary(request, PathAndQuery::from_static(C::PATH), codec);
        // The libraries below may panic about what a driver answers. Its volumes are not to wait for a restart then.
        let exchange = AssertUnwindSafe(exchange).catch_unwind();
        let response = match tokio::time::timeout(deadline, exchange).await {
            Ok(Ok(Ok(response))) if status.get() == GrpcStatus::Ok => Ok(response.into_inner()),
            Ok(Ok(Ok(_))) => Err(CallError::unreadable("it ended without a status that counts")),
            // tonic's timer may win the race against ours.
            Ok(Ok(Err(error))) if error.code() == Code::Cancelled && open.started.elapsed() >= deadline => {
                Err(CallError::deadline_exceeded(deadline))
            }
            Ok(Ok(Err(error))) => Err(self.error(&error, status.get(), call.secrets())),
            Ok(Err(_)) => Err(CallError::unreadable("the gRPC library panicked about it")),
            Err(_) => Err(CallError::deadline_exceeded(deadline)),
        };
        pending.end(matches!(status.get(), GrpcStatus::Ok | GrpcStatus::Error(_)));
        open.end(response.as_ref().err());
        response.map(|response| call.answer(response, &mut open.span))
    }

    fn start_span<C: Call>(&self, call: &C, deadline: Duration, parent: &Span) -> Span {
        let method = names::csi_method(C::PATH);
        let mut span = parent.child(method.to_owned(), SpanKind::Client);
        if !span.is_recording() {
            return span;
        }
        span.set(attr::RPC_SYSTEM_NAME, names::RPC_SYSTEM_GRPC);
        span.set(attr::RPC_METHOD, method);
        let server = self.connection.server();
        span.set(attr::SERVER_ADDRESS, &*server.address);
        if let Some(port) = server.port {
            span.set(attr::SERVER_PORT, i64::from(port));
        }
        span.set(attr::TIMEOUT, deadline);
        if let Some(driver) = self.driver.as_deref() {
            span.set(attr::CSI_PLUGIN_NAME, driver);
        }
        if let Some(secrets) = call.secrets() {
            span.set(attr::SECRETS_COUNT, secrets.expose().len());
        }
        call.describe(&mut span);
        span
    }

    fn describe_end(&self, span: &mut Span, code: Code, error: Option<&CallError>) {
        if !span.is_recording() {
            return;
        }
        let text = names::code_upper_snake(code);
        span.set(attr::RPC_RESPONSE_STATUS_CODE, text);
        // The call may have been the one that connected.
        if let Some(peer) = self.connection.peer() {
            span.set(attr::NETWORK_PEER_ADDRESS, &*peer.address);
            if let Some(port) = peer.port {
                span.set(attr::NETWORK_PEER_PORT, i64::from(port));
            }
        }
        if let Some(error) = error {
            span.fail(text, &error.message);
        }
    }

    fn count(&self, call: CallMetric) {
        if let Some(driver) = &self.driver {
            self.record(driver, call);
            return;
        }
        let mut unnamed = self.unnamed.0.lock();
        if unnamed.len() == MAX_UNNAMED {
            unnamed.pop_front();
        }
        unnamed.push_back(call);
    }

    fn record(&self, driver: &str, call: CallMetric) {
        self.metrics
            .csi_call(driver, call.path, call.code, call.elapsed, call.migrated, call.ids);
    }

    /// The error of a call: with the reason of a failed dial instead of "transport error", and without secrets or the address, as tenants
    /// read it on their pods. `sent` is what the
    /// driver itself sent.
    fn error(&self, status: &Status, sent: GrpcStatus, secrets: Option<&SecretData>) -> CallError {
        let source = std::error::Error::source(status);
        if source.is_none() && matches!(sent, GrpcStatus::NoStatus | GrpcStatus::Ok) {
            return CallError::unreadable(&presentable(status.message(), secrets, MAX_MESSAGE_BYTES));
        }
        if source.is_some_and(takes_no_more) {
            self.connection.goaway_received();
        }
        let message = match (source, self.connection.dial_error()) {
            (Some(_), Some(error)) => error.fault.without_address(),
            (Some(source), None) => chain(source),
            (None, _) => status.message().to_owned(),
        };
        // As in Go's gRPC, which users know: what the driver did not send itself reads UNAVAILABLE. tonic would show the cause
        // by several codes, some of which would mean that the driver refused the call.
        let transport = source.is_some() || sent == GrpcStatus::Nothing;
        CallError {
            code: match sent {
                GrpcStatus::Error(code) if !transport => code,
                _ => Code::Unavailable,
            },
            message: presentable(&message, secrets, MAX_MESSAGE_BYTES),
            transport,
            unsent: sent == GrpcStatus::Nothing && source.is_some_and(was_not_sent),
        }
    }
}

/// A call from its first poll on. Whoever drops it cuts it off, and is told so as the end of its span and in the metrics.
struct OpenCall<'c> {
    client: &'c CsiClient,
    path: &'static str,
    span: Span,
    started: Instant,
    has_ended: bool,
}

impl OpenCall<'_> {
    fn end(&mut self, error: Option<&CallError>) {
        self.has_ended = true;
        let code = error.map_or(Code::Ok, |error| error.code);
        self.client.count(CallMetric {
            path: self.path,
            code,
            elapsed: self.started.elapsed(),
            migrated: self.client.migrated,
            ids: self.span.ids(),
        });
        self.client.describe_end(&mut self.span, code, error);
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Some(&CallError::cut_off()));
        }
    }
}

/// Whether a call was not sent because its connection takes no more.
fn takes_no_more(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut of_http = causes(error).filter_map(|error| error.downcast_ref::<hyper::Error>());
    of_http.any(|error| error.is_canceled() || error.is_closed())
}

/// Whether no driver can have begun with a call: there was no connection for it, the connection took it no more, or the
/// server says that it has not processed it, as in the transparent retries of gRPC (gRFC A6).
fn was_not_sent(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_undialled = || causes(error).any(<dyn std::error::Error>::is::<ConnectError>);
    takes_no_more(error) || is_unprocessed(error) || is_undialled()
}
