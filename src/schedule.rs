//! Where the tasks of the operator begin: tokio's own, but that a simulation may let all tasks of one process stand still.

use tokio::task::JoinHandle;

/// Spawns a task.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(of_this_process(future))
}

/// A future that is polled as part of the process whose task made it; for sets of tasks.
#[cfg(not(test))]
pub fn of_this_process<F: Future>(future: F) -> F {
    future
}

#[cfg(test)]
pub use crate::driver::of_this_process;
