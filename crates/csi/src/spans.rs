//! The CLIENT spans of calls to a driver.

use tonic::Code;

use super::call_error::CallError;
use super::client::CallContext;
use super::connection::DriverConnection;
use crate::telemetry::names::{self, attr};
use crate::telemetry::{Span, SpanKind};

/// The span of a call that is about to be made to `driver`, if its name is known.
pub(super) fn start(frame: &CallContext<'_>, connection: &DriverConnection, driver: Option<&str>) -> Span {
    let method = names::csi_method(frame.method);
    let mut span = frame.parent.child(method.to_owned(), SpanKind::Client);
    if !span.is_recording() {
        return span;
    }
    span.set(attr::RPC_SYSTEM_NAME, names::RPC_SYSTEM_GRPC);
    span.set(attr::RPC_METHOD, method);
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

/// What is known once the call is over.
pub(super) fn handshake_finished<A>(span: &mut Span, connection: &DriverConnection, answer: &Result<A, CallError>) {
    if !span.is_recording() {
        return;
    }
    let code = answer.as_ref().err().map_or(Code::Ok, |error| error.code);
    let text = names::code_upper_snake(code);
    span.set(attr::RPC_RESPONSE_STATUS_CODE, text);
    // The call may have been the one that connected.
    if let Some(peer) = connection.peer() {
        span.set(attr::NETWORK_PEER_ADDRESS, &*peer.address);
        if let Some(port) = peer.port {
            span.set(attr::NETWORK_PEER_PORT, i64::from(port));
        }
    }
    if let Err(error) = answer {
        span.fail(text, &error.message);
    }
}
