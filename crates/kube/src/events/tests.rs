//! Series of events: nothing here takes time.

use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use super::publisher::EventWriter;
use super::series::{EventSeries, EventWrite};
use super::{EventReason, EventRecorder, InvolvedObject, NewEvent, involved_objects, objects_of_attachment};
use crate::api::names::VOLUME_ANNOTATION;
use crate::apiserver::Requests;
use crate::decide::{Neighbours, Snapshot};
use crate::objects::{PersistentVolumeWire, VolumeAttachmentWire};
use crate::telemetry::Metrics;

fn subject(kind: &'static str, namespace: &str) -> InvolvedObject {
    InvolvedObject {
        api_version: "v1",
        kind,
        namespace: namespace.into(),
        name: "object".into(),
        uid: format!("{kind}-uid").into(),
    }
}

fn occurrence(reason: EventReason, note: &str) -> NewEvent {
    NewEvent {
        driver: "a.test".into(),
        reason: reason.as_str(),
        level: reason.level(),
        cause: Box::default(),
        note: note.to_owned(),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        at: Timestamp::from_second(1_700_000_000).unwrap(),
        subjects: Vec::new(),
    }
}

fn written(series: &mut EventSeries, occurrence: &NewEvent, at: Instant) -> Option<EventWrite> {
    series
        .observe(occurrence, &subject("PersistentVolume", ""), at)
        .unwrap()
}

/// An attachment of pv1 that was claimed for the handle `noted`, and pv1 as it is now.
fn snapshot(noted: &str, handle: &str) -> Snapshot {
    let attachment = json!({
        "metadata": {
            "name": "va", "uid": "va-uid",
            "annotations": {VOLUME_ANNOTATION: json!({"handle": noted}).to_string()},
        },
        "spec": {"attacher": "a.test", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
    });
    let volume = json!({
        "metadata": {"name": "pv1", "uid": "pv-uid"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "a.test", "volumeHandle": handle},
            "claimRef": {"namespace": "ns2", "name": "c2", "uid": "c2-uid"},
        },
    });
    let attachment: VolumeAttachmentWire = serde_json::from_value(attachment).unwrap();
    let volume: PersistentVolumeWire = serde_json::from_value(volume).unwrap();
    Snapshot {
        attachment: Arc::new(attachment.into()),
        volume: Some(Arc::new(volume.into())),
        node: None,
        neighbours: Neighbours::default(),
    }
}

/// A PersistentVolume that was made again under its name is another volume, and has another claim.
#[test]
fn what_is_about_one_volume_is_not_shown_on_another_one() {
    let kinds = |objects: Vec<InvolvedObject>| objects.iter().map(|object| object.kind).collect::<Vec<_>>();
    let all = ["VolumeAttachment", "PersistentVolume", "PersistentVolumeClaim"];
    assert_eq!(kinds(objects_of_attachment(&snapshot("a", "a"))), all);
    assert_eq!(kinds(objects_of_attachment(&snapshot("a", "b"))), all[..1]);
    assert_eq!(
        kinds(involved_objects(&snapshot("a", "b"))),
        all,
        "the finding about it"
    );
}

#[test]
fn the_first_occurrence_is_an_event() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let failed = occurrence(EventReason::AttachFailed, "no\nroom");
    let claim = subject("PersistentVolumeClaim", "shop");
    let write = series.observe(&failed, &claim, Instant::now()).unwrap().unwrap();
    assert_eq!((&*write.namespace, &write.change), ("shop", &None));
    let mut body = write.body;
    let name = body["metadata"]["name"].take();
    assert!(name.as_str().unwrap().starts_with("object."), "{name}");
    assert_eq!(
        body,
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": null,
                "namespace": "shop",
                "annotations": {
                    "attacher.csi.dev/trace-id": "0af7651916cd43dd8448eb211c80319c",
                    "attacher.csi.dev/traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                },
            },
            "involvedObject": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "object",
                "uid": "PersistentVolumeClaim-uid",
            },
            "reason": "AttachFailed",
            "type": "Warning",
            "message": "no room",
            "source": {"component": "csi-attacher-operator", "host": "pod-1"},
            "reportingComponent": "csi-attacher-operator",
            "reportingInstance": "pod-1",
            "firstTimestamp": "2023-11-14T22:13:20Z",
            "lastTimestamp": "2023-11-14T22:13:20Z",
            "count": 1,
        })
    );
}

