//! Trace contexts in annotations: how many were read, and how many were written (names as KEP-5915 proposes them).

use super::Metrics;
use super::context_families::{Extraction, described};

impl Metrics {
    /// An annotation of an object of this kind was looked at for a trace context.
    pub fn trace_context_extracted(&self, kind: &'static str, result: Extraction) {
        let labels = described(kind, result.as_str());
        self.0.context.extracted.get_or_create(&labels).inc();
    }

    /// A write was sent that puts a trace context on an object of this kind.
    pub fn trace_context_injected(&self, kind: &'static str, written: bool) {
        let labels = described(kind, if written { "success" } else { "failure" });
        self.0.context.injected.get_or_create(&labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::super::context_families::READ;
    use super::*;

    #[test]
    fn both_counters_begin_at_zero_and_count() {
        let metrics = Metrics::default();
        let line = |counter: &str, kind: &str, result: &str, count: u32| {
            let labels = format!("resource_kind=\"{kind}\",result=\"{result}\"");
            let line = format!("trace_context_annotations_{counter}_total{{{labels}}} {count}");
            assert!(
                metrics.encode_openmetrics().lines().any(|other| other == line),
                "{line}"
            );
        };
        for (kind, result) in READ
            .into_iter()
            .flat_map(|kind| Extraction::ALL.map(|result| (kind, result)))
        {
            line("extracted", kind, result.as_str(), 0);
            metrics.trace_context_extracted(kind, result);
            line("extracted", kind, result.as_str(), 1);
        }
        for (written, result) in [(true, "success"), (false, "failure")] {
            line("injected", "VolumeAttachment", result, 0);
            metrics.trace_context_injected("VolumeAttachment", written);
            line("injected", "VolumeAttachment", result, 1);
        }
    }
}
