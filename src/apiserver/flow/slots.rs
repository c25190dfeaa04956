//! A bound of the requests in flight, shared by the drivers so that none has to wait for the crowd of another.
//!
//! All requests go over one HTTP/2 connection, on which those that exceed its streams wait in line, and to the API server
//! they are all of one user, whose requests wait in line too. So the line is made here, one for each driver: a place that
//! gets free goes to the driver that has the fewest requests in flight, and within the driver to one node after the other, as
//! the work queue does: while a node is drained, an attach to another one does not wait for each of its requests behind those
//! of all detaches that run. And since an API server divides its time among all that it was given, there are fewer places as
//! soon as several drivers want some.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::node_lines::NodeLines;

/// How long two drivers count as several after both of them had a request. Between the writes of one attach there is a call
/// to its driver, and the crowd of another driver must not take all places meanwhile.
const CROWDED_FOR: Duration = Duration::from_secs(1);

/// Places for requests in flight; clones share them.
#[derive(Clone, Debug)]
pub struct RequestSlots(Arc<Mutex<RequestSlotsState>>);

#[derive(Debug)]
struct RequestSlotsState {
    running: usize,
    limits: SlotLimits,
    flows: HashMap<Arc<str>, Flow>,
    /// Who asked for a place last, and when.
    last: Option<(Arc<str>, Instant)>,
    /// Until when there are several drivers, also while only one of them has requests.
    crowded_until: Option<Instant>,
    /// Numbers those that wait, for the order between drivers that have equally many requests in flight.
    next: u64,
}

/// How many requests may be in flight.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    /// When they are all of one driver.
    pub alone: usize,
    /// When several drivers have requests in flight or in line, or had some lately. The last place is for a driver without any.
    pub crowded: usize,
}

impl Default for SlotLimits {
    /// An API server with its etcd on two cores took no more writes a second from 64 than from 16, and answered each of them
    /// later; one that needs 10 ms for a write takes 1,600 a second from 16. Beside 1,000 attaches of one driver, which took as
    /// long with 6 as with 16, each write of another driver took two thirds of the time with 6; with 3 the 1,000 took longer
    /// (`make bench ONLY=one-volume`).
    fn default() -> Self {
        Self { alone: 16, crowded: 6 }
    }
}

/// The requests of one driver.
#[derive(Debug, Default)]
struct Flow {
    running: usize,
    waiting: NodeLines<(u64, oneshot::Sender<RequestSlot>)>,
}

/// The right to have a request in flight, until it is dropped.
#[derive(Debug)]
pub(in crate::apiserver) struct RequestSlot {
    /// Taken when the place changes hands without having been used.
    held: Option<(RequestSlots, Arc<str>)>,
}

impl RequestSlots {
    /// So many places; at least one.
    pub fn new(limits: SlotLimits) -> Self {
        Self(Arc::new(Mutex::new(RequestSlotsState {
            running: 0,
            limits,
            flows: HashMap::new(),
            last: None,
            crowded_until: None,
            next: 0,
        })))
    }

