//! What an answer proves: that an object is gone, or what it is now, only when it is about that very object.

use super::*;
use crate::kinds::LeaseWire;
use crate::objects::PersistentVolumeWire;

const STATUS: &str = "/apis/storage.k8s.io/v1/volumeattachments/a/status";

fn raw(code: u16, body: impl Into<String>) -> Response {
    (StatusCode::from_u16(code).unwrap(), body.into()).into_response()
}

/// The API server's own answer, with a change.
fn told(change: &Value) -> String {
    let mut status = not_found(STATUS);
    json_patch::merge(&mut status, change);
    status.to_string()
}

#[tokio::test]
async fn the_api_servers_own_404_says_that_the_object_is_gone() {
    let server = Server::new().await;
    let quiet = Span::disabled();
    server.answer(raw(404, not_found(STATUS).to_string()));
    let error = server.write_status().await.unwrap_err();
    assert_eq!((error.kind, error.status), (ApiErrorKind::NotFound, Some(404)));
    assert_eq!(error.to_string(), "volumeattachments.storage.k8s.io \"a\" not found");
    assert!(!error.is_transient());
    for (target, path) in [
        (WriteTarget::Volume("pv1".into()), "/api/v1/persistentvolumes/pv1"),
        (
            WriteTarget::Attachment("a".into()),
            "/apis/storage.k8s.io/v1/volumeattachments/a",
        ),
    ] {
        server.answer(raw(404, not_found(path).to_string()));
        let error = server.requests.read(&target, None, &quiet).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::NotFound, "{path}");
    }
    server.answer(raw(404, not_found("/apis/storage.k8s.io/v1/csinodes/n").to_string()));
    let node = server.requests.get::<CsiNodeWire>("n", None, &quiet).await;
    assert_eq!(node.unwrap_err().kind, ApiErrorKind::NotFound);
    server.answer(raw(404, not_found("/api/v1/namespaces/ns/secrets/s").to_string()));
    assert_eq!(server.secret("ns", "s").await.unwrap_err().kind, ApiErrorKind::NotFound);
    server.answer(raw(404, not_found("/apis/storage.k8s.io/v1/csidrivers/d").to_string()));
    let driver = server.requests.get::<CsiDriverWire>("d", None, &quiet).await;
    assert_eq!(driver.err().unwrap().kind, ApiErrorKind::NotFound);
}

/// What is to be made needs its namespace, if it has one. No other 404 says that it was not made.
#[tokio::test]
async fn a_404_to_what_is_to_be_made_counts_when_it_is_about_its_namespace() {
    use ApiErrorKind::{NotFound, Unknown};
    let server = Server::new().await;
    let quiet = Span::disabled();
    for (body, of_lease) in [
        ("404 page not found\n".to_owned(), Unknown),
        (not_found("/api/v1/namespaces/ns").to_string(), NotFound),
        (not_found("/api/v1/namespaces/other").to_string(), Unknown),
        (not_found("/api/v1/persistentvolumes/ns").to_string(), Unknown),
    ] {
        server.answer(raw(404, body.clone()));
        let (requests, nothing) = (&server.requests, json!({}));
        let made = requests.create::<LeaseWire>(Some("ns"), &nothing, &quiet).await;
        assert_eq!(made.unwrap_err().kind, of_lease, "{body}");
        server.answer(raw(404, body.clone()));
        let made = requests.create::<PersistentVolumeWire>(None, &nothing, &quiet).await;
        let error = made.err().unwrap();
        assert_eq!((error.kind, error.may_have_happened()), (Unknown, true), "{body}");
        let told = "does not say why no persistentvolumes can be made; check what is between";
        assert!(error.to_string().contains(told), "{error}");
    }
}

