//! What passes the fence: no call without the Lease, and none for longer than it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use csi_attacher_proto::v1;
use csi_attacher_proto::v1::controller_server::{Controller, ControllerServer};
use csi_mock_driver::deadline_ms;
use futures::FutureExt as _;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};
use tonic::{Request, Response, Status};

use super::fence::{CallFailure, FencedClient, LeaseLost, UnsentCalls};
use crate::csi::{CallError, ControllerUnpublishVolume, CsiClient, DriverConnection};
use crate::decide::VolumeOnNode;
use crate::lease::{Clock, LeaseRules, LeaseTimings, Term};
use crate::telemetry::{Metrics, Span};
use csi_attacher_testbed::ShiftedClock;

const NOT_STARTED: CallFailure = CallFailure::Lease(LeaseLost::NotStarted);
const CANCELLED: CallFailure = CallFailure::Lease(LeaseLost::Cancelled);
const DEADLINE: Duration = Duration::from_hours(2);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(Default)]
struct Driver {
    /// How long a call takes; none where it is answered when the test says so.
    takes: Option<Duration>,
    answer: Notify,
    begun: AtomicUsize,
    /// Each call that runs has one, too.
    running: Arc<()>,
}

impl Driver {
    fn behind_a_fence(takes: Option<Duration>, term: Option<Term>) -> (Arc<Self>, FencedClient) {
        let driver = Arc::new(Self {
            takes,
            ..Self::default()
        });
        let connection = DriverConnection::in_process(ControllerServer::from_arc(driver.clone()));
        let client = CsiClient::new(connection, Metrics::default());
        (driver, FencedClient::new(client, term))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        let deadline = u64::try_from(DEADLINE.as_millis()).ok();
        assert_eq!(deadline_ms(request.metadata()), deadline, "that of the settings");
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _running = self.running.clone();
        match self.takes {
            Some(takes) => sleep(takes).await,
            None => self.answer.notified().await,
        }
        Ok(Response::new(v1::ControllerUnpublishVolumeResponse {}))
    }
}

/// A driver behind a fence, with a term of 10 s until the renew deadline and 15 s in all.
struct Fenced {
    client: FencedClient,
    term: Term,
    clock: ShiftedClock,
    driver: Arc<Driver>,
}

impl Fenced {
    fn taking(takes: Option<Duration>) -> Self {
        let clock = ShiftedClock::default();
        let (source, timings) = (Clock::from(clock.source()), LeaseTimings::default());
        let term = Term::new(LeaseRules::default(), source.clone(), timings, source.now());
        let (driver, client) = Driver::behind_a_fence(takes, Some(term.clone()));
        Self {
            client,
            term,
            clock,
            driver,
        }
    }

    /// How many calls the driver has begun, and how many of them run.
    fn count(&self) -> (usize, usize) {
        let Driver { begun, running, .. } = &*self.driver;
        (begun.load(Ordering::SeqCst), Arc::strong_count(running) - 1)
    }
}

/// A driver over a connection of its own whose calls take so long, without an election.
pub(super) fn client_taking(takes: Duration) -> FencedClient {
    Driver::behind_a_fence(Some(takes), None).1
}

/// Begins a call, with what comes of it.
pub(super) fn begin_call(client: &FencedClient) -> JoinHandle<Result<(), CallFailure>> {
    let client = client.clone();
    tokio::spawn(async move { unpublish(&client).await })
}

/// A call like all others: what the fence does is the same for each kind.
async fn unpublish(client: &FencedClient) -> Result<(), CallFailure> {
    let call = ControllerUnpublishVolume {
        place: VolumeOnNode::new("v", "n").unwrap(),
        secrets: None,
    };
    client.call(&call, DEADLINE, &Span::disabled()).await
}

/// When a call is made at these times after the last renewal; which clock says so is the matter of [`Term`].
#[tokio::test(start_paused = true)]
async fn no_call_starts_after_the_renew_deadline_by_either_clock() {
    for (passes, boot_jumps, begun) in [(9, 0, 2), (0, 9, 2), (10, 0, 0), (0, 10, 0), (0, 3600, 0)] {
        let fenced = Fenced::taking(Some(Duration::ZERO));
        advance(seconds(passes)).await;
        fenced.clock.boot_jumps(seconds(boot_jumps));
        let row = format!("{passes} s, {boot_jumps} s more by the other clock");
        for client in [&fenced.client, &fenced.client.migrated()] {
            let expected = if begun == 0 { Err(NOT_STARTED) } else { Ok(()) };
            assert_eq!(unpublish(client).await, expected, "{row}");
            assert_eq!(client.may_start(), begun > 0, "{row}");
        }
        assert_eq!(fenced.count(), (begun, 0), "{row}");
    }
}

