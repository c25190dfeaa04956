//! All pipelines of the process: one for whoever runs it, or one for each collector that AttacherConfigs name.
//!
//! A pipeline is started when the first driver asks for its collector, shared by all that name the same, and ends when
//! nobody can end a span for it any more; what was ended until then is exported, for a bounded time. This module must not
//! wait for a collector.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::batch::Queue;
use super::destination::{Destination, destination, sampler};
use super::exporter::ExportPlan;
use super::otel_env::{ExporterSettings, TraceSettings};
use super::provider::{Pipeline, PipelinePlan, ProviderError};
use super::span_counts::{SpanCounters, SpanCounts};
use super::trace::{Tracer, WeakTracer};
use super::tracing_file::TracingFile;
use crate::api::validated::Collector;

/// What a caller allows on top of the cap for the export threads to answer.
const ANSWER_SLACK: Duration = Duration::from_millis(250);

/// Result of a flush or a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Every span that had ended was handed to the exporters.
    Flushed,
    /// The cap was reached first, or exports failed: this many spans were lost during the call.
    Lost(u64),
}

/// Gives each driver the tracer that its settings ask for. A clone is one reference count.
#[derive(Clone, Debug)]
pub struct Tracers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: Arc<TraceSettings>,
    file: Option<TracingFile>,
    counters: Arc<SpanCounters>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The tracer of whoever runs the process.
    process: Option<Tracer>,
    /// Those of the collectors that AttacherConfigs name.
    own: BTreeMap<Collector, WeakTracer>,
    running: Vec<Pipeline>,
    /// No pipeline is started any more.
    closed: bool,
}

impl Tracers {
    /// Starts the pipeline of the process, if there is one; those of AttacherConfigs are started when they are asked for.
    pub(super) fn start(settings: TraceSettings, file: Option<TracingFile>, counters: Arc<SpanCounters>) -> Self {
        let tracers = Self(Arc::new(Shared {
            settings: Arc::new(settings),
            file,
            counters,
            state: Mutex::default(),
        }));
        drop(tracers.of(None));
        tracers
    }

    /// Tracers that do nothing.
    pub fn disabled() -> Self {
        Self::from(Tracer::disabled())
    }

    /// The tracer for a driver whose AttacherConfig names this collector, or none. A pipeline that cannot be started is
    /// told of, and the tracer does nothing.
    pub fn of(&self, collector: Option<&Collector>) -> Tracer {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if let Some(tracer) = &state.process {
            return tracer.clone();
        }
        let (exporters, headers) = match destination(&shared.settings, shared.file.as_ref(), collector) {
            Destination::Off => return Tracer::disabled(),
            Destination::PassOn => return Tracer::passing_on(shared.settings.propagators),
            Destination::Process(exporters) => (exporters, shared.settings.headers.clone()),
            Destination::Own(otlp) => (vec![ExporterSettings::Otlp(Box::new(otlp))], http::HeaderMap::new()),
        };
        if let Some(running) = collector.and_then(|collector| state.own.get(collector)?.upgrade()) {
            return running;
        }
        if state.closed {
            return Tracer::disabled();
        }
        let export = ExportPlan {
            exporters,
            transport: shared.settings.transport.clone(),
            headers,
        };
        match shared.start_pipeline(&mut state, export) {
            Ok(tracer) => {
                state.keep(shared.is_of_process(), collector, &tracer);
                tracer
            }
            Err(error) => {
                tracing::warn!("{error}; no traces are made");
                Tracer::disabled()
            }
        }
    }

    /// Exports what has ended so far; gives up after `cap`.
    pub(super) async fn flush(&self, cap: Duration) -> FlushOutcome {
        let shared = &self.0;
        let before = shared.counters.read();
        let flushes: Vec<_> = shared.queues().iter().map(|queue| queue.flushed()).collect();
        let answers = tokio::time::timeout(cap, join_all(flushes)).await;
        let after = shared.counters.read();
        let complete = answers.is_ok_and(|answers| answers.iter().all(Result::is_ok));
        let left = if complete { 0 } else { after.open() };
        outcome(lost(&after) - lost(&before) + left)
    }

