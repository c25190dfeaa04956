//! The seven calls that an attacher makes, each with a deadline around the whole exchange, a CLIENT span, a metric, and
//! an error that is free of the call's secrets.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Response, Status};

use super::call_error::{CallError, deadline_exceeded, unreadable};
use super::connection::DriverConnection;
use super::grpc_status::{GrpcStatus, GrpcStatusCell, GrpcStatusChannel};
use super::{convert, spans};
use crate::apiserver::SecretData;
use crate::decide::{self, PublishRequest, VolumeOnNode, plain, scrub};
use crate::error_chain::chain;
use crate::objects::StringMap;
use crate::telemetry::Span;
use crate::telemetry::metrics::{Metrics, SpanIds};
use crate::telemetry::names::attr;
use csi_attacher_proto::v1;
use csi_attacher_proto::v1::controller_client::ControllerClient;
use csi_attacher_proto::v1::identity_client::IdentityClient;

/// Longest driver text that is carried on; the API server takes a quarter of it.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Keys of a publish context that a span tells, and the length of each.
const MAX_TOLD_KEYS: usize = 32;
const MAX_TOLD_KEY_BYTES: usize = 128;
/// Largest answer that is read. What the calls here answer is small; a driver gone wild must not fill our memory.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// The same for what a driver says of itself: a name, a version, some dozens of capabilities and a manifest that is not read.
const MAX_IDENTITY_BYTES: usize = 64 << 10;

/// What `GetPluginInfo` answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// The driver's name.
    pub name: String,
    /// The driver's version.
    pub vendor_version: String,
}

/// What a driver can do: the bits that matter here, and all names for status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapabilityReport {
    /// The bits.
    pub bits: decide::Capabilities,
    /// Every controller capability by its name in the CSI spec, sorted.
    pub names: Vec<String>,
}

/// Calls one driver over one connection.
#[derive(Clone, Debug)]
pub struct CsiClient {
    connection: DriverConnection,
    metrics: Metrics,
    /// Label of the metrics; none until the driver told its name.
    driver: Option<Arc<str>>,
    /// Whether the calls are about volumes of an in-tree plug-in; a label of the metrics.
    migrated: bool,
    /// Calls made before the name was known, to be counted under it.
    unnamed: Arc<Mutex<Vec<CallMetric>>>,
}

/// A call for the metrics.
#[derive(Clone, Copy, Debug)]
struct CallMetric {
    method: &'static str,
    code: Code,
    elapsed: Duration,
    migrated: bool,
    ids: Option<SpanIds>,
}

/// A handshake makes four calls; what goes beyond is a driver that never tells its name.
const MAX_UNNAMED: usize = 16;

/// What surrounds a call.
pub(super) struct CallContext<'a> {
    pub method: &'static str,
    pub deadline: Duration,
    pub parent: &'a Span,
    pub secrets: Option<&'a SecretData>,
}

impl CallContext<'_> {
    /// A text of the driver as it may be told: without the secrets of the call, on one line, and not too long.
    fn told(&self, text: &str, limit: usize) -> String {
        let values = self.secrets.into_iter().flat_map(|secrets| secrets.expose().values());
        let scrubbed = scrub(text, values.map(String::as_str));
        decide::cut(&plain(&scrubbed), limit).to_owned()
    }
}

impl CsiClient {
    /// Calls over `connection` to a driver whose name is not known yet.
    pub fn new(connection: DriverConnection, metrics: Metrics) -> Self {
        Self {
            connection,
            metrics,
            driver: None,
            migrated: false,
            unnamed: Arc::default(),
        }
    }

    /// The same connection, counted for the name that the driver told, with the calls made so far.
    #[must_use]
    pub fn with_driver_name(&self, driver: Arc<str>) -> Self {
        for call in self.unnamed.lock().drain(..) {
            self.record(&driver, call);
        }
        let driver = Some(driver);
        Self { driver, ..self.clone() }
    }

    /// The same, with calls that are counted as being about volumes of an in-tree plug-in.
    #[must_use]
    pub fn migrated(&self) -> Self {
        Self {
            migrated: true,
            ..self.clone()
        }
    }

    /// The connection under the calls.
    pub fn connection(&self) -> &DriverConnection {
        &self.connection
    }

    fn identity(&self) -> IdentityClient<GrpcStatusChannel> {
        IdentityClient::new(GrpcStatusChannel(self.connection.channel())).max_decoding_message_size(MAX_IDENTITY_BYTES)
    }

