//! Scripted misbehaviour, as a caller sees it and as the call log tells it.

use std::time::Duration;

use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;
use crate::CallResult::{Answered, ConnectionDropped, Running};
use crate::{CallResult, InFlight, Method, MockCredentials, Rule, ScriptAction, ScriptedAnswer, ScriptedFailure};

const PUBLISH: Method = Method::ControllerPublishVolume;
const SECRET: &str = "hunter2-canary";

#[tokio::test]
async fn a_failure_comes_as_often_as_scripted_and_only_for_its_calls() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    fixture.mock.script(
        Rule::on(PUBLISH)
            .volume("v1")
            .node("n1")
            .skip(1)
            .times(2)
            .fail(Code::Unavailable, "busy"),
    );
    client.controller_publish_volume(publish("v2", "n1")).await.unwrap();
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(code(&client.controller_publish_volume(publish("v1", "n1")).await));
    }
    assert_eq!(codes, [Code::Ok, Code::Unavailable, Code::Unavailable, Code::Ok]);
    assert_eq!(fixture.mock.rules(), []);
    let recorded: Vec<_> = fixture
        .mock
        .calls_of(PUBLISH)
        .into_iter()
        .map(|call| call.code.unwrap())
        .collect();
    assert_eq!(
        recorded,
        [Code::Ok, Code::Ok, Code::Unavailable, Code::Unavailable, Code::Ok]
    );
}

#[tokio::test]
async fn an_answer_of_create_volume_is_changed_for_one_claim_only() {
    const CLAIM: &str = "csi.storage.k8s.io/pvc/name";
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    let answer = ScriptedAnswer {
        volume_id: Some(String::new()),
        capacity_bytes: Some(1),
    };
    let rule = Rule::on(Method::CreateVolume).claim("data").times(1);
    fixture.mock.script(rule.action(ScriptAction::Answer(answer)));
    let mut answers = Vec::new();
    for claim in ["other", "data", "data"] {
        let request = v1::CreateVolumeRequest {
            name: format!("pvc-{claim}"),
            volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
            parameters: [(CLAIM.to_owned(), claim.to_owned())].into(),
            ..v1::CreateVolumeRequest::default()
        };
        let volume = client
            .create_volume(request)
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap();
        answers.push((volume.volume_id.is_empty(), volume.capacity_bytes == 1));
    }
    assert_eq!(answers, [(false, false), (true, true), (false, false)]);
    let calls = fixture.mock.calls_of(Method::CreateVolume);
    let claims: Vec<_> = calls
        .iter()
        .map(|call| call.creation.as_ref().unwrap().claim())
        .collect();
    assert_eq!(claims, [Some("other"), Some("data"), Some("data")]);
    assert_eq!(fixture.mock.volumes().len(), 2, "the work was done, once");
}

#[tokio::test]
async fn every_code_comes_through() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    for number in 1..=16 {
        let wanted = Code::from(number);
        fixture
            .mock
            .script(Rule::any().times(1).fail(wanted, format!("number {number}")));
        let status = client.controller_publish_volume(publish("v1", "n1")).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (wanted, format!("number {number}").as_str())
        );
    }
}

#[tokio::test]
async fn a_failure_after_the_work_leaves_the_volume_attached() {
    let fixture = Fixture::new(|builder| builder).await;
    let failure = ScriptedFailure {
        code: Code::Internal,
        message: String::new(),
        echo_secrets: false,
        pad_bytes: 20_000,
    };
    fixture
        .mock
        .script(Rule::on(PUBLISH).action(ScriptAction::FailAfterWork(failure)));
    // Of a message of that length a caller may not see so much as the code.
    let mut controller = fixture.controller().await;
    let answer = controller.controller_publish_volume(publish("v1", "n1")).await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(fixture.mock.calls()[0].code, Some(Code::Internal));
    assert_eq!(fixture.mock.published(), pairs(&[("v1", "n1")]));
}

