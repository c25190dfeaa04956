//! Logs on standard error, as text or as one JSON object a line.
//!
//! The fields of an event stand at the top level of the JSON object beside `timestamp`, `level`, `target` and
//! `message`; `trace_id` and `span_id` are ordinary fields of an event. Noisy dependencies have a ceiling: a debug
//! level for this program must not drown it in HTTP/2 frames, nor make the Kubernetes client log response bodies, and at no level
//! that names no library may a peer write the log with what it sends.
//! This module must not filter anything but logs: traces do not pass through `tracing`.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::panic::PanicHookInfo;
use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{Directive, EnvFilter};
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::util::SubscriberInitExt;

use csi_attacher_model::decide::{escaped_json, plain};

/// Targets that may log at most at the given level, unless a directive names them.
const CEILINGS: [(&str, LevelFilter); 8] = [
    // Their warnings are about what a peer sends: h2 writes one for each frame of some. What breaks a connection or an answer comes back as an
    // error, which whoever asked tells.
    ("h2", LevelFilter::ERROR),
    ("hyper", LevelFilter::ERROR),
    ("hyper_util", LevelFilter::ERROR),
    ("rustls", LevelFilter::ERROR),
    ("tonic", LevelFilter::ERROR),
    ("tower", LevelFilter::ERROR),
    // It repeats each list and watch that fails; `Reflector` tells of them once.
    ("kube_runtime", LevelFilter::ERROR),
    // The SDK repeats each failed export; the export thread reports them itself, at most once a minute.
    (SDK_TARGET, LevelFilter::OFF),
];
/// Prefix of the targets of the OpenTelemetry crates.
const SDK_TARGET: &str = "opentelemetry";
/// A failed decode makes the client log the response body, which may be a Secret, at the levels below ERROR. No
/// directive may lift this.
const BODY_LOGGING_TARGET: &str = "kube_client";
/// They log the whole URL of a collector and what it answered at the levels below INFO: vendors have tokens there. No directive may lift this.
const EXPORT_LOGGING_TARGETS: [&str; 2] = ["opentelemetry-otlp", "opentelemetry-http"];

/// Form of a log record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging cannot be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// The level string is not `<level>` or a list of `<target>=<level>` directives, with commas between.
    #[error("log level {0:?} is not understood: {1}")]
    Level(String, String),
    /// Another subscriber is installed already.
    #[error("another log subscriber is installed: {0}")]
    Installed(#[from] tracing_subscriber::util::TryInitError),
}

/// Logging settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Form of a record.
    pub format: LogFormat,
    /// `info`, or directives such as `info,csi_attacher=debug`.
    pub level: String,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}

/// Installs the subscriber of this process, writing to standard error.
pub(super) fn install(options: &LogOptions, sdk_level: Option<&str>) -> Result<(), LogError> {
    subscriber(options, sdk_level, std::io::stderr)?.try_init()?;
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A filter may leave it out, and then it would be told nowhere.
        if tracing::enabled!(tracing::Level::ERROR) {
            log_panic(panic);
        } else {
            former(panic);
        }
    }));
    Ok(())
}

/// A panic is a record like any other: who reads JSON lines could not read the words of the standard library.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let backtrace = Backtrace::capture();
    let is_captured = backtrace.status() == BacktraceStatus::Captured;
    tracing::error!(
        location = panic.location().map(tracing::field::display),
        backtrace = is_captured.then(|| tracing::field::display(&backtrace)),
        "panicked: {}",
        text.unwrap_or("no text")
    );
}

/// The message and the fields of a record as text, on one line and without what a terminal acts upon: they name handles and repeat drivers,
/// and these have anything in them. In JSON it is escaped: see [`EscapedJson`].
struct PlainFields;

impl<'writer> FormatFields<'writer> for PlainFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        writer.write_str(&plain(&text))
    }
}

/// A record as JSON, in which all is escaped that a terminal acts upon or some readers of lines take for an end.
struct EscapedJson<F>(F);

impl<S, N, F> FormatEvent<S, N> for EscapedJson<F>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut json = String::new();
        self.0.format_event(context, Writer::new(&mut json), event)?;
        writer.write_str(&escaped_json(&json))
    }
}

