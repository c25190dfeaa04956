//! Writes that are under way while other things happen. The API server answers none of them; the clock is paused.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::Event;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::drivers::{context, drivers_over};
use super::writer::refused;
use crate::api::names::WAIT_FOR_DETACH_FINALIZER;
use crate::api::{AttacherConfigObject, AttacherConfigStatus};
use crate::apiserver::{RequestDeadlines, Requests};
use crate::cache::Store;
use crate::findings::FindingsHandle;
use crate::health::Health;
use crate::lease::{LeaderElections, MomentSource};
use crate::supervisor::deletion::MetadataChange::Protect;
use crate::supervisor::writer::StatusWriter;
use crate::supervisor::writes::{FinishedWrite, WriteKind};
use crate::supervisor::{LAST_WRITES, Supervisor};

/// Until the statuses were looked at; shorter than a write may take.
const LOOKED: Duration = Duration::from_millis(1500);
/// Shorter than a task that failed is away.
const MOMENT: Duration = Duration::from_millis(500);

pub(super) fn silent_client() -> Client {
    let service = tower::service_fn(|_request: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    Client::new(service, "default")
}

pub(super) fn supervisor() -> Supervisor {
    let office = LeaderElections {
        reports: true,
        ..LeaderElections::new(silent_client(), "me".to_owned())
    };
    let mut supervisor = Supervisor::new(context(Store::default()), office, FindingsHandle::default());
    supervisor.writer = StatusWriter::new(&Requests::immediate(silent_client(), RequestDeadlines::default()));
    // Whoever leads writes: there is no election.
    supervisor.drivers = drivers_over(Store::default());
    supervisor
}

fn object(name: &str) -> AttacherConfigObject {
    let object = json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "7"},
        "spec": {"endpoint": format!("unix:///does-not-exist/{name}")},
    });
    serde_json::from_value(object).unwrap()
}

/// Follows these events and no more, for a moment or until `stop`.
pub(super) async fn follow(
    supervisor: &mut Supervisor,
    events: Vec<Event<AttacherConfigObject>>,
    stop: &CancellationToken,
    time: Duration,
) {
    let events = stream::iter(events.into_iter().map(Ok)).chain(stream::pending());
    let check = Health::new().check("watch/attacherconfigs");
    let _time_is_up = timeout(time, supervisor.follow(events, check, stop)).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_not_answered_keeps_the_supervisor_from_nothing() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let listed = vec![Event::Init, Event::InitApply(object("one")), Event::InitDone];
    follow(&mut supervisor, listed, &stop, LOOKED).await;
    assert!(supervisor.writes.is_writing("one"));

    // Another AttacherConfig, and a task that ends, while it is under way.
    supervisor.drivers.tasks.abort_for_test("one");
    follow(&mut supervisor, vec![Event::Apply(object("two"))], &stop, MOMENT).await;
    assert!(supervisor.writes.is_writing("one"));
    assert_eq!(supervisor.drivers.tasks.wanted().len(), 2);
    let phase = format!("{:?}", supervisor.drivers.phase("one"));
    assert!(phase.contains("Restarting"), "{phase}");

    let told = Instant::now();
    stop.cancel();
    follow(&mut supervisor, Vec::new(), &stop, LOOKED).await;
    assert_eq!(told.elapsed(), Duration::ZERO);
    supervisor.finish().await;
    // Neither what was under way nor the last word is waited for until it is given up.
    assert!(told.elapsed() <= LAST_WRITES + MOMENT, "{:?}", told.elapsed());
}

/// Nobody would write the status of drivers that no replica leads; or two replicas would, each sure of its Lease.
#[tokio::test(start_paused = true)]
async fn a_candidate_for_the_status_that_has_ended_is_replaced() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let clocks: MomentSource = Arc::new(|| -> (Instant, Duration) { panic!("a bug") });
    let well = std::mem::replace(&mut supervisor.elections.clock, clocks.into());
    let ended = supervisor.compete_for_status();
    supervisor.elections.clock = well;
    while !ended.has_ended() {
        sleep(MOMENT).await;
    }
    supervisor.status_lease = Some(ended);
    follow(&mut supervisor, Vec::new(), &stop, LOOKED).await;
    let lease = supervisor.status_lease.expect("another one");
    assert!(!lease.has_ended());
}

