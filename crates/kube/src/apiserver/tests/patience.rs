//! What the API server asks us to wait for, and how long we wait for the API server. The clock is paused.

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tower::{Service, ServiceExt};

use crate::apiserver::list_watch::ListWatchService;
use crate::apiserver::{ApiErrorKind, RateLimit, RequestDeadlines, RequestSlots, Requests, SlotLimits, Throttle};
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use crate::telemetry::{Metrics, Span};
use crate::watch_answers::WatchAnswers;

const ANSWER: Duration = Duration::from_mins(1);

/// What an API server got: seconds since the start, method and path.
type Log = Arc<Mutex<Vec<(u64, String)>>>;

/// Answers the first requests so, in their order, and each further one with 200. None is no answer ever.
fn server(
    answers: Vec<Option<(u16, Option<&'static str>)>>,
    log: Log,
) -> impl Service<Request<Body>, Response = Response<Full<Bytes>>, Error = io::Error, Future: Send + 'static>
+ Clone
+ Send
+ 'static {
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let start = Instant::now();
    tower::service_fn(move |request: Request<Body>| {
        let what = format!("{} {}", request.method(), request.uri().path());
        log.lock().push((start.elapsed().as_secs(), what));
        let answer = answers.lock().next().unwrap_or(Some((200, None)));
        async move {
            let Some((status, retry_after)) = answer else {
                return std::future::pending().await;
            };
            let mut response = Response::builder().status(status);
            if let Some(retry_after) = retry_after {
                response = response.header("retry-after", retry_after);
            }
            response.body(attachment()).map_err(io::Error::other)
        }
    })
}

