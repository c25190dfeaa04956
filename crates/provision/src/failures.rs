//! What both kinds of attempts tell alike.

use crate::clock;
use crate::context::DriverContext;
use crate::decide::Failure;
use crate::events::{InvolvedObject, NewEvent};
use crate::provision::event::ProvisionEventReason;
use crate::telemetry::names::{self, error_type};
use crate::telemetry::{Span, traced};
use csi_attacher_model::attempt::LeaseLost;

/// From this attempt on in a row a request that may succeed a moment later is told: it has not for some time.
pub(crate) const LASTING: u32 = 3;

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
    cause: &str,
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

/// Nothing failed: others may work for the driver by now. `claim` or `volume` is what the attempt is about.
pub(crate) fn lease_lost(
    work: &DriverContext,
    span: &mut Span,
    (claim, volume): (Option<&str>, Option<&str>),
    lost: LeaseLost,
) {
    let driver = &*work.facts.name;
    match lost {
        LeaseLost::NotStarted => {
            traced!(
                debug,
                *span,
                driver,
                PersistentVolumeClaim = claim,
                PersistentVolume = volume,
                "{lost}"
            );
        }
        LeaseLost::Cancelled => {
            traced!(
                warn,
                *span,
                driver,
                PersistentVolumeClaim = claim,
                PersistentVolume = volume,
                "{lost}"
            );
            span.fail(error_type::SHUTDOWN, &lost.to_string());
        }
    }
}
