//! What attempts of all roles report alike.

use std::time::Duration;

use crate::cause::EnqueueCause;
use crate::clock;
use crate::engine::Workplace;
use crate::queue::{Key, Run};
use crate::queue_metrics::{LaneNames, queue_name};
use crate::state::FailureRecord;
use crate::telemetry::names::{self, attr};
use crate::telemetry::{Metrics, Span};

/// Sets the attributes of the queue's part in an attempt. The number of the attempt is for the role to set: the queue counts failures in a
/// row, not the attempts of a life cycle.
pub fn set_run_attributes<K: Key>(span: &mut Span, run: &Run<K>, lanes: LaneNames) {
    span.set(attr::QUEUE_NAME, queue_name(lanes, run.lane));
    span.set(attr::TRIGGER, EnqueueCause::of_run(run).as_str());
    span.set(attr::QUEUE_WAIT, run.waited().as_secs_f64());
    span.set(attr::QUEUE_RETRIES, i64::from(run.failures));
    span.set(attr::PERMIT_WAIT, run.waited_for_limit().as_secs_f64());
}

/// An attempt that failed.
pub struct FailedAttempt<'a> {
    /// What was attempted, as metrics have it.
    pub operation: &'static str,
    /// Name of the object.
    pub subject: &'a str,
    /// `error.type`: the gRPC code, or what stood in the way.
    pub kind: &'static str,
    /// gRPC code of the driver's answer.
    pub code: Option<i32>,
    /// What went wrong.
    pub message: &'a str,
    /// Until the next attempt; none when there is none.
    pub delay: Option<Duration>,
    /// Whether it is to be shown as what failed last: who still waits for what he has waited for before has not failed again. What is shown
    /// of this object is corrected in any case.
    pub is_news: bool,
}

impl FailedAttempt<'_> {
    /// Tells it in the metrics, on the span and in the state of the driver. Answers what it is called there, for the log.
    pub fn tell<K: Key>(&self, place: &Workplace<K>, metrics: &Metrics, span: &mut Span) -> &'static str {
        let reason = self.show(place, span);
        metrics.attempt_failed(&place.facts.name, self.operation, reason);
        reason
    }

    /// The same without the metrics.
    pub fn show<K: Key>(&self, place: &Workplace<K>, span: &mut Span) -> &'static str {
        let reason = self.code.map(tonic::Code::from);
        let reason = reason.map_or_else(|| names::cause_camel_case(self.kind), names::code_camel_case);
        if let Some(delay) = self.delay {
            span.set(attr::RETRY_DELAY, delay);
        }
        // The driver's words alone: the code stands beside them as `error.type` and is not to be repeated.
        let words = match (self.code, self.message.split_once(" desc = ")) {
            (Some(_), Some((_, words))) => words,
            _ => self.message,
        };
        span.fail(self.kind, words);
        let is_outdated = |last: &FailureRecord| last.attachment == self.subject && last.message != self.message;
        let is_corrected = place.status.borrow().last_failure.as_ref().is_some_and(is_outdated);
        if self.is_news || is_corrected {
            let failure = FailureRecord {
                at: clock::now(),
                attachment: self.subject.to_owned(),
                operation: self.operation,
                code: reason.to_owned(),
                message: self.message.to_owned(),
                trace_id: span.trace_id(),
            };
            place.status.failure(&place.facts.name, failure);
        }
        reason
    }
}