/// What the API server never takes it says by a Status. What a gateway refuses, or sends elsewhere, may have been written, and is taken once
/// the gateway is in order.
#[tokio::test]
async fn a_refusal_that_is_no_status_is_not_the_api_servers() {
    let server = Server::new().await;
    let location = "https://me:s3cret@login.example.com:8443/realm?token=s3cret";
    let page = r#"<a href="/login?token=s3cret">Found</a>"#;
    let too_large = r#"{"message": "too\nlarge"}"#;
    let elsewhere = "302 Found leads to the host login.example.com";
    for (code, body, wanted) in [
        (302, page, elsewhere),
        (302, r#"{"message": "s3cret"}"#, elsewhere),
        (400, "<html>s3cret</html>", "is 400 Bad Request"),
        (401, "", "is 401 Unauthorized"),
        (403, "<html>s3cret</html>", "is 403 Forbidden"),
        (409, r#"{"message": "in the way"}"#, "is 409 Conflict (in the way)"),
        (422, "{}", "is 422 Unprocessable Entity"),
        (408, "", "is 408 Request Timeout"),
        (413, too_large, "is 413 Payload Too Large (too large)"),
        (421, r#"{"kind": "Problem"}"#, "is 421 Misdirected Request"),
    ] {
        let mut answer = raw(code, body);
        answer.headers_mut().insert(header::LOCATION, location.parse().unwrap());
        server.answer(answer);
        let error = server.write_status().await.unwrap_err();
        let of_nobody = (ApiErrorKind::Unknown, Some(code));
        assert_eq!((error.kind, error.status), of_nobody, "{body}");
        assert!(error.is_transient() && error.may_have_happened(), "{code} {body}");
        assert!(!error.is_forbidden() && !error.is_denied(), "{code} {body}");
        let (told, wanted) = (error.to_string(), format!("the answer {wanted}; check what is between"));
        let is_wanted = told.starts_with(&wanted) && !told.contains("s3cret");
        assert!(is_wanted, "{code} {body}: {told}");
    }
}

/// A webhook may pass on what it was told when it looked for an object, even this one.
#[tokio::test]
async fn a_404_of_a_webhook_is_its_refusal() {
    let server = Server::new().await;
    let words =
        "admission webhook \"w.example.com\" denied the request: volumeattachments.storage.k8s.io \"a\" not found";
    for change in [json!({"message": words}), json!({"message": words, "details": null})] {
        server.answer(raw(404, told(&change)));
        let error = server.write_status().await.unwrap_err();
        assert_eq!((error.kind, error.status), (ApiErrorKind::Refused, Some(404)));
        assert_eq!(error.to_string(), words);
        assert!(error.is_denied() && !error.may_have_happened());
    }
}

/// Nothing is written for that, and only the word that this namespace is not there counts.
#[tokio::test]
async fn a_namespace_is_gone_when_nothing_may_be_made_in_it() {
    let server = Server::new().await;
    let gone = not_found("/api/v1/namespaces/ns");
    let other = not_found("/api/v1/namespaces/other");
    let event = json!({ "kind": "Event", "apiVersion": "v1", "metadata": { "name": "ns", "namespace": "ns" } });
    for (answer, is_gone) in [
        (raw(404, gone.to_string()), true),
        (raw(404, other.to_string()), false),
        (raw(404, "404 page not found"), false),
        (status(403, "it is being terminated"), false),
        (status(500, "not now"), false),
        (ok(&event), false),
    ] {
        server.answer(answer);
        let quiet = Span::disabled();
        assert_eq!(server.requests.is_namespace_gone("ns", &quiet).await, is_gone);
    }
    let lines = server.lines();
    let asked = "POST /api/v1/namespaces/ns/events?fieldManager=csi-attacher-operator&dryRun=All";
    assert!(lines.iter().all(|line| line == asked), "{lines:?}");
}

/// Where it comes from is not known, so that the request may well succeed a moment later.
#[tokio::test]
async fn a_404_about_anything_else_says_nothing() {
    let server = Server::new().await;
    let whole = not_found(STATUS).to_string();
    let rows = [
        ("text", "404 page not found\n".to_owned()),
        ("nothing", String::new()),
        ("HTML", "<html><body>404 Not Found</body></html>".to_owned()),
        ("half a body", whole[..whole.len() / 2].to_owned()),
        (
            "JSON of another kind",
            r#"{"error": "no route", "code": 404}"#.to_owned(),
        ),
        ("an object", attachment().to_string()),
        ("another kind", told(&json!({"kind": "Problem"}))),
        ("no kind", told(&json!({"kind": null}))),
        ("another reason", told(&json!({"reason": "Gone"}))),
        ("no reason", told(&json!({"reason": null}))),
        ("another code", told(&json!({"code": 503}))),
        ("a success", told(&json!({"status": "Success"}))),
        ("another object", told(&json!({"details": {"name": "b"}}))),
        (
            "another resource",
            told(&json!({"details": {"kind": "persistentvolumes"}})),
        ),
        ("another group", told(&json!({"details": {"group": "example.com"}}))),
        ("no group", told(&json!({"details": {"group": null}}))),
        ("no details", told(&json!({"details": null}))),
        ("no name", told(&json!({"details": {"name": null}}))),
        ("a namespace", not_found("/api/v1/namespaces/a").to_string()),
        (
            "a resource that is not served",
            told(&json!({"message": "the server could not find the requested resource", "details": {"name": null}})),
        ),
    ];
    for (what, body) in rows {
        server.answer(raw(404, body));
        let error = server.write_status().await.unwrap_err();
        assert_eq!((error.kind, error.status), (ApiErrorKind::Unknown, Some(404)), "{what}");
        assert!(error.is_transient(), "{what}");
        assert!(error.to_string().contains("volumeattachments \"a\""), "{what}: {error}");
    }
}

#[tokio::test]
async fn an_answer_about_another_object_is_none() {
    let server = Server::new().await;
    let of = |change: &Value| {
        let mut object = attachment();
        json_patch::merge(&mut object, change);
        object.to_string()
    };
    let whole = of(&json!({}));
    let rows = [
        ("another name", of(&json!({"metadata": {"name": "b"}}))),
        ("no name", of(&json!({"metadata": {"name": null}}))),
        ("another kind", of(&json!({"kind": "PersistentVolume"}))),
        (
            "a status",
            r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}"#.to_owned(),
        ),
        (
            "a list",
            json!({"kind": "VolumeAttachmentList", "metadata": {}, "items": [attachment()]}).to_string(),
        ),
        ("half a body", whole[..whole.len() / 2].to_owned()),
        ("nothing", String::new()),
    ];
    for (what, body) in rows {
        server.answer(raw(200, body.clone()));
        let error = server.write_status().await.unwrap_err();
        let malformed = (ApiErrorKind::Malformed, Some(200));
        assert_eq!((error.kind, error.status), malformed, "{what}");
        assert!(error.is_transient(), "{what}");
        server.answer(raw(200, body));
        let error = server.read(WriteTarget::Attachment("a".into())).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Malformed, "{what}");
    }
    server.answer(raw(200, of(&json!({"kind": "VolumeAttachment"}))));
    server.write_status().await.unwrap();
    // A Secret of another name is nobody's credentials.
    for metadata in [json!({"name": "t"}), json!({"name": "s", "namespace": "other"})] {
        let secret = json!({"kind": "Secret", "metadata": metadata, "data": {}});
        server.answer(raw(200, secret.to_string()));
        let error = server.secret("ns", "s").await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Malformed, "{secret}");
    }
}

