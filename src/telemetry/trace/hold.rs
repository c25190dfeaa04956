//! Spans that are kept back until it is known whether their trace is worth sending.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanKind};
use opentelemetry_sdk::trace::Span as SdkSpan;
use parking_lot::Mutex;

use super::{Span, Tracer};
use crate::telemetry::batch;

/// Spans of one trace that are kept back; what ends beyond them is left out.
const MOST: usize = 256;

/// The spans that have ended in one trace, until [`Hold::decide`]. Without a decision none of them is sent.
#[derive(Clone, Debug, Default)]
pub struct Hold(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    ended: Vec<(SdkSpan, SystemTime)>,
    sent: Option<bool>,
}

impl Hold {
    /// Sends what has ended, or leaves it out; what ends from now on goes the same way at once.
    pub fn decide(&self, send: bool) {
        let ended = {
            let mut held = self.0.lock();
            held.sent = Some(send);
            std::mem::take(&mut held.ended)
        };
        for (span, end) in ended {
            leave(span, end, send);
        }
    }

    /// Takes a span that ended.
    pub(super) fn take(&self, span: SdkSpan, end: SystemTime) {
        let mut held = self.0.lock();
        match held.sent {
            None if held.ended.len() < MOST => held.ended.push((span, end)),
            sent => {
                drop(held);
                leave(span, end, sent.unwrap_or(false));
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (span, end) in self.ended.drain(..) {
            leave(span, end, false);
        }
    }
}

/// Ends a span for the SDK, which knows of no span that goes nowhere.
fn leave(mut span: SdkSpan, end: SystemTime, send: bool) {
    if send {
        span.end_with_timestamp(end);
    } else {
        batch::leaving_out(|| span.end_with_timestamp(end));
    }
}

impl Tracer {
    /// Like [`Tracer::root`], with all spans of the trace kept back, of which there may be some hundreds.
    pub fn held_root(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind) -> (Span, Hold) {
        let hold = Hold::default();
        let mut span = self.root(name, kind, &[]);
        if let Some(active) = span.0.as_deref_mut() {
            active.hold = Some(hold.clone());
        }
        (span, hold)
    }
}