/// An object that is gone, or another one of its name, has nothing to do with a write of the former one.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_write_of_a_former_object_changes_nothing() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let listed = vec![Event::Init, Event::InitApply(object("one")), Event::InitDone];
    follow(&mut supervisor, listed, &stop, LOOKED).await;
    let mut again = object("one");
    again.metadata.uid = Some("another".to_owned());
    let events = vec![Event::Delete(object("one")), Event::Apply(again)];
    follow(&mut supervisor, events, &stop, MOMENT).await;
    let finished = supervisor.writes.finished().await;
    assert_eq!(finished.uid.as_deref(), Some("one"));
    supervisor.apply_write(finished);
    let is_due = supervisor.objects["one"].is_due(&AttacherConfigStatus::default(), true);
    assert!(is_due, "it has no failures");
}

/// Its pauses are those of the metadata, and the next write waits for them.
#[tokio::test(start_paused = true)]
async fn a_finalizer_that_may_not_be_written_waits_for_the_next_attempt() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let listed = vec![Event::Init, Event::InitApply(object("one")), Event::InitDone];
    follow(&mut supervisor, listed, &stop, MOMENT).await;
    for may_write in [true, false] {
        let entry = supervisor.objects.get_mut("one").expect("it is followed");
        assert_eq!(entry.may_write_metadata(Protect), may_write);
        supervisor.apply_write(FinishedWrite {
            name: "one".to_owned(),
            uid: Some("one".to_owned()),
            what: WriteKind::Metadata {
                change: Protect,
                released: None,
            },
            answer: Err(refused(
                "forbidden: User \"u\" cannot patch resource \"attacherconfigs\"",
                403,
            )),
        });
    }
    let told = supervisor.objects["one"].metadata_error();
    assert!(told.is_some_and(|told| told.starts_with("forbidden")), "{told:?}");
}

/// As by a controller that removes finalizers which it does not know: it is answered, but not each second for ever.
#[tokio::test(start_paused = true)]
async fn a_finalizer_that_another_client_takes_off_is_put_back_less_and_less_often() {
    let (mut supervisor, stop) = (supervisor(), CancellationToken::new());
    let (versions, puts) = (Arc::new(AtomicU64::new(7)), Arc::new(AtomicU64::new(0)));
    let newest = move |finalizers: &[&str]| {
        let version = versions.fetch_add(1, Ordering::Relaxed).to_string();
        json!({
            "metadata": {"name": "one", "uid": "one", "resourceVersion": version, "finalizers": finalizers},
            "spec": {"endpoint": "unix:///does-not-exist/one", "deletionPolicy": "WaitForDetach"},
        })
    };
    let (answer, written) = (newest.clone(), puts.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let is_status = request.uri().path().ends_with("/status");
        written.fetch_add(u64::from(!is_status), Ordering::Relaxed);
        let body = Body::from(answer(&[WAIT_FOR_DETACH_FINALIZER]).to_string().into_bytes());
        let response = http::Response::builder().header(http::header::CONTENT_TYPE, "application/json");
        std::future::ready(Ok::<_, Infallible>(response.body(body).unwrap()))
    });
    let client = Client::new(service, "default");
    supervisor.writer = StatusWriter::new(&Requests::immediate(client, RequestDeadlines::default()));
    // A little more than 20 seconds.
    for _ in 0..14 {
        let undone = serde_json::from_value(newest(&[])).unwrap();
        follow(&mut supervisor, vec![Event::Apply(undone)], &stop, LOOKED).await;
    }
    let puts = puts.load(Ordering::Relaxed);
    assert!((3..=5).contains(&puts), "{puts} times");
}
