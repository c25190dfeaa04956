//! How lifecycles end that come to nothing, and which do not end at all.

use tonic::Code;

use super::*;

fn assert_aborted(root: &ReceivedSpan, kind: &str, why: &str) {
    assert_eq!(root.text("attacher.outcome"), "aborted");
    assert!(root.failed && root.status_message.contains(why), "{root:#?}");
    assert_eq!(root.text("error.type"), kind);
}

/// As the watch tells of the end of an object.
fn removed(stage: &AttemptFixture, name: &str) {
    stage.api.objects.lock().remove(&format!("{ATTACHMENTS}{name}"));
    let target = WriteTarget::Attachment(name.into());
    stage.store.mark_deleted(&target, &format!("{name}-uid"));
}

#[tokio::test]
async fn an_attachment_that_goes_while_it_waits_is_aborted() {
    let told = Told::always().await;
    let stage = stage(&told, patient).await;
    // There is no such volume, so that nothing holds the attachment.
    stage.attachment("va", "n1", &json!({"creationTimestamp": "2026-01-01T00:00:00Z"}));
    told.ended(ATTEMPT).await;
    assert_eq!(stage.engine.work().lifecycles.len(), 1);
    removed(&stage, "va");
    let spans = told.ended(ATTACH).await;
    let root = only(&spans, ATTACH);
    assert_aborted(root, "pv_not_found", "was deleted before");
    assert_eq!(root.text("attacher.start.source"), "creation");
    assert!(matches!(root.attributes["attacher.observe_lag"], Attribute::F64(lag) if lag > 1.0));
    assert_eq!(stage.engine.work().lifecycles.len(), 0);
}

#[tokio::test]
async fn an_attachment_that_goes_during_an_attempt_is_aborted_once() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    let slow = Rule::on(PUBLISH).delay(Duration::from_millis(300));
    stage.driver.script(slow.fail(Code::Internal, "too late"));
    stage.volume(&json!({}));
    stage.attachment("va", "n1", &json!({}));
    stage.called(PUBLISH).await;
    removed(&stage, "va");
    let spans = told.ended(ATTACH).await;
    assert_aborted(only(&spans, ATTACH), "INTERNAL", "was deleted before");
    assert_eq!(stage.engine.work().lifecycles.len(), 0);
}

#[tokio::test]
async fn an_attach_that_turns_into_a_detach_is_aborted() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    stage.driver.script(Rule::on(PUBLISH).fail(Code::Internal, "never"));
    stage.volume(&json!({}));
    stage.attachment("va", "n1", &json!({}));
    told.until(|spans| named(spans, ATTEMPT).len() >= 2).await;
    stage.delete("va");
    stage.gone("va").await;
    let spans = told.ended(DETACH).await;
    let (attach, detach) = (only(&spans, ATTACH), only(&spans, DETACH));
    assert_aborted(attach, "INTERNAL", "was deleted before");
    assert_eq!(detach.text("attacher.outcome"), "succeeded");
    assert_eq!(detach.links, [ids(attach)]);
}

#[tokio::test]
async fn one_that_takes_the_place_of_another_begins_a_life_of_its_own() {
    let told = Told::always().await;
    let stage = stage(&told, patient).await;
    stage.attachment("va", "n1", &json!({}));
    told.ended(ATTEMPT).await;
    // The watch missed the end of the first.
    stage.volume(&json!({}));
    stage.attachment("va", "n1", &json!({"uid": "another"}));
    stage.attached("va").await;
    let spans = told.until(|spans| named(spans, ATTACH).len() == 2).await;
    let roots = spans.iter().filter(|span| span.name == ATTACH);
    let outcomes: Vec<_> = roots.map(|span| span.text("attacher.outcome")).collect();
    assert_eq!(outcomes, ["aborted", "succeeded"]);
}

#[tokio::test]
async fn a_detach_whose_finalizer_somebody_took_is_aborted() {
    let told = Told::always().await;
    let stage = stage(&told, patient).await;
    stage.driver.script(Rule::on(UNPUBLISH).fail(Code::Internal, "never"));
    stage.attach().await;
    stage.delete("va");
    told.until(|spans| !named(spans, DETACH_ATTEMPT).is_empty()).await;
    removed(&stage, "va");
    let spans = told.ended(DETACH).await;
    assert_aborted(only(&spans, DETACH), "INTERNAL", "was deleted before");
}

#[tokio::test]
async fn only_the_end_of_the_config_ends_what_is_pending() {
    let told = Told::always().await;
    let first = stage(&told, |_| {}).await;
    first.driver.script(Rule::on(PUBLISH).fail(Code::Internal, "never"));
    first.volume(&json!({}));
    first.attachment("va", "n1", &json!({}));
    told.ended(ATTEMPT).await;
    // The end of the process, or of the lease.
    let api = first.api.clone();
    first.engine.drain().await;
    assert!(named(&told.spans().await, ATTACH).is_empty());
    let second = joined(api, &told, |_| {}).await;
    second.driver.script(Rule::on(PUBLISH).fail(Code::Internal, "never"));
    second.watch();
    let before = named(&told.spans().await, ATTEMPT).len();
    told.until(|spans| named(spans, ATTEMPT).len() > before).await;
    let lifecycles = second.engine.work().lifecycles.clone();
    second.engine.drain().await;
    lifecycles.end_all();
    let spans = told.ended(ATTACH).await;
    assert_aborted(only(&spans, ATTACH), "INTERNAL", "AttacherConfig");
    lifecycles.end_all();
    assert_eq!((named(&told.spans().await, ATTACH).len(), lifecycles.len()), (1, 0));
}

/// Somebody else says that it is attached: the lifecycle is over, and well.
#[tokio::test]
async fn what_is_attached_without_us_ended_well() {
    let told = Told::always().await;
    let stage = stage(&told, patient).await;
    stage.attachment("va", "n1", &json!({}));
    told.ended(ATTEMPT).await;
    stage.change("va", &json!({"status": {"attached": true}}));
    let spans = told.ended(ATTACH).await;
    let root = only(&spans, ATTACH);
    assert_eq!((root.text("attacher.outcome"), root.failed), ("succeeded", false));
}

/// What is attached already makes no span when an operator starts; what is pending does.
#[tokio::test]
async fn a_start_tells_of_what_is_pending_only() {
    let told = Told::always().await;
    let before = AttemptFixture::of(Api::default()).await;
    before.store.apply(CsiNode::new("n1", &[(DRIVER, "id1")]));
    before.volume(&json!({}));
    for name in ["settled-0", "settled-1"] {
        before.attachment(name, "n1", &json!({}));
        before.attached(name).await;
    }
    // Without traces nothing of them is written.
    assert_eq!(before.annotation("settled-0", OWN), None);
    let api = before.kill();
    let written = api.patches.lock().len();
    let after = joined(api, &told, |_| {}).await;
    after.watch();
    after.attachment("pending", "n1", &json!({}));
    after.attached("pending").await;
    // Nor by a start.
    let patches = after.api.patches.lock()[written..].to_vec();
    let settled = patches.iter().find(|(path, ..)| path.contains("settled"));
    assert_eq!(settled, None);
    let spans = told.ended(ATTACH).await;
    for span in &spans {
        let is_settled = |value: &Attribute| matches!(value, Attribute::Str(text) if text.contains("settled"));
        assert!(!span.attributes.values().any(is_settled), "{span:#?}");
    }
}
