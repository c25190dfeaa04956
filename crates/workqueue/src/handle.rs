//! The shared handle: locks the state and wakes those who wait.

use std::sync::Arc;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::backoff::Backoff;
use super::item::{AddResult, CauseCode, Group, Item, Key, Lane};
use super::limits::{QueueLimits, Rate};
use super::observer::{NoObserver, Observer, Stats};
use super::run::{Run, RunResult};
use super::state::{NextRun, QueueState};
use super::ticket::Ticket;

/// A keyed work queue; see the [module](super). Clones share one queue. All methods may be called from any task; none but
/// [`Queue::next`] and [`Queue::drained`] waits.
pub struct Queue<K: Key> {
    shared: Arc<QueueInner<K>>,
}

pub(super) struct QueueInner<K: Key> {
    state: Mutex<QueueState<K>>,
    pub(super) observer: Arc<dyn Observer>,
    /// Notified once for each change that may let a key run. A consumer that leaves [`Queue::next`] notifies the next one, so one
    /// notification is enough for any number of keys and consumers.
    work: Notify,
    /// Notified when no run is in flight.
    idle: Notify,
    /// Notified when a slot may have become free, for those that wait in [`Queue::acquire_slot`].
    slots: Notify,
}

/// What a [`Queue`] is made with.
pub struct Builder {
    /// How long what failed or waits is held.
    pub backoff: Backoff,
    /// By default none.
    pub limits: QueueLimits,
    /// Hears what happens; by default nobody does.
    pub observer: Arc<dyn Observer>,
    /// The jitter is drawn from it; by default it is seeded by chance.
    pub rng: Rng,
    /// So many failures a second the queue goes on with at most, and a second's worth of them at once, however short the backoff is
    /// (default: any number). What exceeds it waits longer than its backoff says, but no longer than a minute for that. With as many
    /// waits besides ([`RunResult::Waits`]): neither delays the other.
    pub failures_per_second: Rate,
}

impl Builder {
    /// A queue with this backoff.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            limits: QueueLimits::default(),
            observer: Arc::new(NoObserver),
            rng: Rng::new(),
            failures_per_second: Rate::default(),
        }
    }

    /// The queue, empty and running.
    pub fn build<K: Key>(self) -> Queue<K> {
        let now = Instant::now();
        let observer = Arc::clone(&self.observer);
        let state = QueueState::new(
            self.backoff,
            self.limits,
            self.failures_per_second,
            self.rng,
            observer,
            now,
        );
        let shared = QueueInner {
            state: Mutex::new(state),
            observer: self.observer,
            work: Notify::new(),
            idle: Notify::new(),
            slots: Notify::new(),
        };
        Queue {
            shared: Arc::new(shared),
        }
    }
}

impl<K: Key> Queue<K> {
    /// A queue with this backoff, without limits and observer; [`Builder`] makes others.
    pub fn new(backoff: Backoff) -> Self {
        Builder::new(backoff).build()
    }

    /// Queues a key at once, unless it is held after a failure with the same fingerprint, or something was put back of it just now
    /// ([`Self::count_put_back`]).
    pub fn add(&self, item: Item<K>) -> AddResult {
        self.add_and_remember(item, |_| ())
    }

    /// As [`Self::add`], and changes what is remembered of the key before it can run. `remember` must be short and not use the queue.
    pub fn add_and_remember(&self, item: Item<K>, remember: impl FnOnce(&mut K::Memory)) -> AddResult {
        self.shared.change(|state, now| state.add(item, remember, now))
    }

    /// Reads or changes what is remembered of a key; nothing when the key is settled. `change` must be short and not use the queue.
    pub fn remember<T>(&self, key: &K, change: impl FnOnce(&mut K::Memory) -> T) -> Option<T> {
        self.shared.state.lock().memory(key).map(change)
    }

