//! The span of an attempt, and the trace that it is a part of.

use super::report;
use super::state::{Attempt, is_settled};
use crate::apiserver::ApiError;
use crate::cache::Snapshot;
use crate::decide::Write;
use crate::decide::patch;
use crate::telemetry::w3c;
use crate::traces::AttemptResult;

impl Attempt<'_> {
    /// Opens the span. True when the attachment was written to on the way, and has to be observed again.
    pub(super) async fn open_span(&mut self, snapshot: &Snapshot) -> bool {
        let begun = self
            .work
            .lifecycles
            .start_attempt(self.run, snapshot, is_settled(snapshot, self.work));
        self.span = begun.span;
        self.lifecycle = begun.lifecycle;
        report::set_attempt_attributes(&mut self.span, self.work, self.run, snapshot);
        match begun.rolled {
            Some(root) if self.config.tracing.outgoing_annotation => {
                // Whoever comes after this process finds the new trace by it. If it cannot be written, nothing is lost but that.
                let note = patch::note_trace(&snapshot.attachment, &w3c::traceparent(&root));
                self.write_trace_context(snapshot, &note).await.ok();
                true
            }
            _ => false,
        }
    }

    /// Ends the span, and the lifecycle that it is a part of if that is over.
    pub(super) fn end_span(&mut self, name: &str) {
        std::mem::take(&mut self.span).end();
        let store = &self.work.context.store;
        if let Some(lifecycle) = self.lifecycle.take() {
            let ended = std::mem::replace(&mut self.ended, AttemptResult::NoChange);
            self.work
                .lifecycles
                .end_attempt(&lifecycle, ended, || store.attachment(name));
        }
    }

    /// The claim, with the trace of the attach.
    pub(super) fn with_trace(&self, claim: Write) -> Write {
        match (&self.lifecycle, self.config.tracing.outgoing_annotation) {
            (Some(lifecycle), true) => {
                let context = lifecycle.lock().root_context();
                patch::with_trace(claim, &w3c::traceparent(&context))
            }
            _ => claim,
        }
    }

    /// Sends a write that puts a trace context on the attachment.
    pub(super) async fn write_trace_context(&self, snapshot: &Snapshot, write: &Write) -> Result<bool, ApiError> {
        let outcome = self.write(&self.work.context.requests, snapshot, write).await;
        let metrics = &self.work.context.metrics;
        let result = if outcome.is_ok() { "success" } else { "failure" };
        metrics.trace_context_injected("VolumeAttachment", result);
        outcome
    }
}
