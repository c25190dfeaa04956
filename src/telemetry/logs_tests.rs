use std::io::Write;

use parking_lot::Mutex;

use super::*;
use crate::api::LogLevel;

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

/// Runs `body` under a subscriber of these settings.
fn logged(format: LogFormat, level: &str, sdk_level: Option<&str>, body: impl FnOnce(&DriverLogs)) -> String {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let options = LogOptions {
        format,
        level: level.to_owned(),
    };
    let (subscriber, drivers) = subscriber(&options, sdk_level, move || writer.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, || body(&drivers));
    buffer.take()
}

#[test]
fn json_has_the_fields_of_the_event_at_the_top() {
    let text = logged(LogFormat::Json, "info", None, |_| {
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
    let text = logged(LogFormat::Text, "info", None, |_| {
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

#[test]
fn a_level_that_cannot_be_used_is_refused() {
    for level in ["csi=loud", "  ", ""] {
        assert!(matches!(filter(level, None), Err(LogError::Level { .. })), "{level:?}");
    }
}

#[test]
fn noisy_targets_have_a_ceiling_that_a_directive_may_lift_except_for_bodies() {
    let emit = |_: &DriverLogs| {
        tracing::debug!(target: "h2::codec", "h2-debug");
        tracing::warn!(target: "h2::codec", "h2-warn");
        tracing::debug!(target: "kube_client::client", "kube-debug");
        tracing::warn!(target: "kube_client::client", "kube-warn");
        tracing::error!(target: "kube_client::client", "kube-error");
        tracing::error!(target: "opentelemetry-otlp", "sdk-error");
        tracing::debug!(target: "opentelemetry_sdk", "sdk-debug");
        tracing::debug!("own-debug");
    };
    let all = [
        "h2-debug",
        "h2-warn",
        "kube-debug",
        "kube-warn",
        "kube-error",
        "sdk-error",
        "sdk-debug",
        "own-debug",
    ];
    let cases: [(&str, Option<&str>, &[&str]); 6] = [
        ("trace", None, &["h2-warn", "kube-error", "own-debug"]),
        ("info", None, &["h2-warn", "kube-error"]),
        ("error", None, &["kube-error"]),
        ("off", None, &[]),
        (
            "info,h2=debug,kube_client=trace",
            None,
            &["h2-debug", "h2-warn", "kube-error"],
        ),
        (
            "info",
            Some("debug"),
            &["h2-warn", "kube-error", "sdk-error", "sdk-debug"],
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
    let text = logged(LogFormat::Text, "info,kube_client::client=trace", None, |_| {
        tracing::trace!(target: "kube_client::client", "body");
    });
    assert_eq!(text, "");
}

#[test]
fn formats_are_named() {
    assert_eq!("JSON".parse::<LogFormat>().unwrap(), LogFormat::Json);
    assert_eq!("text".parse::<LogFormat>().unwrap(), LogFormat::Text);
    assert!(matches!("xml".parse::<LogFormat>(), Err(LogError::Format(_))));
}

/// Says something about the drivers `a` and `b`, and about none, at each level from `warn` to `trace`.
macro_rules! chatter {
    () => {{
        let (a, b) = ("a".to_owned(), "b");
        tracing::warn!(driver = &*a, "a-warn");
        tracing::info!(driver = &*a, attempt = 1, "a-info");
        tracing::debug!(config = %format_args!("config-a"), "a-debug");
        tracing::trace!(driver = &*a, "a-trace");
        tracing::warn!(driver = b, "b-warn");
        tracing::info!(config = "config-b", driver = b, "b-info");
        tracing::debug!(driver = b, "b-debug");
        tracing::info!("nobody-info");
        tracing::debug!("nobody-debug");
        tracing::debug!(target: "hyper::proto", driver = &*a, "foreign-debug");
    }};
}

/// The messages of [`chatter`] that were logged, in their order, apart by spaces.
fn said(text: &str) -> String {
    let words = text.split_whitespace();
    let message = |word: &&str| {
        ["a-", "b-", "nobody-", "foreign-"]
            .iter()
            .any(|start| word.starts_with(start))
    };
    words.filter(message).collect::<Vec<_>>().join(" ")
}

type Change = fn(&DriverLogs);

#[test]
fn each_driver_has_its_own_level_while_running() {
    let default = "a-warn a-info b-warn b-info nobody-info";
    let steps: [(Change, &str); 8] = [
        (|_| {}, default),
        (
            |logs| logs.set("config-a", Some(LogLevel::Debug)),
            "a-warn a-info a-debug b-warn b-info nobody-info",
        ),
        // The lines that carry the driver's name alone, once it is known.
        (
            |logs| logs.name("config-a", "a"),
            "a-warn a-info a-debug b-warn b-info nobody-info",
        ),
        (
            |logs| logs.set("config-a", Some(LogLevel::Trace)),
            "a-warn a-info a-debug a-trace b-warn b-info nobody-info",
        ),
        (
            |logs| {
                logs.name("config-b", "b");
                logs.set("config-b", Some(LogLevel::Error));
            },
            "a-warn a-info a-debug a-trace nobody-info",
        ),
        (|logs| logs.set("config-a", Some(LogLevel::Warn)), "a-warn nobody-info"),
        (|logs| logs.forget("config-b"), "a-warn b-warn b-info nobody-info"),
        (|logs| logs.set("config-a", None), default),
    ];
    for (number, (change, expected)) in steps.into_iter().enumerate() {
        let text = logged(LogFormat::Text, "info", None, |logs| {
            for (change, _) in &steps[..number] {
                change(logs);
            }
            // What was said before a change tells nothing about what is said after it.
            chatter!();
            tracing::info!("nobody-changes");
            change(logs);
            chatter!();
        });
        let after = text.split_once("nobody-changes").unwrap().1;
        assert_eq!(said(after), expected, "step {number}");
    }
}

/// A line that no level lets through is cut off at its place in the code, before anything is looked at.
#[test]
fn lines_are_cheap_unless_a_driver_asks_for_them() {
    let enabled = || tracing::event_enabled!(tracing::Level::DEBUG, driver);
    let hint = tracing::level_filters::LevelFilter::current;
    logged(LogFormat::Text, "info", None, |logs| {
        logs.set("config-a", Some(LogLevel::Info));
        logs.set("config-b", Some(LogLevel::Error));
        assert!(!enabled());
        logs.set("config-a", Some(LogLevel::Debug));
        assert!(enabled() && hint() >= tracing::level_filters::LevelFilter::DEBUG);
        assert!(
            !tracing::event_enabled!(tracing::Level::DEBUG, attempt),
            "a line that names no driver"
        );
        assert!(
            !tracing::event_enabled!(tracing::Level::TRACE, driver),
            "a line that no driver asks for"
        );
        logs.forget("config-a");
        assert!(!enabled());
    });
}