    /// Reads or changes what is remembered of all unsettled keys, in no order. Costs time for each of them.
    pub fn remember_all(&self, mut change: impl FnMut(&K, &mut K::Memory)) {
        for (key, memory) in self.shared.state.lock().memories() {
            change(key, memory);
        }
    }

    /// Queues a held key now; its failure count stays. A key that runs is queued at once if that run fails or asks for a
    /// delay. Returns whether the key was held or runs.
    pub fn wake(&self, key: &K, cause: CauseCode) -> bool {
        self.shared.change(|state, now| state.wake(key, cause, now))
    }

    /// [`Self::wake`] for all keys; returns how many were held or run.
    pub fn wake_all(&self, cause: CauseCode) -> usize {
        self.shared.change(|state, now| state.wake_all(cause, now))
    }

    /// Drops all state of a key. A run in flight is not ended, but whatever its result, the key is queued again only if it
    /// is added after this call. Returns what was remembered of the key, if it was known.
    pub fn forget(&self, key: &K) -> Option<K::Memory> {
        self.shared.change(|state, _| state.forget(key))
    }

    /// Waits for a key that may run. Nothing after [`Self::close`]. Cancelling the future loses no key. Does not wait while keys are
    /// ready: who takes many lets other tasks run in between.
    pub async fn next(&self) -> Option<Ticket<K>> {
        let _next = NotifyNextGuard(&self.shared.work);
        loop {
            let changed = self.shared.work.notified();
            let next = {
                let mut state = self.shared.state.lock();
                state.next(Instant::now())
            };
            match next {
                NextRun::Run(run) => return Some(Ticket::new(run, Arc::clone(&self.shared))),
                NextRun::Closed => return None,
                NextRun::Wait(None) => changed.await,
                NextRun::Wait(Some(at)) => {
                    // Whichever is first: the state is asked again.
                    timeout_at(at, changed).await.ok();
                }
            }
        }
    }

    /// Takes over other limits at once. Runs in flight go on.
    pub fn set_limits(&self, limits: QueueLimits) {
        self.shared
            .change(|state, now| state.lanes_mut().set_limits(limits, now));
        self.shared.slots.notify_waiters();
    }

    /// Reports how much of [`QueueLimits::starts_per_second`] a run used in the end. Its start took one token; a run that used none
    /// gives it back, one that used more leaves a debt that later starts wait for. To be called once for a run, before its
    /// end, and only for what a start stands for: a run that is not reported used one.
    pub fn settle_rate(&self, run: &Run<K>, used: u32) {
        let now = Instant::now();
        let earlier = self.shared.state.lock().lanes_mut().settle_rate(run.lane, used, now);
        if earlier {
            self.shared.work.notify_one();
        }
    }

    /// Where the key of a run waits for its next run: what is left to do may be another kind of work. To be called before the end of the
    /// run; it knows more than the adds before it, and changes nothing of a key that does not run.
    pub fn wait_next_in(&self, run: &Run<K>, lane: Lane, group: Option<Group>) {
        self.shared.state.lock().wait_next_in(&run.key, lane, group);
    }

    /// Tells that a run put back what somebody else had taken away, to be called before its end. When the key is added again with the same
    /// inputs, it is held as after a wait, by a delay that grows as long as that goes on: who takes it away again and again is answered
    /// about once in the longest delay of the backoff. The first time is answered at once, and so are other inputs. After twice that
    /// delay without another time, the next one is a first one.
    pub fn count_put_back(&self, run: &Run<K>) {
        self.shared.state.lock().count_put_back(run, Instant::now());
    }

    /// Takes over another backoff for the runs that start from now on.
    pub fn set_backoff(&self, backoff: Backoff) {
        self.shared.change(|state, _| state.backoff = backoff);
    }