#[tokio::test]
async fn secrets_are_echoed_on_purpose_but_recorded_by_key_only() {
    let lines = tempfile::NamedTempFile::new().unwrap();
    let writer = lines.reopen().unwrap();
    let fixture = Fixture::new(|builder| builder.call_log(writer)).await;
    let failure = ScriptedFailure {
        code: Code::Internal,
        message: "no".to_owned(),
        echo_secrets: true,
        pad_bytes: 0,
    };
    fixture
        .mock
        .script(Rule::on(PUBLISH).action(ScriptAction::Fail(failure)));
    let mut request = publish("v1", "n1");
    request.secrets = [("password".to_owned(), SECRET.to_owned())].into();
    let status = fixture
        .controller()
        .await
        .controller_publish_volume(request)
        .await
        .unwrap_err();
    assert_eq!(status.message(), format!("no {SECRET}"));

    let log = std::fs::read_to_string(lines.path()).unwrap();
    let record = fixture.mock.calls().remove(0);
    assert_eq!(record.secret_keys, ["password"]);
    for text in [
        log,
        format!("{record:?}"),
        fixture
            .mock
            .apply(crate::control::ControlCommand::Calls)
            .unwrap()
            .unwrap()
            .to_string(),
    ] {
        assert!(text.contains("password") && !text.contains(SECRET), "{text}");
    }
}

#[tokio::test]
async fn the_record_tells_what_the_caller_sent() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut message = publish("v1", "n1");
    message.volume_context = [("size".to_owned(), "big".to_owned())].into();
    message.readonly = true;
    let mut request = tonic::Request::new(message);
    request.set_timeout(Duration::from_secs(15));
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    request
        .metadata_mut()
        .insert("traceparent", traceparent.parse().unwrap());
    fixture
        .controller()
        .await
        .controller_publish_volume(request)
        .await
        .unwrap();

    let mut json = serde_json::to_value(fixture.mock.calls().remove(0)).unwrap();
    let times = ["started", "finished"].map(|name| json.as_object_mut().unwrap().remove(name).unwrap());
    assert!(
        times
            .iter()
            .all(|time| time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok()),
        "{times:?}"
    );
    let expected = serde_json::json!({
        "id": 0, "method": "ControllerPublishVolume", "volume": "v1", "node": "n1", "readonly": true,
        "capability": {"accessMode": "SINGLE_NODE_WRITER", "accessType": "mount", "fsType": "ext4", "mountFlags": 0},
        "volumeContext": {"size": "big"}, "deadlineMs": 15000, "traceparent": traceparent,
        "callerPid": std::process::id(),
        "outcome": "answered", "code": "OK", "overlap": false,
    });
    assert_eq!(json, expected);
}

#[tokio::test]
async fn a_call_that_hangs_ends_when_the_caller_gives_up() {
    let fixture = Fixture::new(|builder| builder).await;
    fixture.mock.script(Rule::on(PUBLISH).hang());
    let mut client = fixture.controller().await;
    let call = tokio::spawn(async move { client.controller_publish_volume(publish("v1", "n1")).await });
    bounded(fixture.mock.wait_for_call(|call| call.method == PUBLISH)).await;
    assert_eq!(fixture.mock.in_flight_of(PUBLISH), InFlight { now: 1, peak: 1 });
    call.abort();
    let ended = bounded(fixture.mock.wait_for_call(|call| call.outcome != CallResult::Running)).await;
    assert_eq!((ended.outcome, ended.code), (CallResult::Cancelled, None));
    assert_eq!(fixture.mock.in_flight(), InFlight { now: 0, peak: 1 });
    assert_eq!(fixture.mock.in_flight_of(Method::Probe), InFlight::default());
    assert_eq!(fixture.mock.published(), pairs(&[]));
}

#[tokio::test]
async fn the_server_stays_silent_when_the_deadline_of_the_caller_passes() {
    let fixture = Fixture::new(|builder| builder).await;
    fixture.mock.script(Rule::on(Method::ListVolumes).hang());
    // The usual client would end the call by its own timer; this one only sends the header.
    let stream = tokio::net::UnixStream::connect(fixture.mock.socket().unwrap())
        .await
        .unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let empty_message = http_body_util::Full::new(Bytes::from_static(&[0; 5]));
    let request = http::Request::post("http://localhost/csi.v1.Controller/ListVolumes")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "1S")
        .body(empty_message);
    let call = tokio::spawn(sender.send_request(request.unwrap()));
    let arrived = bounded(fixture.mock.wait_for_call(|call| call.method == Method::ListVolumes)).await;
    assert_eq!(arrived.deadline_ms, Some(1000));
    tokio::time::pause();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!call.is_finished());
    assert_eq!(fixture.mock.calls()[0].outcome, Running);
    call.abort();
}

