//! Canaries: what must not be in an archive, in each form in which it could come.

use flate2::read::GzDecoder;
use serde_json::json;
use std::io::Read;

use super::{archive, redact, redact_text};

const CANARY: &str = "c4n4ry-7d1f";

#[test]
fn no_canary_survives_in_an_object() {
    let mut object = json!({
        "metadata": {
            "name": "pv1",
            "managedFields": [{"manager": CANARY}],
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"password\":\"{CANARY}\"}}"),
                "attacher.csi.dev/volume": "{\"handle\":\"h1\"}",
            },
        },
        "spec": {
            "csi": {"driver": "d", "volumeHandle": "h1", "volumeAttributes": {"share": CANARY}},
            "containers": [{"env": [{"name": "TOKEN", "value": CANARY}], "args": [format!("--token={CANARY}")]}],
        },
        "status": {
            "attachmentMetadata": {"devicePath": CANARY},
            "attachError": {"message": format!("login failed: password={CANARY}, user=jane")},
            "detachError": {"message": format!("Authorization: Bearer {CANARY}")},
        },
        "data": {"key": CANARY},
    });
    redact(&mut object);
    let text = object.to_string();
    assert!(!text.contains(CANARY), "{text}");
    for kept in ["h1", "share", "devicePath", "login failed", "user=jane"] {
        assert!(text.contains(kept), "{kept} is of use: {text}");
    }
}

#[test]
fn no_canary_survives_in_a_text() {
    let token = format!("eyJhbGciOiJSUzI1NiJ9.{CANARY}.sig");
    for text in [
        format!("password={CANARY}"),
        format!("db_password: {CANARY}"),
        format!("\"secret\": \"{CANARY}\""),
        format!("{{\\\"token\\\":\\\"{CANARY}\\\"}}"),
        format!("url?api_key={CANARY}&x=1"),
        format!("Authorization: Bearer {CANARY}"),
        format!("authorization=Basic {CANARY}"),
        format!("bearer {CANARY}"),
        format!("-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n"),
        token,
    ] {
        let shown = redact_text(&text);
        assert!(!shown.contains(CANARY), "{text} gave {shown}");
    }
}

#[test]
fn what_is_no_secret_stays() {
    for text in [
        "rpc error: code = Internal desc = the volume is busy",
        "failed to load secret \"storage/key\": not found",
        "volume h1: attempt 7 to attach it to node node1 failed; retrying in 1.5 s: busy",
        "",
    ] {
        assert_eq!(redact_text(text), text);
    }
}

#[test]
fn an_archive_can_be_read() {
    let mut bytes = Vec::new();
    let files = [
        ("a.json".to_owned(), "{}\n".to_owned()),
        ("why/b.txt".to_owned(), "b\n".to_owned()),
    ];
    archive(&mut bytes, "bundle", &files, 1).unwrap();
    let mut found = Vec::new();
    for entry in tar::Archive::new(GzDecoder::new(bytes.as_slice())).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        found.push((path, text));
    }
    assert_eq!(
        found,
        [
            ("bundle/a.json".to_owned(), "{}\n".to_owned()),
            ("bundle/why/b.txt".to_owned(), "b\n".to_owned())
        ]
    );
}
