//! The exporters of one pipeline: OTLP collectors and the console.
//!
//! Must be used on the export thread's runtime. This module must not queue or count.

use std::io::Write;

use futures::future::join_all;
use opentelemetry::trace::Status;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;

use super::batch::{ExportError, SpanSink};
use super::collector::OtlpSink;
use super::otel_env::{ExporterSettings, TraceSettings};

enum Exporter {
    Otlp(Box<OtlpSink>),
    Console,
}

pub(super) struct Exporters(Vec<Exporter>);

impl Exporters {
    /// Builds nothing yet: what stands in the way of that may go away while the pipeline runs.
    pub(super) fn new(settings: &TraceSettings, resource: &Resource) -> Self {
        let exporter = |exporter: &ExporterSettings| match exporter {
            ExporterSettings::Console => Exporter::Console,
            ExporterSettings::Otlp(otlp) => Exporter::Otlp(Box::new(OtlpSink::new(
                otlp.clone(),
                settings.transport.clone(),
                settings.batch.export_timeout,
                resource.clone(),
            ))),
        };
        Self(settings.exporters.iter().map(exporter).collect())
    }
}

impl SpanSink for Exporters {
    fn prepare(&mut self) {
        for exporter in &mut self.0 {
            if let Exporter::Otlp(collector) = exporter {
                collector.prepare();
            }
        }
    }

    /// Exports to all destinations at once; fails when one of them fails.
    async fn export(&mut self, batch: Vec<SpanData>) -> Result<(), ExportError> {
        if let [only] = self.0.as_mut_slice() {
            return only.export(batch).await;
        }
        join_all(self.0.iter_mut().map(|exporter| exporter.export(batch.clone())))
            .await
            .into_iter()
            .collect()
    }
}

impl Exporter {
    async fn export(&mut self, batch: Vec<SpanData>) -> Result<(), ExportError> {
        match self {
            Self::Otlp(collector) => collector.export(batch).await,
            Self::Console => write_lines(&batch, &mut std::io::stdout().lock())
                .map_err(|error| ExportError::Failed(format!("standard output: {error}"))),
        }
    }
}

/// One JSON object a line for each span, for people at a terminal; the form is not an interface.
fn write_lines(batch: &[SpanData], output: &mut impl Write) -> std::io::Result<()> {
    for span in batch {
        let attributes: serde_json::Map<_, _> = span
            .attributes
            .iter()
            .map(|pair| (pair.key.to_string(), pair.value.to_string().into()))
            .collect();
        let error = match &span.status {
            Status::Error { description } => Some(description.as_ref()),
            Status::Unset | Status::Ok => None,
        };
        let events: Vec<&str> = span.events.iter().map(|event| event.name.as_ref()).collect();
        let line = serde_json::json!({
            "name": span.name,
            "kind": format!("{:?}", span.span_kind),
            "trace_id": span.span_context.trace_id().to_string(),
            "span_id": span.span_context.span_id().to_string(),
            "parent_span_id": span.parent_span_id.to_string(),
            "start": timestamp(span.start_time),
            "end": timestamp(span.end_time),
            "error": error,
            "events": events,
            "attributes": attributes,
        });
        writeln!(output, "{line}")?;
    }
    output.flush()
}

fn timestamp(time: std::time::SystemTime) -> Option<String> {
    jiff::Timestamp::try_from(time).ok().map(|time| time.to_string())
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
pub mod tests;