#[test]
fn what_repeats_is_counted_and_written_now_and_then() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let start = Instant::now();
    let created = written(&mut series, &occurrence(EventReason::DetachFailed, "one"), start).unwrap();
    assert_eq!(&*created.namespace, "default", "of an object without a namespace");
    let later = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(
        written(&mut series, &occurrence(EventReason::DetachFailed, "two"), later(1)),
        None
    );
    assert_eq!(series.due(later(2)), []);
    let due = series.due(later(31));
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].change.as_deref(), created.body["metadata"]["name"].as_str());
    assert_eq!(
        (&due[0].body["count"], &due[0].body["message"]),
        (&json!(2), &json!("two"))
    );
    assert_eq!(series.due(later(100)), [], "nothing happened since");
    let third = written(&mut series, &occurrence(EventReason::DetachFailed, "three"), later(101)).unwrap();
    assert_eq!((&third.body["count"], third.change.is_some()), (&json!(3), true));
    let other = written(&mut series, &occurrence(EventReason::NodeGone, "other"), later(102)).unwrap();
    assert!(other.change.is_none(), "another reason is another event");
    let after_a_pause = written(&mut series, &occurrence(EventReason::DetachFailed, "new"), later(2000)).unwrap();
    assert!(after_a_pause.change.is_none(), "a new series");
}

/// First a node that is not registered, a moment later the driver's refusal: who waits for a pod is not to read of the node
/// for another half a minute.
#[test]
fn another_cause_is_told_at_once() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let start = Instant::now();
    let failed = |cause: &str, note| NewEvent {
        cause: cause.into(),
        ..occurrence(EventReason::AttachFailed, note)
    };
    let later = |millis| start + Duration::from_millis(millis);
    let first = written(&mut series, &failed("csinode_missing", "no node"), start).unwrap();
    let other = written(&mut series, &failed("INTERNAL", "busy"), later(50)).unwrap();
    assert_eq!((&other.change, &other.body["message"]), (&None, &json!("busy")));
    assert_ne!(first.body["metadata"]["name"], other.body["metadata"]["name"]);
    assert_eq!(
        written(&mut series, &failed("csinode_missing", "no node"), later(100)),
        None
    );
    assert_eq!(written(&mut series, &failed("INTERNAL", "busy"), later(150)), None);
    let due = series.due(later(30_151));
    assert_eq!(due.len(), 2, "each is counted on its own: {due:?}");
}

#[test]
fn an_event_that_expired_is_made_anew() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let start = Instant::now();
    let created = written(&mut series, &occurrence(EventReason::Attached, "one"), start).unwrap();
    series.forget(created.body["metadata"]["name"].as_str().unwrap());
    let again = written(&mut series, &occurrence(EventReason::Attached, "two"), start).unwrap();
    assert!(again.change.is_none());
}

/// The namespace of a claim may be gone: what was never made cannot be changed.
#[tokio::test(start_paused = true)]
async fn an_event_that_could_not_be_made_is_not_changed() {
    let (asked, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let answer = move |request: http::Request<kube::client::Body>| {
        asked.send(request.method().clone()).unwrap();
        let status = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "no namespace"});
        let response = http::Response::builder().status(404);
        let response = response.body(kube::client::Body::from(status.to_string().into_bytes()));
        std::future::ready(response.map_err(|error| error.to_string()))
    };
    let client = kube::Client::new(tower::service_fn(answer), "default");
    let metrics = Metrics::default();
    let requests_of_events = Requests::new(client, "model", Duration::from_secs(1), metrics.clone());
    let mut writer = EventWriter::new(requests_of_events, metrics, "pod-1".to_owned());
    let mut failed = occurrence(EventReason::AttachFailed, "no room");
    failed.subjects.push(subject("PersistentVolumeClaim", "gone"));
    // Of a PersistentVolume that is reserved for a claim by name: there is no object to show an event on.
    failed.subjects.push(InvolvedObject {
        uid: "".into(),
        ..subject("PersistentVolumeClaim", "gone")
    });
    for _ in 0..2 {
        for write in writer.writes_of(&failed) {
            let sent = writer.send(write).await;
            writer.finish(sent);
        }
        assert_eq!(requests.try_recv(), Ok(http::Method::POST));
        assert!(requests.try_recv().is_err());
        tokio::time::advance(Duration::from_secs(31)).await;
    }
}

