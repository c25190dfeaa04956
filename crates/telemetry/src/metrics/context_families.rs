//! The families about trace contexts in annotations.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::family::{Labels, labels};

/// Kinds of objects whose annotations are read.
pub(super) const READ: [&str; 2] = ["VolumeAttachment", "PersistentVolume"];

/// Kinds of objects whose annotations are written.
const WRITTEN: [&str; 1] = ["VolumeAttachment"];

/// What became of a trace context in an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extraction {
    /// It was read.
    Success,
    /// It is no `traceparent`.
    Invalid,
}

impl Extraction {
    pub(super) const ALL: [Self; 2] = [Self::Success, Self::Invalid];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Invalid => "invalid",
        }
    }
}

pub(super) struct ContextFamilies {
    pub(super) extracted: Family<Labels, Counter>,
    pub(super) injected: Family<Labels, Counter>,
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

pub(super) fn described(kind: &'static str, result: &'static str) -> Labels {
    labels([("resource_kind", kind), ("result", result)])
}
