//! The queue between ended spans and the exporters, with exact counts.
//!
//! The SDK's batch processor counts its drops by an experimental metric only, does not count exports, and does not bound an
//! export that hangs. So this is the operator's own: ending a span takes a lock and pushes; one thread with its own
//! single-threaded runtime exports.
//! A collector that is away therefore costs memory up to the limit of the queue and nothing else. Every ended span is
//! counted once more as exported, failed or dropped, or is still in the queue or in flight.
//! This module must not know how spans are exported.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::OptionFuture;
use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::otel_env::BatchSettings;
use super::span_counts::{SpanCounters, SpanCounts, add, subtract};

/// Shortest time between two log records about failing exports.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Where batches go. Implemented by the exporters of `exporter.rs`.
pub(super) trait SpanSink: Send + 'static {
    /// Builds what is missing and logs what fails. Called once before the first export, so that a fault shows at the start.
    fn prepare(&mut self) {}

    fn export(&mut self, batch: Vec<SpanData>) -> impl Future<Output = Result<(), ExportError>>;
}

/// Why a batch was not exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExportError {
    /// The collector did not take it; the text names no credential.
    Failed(String),
    /// The sink was not ready, and has logged why.
    NotReady,
}

#[derive(Debug, Default)]
struct SpanQueueState {
    spans: VecDeque<SpanData>,
    /// No further span is taken.
    closed: bool,
}

/// The queue; shared by the processor that fills it and the thread that empties it.
#[derive(Debug)]
pub(super) struct SpanQueue {
    state: Mutex<SpanQueueState>,
    wake: Notify,
    /// The instant after which the thread gives up, once the queue was closed.
    deadline: watch::Sender<Option<Instant>>,
    counters: Arc<SpanCounters>,
    settings: BatchSettings,
}

impl SpanQueue {
    pub(super) fn new(settings: BatchSettings, counters: Arc<SpanCounters>) -> Arc<Self> {
        add(&counters.queue_capacity, settings.max_queue_size);
        let state = Mutex::new(SpanQueueState::default());
        Arc::new(Self {
            state,
            wake: Notify::new(),
            deadline: watch::Sender::new(None),
            counters,
            settings,
        })
    }

    fn push(&self, span: SpanData) {
        add(&self.counters.ended, 1);
        let length = {
            let mut state = self.state.lock();
            if state.closed {
                add(&self.counters.shutdown, 1);
                return;
            }
            if state.spans.len() >= self.settings.max_queue_size {
                add(&self.counters.queue_full, 1);
                return;
            }
            state.spans.push_back(span);
            add(&self.counters.queue_length, 1);
            state.spans.len()
        };
        // The thread sleeps until the first span of a batch and then until the batch is full or late, so that it is
        // not woken for each span.
        if length == 1 || length == self.settings.max_batch_size {
            self.wake.notify_one();
        }
    }

    fn take_batch(&self) -> Vec<SpanData> {
        let mut state = self.state.lock();
        let size = state.spans.len().min(self.settings.max_batch_size);
        let batch = state.spans.drain(..size).collect();
        subtract(&self.counters.queue_length, size);
        if state.spans.is_empty() {
            // A burst must not keep its memory for good.
            state.spans.shrink_to(self.settings.max_batch_size);
        }
        batch
    }

    /// Refuses further spans and gives the thread until `deadline` for those it has. Returns at once; the earliest
    /// deadline counts.
    pub(super) fn close(&self, deadline: Instant) {
        self.state.lock().closed = true;
        self.deadline.send_if_modified(|current| {
            let sooner = current.is_none_or(|current| deadline < current);
            if sooner {
                *current = Some(deadline);
            }
            sooner
        });
        self.wake.notify_one();
    }
}

/// The SDK's side of the queue.
#[derive(Debug)]
pub(super) struct CountingSpanProcessor(pub(super) Arc<SpanQueue>);

impl SpanProcessor for CountingSpanProcessor {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.0.push(span);
        }
    }

    /// Never waits: `TelemetryGuard` owns the end.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// Never waits: the thread gets the time, the caller does not.
    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        // Bounded, because an instant too far away cannot be represented.
        self.0.close(Instant::now() + timeout.min(Duration::from_mins(1)));
        Ok(())
    }
}