/// An admission webhook for the events of one namespace does not answer.
#[tokio::test(start_paused = true)]
async fn a_slow_namespace_holds_up_no_other_one() {
    let (asked, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let answer = move |request: http::Request<kube::client::Body>| {
        let path = request.uri().path().to_owned();
        let takes = Duration::from_secs(if path.contains("/slow/") { 10 } else { 0 });
        asked.send(path).unwrap();
        async move {
            tokio::time::sleep(takes).await;
            http::Response::builder().body(kube::client::Body::from(b"{}".to_vec()))
        }
    };
    let client = kube::Client::new(tower::service_fn(answer), "default");
    let metrics = Metrics::default();
    let requests_of_events = Requests::new(client, "model", Duration::from_secs(15), metrics.clone());
    let writer = EventWriter::new(requests_of_events, metrics, "pod-1".to_owned());
    let (recorder, incoming) = tokio::sync::mpsc::channel(1024);
    let writing = tokio::spawn(writer.run(incoming));
    let about = |namespace: &str, number: usize| {
        let mut claim = subject("PersistentVolumeClaim", namespace);
        claim.uid = format!("{namespace}-{number}").into();
        let mut failed = occurrence(EventReason::AttachFailed, "no room");
        failed.subjects.push(claim);
        failed
    };
    for number in 0..100 {
        recorder.send(about("slow", number)).await.unwrap();
    }
    recorder.send(about("shop", 0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut paths: Vec<String> = std::iter::from_fn(|| requests.try_recv().ok()).collect();
    paths.sort();
    assert_eq!(
        paths,
        ["/api/v1/namespaces/shop/events", "/api/v1/namespaces/slow/events"]
    );
    // What waits is written in the end.
    drop(recorder);
    writing.await.unwrap();
    assert_eq!(std::iter::from_fn(|| requests.try_recv().ok()).count(), 99);
}

/// The role ends while its Event waits to be written; the AttacherConfig stays.
#[tokio::test(start_paused = true)]
async fn what_is_written_after_the_end_of_a_role_is_not_counted() {
    let answer = |_: http::Request<kube::client::Body>| {
        let response = http::Response::builder().body(kube::client::Body::from(b"{}".to_vec()));
        std::future::ready(response)
    };
    let client = kube::Client::new(tower::service_fn(answer), "default");
    let metrics = Metrics::default();
    let requests_of_events = Requests::new(client, "model", Duration::from_secs(1), metrics.clone());
    let (recorder, writer) = EventRecorder::new(requests_of_events, metrics.clone(), "pod-1".to_owned());
    let writer = tokio::spawn(writer);
    let tell = async |reason: EventReason, about: &str, ends: bool| {
        let mut told = occurrence(reason, "x");
        told.subjects.push(InvolvedObject {
            uid: about.into(),
            ..subject("AttacherConfig", "")
        });
        recorder.record(told);
        if ends {
            metrics.forget_attaching("a.test");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tell(EventReason::AttachFailed, "1", false).await;
    let counted = |reason: &str| {
        let text = metrics.encode_prometheus();
        let series =
            format!("csi_attacher_events_total{{driver_name=\"a.test\",reason=\"{reason}\",outcome=\"written\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.map(str::to_owned)
    };
    assert_eq!(counted("AttachFailed").as_deref(), Some("1"));
    tell(EventReason::AttachFailed, "2", true).await;
    assert_eq!(counted("AttachFailed"), None);
    tell(EventReason::DriverUnreachable, "3", false).await;
    assert_eq!(counted("DriverUnreachable").as_deref(), Some("1"));
    drop(recorder);
    writer.await.unwrap();
}

#[test]
fn good_news_leaves_room_for_bad() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let start = Instant::now();
    let mut flood = |reason: EventReason, driver: &str, number: usize| {
        let mut occurrence = occurrence(reason, "x");
        occurrence.driver = driver.into();
        let mut object = subject("VolumeAttachment", "");
        object.uid = format!("{driver}-{number}").into();
        series.observe(&occurrence, &object, start)
    };
    let told = (0..1000)
        .filter(|number| flood(EventReason::Attached, "a.test", *number).is_ok())
        .count();
    assert_eq!(told, 100);
    assert!(
        flood(EventReason::AttachFailed, "a.test", 0).is_ok(),
        "bad news has a budget of its own"
    );
    assert!(
        flood(EventReason::Attached, "b.test", 0).is_ok(),
        "and so has another driver"
    );
}

/// Hundreds of attachments wait for the same for hours, and each repeats what it waits for.
#[test]
fn what_repeats_leaves_room_for_what_is_new() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let start = Instant::now();
    let mut observe = |number: usize, at: Instant| {
        let mut object = subject("VolumeAttachment", "");
        object.uid = number.to_string().into();
        series
            .observe(&occurrence(EventReason::AttachFailed, "x"), &object, at)
            .map(|_| ())
    };
    let at = |seconds| start + Duration::from_secs(seconds);
    for seconds in (0..300).step_by(5) {
        for number in 0..500 {
            observe(number, at(seconds)).ok();
        }
    }
    for number in 500..550 {
        assert_eq!(
            observe(number, at(300)),
            Ok(()),
            "the first Event about number {number}"
        );
    }
}

#[test]
fn a_note_fits() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let long = "ü".repeat(2000);
    let write = written(
        &mut series,
        &occurrence(EventReason::AttachFailed, &long),
        Instant::now(),
    )
    .unwrap();
    assert_eq!(write.body["message"].as_str().unwrap().len(), 1024);
}

#[test]
fn memory_is_bounded() {
    let mut series = EventSeries::new("pod-1".to_owned());
    let mut now = Instant::now();
    for number in 0..10_000 {
        now += Duration::from_millis(100);
        let mut object = subject("VolumeAttachment", "");
        object.uid = number.to_string().into();
        series
            .observe(&occurrence(EventReason::Attached, "x"), &object, now)
            .unwrap();
    }
    assert!(series.entries.len() <= 4096, "{}", series.entries.len());
}
