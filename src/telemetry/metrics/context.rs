//! Trace contexts in annotations: how many were read, and how many were written (names as KEP-5915 proposes them).

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::family::{Labels, labels};

/// Kinds of objects whose annotations are read.
const READ: [&str; 2] = ["VolumeAttachment", "PersistentVolume"];
/// Kinds of objects whose annotations are written.
const WRITTEN: [&str; 1] = ["VolumeAttachment"];

/// What became of a trace context in an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extraction {
    /// It was read.
    Success,
    /// It is no `traceparent`.
    Invalid,
    /// It was read, but for its `tracestate`.
    InvalidTracestate,
}

impl Extraction {
    const ALL: [Self; 3] = [Self::Success, Self::Invalid, Self::InvalidTracestate];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Invalid => "invalid",
            Self::InvalidTracestate => "invalid_tracestate",
        }
    }
}

pub(super) struct ContextFamilies {
    extracted: Family<Labels, Counter>,
    injected: Family<Labels, Counter>,
}

impl ContextFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Self {
            extracted: Family::default(),
            injected: Family::default(),
        };
        registry.register(
            "trace_context_annotations_extracted",
            "Trace contexts found in annotations of objects",
            families.extracted.clone(),
        );
        registry.register(
            "trace_context_annotations_injected",
            "Trace contexts written into annotations of objects",
            families.injected.clone(),
        );
        for kind in READ {
            for result in Extraction::ALL {
                let _from_zero = families.extracted.get_or_create(&described(kind, result.as_str()));
            }
        }
        for kind in WRITTEN {
            for result in ["success", "failure"] {
                let _from_zero = families.injected.get_or_create(&described(kind, result));
            }
        }
        families
    }
}

fn described(kind: &'static str, result: &'static str) -> Labels {
    labels([("resource_kind", kind), ("result", result)])
}

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
