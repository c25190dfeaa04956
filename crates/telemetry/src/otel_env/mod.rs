//! The `OTEL_*` environment as one pure function from a map of variables to [`TraceSettings`] and warnings.
//!
//! Rules of the OpenTelemetry specification: an empty value counts as unset, a boolean is true only when it reads
//! `true`, enumerations ignore case, and a value that cannot be used is ignored with a warning. A variable for the
//! signal (`OTEL_EXPORTER_OTLP_TRACES_*`) wins over the general one. Warnings never repeat the value of a variable that
//! may hold a credential. This module must not read the process environment outside [`process_environment`].

mod settings;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use opentelemetry_otlp::{Compression, Protocol};
use opentelemetry_sdk::trace::{Sampler, SpanLimits};

use super::attribute::DEFAULT_VALUE_LENGTH_LIMIT;
use super::metrics::ExemplarFilter;
use super::names::{SERVICE_NAME, attr};
use settings::PROTOCOLS;
pub use settings::TraceSettings;
pub(crate) use settings::{BatchSettings, ExporterSettings, OtlpSettings, TransportSettings};

/// The variables this program knows, in the order of `docs/reference/TELEMETRY-ENVIRONMENT.md`, which says what each does; a
/// test compares the two.
pub const VARIABLES: &[&str] = &[
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_INSECURE",
    "OTEL_EXPORTER_OTLP_TRACES_INSECURE",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_PROPAGATORS",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "POD_NAME",
    "POD_NAMESPACE",
    "POD_UID",
    "NODE_NAME",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_METRICS_EXPORTER",
    "OTEL_LOGS_EXPORTER",
    "OTEL_METRICS_EXEMPLAR_FILTER",
    "OTEL_LOG_LEVEL",
    "OTEL_CONFIG_FILE",
];

/// Longest time a variable may ask for; anything longer is a mistake in the unit.
const MAX_MILLISECONDS: u64 = 24 * 60 * 60 * 1000;
const MAX_QUEUE_SIZE: usize = 1 << 20;
/// Where a collector takes traces over HTTP.
const SIGNAL_PATH: &str = "/v1/traces";

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// The variables of this process; names and values that are not UTF-8 are left out.
pub fn process_environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Result of [`parse`].
#[derive(Clone, Debug)]
pub struct ParsedEnvironment {
    /// What to do.
    pub settings: TraceSettings,
    /// What was ignored, or is most likely a mistake, and why; for the log.
    pub warnings: Vec<String>,
}

/// Reads the `OTEL_*` variables, and `POD_NAME`, `POD_NAMESPACE`, `POD_UID` and `NODE_NAME` for the resource.
pub fn parse(environment: &Environment, service_version: &str) -> ParsedEnvironment {
    let mut reader = EnvironmentReader {
        environment,
        warnings: Vec::new(),
    };
    reader.warn_about_other_signals();
    // Warnings stand in this order.
    let exporters = reader.exporters();
    reader.warn_about_collectors(&exporters);
    let transport = reader.transport();
    let (sampler, propagates) = (reader.sampler(), reader.propagates());
    let (limits, value_length) = reader.limits();
    let settings = TraceSettings {
        exporters,
        transport,
        sampler,
        propagates,
        limits,
        value_length,
        batch: reader.batch(),
        resource: reader.resource(service_version),
        exemplars: reader.exemplars(),
        sdk_log_level: reader.sdk_log_level(),
    };
    ParsedEnvironment {
        settings,
        warnings: reader.warnings,
    }
}

/// An environment that is being read, and what was wrong with it so far.
struct EnvironmentReader<'a> {
    environment: &'a Environment,
    warnings: Vec<String>,
}

impl<'a> EnvironmentReader<'a> {
    /// The trimmed value; empty counts as unset.
    fn text(&self, name: &str) -> Option<&'a str> {
        debug_assert!(VARIABLES.contains(&name), "{name} is not in the list");
        self.environment
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    fn warn(&mut self, name: &str, reason: impl std::fmt::Display) {
        self.warnings.push(format!("{name} is ignored: {reason}"));
    }

    /// The first of `names` that is set and that `read` accepts; each that it refuses costs a warning.
    fn first<T>(&mut self, names: &[&str], expected: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        for name in names {
            let Some(value) = self.text(name) else { continue };
            match read(value) {
                Some(read) => return Some(read),
                None => self.warn(name, format_args!("expected {expected}")),
            }
        }
        None
    }

    /// The first of `names` that is set to a word of `choices`, in any case; each other word costs a warning.
    fn choice<T: Clone>(&mut self, names: &[&str], choices: &[(&str, T)]) -> Option<T> {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let expected = match words.split_last() {
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => return None,
        };
        self.first(names, &expected, |value| {
            let choice = choices.iter().find(|(word, _)| value.eq_ignore_ascii_case(word));
            choice.map(|(_, choice)| choice.clone())
        })
    }