    fn controller(&self) -> ControllerClient<GrpcStatusChannel> {
        ControllerClient::new(GrpcStatusChannel(self.connection.channel())).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// Probe: whether the driver is ready. An answer that does not say counts as ready (CSI spec, "Probe").
    pub async fn probe(&self, deadline: Duration, parent: &Span) -> Result<bool, CallError> {
        let frame = CallContext {
            method: "/csi.v1.Identity/Probe",
            deadline,
            parent,
            secrets: None,
        };
        let mut client = self.identity();
        let (_, answer) = self
            .call(
                &frame,
                v1::ProbeRequest {},
                |_| {},
                async move |request| client.probe(request).await,
            )
            .await?;
        Ok(answer.ready.unwrap_or(true))
    }

    /// GetPluginInfo.
    pub async fn plugin_info(&self, deadline: Duration, parent: &Span) -> Result<PluginInfo, CallError> {
        let frame = CallContext {
            method: "/csi.v1.Identity/GetPluginInfo",
            deadline,
            parent,
            secrets: None,
        };
        let mut client = self.identity();
        let request = v1::GetPluginInfoRequest {};
        let (_, answer) = self
            .call(
                &frame,
                request,
                |_| {},
                async move |request| client.get_plugin_info(request).await,
            )
            .await?;
        Ok(PluginInfo {
            name: answer.name,
            vendor_version: answer.vendor_version,
        })
    }

    /// GetPluginCapabilities and, for a driver with a controller service, ControllerGetCapabilities.
    pub async fn capabilities(&self, deadline: Duration, parent: &Span) -> Result<CapabilityReport, CallError> {
        let frame = CallContext {
            method: "/csi.v1.Identity/GetPluginCapabilities",
            deadline,
            parent,
            secrets: None,
        };
        let mut client = self.identity();
        let request = v1::GetPluginCapabilitiesRequest {};
        let call = async move |request| client.get_plugin_capabilities(request).await;
        let (_, answer) = self.call(&frame, request, |_| {}, call).await?;
        if !convert::has_controller_service(&answer) {
            return Ok(CapabilityReport::default());
        }
        let frame = CallContext {
            method: "/csi.v1.Controller/ControllerGetCapabilities",
            deadline,
            parent,
            secrets: None,
        };
        let mut client = self.controller().max_decoding_message_size(MAX_IDENTITY_BYTES);
        let request = v1::ControllerGetCapabilitiesRequest {};
        let call = async move |request| client.controller_get_capabilities(request).await;
        let (_, answer) = self.call(&frame, request, |_| {}, call).await?;
        Ok(convert::report(&answer))
    }

    /// ControllerPublishVolume; answers the publish context.
    pub async fn publish(
        &self,
        plan: &PublishRequest<'_>,
        secrets: Option<&SecretData>,
        deadline: Duration,
        parent: &Span,
    ) -> Result<StringMap, CallError> {
        let frame = CallContext {
            method: "/csi.v1.Controller/ControllerPublishVolume",
            deadline,
            parent,
            secrets,
        };
        let request = convert::publish(plan, exposed(secrets));
        let describe = |span: &mut Span| {
            span.set(attr::CSI_VOLUME_ID, plan.place.volume_id);
            span.set(attr::CSI_NODE_ID, plan.place.node_id);
            span.set(attr::READ_ONLY, plan.read_only);
            span.set(attr::ACCESS_MODE, convert::mode_name(plan.capability.mode));
            if let decide::VolumeAccessType::Mount { fs_type, .. } = plan.capability.access {
                span.set(attr::VOLUME_FS_TYPE, fs_type);
            }
        };
        let mut client = self.controller();
        let call = async move |request| client.controller_publish_volume(request).await;
        let (mut span, answer) = self.call(&frame, request, describe, call).await?;
        let context = StringMap::from(answer.publish_context);
        if span.is_recording() {
            let keys = context.iter().take(MAX_TOLD_KEYS);
            let keys: Vec<String> = keys.map(|(key, _)| frame.told(key, MAX_TOLD_KEY_BYTES)).collect();
            span.set(attr::PUBLISH_CONTEXT_KEYS, keys);
        }
        Ok(context)
    }

    /// ControllerUnpublishVolume.
    pub async fn unpublish(
        &self,
        place: VolumeOnNode<'_>,
        secrets: Option<&SecretData>,
        deadline: Duration,
        parent: &Span,
    ) -> Result<(), CallError> {
        let frame = CallContext {
            method: "/csi.v1.Controller/ControllerUnpublishVolume",
            deadline,
            parent,
            secrets,
        };
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: place.volume_id.to_owned(),
            node_id: place.node_id.to_owned(),
            secrets: exposed(secrets),
        };
        let describe = |span: &mut Span| {
            span.set(attr::CSI_VOLUME_ID, place.volume_id);
            span.set(attr::CSI_NODE_ID, place.node_id);
        };
        let mut client = self.controller();
        let call = async move |request| client.controller_unpublish_volume(request).await;
        self.call(&frame, request, describe, call).await.map(|_| ())
    }

