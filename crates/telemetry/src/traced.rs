//! Lines of the log about an object: each names the trace that it belongs to.

/// As the macro of the same level of `tracing`, with the ids of a trace context first. They are in the line whether the
/// trace is sampled or not, and left out while tracing is off.
///
/// `$context` is anything that [`TraceFields`] can be asked of; it is only asked when the line is written.
#[macro_export]
macro_rules! traced {
    ($level:ident, $context:expr, $($rest:tt)+) => {
        tracing::$level!(
            trace_id = $crate::TraceFields::trace_id(&$context),
            span_id = $crate::TraceFields::span_id(&$context),
            trace_flags = $crate::TraceFields::trace_flags(&$context),
            $($rest)+
        )
    };
}

use crate::{Span, SpanContext};

/// What has a trace context, or has none.
pub trait TraceFields {
    /// The context, if there is one.
    fn context(&self) -> Option<&SpanContext>;

    /// 32 hexadecimal digits.
    fn trace_id(&self) -> Option<String> {
        self.context().map(|context| format!("{:032x}", context.trace_id()))
    }

    /// 16 hexadecimal digits.
    fn span_id(&self) -> Option<String> {
        self.context().map(|context| format!("{:016x}", context.span_id()))
    }

    /// 2 hexadecimal digits.
    fn trace_flags(&self) -> Option<String> {
        self.context()
            .map(|context| format!("{:02x}", context.trace_flags().to_u8()))
    }
}

impl TraceFields for Span {
    fn context(&self) -> Option<&SpanContext> {
        Span::context(self)
    }
}

impl TraceFields for &Span {
    fn context(&self) -> Option<&SpanContext> {
        Span::context(self)
    }
}

impl TraceFields for Option<SpanContext> {
    fn context(&self) -> Option<&SpanContext> {
        self.as_ref()
    }
}
