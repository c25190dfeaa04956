//! Where the tasks of the operator begin: tokio's own, but that a simulation, which runs several operators in one process, may let
//! all tasks of one of them stand still.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use tokio::task::JoinHandle;

/// One operator of a simulation.
pub trait SimulatedProcess: Send + Sync {
    /// Whether its tasks stand still; if so, `waker` is woken when they go on.
    fn stands_still(&self, waker: &Waker) -> bool;

    /// How far its wall clock is off, in milliseconds.
    fn wall_clock_off(&self) -> i64;
}

thread_local! {
    /// Whose task is polled. None outside simulations.
    static CURRENT: RefCell<Option<Arc<dyn SimulatedProcess>>> = const { RefCell::new(None) };
}

/// The operator of a simulation whose task is polled now.
pub fn current() -> Option<Arc<dyn SimulatedProcess>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Spawns a task.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(of_this_process(future))
}

/// A future that is polled as part of the process whose task made it; for sets of tasks.
pub fn of_this_process<F: Future>(future: F) -> OfProcess<F> {
    OfProcess {
        process: current(),
        future,
    }
}

/// A future of one of the tasks of `process`.
pub fn of_process<F: Future>(process: Arc<dyn SimulatedProcess>, future: F) -> OfProcess<F> {
    OfProcess {
        process: Some(process),
        future,
    }
}

pin_project! {
    /// A future that is polled as long as its process moves.
    pub struct OfProcess<F> {
        process: Option<Arc<dyn SimulatedProcess>>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for OfProcess<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(process) = this.process else {
            return this.future.poll(context);
        };
        if process.stands_still(context.waker()) {
            return Poll::Pending;
        }
        let _entered = Entered(CURRENT.replace(Some(process.clone())));
        this.future.poll(context)
    }
}

/// Restores the process that was current before.
struct Entered(Option<Arc<dyn SimulatedProcess>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
