//! What passes the fence: no call without the Lease, and none for longer than it.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, advance, sleep, timeout};

use super::controller_calls::ControllerCalls;
use super::fence::{CallFailure, Fence, FencedClient, LeaseLost};
use crate::apiserver::SecretData;
use crate::csi::{CallError, VolumePage};
use crate::decide::{AccessMode, Capability, PublishRequest, VolumeAccessType, VolumeOnNode};
use crate::lease::{LeaseTimings, ShiftedClock, Term};
use crate::objects::StringMap;
use crate::telemetry::Span;

const NOT_STARTED: CallFailure = CallFailure::Lease(LeaseLost::NotStarted);
const CANCELLED: CallFailure = CallFailure::Lease(LeaseLost::Cancelled);
fn place() -> VolumeOnNode<'static> {
    VolumeOnNode::new("v", "n").unwrap()
}

const DEADLINE: Duration = Duration::from_mins(10);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A driver whose calls take a time, or are answered when it is told, and which counts what becomes of them.
#[derive(Default)]
struct Counting {
    takes: Duration,
    answer: Option<Arc<Notify>>,
    polled: Arc<AtomicUsize>,
    /// Calls that were begun and have not ended.
    running: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counting {
    fn call<'a, T: Send + 'a>(&'a self, answer: T) -> BoxFuture<'a, Result<T, CallError>> {
        let call = async move {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.running.fetch_add(1, Ordering::SeqCst);
            let _running = Running(self.running.clone());
            match &self.answer {
                Some(told) => told.notified().await,
                None => sleep(self.takes).await,
            }
            Ok(answer)
        };
        let polled = self.polled.clone();
        let mut call = Box::pin(call);
        Box::pin(std::future::poll_fn(move |context| {
            polled.fetch_add(1, Ordering::SeqCst);
            call.poll_unpin(context)
        }))
    }
}

impl ControllerCalls for Counting {
    fn publish<'a>(
        &'a self,
        _: &'a PublishRequest<'_>,
        _: Option<&'a SecretData>,
        deadline: Duration,
        _: &'a Span,
    ) -> BoxFuture<'a, Result<StringMap, CallError>> {
        assert_eq!(deadline, DEADLINE, "that of the settings");
        self.call(StringMap::from(BTreeMap::new()))
    }

    fn unpublish<'a>(
        &'a self,
        _: VolumeOnNode<'a>,
        _: Option<&'a SecretData>,
        deadline: Duration,
        _: &'a Span,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        assert_eq!(deadline, DEADLINE, "that of the settings");
        self.call(())
    }

    fn list_volumes<'a>(
        &'a self,
        _: i32,
        _: &'a str,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<VolumePage, CallError>> {
        assert_eq!(deadline, DEADLINE, "that of the settings");
        self.call(VolumePage {
            volumes: Vec::new(),
            next_token: String::new(),
        })
    }

    fn for_in_tree(&self) -> Option<Arc<dyn ControllerCalls>> {
        Some(Arc::new(Self {
            takes: self.takes,
            answer: self.answer.clone(),
            polled: self.polled.clone(),
            running: self.running.clone(),
            begun: self.begun.clone(),
        }))
    }
}

/// A driver behind a fence, with a term of 10 s until the renew deadline and 15 s in all.
struct Fenced {
    client: FencedClient,
    term: Term,
    clock: ShiftedClock,
    polled: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
}

impl Fenced {
    fn of(driver: Counting) -> Self {
        let clock = ShiftedClock::default();
        let timing = LeaseTimings::new(seconds(15), seconds(10), seconds(2)).unwrap();
        let term = Term::new(clock.clone(), timing, clock.now());
        let (polled, running, begun) = (driver.polled.clone(), driver.running.clone(), driver.begun.clone());
        Self {
            client: FencedClient::behind(Arc::new(driver), Fence::new(Some(term.clone()))),
            term,
            clock,
            polled,
            running,
            begun,
        }
    }

    fn taking(takes: Duration) -> Self {
        Self::of(Counting {
            takes,
            ..Counting::default()
        })
    }

    fn count(&self) -> (usize, usize) {
        (self.begun.load(Ordering::SeqCst), self.running.load(Ordering::SeqCst))
    }
}

/// Calls of each kind by this client, each with what came of it.
async fn each_call(client: &FencedClient) -> Vec<Result<(), CallFailure>> {
    let span = Span::disabled();
    let plan = PublishRequest {
        place: place(),
        capability: Capability {
            access: VolumeAccessType::Block,
            mode: AccessMode::SingleNodeWriter,
        },
        read_only: false,
        volume_context: &StringMap::default(),
        former: Vec::new(),
    };
    let (publish, unpublish, list) = tokio::join!(
        client.publish(&plan, None, DEADLINE, &span),
        client.unpublish(place(), None, DEADLINE, &span),
        client.list_volumes(0, "", DEADLINE),
    );
    vec![publish.map(drop), unpublish, list.map(drop)]
}