    /// Waits for a slot among the runs of a lane, for work that belongs to no key and counts like a run in
    /// [`LaneLimits::max_running`](super::LaneLimits::max_running) and [`QueueLimits::max_running`]. It goes before keys that wait.
    /// Neither [`Self::pause`] nor [`Self::close`] holds it up, and [`Self::drained`] does not wait for it.
    pub async fn acquire_slot(&self, lane: Lane) -> LaneSlot<K> {
        self.shared.state.lock().lanes_mut().reserve(lane);
        let mut slot = LaneSlot {
            shared: Arc::clone(&self.shared),
            lane,
            is_taken: false,
        };
        loop {
            let changed = self.shared.slots.notified();
            let mut changed = std::pin::pin!(changed);
            // A notification that comes after the question must not be missed.
            changed.as_mut().enable();
            if self.shared.state.lock().lanes_mut().occupy(lane) {
                slot.is_taken = true;
                return slot;
            }
            changed.await;
        }
    }

    /// Hands out nothing until [`Self::resume`]. All state is kept and adds are taken.
    pub fn pause(&self) {
        self.shared.change(|state, _| state.paused = true);
    }

    /// Ends [`Self::pause`].
    pub fn resume(&self) {
        self.shared.change(|state, _| state.paused = false);
    }

    /// Hands out nothing any more and takes no adds; runs in flight go on and may finish. Cannot be taken back.
    pub fn close(&self) {
        self.shared.change(|state, _| state.closed = true);
    }

    /// Waits until no run is in flight. Lasting only after [`Self::close`]; before it, new runs may start at once.
    pub async fn drained(&self) {
        loop {
            let idle = self.shared.idle.notified();
            if self.shared.state.lock().running() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// The failures in a row of a key; 0 for an unknown one.
    pub fn failures(&self, key: &K) -> u32 {
        self.shared.state.lock().failures(key)
    }

    /// Whether a key is held until a time.
    pub fn is_held(&self, key: &K) -> bool {
        self.shared.state.lock().is_held(key)
    }

    /// The held keys with the ends of their holds, in this order, as they are now; an end is in the past while the queue is paused.
    /// Costs time for each of them.
    pub fn held(&self) -> Vec<(K, Instant)> {
        self.shared.state.lock().held()
    }

    /// The figures of all lanes, as they are now. Costs time for each unsettled key.
    pub fn stats(&self) -> Stats<K> {
        self.shared.state.lock().stats(Instant::now())
    }

    /// The number of unsettled keys: ready, held or running.
    pub fn len(&self) -> usize {
        self.shared.state.lock().len()
    }

    /// Whether all keys are settled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Key> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Key> QueueInner<K> {
    pub(super) fn finish(&self, run: &Run<K>, result: RunResult) {
        let idle = self.change(|state, now| {
            state.finish(run, result, now);
            state.running() == 0
        });
        self.slots.notify_waiters();
        if idle {
            self.idle.notify_waiters();
        }
    }

    /// Changes the state, then notifies a consumer that a key may be able to run.
    fn change<T>(&self, change: impl FnOnce(&mut QueueState<K>, Instant) -> T) -> T {
        let result = {
            let mut state = self.state.lock();
            change(&mut state, Instant::now())
        };
        self.work.notify_one();
        result
    }
}

/// A slot among the runs of a lane, which [`Queue::acquire_slot`] gives. It is free again when this is dropped.
#[must_use = "the slot is given back when it is dropped"]
pub struct LaneSlot<K: Key> {
    shared: Arc<QueueInner<K>>,
    lane: Lane,
    /// Whether it is counted as a run; before that it is reserved.
    is_taken: bool,
}

impl<K: Key> Drop for LaneSlot<K> {
    fn drop(&mut self) {
        if self.is_taken {
            self.shared.change(|state, _| state.lanes_mut().vacate(self.lane));
            self.shared.slots.notify_waiters();
        } else {
            self.shared.change(|state, _| state.lanes_mut().unreserve(self.lane));
        }
    }
}

/// Notifies another consumer when one leaves [`Queue::next`], be it with a key or because its future is dropped: the other
/// may have to take over the next key or the next time to wake at.
struct NotifyNextGuard<'a>(&'a Notify);

impl Drop for NotifyNextGuard<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
