//! Runs a handler for each key that a queue hands out.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::task::coop::consume_budget;

use crate::queue::{Key, Queue, Run, RunResult, Ticket};
use crate::schedule;

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
    loop {
        tokio::select! {
            // In this order rather than by chance, so that a simulation can be repeated.
            biased;
            // Taking back finished tasks as they come keeps memory flat. What they were worth, their tickets have told.
            Some(_) = runs.join_next() => {}
            next = next(&queue) => match next {
                Some(ticket) => {
                    let handler = Arc::clone(&handler);
                    runs.spawn(schedule::of_this_process(ticket.work(move |run| handler(run))));
                }
                None => break,
            },
        }
    }
    while runs.join_next().await.is_some() {}
}

async fn next<K: Key>(queue: &Queue<K>) -> Option<Ticket<K>> {
    // A long row of ready keys must not keep other tasks from running. Before a key is taken: the future may be dropped here.
    consume_budget().await;
    queue.next().await
}