    /// One exchange. The deadline goes to the driver as `grpc-timeout` and bounds everything here: waiting for the
    /// connection, the call and the whole answer. tonic's own timer covers less and reports CANCELLED.
    pub(super) async fn call<M, A>(
        &self,
        frame: &CallContext<'_>,
        message: M,
        describe: impl FnOnce(&mut Span),
        exchange: impl AsyncFnOnce(Request<M>) -> Result<Response<A>, Status>,
    ) -> Result<(Span, A), CallError> {
        let mut span = spans::start(frame, &self.connection, self.driver.as_deref());
        if span.is_recording() {
            describe(&mut span);
        }
        let mut request = Request::new(message);
        request.set_timeout(frame.deadline);
        span.inject_metadata(request.metadata_mut());
        let testimony = GrpcStatusCell::new();
        request.extensions_mut().insert(testimony.clone());
        let pending = self.connection.answer_counter().begin(frame.method);
        let started = Instant::now();
        let answer = match tokio::time::timeout(frame.deadline, exchange(request)).await {
            Ok(Ok(response)) if testimony.get() == GrpcStatus::Ok => Ok(response.into_inner()),
            Ok(Ok(_)) => Err(unreadable("it ended without a status")),
            Ok(Err(status)) => Err(self.error(&status, testimony.get(), frame, started.elapsed())),
            Err(_) => Err(deadline_exceeded(frame.deadline)),
        };
        let answered = matches!(testimony.get(), GrpcStatus::Ok | GrpcStatus::Error(_));
        pending.end(answered);
        self.count(CallMetric {
            method: frame.method,
            code: answer.as_ref().err().map_or(Code::Ok, |error| error.code),
            elapsed: started.elapsed(),
            migrated: self.migrated,
            ids: span.ids(),
        });
        spans::handshake_finished(&mut span, &self.connection, &answer);
        answer.map(|answer| (span, answer))
    }

    fn count(&self, call: CallMetric) {
        if let Some(driver) = &self.driver {
            self.record(driver, call);
            return;
        }
        let mut unnamed = self.unnamed.lock();
        if unnamed.len() < MAX_UNNAMED {
            unnamed.push(call);
        }
    }

    fn record(&self, driver: &str, call: CallMetric) {
        self.metrics
            .csi_call(driver, call.method, call.code, call.elapsed, call.migrated, call.ids);
    }

    /// The driver's answer in our words: the dial error instead of "transport error", and no secret.
    fn error(&self, status: &Status, said: GrpcStatus, frame: &CallContext<'_>, elapsed: Duration) -> CallError {
        // tonic's timer may win the race against ours, and says CANCELLED.
        if status.code() == Code::Cancelled && elapsed >= frame.deadline {
            return deadline_exceeded(frame.deadline);
        }
        let source = std::error::Error::source(status);
        if source.is_none() && matches!(said, GrpcStatus::NoStatus | GrpcStatus::Ok) {
            return unreadable(&frame.told(status.message(), MAX_MESSAGE_BYTES));
        }
        if source.is_some_and(was_not_sent) {
            self.connection.goaway_received();
        }
        let message = match (source, self.connection.dial_error()) {
            (Some(_), Some(error)) => error.to_string(),
            (Some(source), None) => chain(source),
            (None, _) => status.message().to_owned(),
        };
        let message = frame.told(&message, MAX_MESSAGE_BYTES);
        // As in Go's gRPC, which users know: what the driver did not say itself reads UNAVAILABLE. tonic would tell the cause
        // by several codes, some of which would mean that the driver refused the call.
        let transport = source.is_some() || said == GrpcStatus::Nothing;
        CallError {
            code: match said {
                GrpcStatus::Error(code) if !transport => code,
                _ => Code::Unavailable,
            },
            message,
            transport,
        }
    }
}

/// Whether a call was not even sent, as the connection takes no more.
fn was_not_sent(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut of_http = causes.filter_map(|error| error.downcast_ref::<hyper::Error>());
    of_http.any(|error| error.is_canceled() || error.is_closed())
}

fn exposed(secrets: Option<&SecretData>) -> BTreeMap<String, String> {
    secrets.map(|secrets| secrets.expose().clone()).unwrap_or_default()
}
