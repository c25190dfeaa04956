//! The trace of a generation of an AttacherConfig: from when it was seen until its status tells what came of it.
//!
//! A driver that is away is asked again and again, for days maybe. Only the first time belongs to the generation; what comes
//! after it makes no spans.

use opentelemetry::trace::SpanContext;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use super::handshake::{Handshake, Obstacle};
use crate::telemetry::names::{attr, error_type, span};
use crate::telemetry::{Span, SpanKind, Tracer};

/// No trace is kept open for longer: another task that has to finish first may take hours.
const LONGEST: Duration = Duration::from_mins(5);
/// How long a status that should change may take to.
const MOMENT: Duration = Duration::from_secs(3);

/// What happened to an AttacherConfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new to this process.
    Added,
    /// What runs for it is another thing now, or its settings cannot be used.
    Updated,
    /// It is gone, or is not served any more.
    Removed,
    /// Nothing of it concerns the driver as it runs.
    Unchanged,
}

impl Change {
    /// The value of `attacher.config.change`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated => "updated",
            Self::Removed => "removed",
            Self::Unchanged => "unchanged",
        }
    }
}

/// A generation that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Name of the AttacherConfig.
    pub name: &'a str,
    /// Its generation.
    pub generation: i64,
    /// What happened to it.
    pub change: Change,
    /// Drivers that are started, stopped and restarted because of it.
    pub drivers: [usize; 3],
    /// Whether the driver is asked who it is because of it.
    pub asks: bool,
}

/// The trace of the newest generation of one AttacherConfig. Clones share it; without a generation it does nothing.
#[derive(Clone, Debug, Default)]
pub struct ConfigTrace(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    generation: Option<i64>,
    context: Option<SpanContext>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    span: Arc<Span>,
    since: Instant,
    asking: Asking,
    /// When the answer came, or what else there was to do was done.
    done: Option<Instant>,
    driver: Option<String>,
    failure: Option<(&'static str, String)>,
}

/// How far the driver was asked who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Due,
    Now,
    Done,
}

impl ConfigTrace {
    /// Begins the trace of a generation; that of the one before ends.
    pub fn begin(&self, tracer: &Tracer, seen: &Seen<'_>) {
        let mut span = tracer.root(span::CONFIG_RECONCILE, SpanKind::Consumer, &[]);
        span.set(attr::CONFIG_NAME, seen.name);
        span.set(attr::CONFIG_GENERATION, seen.generation);
        span.set(attr::CONFIG_CHANGE, seen.change.as_str());
        let [started, stopped, restarted] = seen.drivers;
        span.set(attr::DRIVERS_STARTED, started);
        span.set(attr::DRIVERS_STOPPED, stopped);
        span.set(attr::DRIVERS_RESTARTED, restarted);
        let mut state = self.0.lock();
        let former = state.open.take();
        state.generation = Some(seen.generation);
        state.context = span.context().cloned();
        state.open = Some(Open {
            span: Arc::new(span),
            since: Instant::now(),
            asking: if seen.asks { Asking::Due } else { Asking::Done },
            done: (!seen.asks).then(Instant::now),
            driver: None,
            failure: None,
        });
        drop(state);
        former.into_iter().for_each(Open::end);
    }

    /// The newest generation and the context of its trace, also when that has ended.
    pub fn newest(&self) -> (Option<i64>, Option<SpanContext>) {
        let state = self.0.lock();
        (state.generation, state.context.clone())
    }

    /// Its settings cannot be used.
    pub fn refused(&self, kind: &'static str, message: &str) {
        if let Some(open) = &mut self.0.lock().open {
            open.failure = Some((kind, message.to_owned()));
        }
    }

    /// The parent of the calls that ask a driver who it is: for the first time, nothing after that.
    pub(super) fn ask(&self) -> Option<Arc<Span>> {
        let mut state = self.0.lock();
        let open = state.open.as_mut().filter(|open| open.asking == Asking::Due)?;
        open.asking = Asking::Now;
        Some(open.span.clone())
    }

    /// What came of the calls that were made for [`ConfigTrace::ask`].
    pub(super) fn answered(&self, answer: &Result<Handshake, Obstacle>) {
        let mut state = self.0.lock();
        let Some(open) = state.open.as_mut().filter(|open| open.asking == Asking::Now) else {
            return;
        };
        open.asking = Asking::Done;
        open.done = Some(Instant::now());
        match answer {
            Ok(handshake) => open.driver = Some(handshake.plugin.name.clone()),
            Err(obstacle) => {
                let kind = match obstacle {
                    Obstacle::Unreachable { .. } => error_type::DRIVER_UNAVAILABLE,
                    Obstacle::Stalled { .. } => error_type::INVALID_SPEC,
                };
                open.failure = Some((kind, obstacle.message().to_owned()));
            }
        }
    }

    /// The parent of a write of the status, while the generation is not settled.
    pub fn parent(&self) -> Option<Arc<Span>> {
        self.0.lock().open.as_ref().map(|open| open.span.clone())
    }

    /// The status was written. Ends the trace, unless the driver is still to be asked.
    pub fn told(&self) {
        self.end_if(|open| open.asking == Asking::Done);
    }

    /// There is nothing to write. Ends the trace if that does not change for a moment: what came of the generation is told
    /// by the status soon after, unless another replica tells it or it told the same before.
    pub fn quiet(&self) {
        self.end_if(|open| open.done.is_some_and(|done| done.elapsed() >= MOMENT));
    }

    fn end_if(&self, over: impl Fn(&Open) -> bool) {
        let mut state = self.0.lock();
        let ended = state.open.take_if(|open| over(open) || open.since.elapsed() >= LONGEST);
        drop(state);
        ended.into_iter().for_each(Open::end);
    }
}

impl Open {
    /// Whoever has the span last ends it.
    fn end(self) {
        let Some(mut span) = Arc::into_inner(self.span) else {
            return;
        };
        if let Some(driver) = &self.driver {
            span.set(attr::CSI_PLUGIN_NAME, driver.as_str());
        }
        if let Some((kind, message)) = &self.failure {
            span.fail(kind, message);
        }
    }
}
