//! Runs a handler for each key that a queue hands out.

use std::sync::Arc;

use tokio::task::{JoinSet, yield_now};

use crate::queue::{Key, Queue, Run, RunResult};
use crate::schedule;

/// How many runs begin before other tasks have their turn. The first piece of a run takes some 0.1 ms; when a thousand are ready
/// at once, the watches and the other drivers would wait for all of them.
pub const RUNS_IN_A_ROW: usize = 8;

/// Runs `handler` in a task of its own for each key that the queue hands out, as many at once as the limits of the queue
/// allow. Ends when the queue is closed and these runs have finished.
///
/// A handler that panics fails its run: the key is held and retried, and [`crate::queue::Observer::panicked`] is told. A handler that
/// never ends keeps its own slot and no other. Dropping this future cancels the runs, which then count as failed.
pub async fn run<K, H, F>(queue: Queue<K>, handler: H)
where
    K: Key,
    H: Fn(Run<K>) -> F + Send + Sync + 'static,
    F: Future<Output = RunResult> + Send + 'static,
{
    let handler = Arc::new(handler);
    let mut runs = JoinSet::new();
    let mut in_a_row = 0;
    loop {
        tokio::select! {
            // In this order rather than by chance, so that a simulation can be repeated.
            biased;
            // Taking back finished tasks as they come keeps memory flat. What they were worth, their tickets have told.
            Some(_) = runs.join_next() => {}
            next = queue.next() => match next {
                Some(ticket) => {
                    let handler = Arc::clone(&handler);
                    runs.spawn(schedule::of_this_process(ticket.work(move |run| handler(run))));
                    in_a_row += 1;
                }
                None => break,
            },
        }
        if in_a_row >= RUNS_IN_A_ROW {
            in_a_row = 0;
            yield_now().await;
        }
    }
    while runs.join_next().await.is_some() {}
}