    /// Refuses new spans, exports what is queued, and stops the threads within `cap`.
    pub(super) async fn shutdown(&self, cap: Duration) -> FlushOutcome {
        let shared = &self.0;
        let before = shared.counters.read();
        self.close(cap);
        let finished: Vec<oneshot::Receiver<()>> = {
            let mut state = shared.state.lock();
            state.running.drain(..).map(|pipeline| pipeline.finished).collect()
        };
        // Neither a late nor a dead thread may hold the caller up; the counts say what became of the spans.
        drop(tokio::time::timeout(cap + ANSWER_SLACK, join_all(finished)).await);
        let after = shared.counters.read();
        outcome(lost(&after) - lost(&before) + after.open())
    }

    /// Refuses new spans, and stops the threads within `cap`. Returns at once.
    pub(super) fn close(&self, cap: Duration) {
        self.0.state.lock().closed = true;
        let deadline = Instant::now() + cap.min(Duration::from_mins(1));
        for queue in self.0.queues() {
            queue.close(deadline);
        }
    }

    /// The counts of all pipelines.
    #[cfg(test)]
    pub(super) fn counters(&self) -> Arc<SpanCounters> {
        Arc::clone(&self.0.counters)
    }

    /// How many pipelines run.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        let queues = self.0.queues();
        queues.iter().filter(|queue| !queue.is_finished()).count()
    }
}

impl From<Tracer> for Tracers {
    /// Gives this tracer to every driver.
    fn from(tracer: Tracer) -> Self {
        let state = State {
            process: Some(tracer),
            ..State::default()
        };
        Self(Arc::new(Shared {
            settings: Arc::new(super::otel_env::parse(&BTreeMap::new(), "").settings),
            file: None,
            counters: Arc::default(),
            state: Mutex::new(state),
        }))
    }
}

impl Shared {
    fn is_of_process(&self) -> bool {
        matches!(
            destination(&self.settings, self.file.as_ref(), None),
            Destination::Process(_)
        )
    }

    fn start_pipeline(&self, state: &mut State, export: ExportPlan) -> Result<Tracer, ProviderError> {
        let plan = PipelinePlan {
            export,
            sampler: sampler(&self.settings, self.file.as_ref()),
            settings: Arc::clone(&self.settings),
        };
        let (tracer, pipeline) = Pipeline::start(&plan, &self.counters)?;
        state.running.push(pipeline);
        Ok(tracer)
    }

    fn queues(&self) -> Vec<Arc<Queue>> {
        let state = self.state.lock();
        state
            .running
            .iter()
            .map(|pipeline| Arc::clone(&pipeline.queue))
            .collect()
    }
}

impl State {
    /// Remembers a tracer that was made, and forgets what has ended.
    fn keep(&mut self, of_process: bool, collector: Option<&Collector>, tracer: &Tracer) {
        self.running.retain(|pipeline| !pipeline.queue.is_finished());
        self.own.retain(|_, tracer| tracer.upgrade().is_some());
        if of_process {
            self.process = Some(tracer.clone());
        } else if let (Some(collector), Some(weak)) = (collector, tracer.downgrade()) {
            self.own.insert(collector.clone(), weak);
        }
    }
}

/// The tracer of one driver, which follows its settings.
#[derive(Debug)]
pub struct DriverTracer {
    tracers: Tracers,
    current: Mutex<Option<(Option<Collector>, Tracer)>>,
}

impl DriverTracer {
    /// Asks `tracers` when it is first needed.
    pub const fn new(tracers: Tracers) -> Self {
        let current = Mutex::new(None);
        Self { tracers, current }
    }

    /// The tracer for this collector: the same one as long as the collector is the same. With another one, the one before
    /// is let go of, whose spans are exported still.
    pub fn get(&self, collector: Option<&Collector>) -> Tracer {
        let mut current = self.current.lock();
        match &*current {
            Some((of, tracer)) if of.as_ref() == collector => tracer.clone(),
            _ => {
                let tracer = self.tracers.of(collector);
                *current = Some((collector.cloned(), tracer.clone()));
                tracer
            }
        }
    }
}

fn lost(counts: &SpanCounts) -> u64 {
    counts.export_failed + counts.shutdown
}

fn outcome(lost: u64) -> FlushOutcome {
    if lost == 0 {
        FlushOutcome::Flushed
    } else {
        FlushOutcome::Lost(lost)
    }
}

#[cfg(test)]
#[path = "tracers_tests.rs"]
mod tests;
