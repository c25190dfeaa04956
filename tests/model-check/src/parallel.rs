//! Work on several threads.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// So many threads run at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does something with each row of a table, on as many threads; true when all of it was good.
pub fn all_good<T: Sync>(table: &[T], threads: usize, act: impl Fn(&T) -> bool + Sync) -> bool {
    let (next, is_good) = (AtomicUsize::new(0), AtomicBool::new(true));
    let work = || {
        while let Some(row) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            is_good.fetch_and(act(row), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    is_good.into_inner()
}
