//! A tracer that is looked for, not kept.

use std::sync::{Arc, Weak};

use super::{Shared, Tracer};

/// A tracer that does not keep its pipeline.
#[derive(Clone, Debug)]
pub(in crate::telemetry) struct WeakTracer(Weak<Shared>);

impl WeakTracer {
    /// The tracer, when anybody still has it.
    pub fn upgrade(&self) -> Option<Tracer> {
        let shared = Some(self.0.upgrade()?);
        Some(Tracer {
            shared,
            ..Tracer::disabled()
        })
    }
}

impl Tracer {
    /// The same without keeping its pipeline; `None` when disabled.
    pub(in crate::telemetry) fn downgrade(&self) -> Option<WeakTracer> {
        Some(WeakTracer(Arc::downgrade(self.shared.as_ref()?)))
    }
}