/// A call that begins 8 s after the last renewal, and something that happens 3 s later.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_begun_may_run_until_the_end_of_the_lease_and_none_begins_after_the_deadline() {
    type Happens = fn(&Fenced);
    let nothing: Happens = |_| ();
    let ends: Happens = |fenced| fenced.term.end();
    let rows = [
        ("it ends before", 5, nothing, Ok(()), 13),
        ("it still runs then", 60, nothing, Err(CANCELLED), 15),
        ("the term ends before its time", 60, ends, Err(CANCELLED), 11),
    ];
    for (row, takes, happens, expected, at) in rows {
        let fenced = Fenced::taking(Some(seconds(takes)));
        let began = Instant::now();
        sleep(seconds(8)).await;
        let meanwhile = async {
            sleep(seconds(3)).await;
            happens(&fenced);
            assert_eq!(unpublish(&fenced.client).await, Err(NOT_STARTED), "{row}");
        };
        let (outcome, ()) = tokio::join!(unpublish(&fenced.client), meanwhile);
        assert_eq!((outcome, fenced.count()), (expected, (1, 0)), "{row}");
        let late = began.elapsed().checked_sub(seconds(at)).unwrap();
        assert!(late <= Duration::from_millis(1), "{row}: {late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_on_as_long_as_the_lease_is_renewed() {
    let fenced = Fenced::taking(Some(seconds(100)));
    let renewals = async {
        for _ in 0..20 {
            sleep(seconds(5)).await;
            assert!(fenced.term.extend(Clock::from(fenced.clock.source()).now()));
        }
    };
    let (outcome, ()) = tokio::join!(unpublish(&fenced.client), renewals);
    assert_eq!(outcome, Ok(()));
}

/// The answer may be there already, and the driver's connection ready to go on with the call.
#[tokio::test(start_paused = true)]
async fn the_first_poll_after_a_standstill_cancels_and_does_nothing_before() {
    for jump in [seconds(15), seconds(3600)] {
        let fenced = Fenced::taking(None);
        let answer = &fenced.driver.answer;
        let mut call = Box::pin(unpublish(&fenced.client));
        assert!(futures::poll!(&mut call).is_pending());
        assert_eq!(fenced.count(), (1, 1));
        // The monotonic clock, and each timer with it, stood still with the machine.
        fenced.clock.boot_jumps(jump);
        answer.notify_one();
        assert_eq!((call.await, fenced.count()), (Err(CANCELLED), (1, 0)));
        assert!(
            answer.notified().now_or_never().is_some(),
            "the call went on, and took the answer"
        );
    }
    // One that was made and had not begun.
    let fenced = Fenced::taking(Some(Duration::ZERO));
    let call = unpublish(&fenced.client);
    fenced.clock.boot_jumps(seconds(10));
    assert_eq!((call.await, fenced.count()), (Err(NOT_STARTED), (0, 0)));
}

/// One that a driver left open is known over its next connection. Those that begin later are not waited for: somebody else may ask the
/// driver for ever.
#[tokio::test(start_paused = true)]
async fn open_calls_are_known_over_whatever_connection_they_were_made() {
    let former = client_taking(seconds(100));
    let call = begin_call(&former);
    sleep(seconds(1)).await;
    let client = client_taking(seconds(3600)).following(&former);
    let open = client.open_calls();
    let later = begin_call(&client.migrated());
    let _comparison = begin_call(&client.clone().uncounted());
    assert!(timeout(seconds(90), open.ended()).await.is_err());
    assert_eq!(call.await.unwrap(), Ok(()));
    timeout(seconds(1), open.ended()).await.expect("at once");
    let open = client.open_calls();
    assert!(timeout(seconds(1), open.ended()).await.is_err());
    // Whoever drops a call has ended it. The comparison goes on.
    later.abort();
    timeout(seconds(1), open.ended()).await.expect("at once");
}

#[test]
fn calls_that_were_not_sent_are_told_from_the_third_in_a_row_on() {
    let unavailable = |unsent| {
        Err(CallFailure::from(CallError {
            code: tonic::Code::Unavailable,
            message: "connection closed".to_owned(),
            transport: true,
            unsent,
        }))
    };
    for end in [Ok(()), unavailable(false), Err(NOT_STARTED), Err(CANCELLED)] {
        let mut calls = UnsentCalls::default();
        let mut lasting = |answer: &Result<(), CallFailure>| {
            calls.count(answer);
            calls.lasting()
        };
        let told = [(); 4].map(|()| lasting(&unavailable(true)));
        assert_eq!(told, [None, None, Some(3), Some(4)]);
        assert_eq!(lasting(&end), None, "{end:?}");
        assert_eq!(lasting(&unavailable(true)), None, "a new row after {end:?}");
    }
}