    fn boolean(&mut self, names: &[&str]) -> bool {
        let choices = [("true", true), ("false", false)];
        self.choice(names, &choices).unwrap_or(false)
    }

    fn milliseconds(&mut self, names: &[&str], default: u64) -> Duration {
        let is_allowed = |number: &u64| *number <= MAX_MILLISECONDS;
        let read = |value: &str| value.parse().ok().filter(is_allowed);
        let found = self.first(names, "milliseconds from 0 to one day", read);
        Duration::from_millis(found.unwrap_or(default))
    }

    /// A time after which something is given up. 0 means never, by the specification of the common configuration.
    fn timeout(&mut self, names: &[&str], default: u64) -> Duration {
        let timeout = self.milliseconds(names, default);
        if timeout.is_zero() {
            Duration::from_millis(MAX_MILLISECONDS)
        } else {
            timeout
        }
    }

    fn count<N: FromStr>(&mut self, names: &[&str]) -> Option<N> {
        self.first(names, "a whole number from 0", |value| value.parse().ok())
    }

    fn size(&mut self, name: &str, default: usize) -> usize {
        let is_allowed = |number: &usize| (1..=MAX_QUEUE_SIZE).contains(number);
        let read = |value: &str| value.parse().ok().filter(is_allowed);
        self.first(&[name], "a whole number from 1 to 1048576", read)
            .unwrap_or(default)
    }

    /// The entries of a list that are `known`, in lower case; each other one costs a warning.
    fn list(&mut self, name: &str, known: &[&str], expected: &str) -> Vec<String> {
        let entries = self.text(name).unwrap_or_default().split(',').map(str::trim);
        let entries = entries.filter(|entry| !entry.is_empty()).map(str::to_ascii_lowercase);
        let (entries, unknown): (Vec<_>, Vec<_>) = entries.partition(|entry| known.contains(&entry.as_str()));
        for _unknown in unknown {
            self.warn(name, expected);
        }
        entries
    }

    fn warn_about_other_signals(&mut self) {
        let served = "metrics are served for scraping only (prometheus or none)";
        self.list("OTEL_METRICS_EXPORTER", &["prometheus", "none"], served);
        self.list("OTEL_LOGS_EXPORTER", &["none"], "logs go to standard error only (none)");
        if self.text("OTEL_CONFIG_FILE").is_some() {
            self.warn(
                "OTEL_CONFIG_FILE",
                "DECLARATIVE CONFIGURATION IS NOT SUPPORTED; no part of the file applies, the other variables do",
            );
        }
    }

    fn exporters(&mut self) -> Vec<ExporterSettings> {
        if self.boolean(&["OTEL_SDK_DISABLED"]) {
            return Vec::new();
        }
        let known = ["otlp", "console", "otlp/stdout", "none"];
        let mut asked = self.list("OTEL_TRACES_EXPORTER", &known, "expected otlp, console or none");
        // What is not known is ignored, and nothing that is left is nothing that is set.
        let is_set = !asked.is_empty();
        if !is_set {
            asked.push("otlp".to_owned());
        }
        let mut exporters = Vec::new();
        for entry in asked {
            let exporter = match entry.as_str() {
                "otlp" => {
                    let otlp = self.otlp();
                    if otlp.is_none() && is_set {
                        self.warn(
                            "OTEL_TRACES_EXPORTER",
                            "otlp needs a usable OTEL_EXPORTER_OTLP_ENDPOINT",
                        );
                    }
                    otlp.map(ExporterSettings::Otlp)
                }
                "none" => return Vec::new(),
                _ => Some(ExporterSettings::Console),
            };
            exporters.extend(exporter.filter(|exporter| !exporters.contains(exporter)));
        }
        exporters
    }

    fn sampler(&mut self) -> Sampler {
        const NAME: &str = "OTEL_TRACES_SAMPLER";
        let following = |root: Sampler| Sampler::ParentBased(Box::new(root));
        let Some(chosen) = self.text(NAME).map(str::to_ascii_lowercase) else {
            return following(Sampler::AlwaysOn);
        };
        let follows = chosen.strip_prefix("parentbased_");
        let root = match follows.unwrap_or(&chosen) {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => Sampler::TraceIdRatioBased(self.ratio()),
            _ => {
                self.warn(NAME, "expected [parentbased_]always_on, always_off or traceidratio");
                return following(Sampler::AlwaysOn);
            }
        };
        if follows.is_some() { following(root) } else { root }
    }

    fn ratio(&mut self) -> f64 {
        let read = |value: &str| value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        self.first(&["OTEL_TRACES_SAMPLER_ARG"], "a ratio from 0 to 1; 1 is used", read)
            .unwrap_or(1.0)
    }

