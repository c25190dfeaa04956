//! A span in the requests that are made for it.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::Span;
use crate::w3c;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

impl Span {
    /// The W3C `traceparent` of this span, whether it is sampled or not. `None` when disabled.
    pub fn traceparent(&self) -> Option<String> {
        self.context().map(w3c::traceparent)
    }

    /// Writes this span into the headers of an outgoing request, as `OTEL_PROPAGATORS` asks. Nothing when disabled.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let Some(active) = &self.0 else { return };
        let Some(context) = self.context().filter(|_| active.shared.propagators.trace_context) else {
            return;
        };
        let Ok(parent) = HeaderValue::try_from(w3c::traceparent(context)) else {
            return;
        };
        headers.insert(TRACEPARENT, parent);
    }

    /// [`Span::inject`] for the metadata of a gRPC request.
    pub fn inject_metadata(&self, metadata: &mut tonic::metadata::MetadataMap) {
        self.inject(metadata.as_mut());
    }
}
