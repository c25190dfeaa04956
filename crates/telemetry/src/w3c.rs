//! Trace contexts in the text form of W3C Trace Context (level 1 and 2), as annotations of objects carry them.
//!
//! Whoever may annotate an object may write anything there, so that the parser is strict, bounded, and never guesses. It
//! knows no `tracestate` and no baggage, and must not.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Longest text that is looked at, in bytes. A version to come may be longer than this one.
pub const MAX_BYTES: usize = 512;
/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// Reads a `traceparent`; none where it is not one. Nothing but the sampled bit is taken from the flags.
pub fn parse(traceparent: &str) -> Option<SpanContext> {
    if traceparent.len() > MAX_BYTES {
        return None;
    }
    let (known, more) = traceparent.split_at_checked(LENGTH)?;
    let mut parts = known.split('-');
    let mut next = |length: usize| parts.next().filter(|part| part.len() == length && is_lower_hex(part));
    let version = next(2)?;
    // A version to come may add fields at the end; `ff` will never be one.
    if version == "ff" || (version == "00" && !more.is_empty()) || !(more.is_empty() || more.starts_with('-')) {
        return None;
    }
    let trace = u128::from_str_radix(next(32)?, 16).ok().filter(|id| *id != 0)?;
    let span = u64::from_str_radix(next(16)?, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(next(2)?, 16).ok()?;
    let flags = TraceFlags::default().with_sampled(flags & 1 == 1);
    let (trace, span) = (TraceId::from(trace), SpanId::from(span));
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE))
}

/// The text of a context; the opposite of [`parse`].
pub fn traceparent(context: &SpanContext) -> String {
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
    format!("00-{trace:032x}-{span:016x}-{flags:02x}")
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn what_is_a_traceparent() {
        let rows = [
            (format!("00-{TRACE}-{SPAN}-00"), Some(false)),
            (format!("00-{TRACE}-{SPAN}-01"), Some(true)),
            // Level 2 has a second flag; those to come are unknown, and the sampled bit stays where it is.
            (format!("00-{TRACE}-{SPAN}-02"), Some(false)),
            (format!("00-{TRACE}-{SPAN}-03"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-ff"), Some(true)),
            (format!("01-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-is-like"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01."), None),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("00-{TRACE}-{SPAN}-01-"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{TRACE}-{SPAN}-0A"), None),
            (format!("00-{TRACE}-{SPAN}-1"), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!(" 00-{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}-01\n"), None),
            (format!("0-0{TRACE}-{SPAN}-01"), None),
            (format!("+0-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", &TRACE[1..]), None),
            (format!("00_{TRACE}_{SPAN}_01"), None),
            (format!("cc-{TRACE}-{SPAN}-01-{}", "x".repeat(MAX_BYTES)), None),
            ("é".repeat(28), None),
            (String::new(), None),
        ];
        for (text, sampled) in rows {
            let parsed = parse(&text);
            assert_eq!(parsed.as_ref().map(SpanContext::is_sampled), sampled, "{text:?}");
            let Some(context) = parsed else {
                continue;
            };
            assert_eq!(format!("{:032x}", context.trace_id()), TRACE);
            assert_eq!(format!("{:016x}", context.span_id()), SPAN);
            assert!(context.is_remote() && context.is_valid());
            // Nothing of the flags is carried on but the sampled bit.
            assert!(context.trace_flags().to_u8() <= 1);
        }
    }

    proptest! {
        #[test]
        fn every_context_is_read_as_it_was_written(trace in 1..=u128::MAX, span in 1..=u64::MAX, sampled: bool) {
            let flags = TraceFlags::default().with_sampled(sampled);
            let context = SpanContext::new(TraceId::from(trace), SpanId::from(span), flags, true, TraceState::NONE);
            prop_assert_eq!(parse(&traceparent(&context)).unwrap(), context);
        }

        /// No text is a reason to panic, and what is taken is never invalid.
        #[test]
        fn any_text_is_taken_or_refused(parent in "(\\PC|[0-9a-f-]){0,70}") {
            if let Some(context) = parse(&parent) {
                prop_assert!(context.is_valid());
            }
        }
    }
}