/// Builds a subscriber without installing it.
fn subscriber<W>(
    options: &LogOptions,
    sdk_level: Option<&str>,
    writer: W,
) -> Result<impl Subscriber + Send + Sync + 'static, LogError>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let filter = filter(options, sdk_level)?;
    let base = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match options.format {
        LogFormat::Text => Box::new(base.fmt_fields(PlainFields)),
        LogFormat::Json => Box::new(
            base.json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .map_event_format(EscapedJson),
        ),
    };
    Ok(tracing_subscriber::registry().with(layer.with_filter(filter)))
}

/// The filter for a level string: ceilings first, then what was asked for, then what may not be lifted.
fn filter(options: &LogOptions, sdk_level: Option<&str>) -> Result<EnvFilter, LogError> {
    let refuse = |reason: String| LogError::Level(options.level.clone(), reason);
    let asked = options.level.split(',').map(str::trim);
    let asked: Vec<String> = asked.filter(|directive| !directive.is_empty()).map(with_warn).collect();
    if asked.is_empty() {
        return Err(refuse("it is empty".to_owned()));
    }
    if let Some(other) = asked.iter().find(|directive| !is_directive(directive)) {
        return Err(refuse(format!(
            "{other:?} is neither a level (off, error, warn, info, debug or trace) nor a target with one, TARGET=LEVEL"
        )));
    }
    // A directive without a target is the level of everything else.
    let base = asked
        .iter()
        .rev()
        .find_map(|directive| directive.parse::<LevelFilter>().ok());
    let base = base.unwrap_or(LevelFilter::ERROR);
    // First, so that what is asked for takes its place. Without it, all that no directive names would be off, errors too.
    let mut directives = vec![base.to_string()];
    for (target, ceiling) in CEILINGS {
        let ceiling = match sdk_level {
            Some(level) if target == SDK_TARGET => level.parse().unwrap_or(ceiling),
            _ => ceiling.min(base),
        };
        directives.push(format!("{target}={ceiling}"));
    }
    let names_body_logger = |directive: &String| directive.contains(BODY_LOGGING_TARGET);
    directives.extend(asked.into_iter().filter(|directive| !names_body_logger(directive)));
    directives.push(format!("{BODY_LOGGING_TARGET}={}", LevelFilter::ERROR.min(base)));
    let exports = EXPORT_LOGGING_TARGETS
        .map(|target| format!("{target}={}", level_of(&directives, target).min(LevelFilter::INFO)));
    directives.extend(exports);
    EnvFilter::builder()
        .parse(directives.join(","))
        .map_err(|error| refuse(error.to_string()))
}

/// The level of a target by these directives: the one that names most of it counts, and of two such the later one.
fn level_of(directives: &[String], target: &str) -> LevelFilter {
    let levels = directives.iter().filter_map(|directive| {
        let (named, level) = directive.rsplit_once('=')?;
        let level: LevelFilter = level.parse().ok()?;
        target.starts_with(named).then_some((named.len(), level))
    });
    levels
        .max_by_key(|(length, _)| *length)
        .map_or(LevelFilter::OFF, |(_, level)| level)
}

/// The same directive, in which `warning` is `warn`: many programs call that level so.
fn with_warn(directive: &str) -> String {
    let level_at = directive.rfind('=').map_or(0, |equals| equals + 1);
    let (target, level) = directive.split_at(level_at);
    let is_warning = level.eq_ignore_ascii_case("warning");
    format!("{target}{}", if is_warning { "warn" } else { level })
}

/// Whether this is a level, or a directive with a target. The filter takes each word that it does not know for a target, so that a
/// misspelt level would be one that nothing has: a target alone, without a level, is known by its form or is one with a ceiling.
fn is_directive(text: &str) -> bool {
    let target = text.split(['=', '[']).next().unwrap_or_default();
    let is_path = target
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "_:.-".contains(letter));
    let is_target = target.contains(['_', ':']) || CEILINGS.iter().any(|(known, _)| *known == target);
    let is_clear = is_target || text.contains(['=', '[']) || text.parse::<LevelFilter>().is_ok();
    is_path && is_clear && text.parse::<Directive>().is_ok()
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
