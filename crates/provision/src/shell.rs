//! What performs an attempt, for a claim or a PersistentVolume: where it is in the queue, in its life cycle, and what it did.

use std::time::Duration;

use crate::apiserver::HeldSecret;
use crate::key::WorkKey;
use crate::look::Look;
use crate::queue::Run;
use crate::telemetry::Span;
use crate::traces::{Beginning, Lifecycle, LifecycleOutcome};

/// The effects of one attempt.
pub(crate) struct Shell<'w, K> {
    pub look: Look<'w, K>,
    pub run: &'w Run<WorkKey>,
    /// Opened by the first step that does something.
    pub span: Span,
    /// Since when the volume is wanted, once something is done for it; or to be deleted, as far as this process has seen.
    pub begun: Option<Beginning>,
    /// Whether a volume was saved for the claim before, or given up.
    pub again: bool,
    /// The life cycle that the attempt is a part of, when it is traced.
    pub lifecycle: Option<Lifecycle>,
    /// That the life cycle has ended in this attempt.
    pub ended: Option<LifecycleOutcome>,
    /// That of its calls.
    pub secret: HeldSecret,
    /// Calls to the driver that were made: `callsPerSecond` is about these, while the queue counts starts.
    pub calls: u32,
}

impl<'w, K> Shell<'w, K> {
    /// For an attempt in a run of the queue.
    pub fn new(
        look: Look<'w, K>,
        run: &'w Run<WorkKey>,
        (begun, again): (Option<Beginning>, bool),
        lifecycle: Option<Lifecycle>,
    ) -> Self {
        Self {
            look,
            run,
            span: Span::disabled(),
            begun,
            again,
            lifecycle,
            ended: None,
            secret: HeldSecret::default(),
            calls: 0,
        }
    }

    /// How long the attempt has taken so far.
    pub fn took(&self) -> Duration {
        self.run.started().elapsed()
    }
}
