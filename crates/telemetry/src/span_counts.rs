//! What became of the spans of the process.
//!
//! This module must not decide anything: it only counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of spans since the start, of the process.
#[derive(Debug, Default)]
pub(super) struct SpanCounters {
    pub(super) ended: AtomicU64,
    pub(super) exported: AtomicU64,
    pub(super) export_failed: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) shutdown: AtomicU64,
    pub(super) queue_length: AtomicU64,
    pub(super) queue_capacity: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpanCounts {
    pub ended: u64,
    pub exported: u64,
    pub export_failed: u64,
    pub queue_full: u64,
    pub shutdown: u64,
    pub queue_length: u64,
    pub queue_capacity: u64,
}

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
