use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};

use super::*;

pub fn span() -> SpanData {
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(1),
            SpanId::from(2),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: SpanId::from(3),
        parent_span_is_remote: false,
        span_kind: SpanKind::Client,
        name: "GET \"x\"".into(),
        start_time: UNIX_EPOCH,
        end_time: UNIX_EPOCH + Duration::from_secs(1),
        attributes: vec![KeyValue::new("a", "b\n")],
        dropped_attributes_count: 0,
        events: opentelemetry_sdk::trace::SpanEvents::default(),
        links: opentelemetry_sdk::trace::SpanLinks::default(),
        status: Status::error("refused"),
        instrumentation_scope: InstrumentationScope::default(),
    }
}

#[test]
fn the_console_writes_one_json_object_a_line() {
    let span = span();
    let mut output = Vec::new();
    write_lines(&[span.clone(), span], &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let expected = serde_json::json!({
            "name": "GET \"x\"", "kind": "Client", "trace_id": "00000000000000000000000000000001",
            "span_id": "0000000000000002", "parent_span_id": "0000000000000003", "start": "1970-01-01T00:00:00Z",
            "end": "1970-01-01T00:00:01Z", "error": "refused", "events": [], "attributes": {"a": "b\n"},
        });
        assert_eq!(line, expected);
    }
}
