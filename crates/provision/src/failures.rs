//! What both kinds of attempts tell alike: Events, and attempts that failed.

use std::time::Duration;

use crate::clock;
use crate::context::DriverContext;
use crate::decide::Failure;
use crate::events::{InvolvedObject, NewEvent};
use crate::provision::event::ProvisionEventReason;
use crate::runtime::FailureRecord;
use crate::telemetry::Span;
use crate::telemetry::names::{self, attr, error_type};
use crate::traces::Operation;

/// From this attempt on in a row a request that may succeed a moment later is told: it has not for some time.
pub(crate) const LASTING: u32 = 3;

/// An attempt that failed.
pub(crate) struct FailedAttempt<'a> {
    pub operation: Operation,
    /// Name of the claim or PersistentVolume.
    pub subject: &'a str,
    /// `error.type`.
    pub kind: &'static str,
    /// gRPC code of the driver's answer.
    pub code: Option<i32>,
    pub message: &'a str,
    /// Until the next attempt.
    pub delay: Duration,
    /// Whether it is to be shown as what failed last: who still waits for what he has waited for before has not failed again.
    pub is_news: bool,
}

impl FailedAttempt<'_> {
    /// Tells it in the metrics, on the span and in the state of the driver. Answers what it is called there, for the log.
    pub fn tell(&self, work: &DriverContext, span: &mut Span) -> &'static str {
        let reason = self
            .code
            .map(tonic::Code::from)
            .map_or(self.kind, names::code_camel_case);
        let operation = self.operation.as_str();
        work.context.metrics.attempt_failed(&work.facts.name, operation, reason);
        span.set(attr::RETRY_DELAY, self.delay.as_secs_f64());
        // The driver's words alone: the code stands beside them.
        let words = self
            .message
            .split_once(" desc = ")
            .map_or(self.message, |(_, words)| words);
        span.fail(self.kind, words);
        if self.is_news {
            work.publisher.failure(FailureRecord {
                at: clock::now(),
                attachment: self.subject.to_owned(),
                operation,
                code: reason.to_owned(),
                message: self.message.to_owned(),
                trace_id: span.trace_id(),
            });
        }
        reason
    }
}

/// `error.type` of a call that failed.
pub(crate) fn kind_of(failure: &Failure) -> &'static str {
    failure.code.map_or(error_type::DRIVER_UNAVAILABLE, |code| {
        names::code_upper_snake(code.into())
    })
}

/// Records an Event on objects. No text here has a value of a Secret: those of the driver were scrubbed when they came in.
pub(crate) fn record(
    work: &DriverContext,
    span: &Span,
    reason: ProvisionEventReason,
    cause: &'static str,
    note: String,
    subjects: Vec<InvolvedObject>,
) {
    work.context.events.record(NewEvent {
        driver: work.facts.name.clone(),
        reason: reason.as_str(),
        level: reason.level(),
        cause: cause.into(),
        note,
        traceparent: span.traceparent(),
        at: clock::now(),
        subjects,
    });
}