async fn unpublish(client: &FencedClient) -> Result<(), CallFailure> {
    client.unpublish(place(), None, DEADLINE, &Span::disabled()).await
}

/// When a call of each kind is made at these times after the last renewal, of which the driver hears only the first.
#[tokio::test(start_paused = true)]
async fn no_call_starts_after_the_renew_deadline_by_either_clock() {
    for (passes, boot_jumps, refused) in [
        (0, 0, false),
        (9, 0, false),
        (0, 9, false),
        (10, 0, true),
        (0, 10, true),
        (5, 5, true),
        (14, 0, true),
        (15, 0, true),
        (3600, 0, true),
        (0, 3600, true),
    ] {
        let fenced = Fenced::taking(Duration::ZERO);
        advance(seconds(passes)).await;
        fenced.clock.boot_jumps(seconds(boot_jumps));
        let in_tree = fenced.client.for_in_tree().unwrap();
        for client in [&fenced.client, &in_tree] {
            let expected = if refused { Err(NOT_STARTED) } else { Ok(()) };
            let outcomes = each_call(client).await;
            assert_eq!(
                outcomes,
                vec![expected; 3],
                "{passes} s, {boot_jumps} s more by the other clock"
            );
        }
        let begun = if refused { 0 } else { 6 };
        assert_eq!(fenced.count(), (begun, 0));
        assert_eq!(fenced.client.may_start(), !refused);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_still_runs_at_the_end_of_the_lease_is_cancelled_then() {
    let fenced = Fenced::taking(seconds(60));
    let began = Instant::now();
    sleep(seconds(8)).await;
    let outcomes = each_call(&fenced.client).await;
    assert_eq!(outcomes, vec![Err(CANCELLED); 3]);
    assert_eq!((began.elapsed().as_secs(), fenced.count()), (15, (3, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_begun_may_end_between_renew_deadline_and_end_but_none_is_begun() {
    let fenced = Fenced::taking(seconds(5));
    sleep(seconds(8)).await;
    let runs = tokio::spawn({
        let client = fenced.client.clone();
        async move { unpublish(&client).await }
    });
    sleep(seconds(3)).await;
    assert_eq!(unpublish(&fenced.client).await, Err(NOT_STARTED));
    assert_eq!((runs.await.unwrap(), fenced.count()), (Ok(()), (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_on_as_long_as_the_lease_is_renewed() {
    let fenced = Fenced::taking(seconds(100));
    let runs = tokio::spawn({
        let client = fenced.client.clone();
        async move { unpublish(&client).await }
    });
    for _ in 0..20 {
        sleep(seconds(5)).await;
        assert!(fenced.term.renew(fenced.clock.now()));
    }
    assert_eq!(runs.await.unwrap(), Ok(()));
}

/// The answer may be there already, and the driver's connection ready to go on with the call.
#[tokio::test(start_paused = true)]
async fn the_first_poll_after_a_standstill_cancels_and_does_nothing_before() {
    for jump in [seconds(15), seconds(3600)] {
        let answer = Arc::new(Notify::new());
        let fenced = Fenced::of(Counting {
            answer: Some(answer.clone()),
            ..Counting::default()
        });
        let mut call = Box::pin(unpublish(&fenced.client));
        assert!(futures::poll!(&mut call).is_pending());
        assert_eq!((fenced.polled.load(Ordering::SeqCst), fenced.count()), (1, (1, 1)));
        // The monotonic clock, and each timer with it, stood still with the machine.
        fenced.clock.boot_jumps(jump);
        answer.notify_one();
        assert_eq!(call.await, Err(CANCELLED));
        assert_eq!((fenced.polled.load(Ordering::SeqCst), fenced.count()), (1, (1, 0)));
    }
    // One that was made and had not begun.
    let fenced = Fenced::taking(Duration::ZERO);
    let call = unpublish(&fenced.client);
    fenced.clock.boot_jumps(seconds(10));
    assert_eq!(call.await, Err(NOT_STARTED));
    assert_eq!(fenced.polled.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_end_with_a_term_that_ends_before_its_time() {
    let fenced = Fenced::taking(seconds(60));
    let runs = tokio::spawn({
        let client = fenced.client.clone();
        async move { unpublish(&client).await }
    });
    sleep(seconds(1)).await;
    fenced.term.end();
    let cancelled = timeout(Duration::from_millis(1), runs).await.expect("at once");
    assert_eq!((cancelled.unwrap(), fenced.count()), (Err(CANCELLED), (1, 0)));
    assert_eq!(unpublish(&fenced.client).await, Err(NOT_STARTED));
}

#[tokio::test(start_paused = true)]
async fn without_an_election_nothing_is_asked() {
    let client = FencedClient::behind(
        Arc::new(Counting {
            takes: seconds(3600),
            ..Counting::default()
        }),
        Fence::new(None),
    );
    advance(seconds(3600)).await;
    assert!(client.may_start() && client.for_in_tree().unwrap().may_start());
    assert_eq!(each_call(&client).await, vec![Ok(()); 3]);
}
