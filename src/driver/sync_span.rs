//! The trace of one comparison with ListVolumes. Most comparisons find nothing and say nothing, so it is kept back until it
//! is known whether it is worth sending.

use std::time::Duration;
use tokio::time::Instant;

use super::engine::Work;
use super::listing::ListError;
use crate::decide::reconcile::{Compared, Expectation, Wanted};
use crate::telemetry::names::{attr, code_upper_snake, error_type, event, span};
use crate::telemetry::trace::Hold;
use crate::telemetry::{Span, SpanKind};

/// Of so many comparisons of a driver one is sent whatever it found; the first is.
const ONE_OF: u64 = 60;
/// Mismatches that are told on the span: a backend that lists nothing any more is one piece of news.
const MOST_MISMATCHES: usize = 32;

/// The span of a comparison that is under way.
pub(super) struct SyncSpan<'w> {
    work: &'w Work,
    pub span: Span,
    hold: Hold,
    began: Instant,
    /// What takes longer than one call may take is worth a look.
    patience: Duration,
    /// Sent whatever is found.
    sample: bool,
}

impl<'w> SyncSpan<'w> {
    /// That of the comparison which so many went before.
    pub fn begin(work: &'w Work, before: u64) -> Self {
        let (mut span, hold) = work.tracer().held_root(span::RECONCILE_SYNC, SpanKind::Internal);
        span.set(attr::CSI_PLUGIN_NAME, &*work.facts.name);
        for key in [attr::SYNC_PAGES, attr::SYNC_VOLUMES, attr::SYNC_MISMATCHES] {
            span.set(key, 0i64);
        }
        Self {
            work,
            span,
            hold,
            began: Instant::now(),
            patience: work.config.borrow().timeouts.list_volumes,
            sample: before.is_multiple_of(ONE_OF),
        }
    }

    /// How many attachments are compared, and how many cannot be.
    pub fn about(&mut self, compared: usize, skipped: usize) {
        self.span.set(attr::SYNC_ATTACHMENTS, compared);
        self.span.set(attr::SYNC_SKIPPED, skipped);
    }

    /// The listing did not come to its end.
    pub fn failed(mut self, error: &ListError) {
        match error {
            ListError::Call(error) => self.span.fail(code_upper_snake(error.code), &error.message),
            other => self.span.fail(error_type::OTHER, &other.to_string()),
        }
        self.end(true);
    }

    /// What came of it.
    pub fn compared(mut self, compared: &Compared) {
        let wrong = &compared.contradicted;
        self.span.set(attr::SYNC_MISMATCHES, wrong.len());
        if self.span.is_recording() {
            for expected in wrong.iter().take(MOST_MISMATCHES) {
                self.mismatch(expected);
            }
        }
        let send = !wrong.is_empty() || self.sample || self.began.elapsed() > self.patience;
        self.end(send);
    }

    fn mismatch(&mut self, expected: &Expectation) {
        let (wanted, found) = match expected.wanted {
            Wanted::Here => ("attached", "detached"),
            Wanted::Gone => ("detached", "attached"),
        };
        self.span.event(
            event::MISMATCH,
            &[
                (attr::MISMATCH_VA, (&*expected.name).into()),
                (attr::MISMATCH_EXPECTED, wanted.into()),
                (attr::MISMATCH_ACTUAL, found.into()),
            ],
        );
        let known = self.work.context.store.attachment(&expected.name);
        let life = known.and_then(|known| self.work.lives.context_of(&known));
        if let Some(life) = life {
            self.span.link(&life);
        }
    }

    fn end(self, send: bool) {
        self.hold.decide(send);
        self.span.end();
    }
}
