//! A span in the requests that are made for it.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::Span;
use crate::telemetry::w3c;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

impl Span {
    /// The W3C `traceparent` of this span, whether it is sampled or not. `None` when disabled.
    pub fn traceparent(&self) -> Option<String> {
        self.context().map(w3c::traceparent)
    }

    /// Writes this span into the headers of an outgoing request, as `OTEL_PROPAGATORS` asks. Nothing when disabled.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if !self
            .0
            .as_ref()
            .is_some_and(|active| active.shared.propagators.trace_context)
        {
            return;
        }
        let parent = self.traceparent().and_then(|parent| HeaderValue::try_from(parent).ok());
        let Some(parent) = parent else { return };
        headers.insert(TRACEPARENT, parent);
        let state = self
            .context()
            .map(|context| context.trace_state().header())
            .filter(|state| !state.is_empty());
        if let Some(state) = state.and_then(|state| HeaderValue::try_from(state).ok()) {
            headers.insert(TRACESTATE, state);
        }
    }

    /// [`Span::inject`] for the metadata of a gRPC request.
    pub fn inject_metadata(&self, metadata: &mut tonic::metadata::MetadataMap) {
        self.inject(metadata.as_mut());
    }
}
