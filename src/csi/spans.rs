//! The CLIENT spans of calls to a driver, by the RPC conventions that `OTEL_SEMCONV_STABILITY_OPT_IN` asks for.

use tonic::Code;

use super::call_error::CallError;
use super::client::Frame;
use super::connection::Connection;
use crate::telemetry::names::{self, attr, event};
use crate::telemetry::otel_env::ExceptionSignal;
use crate::telemetry::{Span, SpanKind};

/// The span of a call that is about to be made to `driver`, if its name is known.
pub(super) fn begun(frame: &Frame<'_>, connection: &Connection, driver: Option<&str>) -> Span {
    let method = names::csi_method(frame.method);
    let mut span = frame.parent.child(method.to_owned(), SpanKind::Client);
    if !span.is_recording() {
        return span;
    }
    name(&mut span, method, connection);
    let server = connection.server();
    span.set(attr::SERVER_ADDRESS, &*server.address);
    if let Some(port) = server.port {
        span.set(attr::SERVER_PORT, i64::from(port));
    }
    span.set(attr::TIMEOUT, frame.deadline);
    if let Some(driver) = driver {
        span.set(attr::CSI_PLUGIN_NAME, driver);
    }
    if let Some(secrets) = frame.secrets {
        span.set(attr::SECRETS_COUNT, secrets.expose().len());
    }
    span
}

/// The attributes by which the conventions differ, as far as they are known at the start.
fn name(span: &mut Span, method: &str, connection: &Connection) {
    let rpc = span.conventions().rpc;
    if rpc.is_old() {
        let (service, short) = method.rsplit_once('/').unwrap_or(("", method));
        span.set(attr::RPC_SYSTEM, names::RPC_SYSTEM_GRPC);
        span.set(attr::RPC_SERVICE, service);
        span.set(attr::RPC_METHOD, short);
        let transport = if connection.server().port.is_some() {
            "tcp"
        } else {
            "unix"
        };
        span.set(attr::NETWORK_TRANSPORT, transport);
    }
    if rpc.is_new() {
        span.set(attr::RPC_SYSTEM_NAME, names::RPC_SYSTEM_GRPC);
        span.set(attr::RPC_METHOD, method);
    }
}

/// What is known once the call is over.
pub(super) fn answered<A>(span: &mut Span, connection: &Connection, answer: &Result<A, CallError>) {
    if !span.is_recording() {
        return;
    }
    let code = answer.as_ref().err().map_or(Code::Ok, |error| error.code);
    let text = names::code_upper_snake(code);
    let conventions = span.conventions();
    if conventions.rpc.is_new() {
        for key in names::RPC_STATUS_KEYS {
            span.set(key, text);
        }
    }
    if conventions.rpc.is_old() {
        span.set(attr::RPC_GRPC_STATUS_CODE, i64::from(i32::from(code)));
    }
    // The call may have been the one that connected.
    if let Some(peer) = connection.peer() {
        span.set(attr::NETWORK_PEER_ADDRESS, &*peer.address);
        if let Some(port) = peer.port {
            span.set(attr::NETWORK_PEER_PORT, i64::from(port));
        }
    }
    if let Err(error) = answer {
        if conventions.exceptions == ExceptionSignal::LogsAndSpans {
            let message = error.message.as_str();
            span.event(
                event::EXCEPTION,
                &[
                    (attr::EXCEPTION_TYPE, text.into()),
                    (attr::EXCEPTION_MESSAGE, message.into()),
                ],
            );
        }
        span.fail(text, &error.message);
    }
}
