//! Trace contexts in the text form of W3C Trace Context (level 1 and 2), as annotations of objects carry them.
//!
//! Whoever may annotate an object may write anything there, so that the parser is strict, bounded, and never guesses. It
//! knows no baggage, and must not.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use thiserror::Error;

/// Longest text that is looked at, in bytes: what the specification wants to be carried on of a `tracestate`.
pub const MAX_BYTES: usize = 512;
/// Members that a `tracestate` may have.
const MAX_MEMBERS: usize = 32;
/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// Why a text is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a W3C traceparent")]
pub struct MalformedTraceContext;

/// A trace context that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedTraceContext {
    /// What it says.
    pub context: SpanContext,
    /// Whether there was a `tracestate` that says nothing that can be carried on.
    pub state_malformed: bool,
}

/// Reads a `traceparent` and the `tracestate` that belongs to it. One `tracestate` that cannot be read is left out, as the
/// specification wants it, and told; nothing but the sampled bit is taken from the flags.
pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Result<ParsedTraceContext, MalformedTraceContext> {
    let (trace_id, span_id, flags) = fields(traceparent).ok_or(MalformedTraceContext)?;
    let state = tracestate.map(members);
    let state_malformed = matches!(state, Some(None));
    let state = state.flatten().unwrap_or_default();
    let flags = TraceFlags::default().with_sampled(flags & 1 == 1);
    Ok(ParsedTraceContext {
        context: SpanContext::new(trace_id, span_id, flags, true, state),
        state_malformed,
    })
}

/// The text of a context; the opposite of [`parse`].
pub fn traceparent(context: &SpanContext) -> String {
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
    format!("00-{trace:032x}-{span:016x}-{flags:02x}")
}

fn fields(text: &str) -> Option<(TraceId, SpanId, u8)> {
    let bytes = text.as_bytes();
    if bytes.len() < LENGTH || bytes.len() > MAX_BYTES {
        return None;
    }
    let (known, more) = text.split_at_checked(LENGTH)?;
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
    Some((TraceId::from(trace), SpanId::from(span), flags))
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The members of a `tracestate`; none when one of them is malformed.
fn members(text: &str) -> Option<TraceState> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let blank = |c| c == ' ' || c == '\t';
    let listed = text.split(',').map(|member| member.trim_matches(blank));
    let mut pairs: Vec<(String, String)> = Vec::new();
    for member in listed.filter(|member| !member.is_empty()) {
        let (key, value) = member.split_once('=')?;
        let known = pairs.iter().any(|(other, _)| other == key);
        if known || pairs.len() == MAX_MEMBERS || !is_key(key) || !is_value(value) {
            return None;
        }
        pairs.push((key.to_owned(), value.to_owned()));
    }
    if pairs.is_empty() {
        return Some(TraceState::NONE);
    }
    TraceState::from_key_value(pairs).ok()
}

/// `key = simple-key / multi-tenant-key` of the specification, level 2.
fn is_key(key: &str) -> bool {
    let is_rest = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/');
    let is_part = |part: &str, longest: usize, digit_first: bool| {
        let first = part.bytes().next();
        let first = first.is_some_and(|c| c.is_ascii_lowercase() || (digit_first && c.is_ascii_digit()));
        first && part.len() <= longest && part.bytes().all(is_rest)
    };
    match key.split_once('@') {
        None => is_part(key, 256, true),
        Some((tenant, system)) => is_part(tenant, 241, true) && is_part(system, 14, false),
    }
}

/// Up to 256 printable ASCII characters without `,` and `=`, the last of which is no blank.
fn is_value(value: &str) -> bool {
    let is_printable = |c: u8| (0x20..=0x7e).contains(&c) && c != b',' && c != b'=';
    !value.is_empty() && value.len() <= 256 && value.bytes().all(is_printable) && !value.ends_with(' ')
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
            let parsed = parse(&text, None).ok();
            assert_eq!(
                parsed.as_ref().map(|parsed| parsed.context.is_sampled()),
                sampled,
                "{text:?}"
            );
            let Some(ParsedTraceContext {
                context,
                state_malformed,
            }) = parsed
            else {
                continue;
            };
            assert_eq!(format!("{:032x}", context.trace_id()), TRACE);
            assert_eq!(format!("{:016x}", context.span_id()), SPAN);
            assert!(context.is_remote() && context.is_valid() && !state_malformed);
            // Nothing of the flags is carried on but the sampled bit.
            assert!(context.trace_flags().to_u8() <= 1);
        }
    }

    #[test]
    fn what_is_a_tracestate() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let many = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        let rows = [
            ("congo=t61rcWkgMzE".to_owned(), Some("congo=t61rcWkgMzE")),
            (" a=1 ,\tb=2".to_owned(), Some("a=1,b=2")),
            ("a=1,,b=2,".to_owned(), Some("a=1,b=2")),
            ("1a-b_c*d/e@sys=x y".to_owned(), Some("1a-b_c*d/e@sys=x y")),
            (String::new(), Some("")),
            ("a=1,a=2".to_owned(), None),
            ("a".to_owned(), None),
            ("A=1".to_owned(), None),
            ("=1".to_owned(), None),
            ("a=".to_owned(), None),
            ("a=b=c".to_owned(), None),
            ("a=é".to_owned(), None),
            ("a=\u{1}".to_owned(), None),
            ("a@1sys=x".to_owned(), None),
            ("a@b@c=x".to_owned(), None),
            (format!("{}=x", "k".repeat(257)), None),
            (format!("a={}", "v".repeat(257)), None),
            (many(33), None),
            (format!("a={}", "x".repeat(MAX_BYTES)), None),
        ];
        for (text, wanted) in rows {
            let parsed = parse(&parent, Some(&text)).unwrap();
            assert_eq!(parsed.state_malformed, wanted.is_none(), "{text:?}");
            assert_eq!(
                parsed.context.trace_state().header(),
                wanted.unwrap_or_default(),
                "{text:?}"
            );
        }
        let kept = parse(&parent, Some(&many(32))).unwrap();
        assert_eq!(kept.context.trace_state().header(), many(32));
    }

    proptest! {
        #[test]
        fn every_context_is_read_as_it_was_written(trace in 1..=u128::MAX, span in 1..=u64::MAX, sampled: bool) {
            let flags = TraceFlags::default().with_sampled(sampled);
            let context = SpanContext::new(TraceId::from(trace), SpanId::from(span), flags, true, TraceState::NONE);
            let parsed = parse(&traceparent(&context), None).unwrap();
            prop_assert_eq!(parsed.context, context);
        }

        /// No text is a reason to panic, and what is taken is never invalid.
        #[test]
        fn any_text_is_taken_or_refused(parent in "(\\PC|[0-9a-f-]){0,70}", state in "(\\PC|[a-z=,@ ]){0,70}") {
            if let Ok(parsed) = parse(&parent, Some(&state)) {
                prop_assert!(parsed.context.is_valid());
            }
        }
    }
}
