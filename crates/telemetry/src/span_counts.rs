//! What became of the spans of the process.
//!
//! This module must not decide anything: it only counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of spans since the start, of the process: as they go on ([`SpanCounters`]), or as they were read ([`SpanCounts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts<C> {
    pub ended: C,
    pub exported: C,
    pub export_failed: C,
    pub queue_full: C,
    pub shutdown: C,
    pub queue_length: C,
    pub queue_capacity: C,
}

pub(super) type SpanCounters = Counts<AtomicU64>;
pub(super) type SpanCounts = Counts<u64>;

impl SpanCounts {
    /// Spans of which nothing is known yet: they are in a queue, or on their way.
    pub fn open(&self) -> u64 {
        let known = self.exported + self.export_failed + self.queue_full + self.shutdown;
        // Those that ended are read first, and more may have become known since.
        self.ended.saturating_sub(known)
    }
}

impl SpanCounters {
    /// Reads the counts; each is exact, together they are not one instant.
    pub fn read(&self) -> SpanCounts {
        SpanCounts {
            ended: self.ended.load(Ordering::Relaxed),
            exported: self.exported.load(Ordering::Relaxed),
            export_failed: self.export_failed.load(Ordering::Relaxed),
            queue_full: self.queue_full.load(Ordering::Relaxed),
            shutdown: self.shutdown.load(Ordering::Relaxed),
            queue_length: self.queue_length.load(Ordering::Relaxed),
            queue_capacity: self.queue_capacity.load(Ordering::Relaxed),
        }
    }
}

pub(super) fn add(counter: &AtomicU64, spans: usize) {
    counter.fetch_add(spans as u64, Ordering::Relaxed);
}

pub(super) fn subtract(counter: &AtomicU64, spans: usize) {
    counter.fetch_sub(spans as u64, Ordering::Relaxed);
}
