//! The trace of one comparison with ListVolumes: one span, which is made when it is known what came of it.

use csi_attacher_runtime::fence::CallFailure;
use jiff::Timestamp;
use std::time::SystemTime;

use super::super::context::DriverContext;
use super::list::{ListError, ListProgress};
use crate::clock;
use crate::decide::reconcile::{Comparison, DesiredState, Expectation};
use crate::telemetry::names::{attr, code_upper_snake, error_type, event, span};
use crate::telemetry::{Span, SpanKind, SpanOptions};

/// Of so many comparisons of a driver that find nothing one has a span; the first has.
const ONE_OF: u64 = 60;
/// Mismatches that the span shows: a backend that lists nothing any more is one problem.
const MAX_MISMATCHES: usize = 32;

/// A comparison that is under way.
pub(in crate::driver) struct ReconcileSyncSpan<'w> {
    work: &'w DriverContext,
    began: Timestamp,
    /// Whether it has a span whatever it finds.
    sample: bool,
    compared: usize,
    skipped: usize,
    pub progress: ListProgress,
}

impl<'w> ReconcileSyncSpan<'w> {
    /// A comparison after `before` others of the driver: of `compared` attachments, without `skipped` that cannot be compared.
    pub fn begin(work: &'w DriverContext, before: u64, compared: usize, skipped: usize) -> Self {
        Self {
            work,
            began: clock::now(),
            sample: before.is_multiple_of(ONE_OF),
            compared,
            skipped,
            progress: ListProgress::default(),
        }
    }

    /// The listing did not come to its end.
    pub fn failed(self, error: &ListError) {
        let mut span = self.open(0);
        match error {
            ListError::Call(CallFailure::Driver(error)) => span.fail(code_upper_snake(error.code), &error.message),
            other => span.fail(error_type::OTHER, &other.to_string()),
        }
    }

    pub fn compared(self, compared: &Comparison) {
        let wrong = &compared.contradicted;
        if wrong.is_empty() && !self.sample {
            return;
        }
        let mut span = self.open(wrong.len());
        if span.is_recording() {
            for expected in wrong.iter().take(MAX_MISMATCHES) {
                self.mismatch(&mut span, expected);
            }
        }
    }

    fn open(&self, mismatches: usize) -> Span {
        let mut span = self.work.lifecycles.tracer().open(SpanOptions {
            start: Some(SystemTime::from(self.began)),
            ..SpanOptions::new(span::RECONCILE_SYNC, SpanKind::Internal)
        });
        span.set(attr::CSI_PLUGIN_NAME, &*self.work.facts.name);
        for (key, count) in [
            (attr::SYNC_PAGES, self.progress.pages),
            (attr::SYNC_VOLUMES, self.progress.volumes),
            (attr::SYNC_ATTACHMENTS, self.compared),
            (attr::SYNC_SKIPPED, self.skipped),
            (attr::SYNC_MISMATCHES, mismatches),
        ] {
            span.set(key, count);
        }
        span
    }

    fn mismatch(&self, span: &mut Span, expected: &Expectation) {
        let (wanted, found) = match expected.wanted {
            DesiredState::Published => ("attached", "detached"),
            DesiredState::Unpublished => ("detached", "attached"),
        };
        span.event(
            event::MISMATCH,
            &[
                (attr::MISMATCH_VA, (&*expected.name).into()),
                (attr::MISMATCH_EXPECTED, wanted.into()),
                (attr::MISMATCH_ACTUAL, found.into()),
            ],
        );
        let known = self.work.context.store.attachment(&expected.name);
        let life = known.and_then(|known| self.work.lifecycles.context_of(&known));
        if let Some(life) = life {
            span.link(&life);
        }
    }
}
