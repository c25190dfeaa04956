//! The `OTEL_*` environment as one pure function from a map of variables to [`TraceSettings`] and warnings.
//!
//! Rules of the OpenTelemetry specification: an empty value counts as unset, a boolean is true only when it reads
//! `true`, enumerations ignore case, and a value that cannot be used is ignored with a warning. A variable for the
//! signal (`OTEL_EXPORTER_OTLP_TRACES_*`) wins over the general one. Warnings never repeat the value of a variable that
//! may hold a credential. This module must not read the process environment outside [`process_environment`].

mod otlp;
mod reader;
mod settings;
mod variables;

use std::collections::BTreeMap;

use super::attribute::DEFAULT_VALUE_LENGTH_LIMIT;
use super::metrics::ExemplarFilter;
use super::names::{SERVICE_NAME, attr};
use reader::{EnvironmentReader, key_values};
pub use settings::{
    BatchSettings, Compression, ExporterSettings, OtlpProtocol, OtlpSettings, Propagators, RootSampler,
    SamplerSettings, SpanLimitSettings, TraceSettings, TransportSettings,
};
pub use variables::VARIABLES;

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// The variables of this process; names and values that are not UTF-8 are left out.
pub fn process_environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Result of [`parse`].
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedEnvironment {
    /// What to do.
    pub settings: TraceSettings,
    /// What was ignored and why, for the log.
    pub warnings: Vec<String>,
}

/// Reads the `OTEL_*` variables, and `POD_NAME`, `POD_NAMESPACE`, `POD_UID` and `NODE_NAME` for the resource.
pub fn parse(environment: &Environment, service_version: &str) -> ParsedEnvironment {
    let mut reader = EnvironmentReader::new(environment);
    reader.warn_about_other_signals();
    let settings = TraceSettings {
        exporters: reader.exporters(),
        transport: reader.transport(),
        headers: reader.headers(),
        sampler: reader.sampler(),
        propagators: reader.propagators(),
        limits: reader.limits(),
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

impl EnvironmentReader<'_> {
    fn warn_about_other_signals(&mut self) {
        for entry in self.list("OTEL_METRICS_EXPORTER").unwrap_or_default() {
            if !matches!(entry.as_str(), "prometheus" | "none") {
                self.warn(
                    "OTEL_METRICS_EXPORTER",
                    "metrics are served for scraping only (prometheus or none)",
                );
            }
        }
        for entry in self.list("OTEL_LOGS_EXPORTER").unwrap_or_default() {
            if entry != "none" {
                self.warn("OTEL_LOGS_EXPORTER", "logs go to standard error only (none)");
            }
        }
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
        let asked = self.list("OTEL_TRACES_EXPORTER");
        let mut exporters = Vec::new();
        for entry in asked.clone().unwrap_or_else(|| vec!["otlp".to_owned()]) {
            let exporter = match entry.as_str() {
                "otlp" => {
                    let otlp = self.otlp();
                    if otlp.is_none() && asked.is_some() {
                        self.warn(
                            "OTEL_TRACES_EXPORTER",
                            "otlp needs a usable OTEL_EXPORTER_OTLP_ENDPOINT",
                        );
                    }
                    otlp.map(|settings| ExporterSettings::Otlp(Box::new(settings)))
                }
                "console" | "otlp/stdout" => Some(ExporterSettings::Console),
                "none" => return Vec::new(),
                _ => {
                    self.warn("OTEL_TRACES_EXPORTER", "expected otlp, console or none");
                    None
                }
            };
            exporters.extend(exporter.filter(|exporter| !exporters.contains(exporter)));
        }
        exporters
    }

    fn sampler(&mut self) -> SamplerSettings {
        const ALL: SamplerSettings = SamplerSettings {
            root: RootSampler::AlwaysOn,
            parent_based: true,
        };
        let name = "OTEL_TRACES_SAMPLER";
        let Some(chosen) = self.text(name).map(str::to_ascii_lowercase) else {
            return ALL;
        };
        let (parent_based, root) = match chosen.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, chosen.as_str()),
        };
        let root = match root {
            "always_on" => RootSampler::AlwaysOn,
            "always_off" => RootSampler::AlwaysOff,
            "traceidratio" => RootSampler::Ratio(self.ratio()),
            _ => {
                self.warn(name, "expected [parentbased_]always_on, always_off or traceidratio");
                return ALL;
            }
        };
        SamplerSettings { root, parent_based }
    }

    fn ratio(&mut self) -> f64 {
        let read = |value: &str| value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        self.first(&["OTEL_TRACES_SAMPLER_ARG"], "a ratio from 0 to 1; 1 is used", read)
            .unwrap_or(1.0)
    }

    fn propagators(&mut self) -> Propagators {
        let Some(entries) = self.list("OTEL_PROPAGATORS") else {
            return Propagators { trace_context: true };
        };
        let (mut trace_context, mut none, mut known) = (false, false, false);
        for entry in &entries {
            match entry.as_str() {
                "tracecontext" => trace_context = true,
                "baggage" => {}
                "none" => none = true,
                _ => {
                    self.warn("OTEL_PROPAGATORS", "expected tracecontext, baggage or none");
                    continue;
                }
            }
            known = true;
        }
        // A value of which nothing can be used counts as unset.
        Propagators {
            trace_context: !known || (trace_context && !none),
        }
    }

    fn limits(&mut self) -> SpanLimitSettings {
        let attributes = self.count(&["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"], 128);
        let lengths = [
            "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        ];
        let length = self.first(&lengths, "a whole number from 0", |value| value.parse().ok());
        SpanLimitSettings {
            value_length: length.unwrap_or(DEFAULT_VALUE_LENGTH_LIMIT),
            attributes,
            events: self.count(&["OTEL_SPAN_EVENT_COUNT_LIMIT"], 128),
            links: self.count(&["OTEL_SPAN_LINK_COUNT_LIMIT"], 128),
            event_attributes: self.count(&["OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT"], 128),
            link_attributes: self.count(&["OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"], 128),
        }
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
            export_timeout: self.milliseconds(&["OTEL_BSP_EXPORT_TIMEOUT"], 30_000),
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
        resource.extend(pairs.unwrap_or_default());
        if let Some(name) = self.text("OTEL_SERVICE_NAME") {
            resource.insert(attr::SERVICE_NAME.to_owned(), name.to_owned());
        }
        resource
    }

    fn exemplars(&mut self) -> ExemplarFilter {
        self.first(
            &["OTEL_METRICS_EXEMPLAR_FILTER"],
            "always_on, always_off or trace_based",
            ExemplarFilter::named,
        )
        .unwrap_or_default()
    }

    fn sdk_log_level(&mut self) -> Option<String> {
        let read = |value: &str| {
            let value = value.to_ascii_lowercase();
            matches!(value.as_str(), "off" | "error" | "warn" | "info" | "debug" | "trace").then_some(value)
        };
        self.first(&["OTEL_LOG_LEVEL"], "off, error, warn, info, debug or trace", read)
    }
}

#[cfg(test)]
mod tests;