#[tokio::test]
async fn whoever_waits_is_told_of_calls_and_of_volumes() {
    let fixture = Fixture::new(|builder| builder).await;
    let mock = &fixture.mock;
    let publishes = mock.wait_for_calls(2, |call| call.method == PUBLISH);
    let gone = async {
        mock.wait_until(|mock| mock.call_count() == 2).await;
        mock.wait_until(|mock| mock.published().is_empty()).await;
    };
    let work = async {
        for volume in ["v1", "v2"] {
            let mut client = fixture.controller().await;
            drop(client.controller_publish_volume(publish(volume, "n1")).await);
        }
        tokio::task::yield_now().await;
        assert!(mock.drift_detach("v1", "n1") && mock.drift_detach("v2", "n1"));
    };
    let (found, (), ()) = bounded(Box::pin(async { tokio::join!(publishes, gone, work) })).await;
    assert_eq!(found.iter().map(|call| call.id).collect::<Vec<_>>(), [0, 1]);
}

#[tokio::test]
async fn a_held_call_is_answered_once_it_is_released_and_may_be_given_up() {
    let fixture = Fixture::new(|builder| builder).await;
    let mock = &fixture.mock;
    mock.script(Rule::on(PUBLISH).until_released());
    let mut calls = Vec::new();
    for (number, volume) in (0_u64..).zip(["v1", "v2", "v3"]) {
        let mut client = fixture.controller().await;
        calls.push(tokio::spawn(async move {
            client.controller_publish_volume(publish(volume, "n1")).await
        }));
        bounded(mock.wait_for_call(move |call| call.id == number)).await;
    }
    mock.release(1);
    let ended = bounded(mock.wait_for_call(|call| call.outcome == Answered)).await;
    assert_eq!((ended.id, ended.code), (1, Some(Code::Ok)));
    assert_eq!(mock.published(), pairs(&[("v2", "n1")]));

    calls[2].abort();
    let ended = bounded(mock.wait_for_call(|call| call.outcome == CallResult::Cancelled)).await;
    assert_eq!((ended.id, mock.in_flight().now), (2, 1));
    mock.release(0);
    bounded(mock.wait_for_call(|call| call.id == 0 && call.outcome == Answered)).await;
    assert_eq!(mock.published(), pairs(&[("v1", "n1"), ("v2", "n1")]));
}

#[tokio::test]
async fn a_late_success_is_done_after_the_caller_gave_up() {
    let fixture = Fixture::new(|builder| builder).await;
    fixture.mock.script(Rule::on(PUBLISH).late_success());
    let mut client = fixture.controller().await;
    let call = tokio::spawn(async move { client.controller_publish_volume(publish("v1", "n1")).await });
    bounded(fixture.mock.wait_for_call(|call| call.method == PUBLISH)).await;
    assert_eq!(fixture.mock.published(), pairs(&[]), "not before the caller is gone");
    call.abort();
    bounded(
        fixture
            .mock
            .wait_for_published(|published| *published == pairs(&[("v1", "n1")])),
    )
    .await;
    let ended = bounded(fixture.mock.wait_for_call(|call| call.outcome == CallResult::Late)).await;
    assert_eq!(ended.code, Some(Code::Ok));
}

#[tokio::test]
async fn a_dropped_connection_is_an_error_and_the_next_one_works() {
    let fixture = Fixture::new(|builder| builder).await;
    fixture
        .mock
        .script(Rule::on(PUBLISH).volume("v1").times(1).drop_connection());
    fixture.mock.script(
        Rule::on(PUBLISH)
            .volume("v2")
            .times(1)
            .action(ScriptAction::DropConnectionAfterWork),
    );
    fixture.mock.script(Rule::on(PUBLISH).volume("v3").times(1).hang());
    let mut client = fixture.controller().await;
    let mut other = fixture.controller().await;
    let hanging = tokio::spawn(async move { other.controller_publish_volume(publish("v3", "n1")).await });
    bounded(fixture.mock.wait_for_call(|call| call.method == PUBLISH)).await;

    assert!(
        bounded(client.controller_publish_volume(publish("v1", "n1")))
            .await
            .is_err()
    );
    assert_eq!(fixture.mock.published(), pairs(&[]));
    assert!(
        bounded(client.controller_publish_volume(publish("v2", "n1")))
            .await
            .is_err()
    );
    assert_eq!(fixture.mock.published(), pairs(&[("v2", "n1")]));
    bounded(client.controller_publish_volume(publish("v1", "n1")))
        .await
        .unwrap();
    assert!(!hanging.is_finished(), "the other connection was left alone");
    let outcomes: Vec<_> = fixture
        .mock
        .calls_of(PUBLISH)
        .into_iter()
        .map(|call| call.outcome)
        .collect();
    assert_eq!(outcomes, [Running, ConnectionDropped, ConnectionDropped, Answered]);
}