    /// Waits for a place for a request of this driver, about work for this node if it is for one.
    pub(in crate::apiserver) async fn acquire(&self, driver: &Arc<str>, node: Option<&Arc<str>>) -> RequestSlot {
        let receiver = {
            let mut state = self.0.lock();
            state.asked_by(driver);
            let (sender, receiver) = oneshot::channel();
            let number = state.next;
            state.next += 1;
            state.flow(driver).waiting.push(node, (number, sender));
            self.grant_next(&mut state);
            receiver
        };
        match receiver.await {
            Ok(place) => place,
            // The sender waits in `self` until it sends.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits for a place for a request that only notes a failure, whichever driver failed: all of these are one line, so that
    /// many drivers that fail leave as much to one that works as a single one does.
    pub(in crate::apiserver) async fn acquire_for_failure(&self) -> RequestSlot {
        // No driver's name is empty.
        self.acquire(&Arc::from(""), None).await
    }

    fn place(&self, driver: Arc<str>) -> RequestSlot {
        RequestSlot {
            held: Some((self.clone(), driver)),
        }
    }

    /// Takes a place back and gives it to the next one, if anybody waits.
    fn release(&self, driver: &Arc<str>) {
        let mut state = self.0.lock();
        state.leave(driver);
        self.grant_next(&mut state);
    }

    fn grant_next(&self, state: &mut RequestSlotsState) {
        while let Some((next, sender)) = state.next() {
            state.running += 1;
            state.flow(&next).running += 1;
            if let Err(mut unused) = sender.send(self.place(next.clone())) {
                // The request was given up meanwhile. Dropping the place would come back here while the lock is held.
                unused.held = None;
                state.leave(&next);
            }
        }
    }
}

impl RequestSlotsState {
    fn flow(&mut self, driver: &Arc<str>) -> &mut Flow {
        self.flows.entry(driver.clone()).or_default()
    }

    /// Notes that a driver asks for a place.
    fn asked_by(&mut self, driver: &Arc<str>) {
        let now = Instant::now();
        let others = self.flows.keys().any(|other| other != driver);
        let last = self.last.replace((driver.clone(), now));
        if others || last.is_some_and(|(other, at)| other != *driver && now < at + CROWDED_FOR) {
            self.crowded_until = Some(now + CROWDED_FOR);
        }
    }

    /// How many may be in flight, the next one included, if that is for a driver with so many in flight.
    fn limit(&self, of_driver: usize) -> usize {
        let crowded = self.flows.len() > 1 || self.crowded_until.is_some_and(|until| Instant::now() < until);
        let limit = if !crowded {
            self.limits.alone
        } else if of_driver > 0 {
            // The last place is for a driver that has none, so that it need not wait until one of a crowd gets free.
            self.limits.crowded.saturating_sub(1)
        } else {
            self.limits.crowded
        };
        limit.max(1)
    }

    /// One request less; a driver without any is forgotten.
    fn leave(&mut self, driver: &Arc<str>) {
        self.running = self.running.saturating_sub(1);
        if let Some(flow) = self.flows.get_mut(driver) {
            flow.running = flow.running.saturating_sub(1);
            if flow.running == 0 && flow.waiting.is_empty() {
                self.flows.remove(driver);
            }
        }
    }

    /// The next of the driver that has the fewest requests in flight; of several drivers, that whose next one waits longest. Nobody
    /// while there is no place for it: none of the others would get one either.
    fn next(&mut self) -> Option<(Arc<str>, oneshot::Sender<RequestSlot>)> {
        let waiting = self
            .flows
            .iter()
            .filter_map(|(driver, flow)| Some(((flow.running, flow.waiting.first()?.0), driver, flow)));
        let ((of_driver, _), driver, _) = waiting.min_by_key(|(order, ..)| *order)?;
        if self.running >= self.limit(of_driver) {
            return None;
        }
        let driver = driver.clone();
        let (_, sender) = self.flows.get_mut(&driver)?.waiting.pop()?;
        Some((driver, sender))
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        if let Some((places, driver)) = self.held.take() {
            places.release(&driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use std::pin::{Pin, pin};

    use super::*;

    type Waiting<'a> = Pin<Box<dyn Future<Output = RequestSlot> + 'a>>;

    fn name(text: &str) -> Arc<str> {
        Arc::from(text)
    }

    /// A request that waits in line.
    fn wait<'a>(places: &'a RequestSlots, driver: &'a Arc<str>) -> Waiting<'a> {
        wait_about(places, driver, None)
    }

    /// One about work for a node, if it is for one.
    fn wait_about<'a>(places: &'a RequestSlots, driver: &'a Arc<str>, node: Option<&'a Arc<str>>) -> Waiting<'a> {
        let mut waiting: Waiting<'a> = Box::pin(places.acquire(driver, node));
        assert!(waiting.as_mut().now_or_never().is_none());
        waiting
    }

    /// Hands the only place on, and checks that those in line get it in this order.
    fn passes_on(mut place: RequestSlot, line: &mut [Waiting<'_>], order: &[usize]) {
        for &next in order {
            drop(place);
            place = got(&mut line[next]).unwrap();
        }
    }

    fn got(waiting: &mut Waiting<'_>) -> Option<RequestSlot> {
        waiting.as_mut().now_or_never()
    }

    fn places(count: usize) -> RequestSlots {
        RequestSlots::new(SlotLimits {
            alone: count,
            crowded: count,
        })
    }

    #[tokio::test]
    async fn a_driver_alone_has_all_places() {
        let (places, driver) = (places(3), name("a"));
        let mut held: Vec<RequestSlot> = Vec::new();
        for _ in 0..3 {
            held.push(places.acquire(&driver, None).await);
        }
        let mut fourth = wait(&places, &driver);
        held.pop();
        assert!(got(&mut fourth).is_some());
    }

    #[tokio::test]
    async fn the_next_place_is_for_the_driver_with_the_fewest() {
        let (places, crowd, other) = (places(2), name("crowd"), name("other"));
        let (first, second) = (places.acquire(&crowd, None).await, places.acquire(&crowd, None).await);
        let mut crowd_waits: Vec<_> = (0..5).map(|_| wait(&places, &crowd)).collect();
        let mut other_waits = wait(&places, &other);
        drop(first);
        let others = got(&mut other_waits);
        assert!(others.is_some(), "it came last and has nothing in flight");
        assert!(crowd_waits.iter_mut().all(|waiting| got(waiting).is_none()));
        // With one each, who waits longest is next.
        drop(second);
        let third = got(&mut crowd_waits[0]);
        assert!(third.is_some());
        assert!(got(&mut crowd_waits[1]).is_none());
        drop(others);
        assert!(
            got(&mut crowd_waits[1]).is_none(),
            "the last is for a driver without any"
        );
        drop(third);
        assert!(got(&mut crowd_waits[1]).is_some());
    }

    /// The detaches of a node that is drained do not keep an attach to another node waiting.
    #[tokio::test]
    async fn within_a_driver_the_nodes_take_turns() {
        let (places, driver) = (places(1), name("driver"));
        let (drained, other) = (name("drained"), name("other"));
        let held = places.acquire(&driver, Some(&drained)).await;
        let nodes = [&drained, &drained, &drained, &drained, &drained, &other, &other];
        let mut line = nodes.map(|node| wait_about(&places, &driver, Some(node)));
        passes_on(held, &mut line, &[0, 5, 1, 6, 2, 3, 4]);
        assert!(places.0.lock().flows.is_empty());
    }

    /// What is about no node is in no line behind others of its kind.
    #[tokio::test]
    async fn requests_about_no_node_have_a_turn_each() {
        let (places, driver, node) = (places(1), name("driver"), name("node"));
        let held = places.acquire(&driver, Some(&node)).await;
        let mut line = [Some(&node), Some(&node), None, None].map(|node| wait_about(&places, &driver, node));
        passes_on(held, &mut line, &[0, 2, 3, 1]);
    }

    #[tokio::test]
    async fn failures_of_all_drivers_are_noted_in_one_line() {
        let (places, driver) = (places(2), name("works"));
        let (first, second) = (places.acquire_for_failure().await, places.acquire_for_failure().await);
        let mut notes: Vec<Waiting<'_>> = (0..3)
            .map(|_| Box::pin(places.acquire_for_failure()) as Waiting<'_>)
            .collect();
        assert!(notes.iter_mut().all(|note| got(note).is_none()));
        let mut works = wait(&places, &driver);
        drop(first);
        let place = got(&mut works);
        assert!(place.is_some(), "it came last and has nothing in flight");
        drop(second);
        assert!(got(&mut notes[0]).is_some());
    }

    /// Between two writes of its attach a driver has no request. The crowd of another does not get all places by that.
    #[tokio::test(start_paused = true)]
    async fn two_drivers_are_a_crowd_for_a_while() {
        let places = RequestSlots::new(SlotLimits { alone: 4, crowded: 1 });
        let (crowd, other) = (name("crowd"), name("other"));
        drop(places.acquire(&other, None).await);
        let first = places.acquire(&crowd, None).await;
        let mut second = wait(&places, &crowd);
        drop(first);
        let second = got(&mut second);
        assert!(second.is_some());
        tokio::time::advance(CROWDED_FOR).await;
        let third = places.acquire(&crowd, None).await;
        drop((second, third));
    }

    #[tokio::test]
    async fn who_gives_up_waiting_keeps_no_place() {
        let (places, driver) = (places(1), name("a"));
        let held = places.acquire(&driver, None).await;
        let given_up = wait(&places, &driver);
        let mut last = wait(&places, &driver);
        drop(given_up);
        drop(held);
        let place = got(&mut last);
        assert!(place.is_some());
        // One that was given the place and gives up before it looks.
        let unlooked = wait(&places, &driver);
        let mut next = wait(&places, &driver);
        drop(place);
        drop(unlooked);
        drop(got(&mut next).unwrap());
        assert_eq!(places.0.lock().running, 0);
        assert!(places.0.lock().flows.is_empty());
        let again = pin!(places.acquire(&driver, None));
        assert!(again.now_or_never().is_some());
    }

    #[tokio::test]
    async fn there_are_fewer_places_when_several_drivers_want_some() {
        let places = RequestSlots::new(SlotLimits { alone: 5, crowded: 3 });
        let (crowd, other) = (name("crowd"), name("other"));
        let mut held: Vec<RequestSlot> = Vec::new();
        for _ in 0..5 {
            held.push(places.acquire(&crowd, None).await);
        }
        let mut others = wait(&places, &other);
        for _ in 0..2 {
            held.pop();
            assert!(got(&mut others).is_none());
        }
        held.pop();
        let other_place = got(&mut others).unwrap();
        let mut crowd_waits = wait(&places, &crowd);
        drop(other_place);
        // One of the three places is free, and waits for another driver.
        assert!(got(&mut crowd_waits).is_none());
        let other_place = places.acquire(&other, None).now_or_never();
        assert!(other_place.is_some());
        drop(other_place);
        held.pop();
        assert!(got(&mut crowd_waits).is_some());
    }
}