/// A DELETE is answered with the object as long as something holds it, and else with a status or, for some kinds, with the object as it was.
/// Each has to be about the object.
#[tokio::test]
async fn a_delete_is_believed_when_its_answer_is_about_the_object() {
    let server = Server::new().await;
    let delete = async || {
        let quiet = Span::disabled();
        server.requests.delete::<PersistentVolumeWire>("v", "u", &quiet).await
    };
    let mut held = volume();
    held["kind"] = "PersistentVolume".into();
    held["metadata"]["name"] = "v".into();
    // It was stored without finalizers (`ReturnDeletedObject` of the store in kube-apiserver).
    server.answer(ok(&held));
    assert!(delete().await.unwrap().is_none());
    // What is held is not gone, whoever answers with a copy from before.
    let mut before = held.clone();
    before["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.answer(ok(&before));
    assert!(delete().await.unwrap().is_some());
    held["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    server.answer(ok(&held));
    let left = delete().await.unwrap().unwrap();
    assert_eq!(left.metadata.name.as_deref(), Some("v"));
    let asked = server.arrived.lock().pop().unwrap();
    let (line, path) = (&asked.line, "DELETE /api/v1/persistentvolumes/v");
    assert!(line.starts_with(path), "{line}");
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!(body["preconditions"], json!({"uid": "u"}));

    let gone = |name: &str, status: &str| {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": status,
            "details": {"name": name, "kind": "persistentvolumes", "uid": "u"},
        })
    };
    server.answer(ok(&gone("v", "Success")));
    assert!(delete().await.unwrap().is_none());
    for wrong in [
        gone("w", "Success"),
        gone("v", "Failure"),
        json!({"kind": "Status"}),
        json!({}),
    ] {
        server.answer(ok(&wrong));
        assert!(delete().await.is_err(), "{wrong}");
    }
    // A status is no answer to anything else.
    server.answer(ok(&gone("v", "Success")));
    let quiet = Span::disabled();
    let read = server.requests.get::<PersistentVolumeWire>("v", None, &quiet).await;
    assert!(read.is_err());
}
