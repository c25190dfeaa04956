//! What performs an attempt, for a claim or a PersistentVolume: where it is in the queue, in its life cycle, and what it did.

use std::time::Duration;

use crate::apiserver::HeldSecret;
use crate::key::WorkKey;
use crate::look::Look;
use crate::queue::Run;
use crate::telemetry::Span;
use crate::traces::{Lifecycle, LifecycleOutcome, Progress};

/// The effects of one attempt.
pub(crate) struct Shell<'w, K> {
    pub look: Look<'w, K>,
    pub run: &'w Run<WorkKey>,
    /// Opened by the first step that does something.
    pub span: Span,
    /// How far the life cycle had come before, and what began in this attempt.
    pub progress: Progress,
    /// Whether the attempt did something.
    pub has_tried: bool,
    /// That the life cycle has ended in this attempt.
    pub ended: Option<LifecycleOutcome>,
    /// That of its calls.
    pub secret: HeldSecret,
    /// Calls to the driver that were made: `callsPerSecond` is about these, while the queue counts starts.
    pub calls: u32,
}

impl<'w, K> Shell<'w, K> {
    /// For an attempt in a run of the queue.
    pub fn new(look: Look<'w, K>, run: &'w Run<WorkKey>, progress: Progress) -> Self {
        Self {
            look,
            run,
            span: Span::disabled(),
            progress,
            has_tried: false,
            ended: None,
            secret: HeldSecret::default(),
            calls: 0,
        }
    }

    /// The number of the attempt in its life cycle, from 1 on. That of the queue counts failures in a row.
    pub fn attempt(&self) -> u32 {
        self.progress.attempts.saturating_add(1)
    }

    /// Counts the attempt, at its end: the life cycle that ended in it, and how.
    pub fn count(&mut self) -> Option<(Lifecycle, LifecycleOutcome)> {
        let ended = self.progress.lifecycle.zip(self.ended);
        self.progress = self.progress.after(self.has_tried, self.ended.is_some());
        ended
    }

    /// How long the attempt has taken so far.
    pub fn took(&self) -> Duration {
        self.run.started().elapsed()
    }
}
