//! T11: what needs nothing says nothing.

use super::*;
use crate::telemetry::names::{attr, span};

/// Attachments that are settled, and how often all of them are shown again.
const SETTLED: usize = 1_000;
const RESYNCS: usize = 10;

/// Ten lists of a thousand attachments each, with newer versions, as after a watch that expired; then one that is due.
#[tokio::test]
async fn t11_ten_thousand_resyncs_without_work_make_no_span() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    for resync in 0..RESYNCS {
        for number in 0..SETTLED {
            let name = format!("settled-{number}");
            let version = 1_000_000 + resync * SETTLED + number;
            let object = json!({
                "metadata": {
                    "name": name, "uid": format!("{name}-uid"), "resourceVersion": version.to_string(),
                    "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER],
                },
                "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
                "status": {"attached": true},
            });
            stage.sees(object);
        }
    }
    assert_eq!(told.spans().await.len(), 0);
    // It would have been told: the first one that is due makes a trace.
    stage.store.apply(CsiNode::new("n2", &[(DRIVER, "id2")]));
    stage.attachment("due", "n2", &json!({}));
    stage.attached("due").await;
    let spans = told.ended(span::ATTACH).await;
    let about = |span: &ReceivedSpan| span.attributes.get(attr::VOLUME_ATTACHMENT_NAME) == Some(&"due".into());
    assert!(named(&spans, span::ATTACH_ATTEMPT).into_iter().all(about), "{spans:#?}");
    assert!(stage.driver.calls().iter().all(|call| call.method == PUBLISH));
    assert_eq!(stage.driver.calls().len(), 1);
}

/// A driver that answers a megabyte with control characters: cut and cleaned wherever it shows up on spans.
#[tokio::test]
async fn a_megabyte_of_anything_from_a_driver_is_cut_and_cleaned() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    stage.volume(&json!({}));
    // In the headers of an answer each of the control characters takes six bytes: more than a megabyte would not arrive.
    let words = format!("broken\u{7}\r\n\u{1b}[31m\u{0}{}", "x\u{85}".repeat(100_000));
    let fails = Rule::on(PUBLISH).times(1);
    stage.driver.script(fails.fail(tonic::Code::Internal, &words));
    stage.attachment("va", "n1", &json!({}));
    stage.attached("va").await;
    let spans = told.ended(span::ATTACH).await;
    let failed: Vec<_> = spans.iter().filter(|span| span.failed).collect();
    // The attempt and its call.
    assert_eq!(failed.len(), 2, "{failed:#?}");
    for span in failed {
        let text = &span.status_message;
        assert!(text.starts_with("broken") && text.len() <= 4096, "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}