    fn propagates(&mut self) -> bool {
        let known = ["tracecontext", "baggage", "none"];
        let entries = self.list("OTEL_PROPAGATORS", &known, "expected tracecontext, baggage or none");
        let has = |name: &str| entries.iter().any(|entry| entry == name);
        // A value of which nothing can be used counts as unset.
        entries.is_empty() || (has("tracecontext") && !has("none"))
    }

    /// How much a span may have, and how many bytes one string value.
    fn limits(&mut self) -> (SpanLimits, usize) {
        let max_attributes_per_span = self.limit(&["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"]);
        let value_length = self.count(&[
            "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        ]);
        let limits = SpanLimits {
            max_attributes_per_span,
            max_events_per_span: self.limit(&["OTEL_SPAN_EVENT_COUNT_LIMIT"]),
            max_links_per_span: self.limit(&["OTEL_SPAN_LINK_COUNT_LIMIT"]),
            max_attributes_per_event: self.limit(&["OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT"]),
            max_attributes_per_link: self.limit(&["OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"]),
        };
        (limits, value_length.unwrap_or(DEFAULT_VALUE_LENGTH_LIMIT))
    }

    fn limit(&mut self, names: &[&str]) -> u32 {
        self.count(names).unwrap_or(128)
    }

    fn batch(&mut self) -> BatchSettings {
        let max_queue_size = self.size("OTEL_BSP_MAX_QUEUE_SIZE", 2048);
        let mut max_batch_size = self.size("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512.min(max_queue_size));
        if max_batch_size > max_queue_size {
            // One that is not set is the queue's size at most, and so is one that cannot be used.
            if self.text("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").is_some() {
                self.warn(
                    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
                    "larger than the queue; the queue's size is used",
                );
            }
            max_batch_size = max_queue_size;
        }
        BatchSettings {
            schedule_delay: self.milliseconds(&["OTEL_BSP_SCHEDULE_DELAY"], 5_000),
            export_timeout: self.timeout(&["OTEL_BSP_EXPORT_TIMEOUT"], 30_000),
            max_queue_size,
            max_batch_size,
        }
    }

    fn resource(&mut self, service_version: &str) -> BTreeMap<String, String> {
        let mut resource = BTreeMap::new();
        let mut put = |key: &str, value: Option<&str>| {
            if let Some(value) = value {
                resource.insert(key.to_owned(), value.to_owned());
            }
        };
        put(attr::SERVICE_NAME, Some(SERVICE_NAME));
        put(attr::SERVICE_VERSION, Some(service_version));
        put(attr::SERVICE_NAMESPACE, self.text("POD_NAMESPACE"));
        put(attr::SERVICE_INSTANCE_ID, self.text("POD_UID"));
        put(attr::NAMESPACE_NAME, self.text("POD_NAMESPACE"));
        put(attr::POD_NAME, self.text("POD_NAME"));
        put(attr::POD_UID, self.text("POD_UID"));
        put(attr::NODE_NAME, self.text("NODE_NAME"));
        let pairs = self.first(
            &["OTEL_RESOURCE_ATTRIBUTES"],
            "key=value pairs separated by commas",
            key_values,
        );
        let pairs = pairs.unwrap_or_default().into_iter();
        resource.extend(pairs.filter(|(_, value)| !value.is_empty()));
        if let Some(name) = self.text("OTEL_SERVICE_NAME") {
            resource.insert(attr::SERVICE_NAME.to_owned(), name.to_owned());
        }
        resource
    }

    fn exemplars(&mut self) -> ExemplarFilter {
        let choices = [
            ("always_on", ExemplarFilter::AlwaysOn),
            ("always_off", ExemplarFilter::AlwaysOff),
            ("trace_based", ExemplarFilter::TraceBased),
        ];
        self.choice(&["OTEL_METRICS_EXEMPLAR_FILTER"], &choices)
            .unwrap_or_default()
    }

    fn sdk_log_level(&mut self) -> Option<String> {
        let levels = ["off", "error", "warn", "info", "debug", "trace"].map(|level| (level, level.to_owned()));
        self.choice(&["OTEL_LOG_LEVEL"], &levels)
    }

    /// The collector that the environment names.
    fn otlp(&mut self) -> Option<OtlpSettings> {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let protocol = self.choice(&names, &PROTOCOLS).unwrap_or(Protocol::HttpBinary);
        let endpoint = self.endpoint(protocol)?;
        Some(OtlpSettings { protocol, endpoint })
    }

    /// The endpoint of the signal verbatim, or the general one with the signal path added for HTTP.
    fn endpoint(&mut self, protocol: Protocol) -> Option<String> {
        const SIGNAL: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const GENERAL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const EXPECTED: &str = "a URL such as http://collector:4318";
        if protocol == Protocol::Grpc {
            let insecure = ["OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE"];
            let scheme = if self.boolean(&insecure) { "http" } else { "https" };
            let read = |value: &str| {
                if value.contains("://") {
                    collector_url(value)
                } else {
                    collector_url(&format!("{scheme}://{value}"))
                }
            };
            return self.first(&[SIGNAL, GENERAL], EXPECTED, read);
        }
        self.first(&[SIGNAL], EXPECTED, collector_url).or_else(|| {
            let with_path = |value: &str| {
                let (base, rest) = value.split_at(value.find(['?', '#']).unwrap_or(value.len()));
                let query = rest.split('#').next().unwrap_or_default();
                collector_url(&format!("{}{SIGNAL_PATH}{query}", base.trim_end_matches('/')))
            };
            self.first(&[GENERAL], EXPECTED, with_path)
        })
    }

    /// Settings that are taken as they are, and most likely are not what was meant.
    fn warn_about_collectors(&mut self, exporters: &[ExporterSettings]) {
        for exporter in exporters {
            let ExporterSettings::Otlp(otlp) = exporter else {
                continue;
            };
            self.warn_about_path(otlp);
            if !otlp.is_encrypted() {
                self.warn_about_unused_certificates();
            }
        }
    }

    fn warn_about_path(&mut self, otlp: &OtlpSettings) {
        let url = otlp.endpoint.split(['?', '#']).next().unwrap_or_default();
        let before = url.trim_end_matches('/').strip_suffix(SIGNAL_PATH);
        let problem = match before {
            Some(_) if otlp.protocol == Protocol::Grpc => {
                "the URL of the collector ends with /v1/traces, which is for HTTP, and OTEL_EXPORTER_OTLP_PROTOCOL is \
                 grpc: set http/protobuf, or the URL for gRPC, which has no path and usually port 4317"
            }
            Some(before) if before.ends_with(SIGNAL_PATH) => {
                "the URL of the collector ends with /v1/traces twice: to that of OTEL_EXPORTER_OTLP_ENDPOINT it is \
                 appended, so leave it out there; that of OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is"
            }
            _ => return,
        };
        self.warnings.push(problem.to_owned());
    }

    fn warn_about_unused_certificates(&mut self) {
        let of_tls = |name: &str| name.ends_with("_CERTIFICATE") || name.ends_with("_CLIENT_KEY");
        for name in VARIABLES.iter().filter(|name| of_tls(name)) {
            if self.text(name).is_some() {
                self.warn(name, "the URL of the collector begins with http://; TLS needs https://");
            }
        }
    }

    /// What holds for every collector.
    fn transport(&mut self) -> TransportSettings {
        TransportSettings {
            compression: self.compression(),
            timeout: self.timeout(
                &["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
                10_000,
            ),
            certificate: self.file("CERTIFICATE"),
            client_certificate: self.file("CLIENT_CERTIFICATE"),
            client_key: self.file("CLIENT_KEY"),
            headers: self.headers(),
        }
    }

    fn compression(&mut self) -> Option<Compression> {
        let names = [
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            "OTEL_EXPORTER_OTLP_COMPRESSION",
        ];
        let choices = [("gzip", Some(Compression::Gzip)), ("none", None)];
        self.choice(&names, &choices).flatten()
    }

    fn file(&self, suffix: &str) -> Option<PathBuf> {
        let signal = format!("OTEL_EXPORTER_OTLP_TRACES_{suffix}");
        let general = format!("OTEL_EXPORTER_OTLP_{suffix}");
        self.text(&signal).or_else(|| self.text(&general)).map(PathBuf::from)
    }

    /// Headers that the collector asks for, such as a token.
    fn headers(&mut self) -> HeaderMap {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            for (key, value) in key_values(value)? {
                let mut value = HeaderValue::from_str(&value).ok()?;
                value.set_sensitive(true);
                headers.insert(HeaderName::from_bytes(key.as_bytes()).ok()?, value);
            }
            Some(headers)
        };
        self.first(&names, "key=value pairs separated by commas", read)
            .unwrap_or_default()
    }
}

/// W3C baggage syntax without properties: `key=value` pairs separated by commas, values percent-encoded. One pair that
/// cannot be read makes the whole text unusable, as the specification asks.
fn key_values(text: &str) -> Option<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (key, value) = entry.split_once('=')?;
        let key = percent_decode(key.trim())?;
        if key.is_empty() {
            return None;
        }
        pairs.push((key, percent_decode(value.trim())?));
    }
    Some(pairs)
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let high = char::from(digits[0]).to_digit(16)?;
        let low = char::from(digits[1]).to_digit(16)?;
        bytes.push(u8::try_from(high * 16 + low).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

/// The URL when it names an HTTP host.
fn collector_url(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let http = matches!(uri.scheme_str(), Some("http" | "https"));
    (http && uri.host().is_some_and(|host| !host.is_empty())).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