fn attachment() -> Full<Bytes> {
    let object = json!({
        "metadata": {"name": "a", "uid": "u"}, "spec": {"attacher": "a", "nodeName": "n", "source": {}},
    });
    object.to_string().into()
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn status(
    service: &mut (impl Service<Request<Body>, Response = Response<impl Sized>> + Send),
    path: &str,
) -> u16 {
    let Ok(ready) = service.ready().await else { return 0 };
    ready
        .call(get(path))
        .await
        .map_or(0, |response| response.status().as_u16())
}

#[tokio::test(start_paused = true)]
async fn lists_and_watches_of_a_kind_wait_as_long_as_they_are_asked_to() {
    let log = Log::default();
    let refusals = vec![Some((429, Some("20"))), Some((200, None)), Some((503, Some("5")))];
    let mut service = ListWatchService::new(server(refusals, log.clone()), ANSWER, WatchAnswers::default());
    for (what, path, code) in [
        ("a list", "/apis/a/b?limit=500", 429),
        ("that of another kind goes on", "/apis/a/c?limit=500", 200),
        ("a single object is not a list", "/apis/a/b/name", 503),
        ("a watch", "/apis/a/b?watch=true&x=y", 200),
    ] {
        assert_eq!(status(&mut service, path).await, code, "{what}");
    }
    let seen = log.lock().clone();
    let paths: Vec<&str> = seen.iter().map(|(_, what)| &what[4..]).collect();
    assert_eq!(paths, ["/apis/a/b", "/apis/a/c", "/apis/a/b/name", "/apis/a/b"]);
    assert_eq!((seen[1].0, seen[2].0), (0, 0));
    assert!((20..=21).contains(&seen[3].0), "{seen:?}");
}

/// Of a list of many pages hardly one would come in as a whole, if one refused page ended it. The waits are no part of the time for the
/// answer.
#[tokio::test(start_paused = true)]
async fn a_further_page_that_is_refused_for_now_is_asked_for_again() {
    let (first, further) = ("/apis/a/b?limit=500", "/apis/a/b?limit=500&continue=x");
    for (path, refusal, times, answer, requests) in [
        (further, (429, Some("20")), 9, 200, 10),
        (further, (429, Some("20")), 20, 429, 10),
        (further, (503, Some("20")), 1, 200, 2),
        (further, (500, Some("20")), 1, 200, 2),
        (further, (429, None), 1, 429, 1),
        (further, (503, None), 1, 503, 1),
        (further, (410, Some("20")), 1, 410, 1),
        (first, (429, Some("20")), 1, 429, 1),
        (first, (500, Some("20")), 1, 500, 1),
    ] {
        let log = Log::default();
        let server = server(vec![Some(refusal); times], log.clone());
        let mut service = ListWatchService::new(server, ANSWER, WatchAnswers::default());
        assert_eq!(status(&mut service, path).await, answer, "{path} {refusal:?}");
        let seen = log.lock().clone();
        assert_eq!(seen.len(), requests, "{path} {refusal:?}");
        let waited = seen.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 20);
        assert!(waited, "{path} {refusal:?} {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_waited_for_so_long() {
    let silent = server(vec![None, None], Log::default());
    let mut service = ListWatchService::new(silent, ANSWER, WatchAnswers::default());
    for path in ["/apis/a/b?limit=500", "/apis/a/b?watch=1"] {
        let began = Instant::now();
        assert_eq!(status(&mut service, path).await, 0);
        assert_eq!(began.elapsed(), ANSWER, "{path}");
    }
    let ready = service.ready().await.unwrap();
    let page = ready.call(get("/apis/a/b?limit=500")).await.unwrap();
    assert!(!page.into_body().collect().await.unwrap().to_bytes().is_empty());
}

fn write(name: &str) -> Write {
    Write {
        target: WriteTarget::Attachment(name.into()),
        form: PatchType::Merge,
        body: json!({}),
    }
}

/// The API server stores nothing of a write that is given up while webhooks are asked about it, however often it is sent.
#[tokio::test(start_paused = true)]
async fn a_write_is_waited_for_as_long_as_the_api_server_may_work_on_it() {
    let slow = tower::service_fn(|_: Request<Body>| async {
        tokio::time::sleep(Duration::from_secs(34)).await;
        Ok::<_, io::Error>(Response::new(attachment()))
    });
    let (client, none) = (Client::new(slow, "default"), Span::disabled());
    let (usual, given) = (RequestDeadlines::default(), Duration::from_secs(15).into());
    for (deadlines, is_written) in [(usual, true), (given, false)] {
        let requests = Requests::new(client.clone(), "none", deadlines, Metrics::default());
        for requests in [&requests, &requests.without_flow()] {
            let written = requests.write(&write("a"), None, &none).await;
            assert_eq!(written.is_ok(), is_written, "{deadlines:?}");
            // No webhook is asked about one.
            let read = requests.read(&WriteTarget::Attachment("a".into()), None, &none).await;
            let error = read.unwrap_err().to_string();
            assert_eq!(error, "no answer from the API server within 15 s");
        }
    }
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert_eq!(usual.of(&method), usual.write, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_of_a_kind_wait_and_those_of_others_do_not() {
    let log = Log::default();
    let refusals = vec![Some((429, Some("30"))), Some((500, Some("30")))];
    let client = Client::new(server(refusals, log.clone()), "default");
    let requests = Requests::new(client, "none", Duration::from_secs(15), Metrics::default());
    let others = requests.clone().for_driver("other".into(), Throttle::new(None));
    let none = Span::disabled();
    let refused = requests.write(&write("a"), None, &none).await.unwrap_err();
    assert_eq!(refused.kind, ApiErrorKind::Unavailable);
    assert_eq!(refused.retry_after, Some(Duration::from_secs(30)));
    // A 500 asks for nothing, whatever it says.
    let failed = others.write(&write("a"), None, &none).await.unwrap_err();
    assert_eq!((failed.kind, failed.retry_after), (ApiErrorKind::Unavailable, None));
    others.write(&write("a"), None, &none).await.unwrap();
    let target = WriteTarget::Attachment("a".into());
    requests.read(&target, None, &none).await.unwrap();
    assert!(log.lock().iter().all(|(at, _)| *at == 0), "{:?}", log.lock());
    // The wait is no part of a request's deadline, and many who waited do not go at once.
    let began = Instant::now();
    let many = futures::future::join_all((0..50).map(|_| {
        let requests = requests.clone();
        async move {
            requests.write(&write("a"), None, &Span::disabled()).await.unwrap();
            began.elapsed().as_millis() / 100
        }
    }));
    let tenths = many.await;
    assert!(tenths.iter().all(|tenth| (300..=310).contains(tenth)), "{tenths:?}");
    let distinct: std::collections::BTreeSet<_> = tenths.iter().collect();
    assert!(distinct.len() >= 4, "{tenths:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_told_to_wait_again_makes_the_others_wait() {
    // Two of twenty would draw the same millisecond now and then, and go together.
    fastrand::seed(7);
    let log = Log::default();
    let client = Client::new(server(vec![Some((429, Some("10"))); 2], log.clone()), "default");
    let requests = Requests::new(client, "none", Duration::from_secs(15), Metrics::default());
    let none = Span::disabled();
    let write = write("a");
    requests.write(&write, None, &none).await.unwrap_err();
    let all = futures::future::join_all((0..20).map(|_| requests.write(&write, None, &none)));
    let outcomes = timeout(Duration::from_secs(30), all).await.unwrap();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1);
    let early = log.lock().iter().filter(|(at, _)| *at < 20).count();
    assert_eq!(early, 2, "{:?}", log.lock());
}

/// Those that wait for a slot or for a limit, when another one is told to wait, have begun before. After the pause the limit holds as before.
#[tokio::test(start_paused = true)]
async fn who_is_told_to_wait_makes_those_in_line_wait() {
    let limit = RateLimit {
        per_second: 1.0,
        burst: 1,
    };
    for (most, limit) in [(1, None), (100, Some(limit))] {
        let log = Log::default();
        let client = Client::new(server(vec![Some((429, Some("30")))], log.clone()), "default");
        let requests = Requests::new(client, "none", Duration::from_secs(15), Metrics::default())
            .with_slots(RequestSlots::new(SlotLimits { min: most, max: most }))
            .for_driver("driver".into(), Throttle::new(limit));
        let (write, none) = (write("a"), Span::disabled());
        let all = futures::future::join_all((0..20).map(|_| requests.write(&write, None, &none)));
        let refused = all.await.iter().filter(|outcome| outcome.is_err()).count();
        let early = log.lock().iter().filter(|(at, _)| *at < 30).count();
        assert_eq!((refused, early), (1, 1), "{:?}", log.lock());
        let Some(limit) = limit else { continue };
        let mut seconds = std::collections::BTreeMap::new();
        for (at, _) in log.lock().iter() {
            *seconds.entry(*at).or_insert(0_u32) += 1;
        }
        assert!(seconds.values().all(|sent| *sent <= limit.burst + 1), "{seconds:?}");
    }
}

/// A server that says "at once" is not asked without any pause.
#[tokio::test(start_paused = true)]
async fn no_time_at_all_is_still_a_pause() {
    let log = Log::default();
    let client = Client::new(server(vec![Some((429, Some("0"))); 3], log.clone()), "default");
    let requests = Requests::new(client, "none", Duration::from_secs(15), Metrics::default());
    let began = Instant::now();
    while requests.write(&write("a"), None, &Span::disabled()).await.is_err() {}
    assert_eq!(log.lock().len(), 4);
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
}

/// A watch whose stream ends is begun again at once; an API server that ends every one is asked once a second.
#[tokio::test(start_paused = true)]
async fn watches_that_end_again_and_again_are_not_begun_without_a_pause() {
    let log = Log::default();
    let mut service = ListWatchService::new(server(vec![], log.clone()), ANSWER, WatchAnswers::default());
    let began = Instant::now();
    let watch = "/apis/a/b?watch=true&resourceVersion=1";
    for _ in 0..24 {
        assert_eq!(status(&mut service, watch).await, 200);
    }
    assert_eq!(began.elapsed().as_secs(), 20, "{:?}", log.lock());
    // Another one is not held up by that, not even one of the same collection.
    let of_one = "/apis/a/b?watch=true&fieldSelector=metadata.name%3Dx";
    assert_eq!(status(&mut service, of_one).await, 200);
    assert_eq!(status(&mut service, "/apis/a/b?limit=500").await, 200);
    assert_eq!(began.elapsed().as_secs(), 20);
}

/// Each Lease that is taken has everything listed anew, and ends the watch before. The one after the last of them is wanted.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_given_up_before_its_turn_takes_none() {
    let log = Log::default();
    let mut service = ListWatchService::new(server(vec![], log.clone()), ANSWER, WatchAnswers::default());
    let (watch, began) = ("/apis/a/b?watch=true&resourceVersion=1", Instant::now());
    for number in 0..24 {
        let asked = timeout(Duration::from_millis(100), status(&mut service, watch)).await;
        assert_eq!(asked.is_ok(), number < 4, "{number}");
    }
    assert_eq!(began.elapsed().as_secs(), 2);
    assert_eq!(status(&mut service, watch).await, 200);
    assert_eq!((began.elapsed().as_secs(), log.lock().len()), (4, 5));
}

/// A list that is answered is no proof of the watch that follows it.
#[tokio::test(start_paused = true)]
async fn a_watch_stands_once_it_is_accepted() {
    let (path, answers) = ("/api/v1/persistentvolumes", WatchAnswers::default());
    let refusals = vec![None, Some((429, Some("300"))), Some((200, None))];
    let mut service = ListWatchService::new(server(refusals, Log::default()), ANSWER, answers.clone());
    let watch = format!("{path}?watch=true&resourceVersion=1");
    assert!(answers.stands(path), "nobody has asked for it");
    assert_eq!(status(&mut service, &watch).await, 0, "it is swallowed");
    assert!(!answers.stands(path));
    assert_eq!(status(&mut service, &watch).await, 429);
    assert!(!answers.stands(path), "it is refused");
    let mut asked = std::pin::pin!(status(&mut service, &watch));
    let waits = tokio::time::timeout(Duration::from_secs(299), asked.as_mut()).await;
    assert!(waits.is_err() && !answers.stands(path), "it waits as it was asked to");
    assert_eq!(asked.await, 200);
    assert!(answers.stands(path));
}

/// Whoever follows a watch may resume one that ended in time only.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_before_its_time_was_cut_off() {
    for (path, lasts, is_cut_off) in [
        ("/apis/a/b?watch=true&timeoutSeconds=290", 200, true),
        ("/apis/a/b?watch=true&timeoutSeconds=290", 285, false),
        ("/apis/a/b?watch=true", 0, false),
        ("/apis/a/b/c?timeoutSeconds=290", 0, false),
    ] {
        let server = tower::service_fn(move |_: Request<Body>| async move {
            let frames = futures::stream::once(async move {
                tokio::time::sleep(Duration::from_secs(lasts)).await;
                Ok::<_, io::Error>(hyper::body::Frame::data(Bytes::from("x")))
            });
            Ok::<_, io::Error>(Response::new(http_body_util::StreamBody::new(Box::pin(frames))))
        });
        let response = ListWatchService::new(server, ANSWER, WatchAnswers::default())
            .ready()
            .await
            .unwrap()
            .call(get(path))
            .await
            .unwrap();
        let end = response.into_body().collect().await;
        assert_eq!(end.is_err(), is_cut_off, "{path} {lasts}");
    }
}

/// Else all objects of the kind would look gone.
#[tokio::test(start_paused = true)]
async fn a_list_of_another_kind_is_no_answer() {
    let attachments = "/apis/storage.k8s.io/v1/volumeattachments?limit=500";
    let volumes = "/api/v1/persistentvolumes?limit=500";
    for (path, kind, is_taken) in [
        (attachments, "VolumeAttachmentList", true),
        (volumes, "PersistentVolumeList", true),
        ("/apis/storage.k8s.io/v1/csinodes?limit=500", "CSINodeList", true),
        (
            "/apis/attacher.csi.dev/v1alpha1/attacherconfigs?limit=1",
            "AttacherConfigList",
            true,
        ),
        (attachments, "PersistentVolumeList", false),
        (attachments, "Status", false),
        (
            "/apis/storage.k8s.io/v1/volumeattachments/one",
            "VolumeAttachment",
            true,
        ),
        ("/api/v1/nodes?limit=500", "PartialObjectMetadataList", true),
        ("/api/v1/nodes?limit=500", "NodeList", true),
        ("/api/v1/nodes?limit=500", "PersistentVolumeList", false),
        (volumes, "PartialObjectMetadataList", false),
    ] {
        let body = json!({"kind": kind, "metadata": {"resourceVersion": "1"}, "items": []}).to_string();
        let server = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::new(Full::<Bytes>::from(body.clone()));
            async { Ok::<_, io::Error>(answer) }
        });
        let answer = ListWatchService::new(server, ANSWER, WatchAnswers::default())
            .ready()
            .await
            .unwrap()
            .call(get(path))
            .await;
        assert_eq!(answer.is_ok(), is_taken, "{path} {kind}");
    }
}

/// A Node is large, and its status changes all the time.
#[tokio::test]
async fn of_nodes_only_the_metadata_is_asked_for() {
    for (path, accepted) in [
        (
            "/api/v1/nodes?limit=500",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        ),
        (
            "/api/v1/nodes?watch=true&resourceVersion=1",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        ),
        ("/api/v1/nodes/one", ""),
        ("/apis/storage.k8s.io/v1/csinodes?limit=500", ""),
    ] {
        let server = tower::service_fn(|request: Request<Body>| async move {
            let asked = request.headers().get(http::header::ACCEPT).cloned();
            let body = Full::<Bytes>::from(r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#);
            let mut answer = Response::new(body);
            answer
                .headers_mut()
                .extend(asked.map(|asked| (http::header::ACCEPT, asked)));
            Ok::<_, io::Error>(answer)
        });
        let answer = ListWatchService::new(server, ANSWER, WatchAnswers::default())
            .ready()
            .await
            .unwrap()
            .call(get(path))
            .await
            .unwrap();
        let asked = answer
            .headers()
            .get(http::header::ACCEPT)
            .map(|asked| asked.to_str().unwrap());
        assert_eq!(asked.unwrap_or_default(), accepted, "{path}");
    }
}
