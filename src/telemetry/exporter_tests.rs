use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};

use super::*;

fn settings(protocol: OtlpProtocol) -> OtlpSettings {
    OtlpSettings {
        protocol,
        endpoint: "https://127.0.0.1:1".to_owned(),
        headers: http::HeaderMap::new(),
        timeout: Duration::from_secs(1),
        certificate: None,
        client_certificate: None,
        client_key: None,
    }
}

fn build(settings: OtlpSettings) -> Result<Exporters, ExporterError> {
    Exporters::build(
        &[ExporterSettings::Otlp(Box::new(settings))],
        &Resource::builder_empty().build(),
    )
}

#[tokio::test]
async fn tls_files_are_read_for_both_transports() {
    let directory = tempfile::tempdir().unwrap();
    let identity = rcgen::generate_simple_self_signed(vec!["collector".to_owned()]).unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    std::fs::write(&certificate, identity.cert.pem()).unwrap();
    std::fs::write(&key, identity.signing_key.serialize_pem()).unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::HttpProtobuf] {
        let mut good = settings(protocol);
        good.certificate = Some(certificate.clone());
        good.client_certificate = Some(certificate.clone());
        good.client_key = Some(key.clone());
        assert!(build(good.clone()).is_ok(), "{protocol:?}");

        let missing = OtlpSettings {
            certificate: Some(directory.path().join("none.pem")),
            ..good.clone()
        };
        assert!(
            matches!(build(missing), Err(ExporterError::File { .. })),
            "{protocol:?}"
        );
        let half = OtlpSettings {
            client_key: None,
            ..good.clone()
        };
        assert!(matches!(build(half), Err(ExporterError::HalfIdentity)), "{protocol:?}");
        let no_key = OtlpSettings {
            client_key: Some(empty.clone()),
            ..good
        };
        assert!(build(no_key).is_err(), "{protocol:?}");
    }
    let mut http = settings(OtlpProtocol::HttpProtobuf);
    http.certificate = Some(empty);
    assert!(matches!(build(http), Err(ExporterError::Pem { .. })));
}

#[test]
fn the_console_writes_one_json_object_a_line() {
    let span = SpanData {
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
    };
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
