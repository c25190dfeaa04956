//! What passes the fence: no call without the Lease, and none for longer than it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use csi_attacher_proto::v1;
use csi_attacher_proto::v1::controller_server::{Controller, ControllerServer};
use csi_mock_driver::deadline_ms;
use futures::FutureExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, advance, sleep, timeout};
use tonic::{Request, Response, Status};

use super::fence::{CallFailure, FencedClient, LeaseLost};
use crate::csi::{
    CallError, ControllerPublishVolume, ControllerUnpublishVolume, CsiClient, DriverConnection, ListVolumes,
};
use crate::decide::{AccessMode, Capability, PublishRequest, VolumeAccessType, VolumeOnNode};
use crate::lease::{Clock, LeaseRules, LeaseTimings, Term};
use crate::objects::StringMap;
use crate::telemetry::{Metrics, Span};
use csi_attacher_model::attempt::CallEnd;
use csi_attacher_testbed::ShiftedClock;

const NOT_STARTED: CallFailure = CallFailure::Lease(LeaseLost::NotStarted);
const CANCELLED: CallFailure = CallFailure::Lease(LeaseLost::Cancelled);
fn place() -> VolumeOnNode<'static> {
    VolumeOnNode::new("v", "n").unwrap()
}

const DEADLINE: Duration = Duration::from_hours(2);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A driver whose calls take a time, or are answered when the test says so, and which counts what becomes of them.
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
    async fn call<Q, A: Default>(&self, request: Request<Q>) -> Result<Response<A>, Status> {
        let deadline = u64::try_from(DEADLINE.as_millis()).ok();
        assert_eq!(deadline_ms(request.metadata()), deadline, "that of the settings");
        let mut call = Box::pin(async {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.running.fetch_add(1, Ordering::SeqCst);
            let _running = Running(self.running.clone());
            match &self.answer {
                Some(told) => told.notified().await,
                None => sleep(self.takes).await,
            }
        });
        let polled = std::future::poll_fn(|context| {
            self.polled.fetch_add(1, Ordering::SeqCst);
            call.poll_unpin(context)
        });
        polled.await;
        Ok(Response::new(A::default()))
    }

    fn client(self, term: Option<Term>) -> FencedClient {
        let connection = DriverConnection::in_process(ControllerServer::new(self));
        FencedClient::new(CsiClient::new(connection, Metrics::default()), term)
    }
}

#[tonic::async_trait]
impl Controller for Counting {
    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        self.call(request).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        self.call(request).await
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        self.call(request).await
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
        let source = Clock::from(clock.source());
        let term = Term::new(LeaseRules::default(), source.clone(), timing, source.now());
        let (polled, running, begun) = (driver.polled.clone(), driver.running.clone(), driver.begun.clone());
        Self {
            client: driver.client(Some(term.clone())),
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

    /// Begins a call, with what comes of it.
    fn unpublishes(&self) -> tokio::task::JoinHandle<Result<(), CallFailure>> {
        let client = self.client.clone();
        tokio::spawn(async move { unpublish(&client).await })
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
    let publish = ControllerPublishVolume {
        request: &plan,
        secrets: None,
    };
    let list = ListVolumes {
        max_entries: 0,
        token: "",
    };
    let (publish, unpublish, list) = tokio::join!(
        client.call(&publish, DEADLINE, &span),
        unpublish(client),
        client.call(&list, DEADLINE, &span),
    );
    vec![publish.map(drop), unpublish, list.map(drop)]
}

async fn unpublish(client: &FencedClient) -> Result<(), CallFailure> {
    let call = ControllerUnpublishVolume {
        place: place(),
        secrets: None,
    };
    client.call(&call, DEADLINE, &Span::disabled()).await
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
        let in_tree = fenced.client.migrated();
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
    let runs = fenced.unpublishes();
    sleep(seconds(3)).await;
    assert_eq!(unpublish(&fenced.client).await, Err(NOT_STARTED));
    assert_eq!((runs.await.unwrap(), fenced.count()), (Ok(()), (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_on_as_long_as_the_lease_is_renewed() {
    let fenced = Fenced::taking(seconds(100));
    let runs = fenced.unpublishes();
    for _ in 0..20 {
        sleep(seconds(5)).await;
        assert!(fenced.term.extend(Clock::from(fenced.clock.source()).now()));
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
    let runs = fenced.unpublishes();
    sleep(seconds(1)).await;
    fenced.term.end();
    let cancelled = timeout(Duration::from_millis(1), runs).await.expect("at once");
    assert_eq!((cancelled.unwrap(), fenced.count()), (Err(CANCELLED), (1, 0)));
    assert_eq!(unpublish(&fenced.client).await, Err(NOT_STARTED));
}

#[tokio::test(start_paused = true)]
async fn without_an_election_nothing_is_asked() {
    let driver = Counting {
        takes: seconds(3600),
        ..Counting::default()
    };
    let client = driver.client(None);
    advance(seconds(3600)).await;
    assert!(client.may_start() && client.migrated().may_start());
    assert_eq!(each_call(&client).await, vec![Ok(()); 3]);
}

/// Of one that may have been sent nobody knows what the driver did.
#[test]
fn a_call_that_was_not_sent_is_not_started_and_no_failure() {
    for unsent in [false, true] {
        let error = CallError {
            code: tonic::Code::Unavailable,
            message: "connection closed".to_owned(),
            transport: true,
            unsent,
        };
        let end = CallEnd::from(CallFailure::from(error));
        let is_not_started = matches!(end, CallEnd::LeaseLost(LeaseLost::NotStarted));
        assert_eq!(is_not_started, unsent, "{end:?}");
        assert_eq!(matches!(end, CallEnd::Failed(_)), !unsent, "{end:?}");
    }
}