#[tokio::test]
async fn delays_pass_in_paused_time_and_overlaps_are_seen() {
    let fixture = Fixture::new(|builder| builder.delay(PUBLISH, Duration::from_secs(20))).await;
    let (mut one, mut two) = (fixture.controller().await, fixture.controller().await);
    let first = tokio::spawn(async move { one.controller_publish_volume(publish("v1", "n1")).await });
    bounded(fixture.mock.wait_for_call(|call| call.id == 0)).await;
    fixture.mock.settings(|settings| settings.abort_overlapping = true);
    fixture.mock.script(Rule::any().times(1).delay(Duration::ZERO));
    let refused = bounded(two.controller_publish_volume(publish("v1", "n1"))).await;
    assert_eq!(code(&refused), Code::Aborted);
    assert!(
        fixture.mock.calls().iter().all(|call| call.overlap),
        "both calls are marked"
    );

    tokio::time::pause();
    let before = tokio::time::Instant::now();
    first.await.unwrap().unwrap();
    let took = before.elapsed();
    assert!(
        Duration::from_secs(10) < took && took <= Duration::from_secs(21),
        "{took:?}"
    );
    assert_eq!(fixture.mock.published(), pairs(&[("v1", "n1")]));
}

#[tokio::test]
async fn a_volume_may_want_secrets_and_has_a_publish_context_of_its_own() {
    let fixture = Fixture::new(|builder| builder).await;
    fixture.mock.settings(|settings| {
        let secrets = [("password".to_owned(), SECRET.to_owned())].into();
        settings
            .volume_secrets
            .insert("v1".to_owned(), MockCredentials(secrets));
        let context = [("a".to_owned(), "b".to_owned())].into();
        settings.publish_contexts.insert("v2".to_owned(), context);
        assert!(!format!("{settings:?}").contains(SECRET));
    });
    let mut controller = fixture.controller().await;
    let mut request = publish("v1", "n1");
    let refused = controller.controller_publish_volume(request.clone()).await;
    assert_eq!(code(&refused), Code::Unauthenticated);
    request.secrets = [("password".to_owned(), SECRET.to_owned())].into();
    assert_eq!(code(&controller.controller_publish_volume(request).await), Code::Ok);
    let refused = controller.controller_unpublish_volume(unpublish("v1", "n1")).await;
    assert_eq!(code(&refused), Code::Unauthenticated);
    let other = controller.controller_publish_volume(publish("v2", "n1")).await.unwrap();
    let context = other.into_inner().publish_context;
    assert_eq!(context.get("a").map(String::as_str), Some("b"));
    assert_eq!(context.len(), 1);
}

#[tokio::test]
async fn a_volume_may_want_mount_flags() {
    let fixture = Fixture::new(|builder| builder).await;
    let flags = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    fixture.mock.settings(|settings| {
        settings
            .volume_mount_flags
            .insert("v1".to_owned(), flags(&["noatime", "nodev"]));
    });
    let mut controller = fixture.controller().await;
    let mut publish_with = async |names: &[&str]| {
        let mut request = publish("v1", "n1");
        let capability = request.volume_capability.as_mut().unwrap();
        capability.access_type = Some(AccessType::Mount(MountVolume {
            mount_flags: flags(names),
            ..Default::default()
        }));
        code(&controller.controller_publish_volume(request).await)
    };
    for wrong in [
        &["noatime"][..],
        &["nodev", "noatime"],
        &["noatime", "nodev", "ro"],
        &[],
    ] {
        assert_eq!(publish_with(wrong).await, Code::InvalidArgument, "{wrong:?}");
    }
    assert_eq!(publish_with(&["noatime", "nodev"]).await, Code::Ok);
}

#[tokio::test]
async fn the_rules_of_one_volume_can_be_cleared() {
    let fixture = Fixture::new(|builder| builder).await;
    fixture.mock.script(Rule::on(PUBLISH).volume("v1").hang());
    fixture.mock.script(Rule::on(PUBLISH).volume("v2").hang());
    fixture.mock.script(Rule::on(PUBLISH).node("n9").hang());
    fixture.mock.clear_rules_of("v1");
    let left = fixture.mock.rules();
    assert_eq!(
        left.iter().map(|rule| rule.volume.as_deref()).collect::<Vec<_>>(),
        [Some("v2"), None]
    );
}
