//! Runs a handler for each key that a queue hands out.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use tokio::task::JoinSet;

use super::{Key, Queue, Run, Ticket, Verdict};
use crate::schedule;

/// Runs `handler` in a task of its own for each key that the queue hands out, as many at once as the limits of the queue
/// allow. Ends when the queue is closed and these runs have finished.
///
/// A handler that panics fails its run: the key is held and retried, and [`super::Observer::panicked`] is told. A handler that
/// never ends keeps its own slot and no other. Dropping this future cancels the runs, which then count as failed.
pub async fn run<K, H, F>(queue: Queue<K>, handler: H)
where
    K: Key,
    H: Fn(Run<K>) -> F + Send + Sync + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let handler = Arc::new(handler);
    let mut runs = JoinSet::new();
    loop {
        tokio::select! {
            // In this order rather than by chance, so that a simulation can be repeated.
            biased;
            // Taking back finished tasks as they come keeps memory flat. What they were worth, their tickets have told.
            Some(_) = runs.join_next() => {}
            next = queue.next() => match next {
                Some(ticket) => {
                    runs.spawn(schedule::of_this_process(attempt(ticket, Arc::clone(&handler))));
                }
                None => break,
            },
        }
    }
    while runs.join_next().await.is_some() {}
}

async fn attempt<K, H, F>(ticket: Ticket<K>, handler: Arc<H>)
where
    K: Key,
    H: Fn(Run<K>) -> F,
    F: Future<Output = Verdict>,
{
    let view = Run::clone(&ticket);
    // After a panic only the ticket is used, and nothing of what the handler borrowed.
    match AssertUnwindSafe(async { handler(view).await }).catch_unwind().await {
        Ok(verdict) => ticket.finish(verdict),
        Err(panic) => {
            ticket.panicked(message(panic.as_ref()));
            ticket.finish(Verdict::Failed);
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