/// The export thread's loop; returns after [`SpanQueue::close`] when the queue is empty or the deadline has passed.
pub(super) async fn run(queue: Arc<SpanQueue>, mut sink: impl SpanSink) {
    let _rest = DropRest(&queue);
    sink.prepare();
    let mut deadline = queue.deadline.subscribe();
    let mut log = FailureLog::default();
    let mut batch_due = None;
    loop {
        let (spans, closed) = {
            let state = queue.state.lock();
            (state.spans.len(), state.closed)
        };
        let is_due = match spans {
            0 if closed => break,
            0 => {
                queue.wake.notified().await;
                false
            }
            _ if closed || spans >= queue.settings.max_batch_size => true,
            _ => {
                let due = *batch_due.get_or_insert_with(|| Instant::now() + queue.settings.schedule_delay);
                tokio::time::timeout_at(due, queue.wake.notified()).await.is_err()
            }
        };
        if is_due {
            batch_due = None;
            export(&queue, &mut sink, &mut deadline, &mut log).await;
        }
        if deadline.borrow().is_some_and(|deadline| deadline <= Instant::now()) {
            break;
        }
    }
}

/// What is left when the loop ends, however it ends, is dropped and counted.
struct DropRest<'a>(&'a SpanQueue);

impl Drop for DropRest<'_> {
    fn drop(&mut self) {
        let Self(queue) = self;
        let mut state = queue.state.lock();
        state.closed = true;
        add(&queue.counters.shutdown, state.spans.len());
        subtract(&queue.counters.queue_length, state.spans.len());
        subtract(&queue.counters.queue_capacity, queue.settings.max_queue_size);
        state.spans = VecDeque::new();
    }
}

async fn export(
    queue: &SpanQueue,
    sink: &mut impl SpanSink,
    deadline: &mut watch::Receiver<Option<Instant>>,
    log: &mut FailureLog,
) {
    let batch = queue.take_batch();
    let spans = batch.len();
    // The libraries below may panic about what a collector answers, of which the operator knows nothing.
    let export = AssertUnwindSafe(sink.export(batch)).catch_unwind();
    let result = tokio::select! {
        result = tokio::time::timeout(queue.settings.export_timeout, export) => match result {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ExportError::Failed("the exporter panicked about the collector's answer".to_owned())),
            Err(_) => Err(ExportError::Failed("the export took too long".to_owned())),
        },
        () = passed(deadline) => Err(ExportError::Failed("the pipeline is being stopped".to_owned())),
    };
    match result {
        Ok(()) => {
            add(&queue.counters.exported, spans);
            log.succeeded();
        }
        Err(error) => {
            add(&queue.counters.export_failed, spans);
            if let ExportError::Failed(error) = error {
                log.failed(&error, &queue.counters.read());
            }
        }
    }
}

/// Resolves when a deadline was set and has passed.
async fn passed(deadline: &mut watch::Receiver<Option<Instant>>) {
    loop {
        let due = deadline.borrow_and_update().map(tokio::time::sleep_until);
        tokio::select! {
            Some(()) = OptionFuture::from(due) => return,
            // The sender lives in the queue, which outlives this call.
            _sooner = deadline.changed() => {}
        }
    }
}

/// Says that exports fail, at most once a minute, and after each such record once that they work again.
#[derive(Debug, Default)]
struct FailureLog {
    last: Option<Instant>,
    reported: bool,
}

impl FailureLog {
    fn failed(&mut self, error: &str, counts: &SpanCounts) {
        let now = Instant::now();
        if self.last.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL) {
            self.last = Some(now);
            self.reported = true;
            tracing::warn!(
                error,
                export_failed = counts.export_failed,
                queue_full = counts.queue_full,
                "spans could not be exported; attaching is not affected"
            );
        }
    }

    fn succeeded(&mut self) {
        if std::mem::take(&mut self.reported) {
            tracing::info!("spans are exported again");
        }
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
