use std::io::Write;
use std::sync::Arc;

use csi_attacher_model::decide::is_unprintable;
use parking_lot::Mutex;

use super::*;

/// Collects what is written.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
    }
}

fn at(level: &str) -> LogOptions {
    LogOptions {
        level: level.to_owned(),
        ..LogOptions::default()
    }
}

/// Runs `body` under a subscriber of these settings.
fn logged(format: LogFormat, level: &str, sdk_level: Option<&str>, body: impl FnOnce()) -> String {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let options = LogOptions {
        format,
        level: level.to_owned(),
    };
    let subscriber = subscriber(&options, sdk_level, move || writer.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, body);
    buffer.take()
}

#[test]
fn json_has_the_fields_of_the_event_at_the_top() {
    let text = logged(LogFormat::Json, "info", None, || {
        tracing::warn!(
            trace_id = "4bf9",
            span_id = "00f0",
            trace_flags = "01",
            event.name = "rpc.client.call.exception",
            attempt = 3,
            driver = "a\"b\n",
            "attach failed"
        );
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    let object = line.as_object().unwrap();
    assert_eq!(object["level"], "WARN");
    assert_eq!(object["message"], "attach failed");
    assert_eq!(object["trace_id"], "4bf9");
    assert_eq!(object["span_id"], "00f0");
    assert_eq!(object["trace_flags"], "01");
    assert_eq!(object["event.name"], "rpc.client.call.exception");
    assert_eq!(object["attempt"], 3);
    assert_eq!(object["driver"], "a\"b\n");
    assert_eq!(object["target"], module_path!());
    assert!(object["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    assert_eq!(object.len(), 10, "{text}");
}

#[test]
fn text_is_one_plain_line() {
    let text = logged(LogFormat::Text, "info", None, || {
        tracing::info!(
            trace_id = "4bf9",
            span_id = "00f0",
            trace_flags = "01",
            attempt = 3,
            "attached"
        );
    });
    assert_eq!(text.lines().count(), 1);
    for pair in ["trace_id=\"4bf9\"", "span_id=\"00f0\"", "trace_flags=\"01\""] {
        assert!(text.contains(pair), "{text}");
    }
    assert!(
        text.contains("INFO") && text.contains("attached") && text.contains("attempt=3"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
}

/// Handles, node IDs and errors of drivers are those of strangers, and a record may name them in any way.
#[test]
fn a_record_is_one_line_without_control_characters_whatever_is_in_it() {
    let forged = "a\n2026-01-01T00:00:00Z  INFO attached\r\u{1b}[2J\u{9b}31m\u{7}\u{7f}\u{85}\u{2028}\u{202e}b";
    let emit = || {
        let error = std::io::Error::other(forged);
        tracing::warn!(%error, "shown");
        tracing::warn!(error = &error as &(dyn std::error::Error + 'static), "an error");
        tracing::warn!(reason = ?tracing::field::display(forged), "debug");
        tracing::warn!(handle = forged, "a string");
        tracing::warn!("{forged}");
    };
    for format in [LogFormat::Text, LogFormat::Json] {
        let text = logged(format, "info", None, emit);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text:?}");
        for line in lines {
            assert!(!line.contains(is_unprintable), "{line:?}");
            let shows_all = line.contains("2026-01-01T00:00:00Z  INFO attached") && line.contains("[2J");
            assert!(shows_all, "{line:?}");
        }
    }
}

#[test]
fn a_level_that_cannot_be_used_is_refused() {
    for (level, named) in [
        ("  ", "it is empty"),
        ("", "it is empty"),
        (" , ", "it is empty"),
        ("csi=loud", r#""csi=loud""#),
        ("fatal", r#""fatal""#),
        ("verbose", r#""verbose""#),
        ("6", r#""6""#),
        ("-1", r#""-1""#),
        ("info,foo", r#""foo""#),
        ("foo,info", r#""foo""#),
        ("info debug", r#""info debug""#),
        ("info;kube=debug", r#""info;kube=debug""#),
        ("=debug", r#""=debug""#),
        ("info,kube=verbose", r#""kube=verbose""#),
        ("kube_client=loud", r#""kube_client=loud""#),
        ("'info'", r#""'info'""#),
        ("info,csi[attach=debug", r#""csi[attach=debug""#),
    ] {
        let error = filter(&at(level), None).expect_err(level).to_string();
        assert!(error.contains(named), "{level:?}: {error}");
        let has_levels = error.contains("off, error, warn, info, debug or trace");
        assert!(has_levels || named == "it is empty", "{level:?}: {error}");
    }
}

/// A filter that names no level for what it does not name must not silence the errors of the process.
#[test]
fn a_level_of_another_spelling_is_taken_and_errors_are_off_only_when_asked() {
    let emit = || {
        tracing::error!("own-error");
        tracing::warn!("own-warn");
        tracing::info!("own-info");
        tracing::trace!(target: "csi_attacher_kube::lease", "lease-trace");
        tracing::warn!(target: "kube_core", "kube-warn");
    };
    let all = ["own-error", "own-warn", "own-info", "lease-trace", "kube-warn"];
    let warnings: &[&str] = &["own-error", "own-warn", "kube-warn"];
    let errors: &[&str] = &["own-error"];
    let cases: [(&str, &[&str]); 17] = [
        ("warn", warnings),
        ("warning", warnings),
        ("WARNING", warnings),
        (" Warn ,", warnings),
        (",,warning", warnings),
        ("2", warnings),
        ("warning,kube_core=error", &["own-error", "own-warn"]),
        ("error,kube_core=warning", &["own-error", "kube-warn"]),
        ("ERROR", errors),
        ("info,error", errors),
        ("h2", errors),
        ("h2=trace", errors),
        ("kube_client", errors),
        ("csi_attacher_kube::lease", &["own-error", "lease-trace"]),
        ("off", &[]),
        ("0,csi_attacher_kube=trace", &["lease-trace"]),
        // All crates of the program.
        (
            "0,csi_attacher=trace",
            &["own-error", "own-warn", "own-info", "lease-trace"],
        ),
    ];
    for (level, expected) in cases {
        let text = logged(LogFormat::Text, level, None, emit);
        let seen: Vec<&str> = all.into_iter().filter(|message| text.contains(message)).collect();
        assert_eq!(seen, expected, "{level:?}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn noisy_targets_have_a_ceiling_that_a_directive_may_lift_except_for_bodies() {
    let emit = || {
        tracing::debug!(target: "h2::codec", "h2-debug");
        // One for each frame that a peer sends.
        tracing::warn!(target: "h2::proto::ping_pong", "h2-warn");
        tracing::error!(target: "h2::proto", "h2-error");
        tracing::warn!(target: "hyper::proto::h2", "peer-warn");
        tracing::warn!(target: "hyper_util::client::legacy::client", "peer-warn");
        tracing::warn!(target: "rustls::common_state", "peer-warn");
        tracing::warn!(target: "tonic::status", "peer-warn");
        tracing::warn!(target: "tower::buffer", "peer-warn");
        tracing::debug!(target: "kube_client::client", "kube-debug");
        tracing::warn!(target: "kube_client::client", "kube-warn");
        tracing::error!(target: "kube_client::client", "kube-error");
        tracing::warn!(target: "kube_runtime::watcher", "watch-warn");
        tracing::error!(target: "opentelemetry-otlp", "sdk-error");
        tracing::debug!(target: "opentelemetry_sdk", "sdk-debug");
        // With the URL of a collector, and what it said.
        tracing::debug!(target: "opentelemetry-otlp", "export-url");
        tracing::debug!(target: "opentelemetry-http", "export-url");
        tracing::info!(target: "opentelemetry-http", "export-info");
        tracing::debug!("own-debug");
    };
    let all = [
        "h2-debug",
        "h2-warn",
        "h2-error",
        "peer-warn",
        "kube-debug",
        "kube-warn",
        "kube-error",
        "watch-warn",
        "sdk-error",
        "sdk-debug",
        "export-url",
        "export-info",
        "own-debug",
    ];
    let cases: [(&str, Option<&str>, &[&str]); 10] = [
        ("trace", None, &["h2-error", "kube-error", "own-debug"]),
        ("info", None, &["h2-error", "kube-error"]),
        ("error", None, &["h2-error", "kube-error"]),
        ("off", None, &[]),
        (
            "info,h2=debug,kube_client=trace,kube_runtime=warn",
            None,
            &["h2-debug", "h2-warn", "h2-error", "kube-error", "watch-warn"],
        ),
        ("info,rustls=warn", None, &["h2-error", "peer-warn", "kube-error"]),
        (
            "info",
            Some("debug"),
            &["h2-error", "kube-error", "sdk-error", "sdk-debug", "export-info"],
        ),
        ("info", Some("warn"), &["h2-error", "kube-error", "sdk-error"]),
        (
            "info,opentelemetry=trace",
            None,
            &["h2-error", "kube-error", "sdk-error", "sdk-debug", "export-info"],
        ),
        (
            "error,opentelemetry-otlp=debug,opentelemetry-http=error",
            Some("trace"),
            &["h2-error", "kube-error", "sdk-error", "sdk-debug"],
        ),
    ];
    for (level, sdk_level, expected) in cases {
        let text = logged(LogFormat::Text, level, sdk_level, emit);
        let seen: Vec<&str> = all.into_iter().filter(|message| text.contains(message)).collect();
        assert_eq!(seen, expected, "{level} {sdk_level:?}");
    }
}

#[test]
fn a_more_specific_body_logging_directive_is_dropped_too() {
    let text = logged(LogFormat::Text, "info,kube_client::client=trace", None, || {
        tracing::trace!(target: "kube_client::client", "body");
    });
    assert_eq!(text, "");
}
