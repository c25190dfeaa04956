//! Attributes that only some attempts and requests have.

use super::*;

const WRITE: &str = "PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status";

#[tokio::test]
async fn a_write_that_is_sent_again_says_how_often() {
    let told = Told::always().await;
    let api = Api {
        out_of_order: Mutex::new(2),
        ..Api::default()
    };
    let stage = joined(Arc::new(api), &told, |_| {}).await;
    stage.attach().await;
    let spans = told.ended(ATTACH).await;
    let resent = |span: &ReceivedSpan| span.attributes.get("http.request.resend_count").cloned();
    let status = |span: &ReceivedSpan| span.attributes["http.response.status_code"].clone();
    let writes: Vec<_> = named(&spans, WRITE)
        .iter()
        .map(|span| (resent(span), status(span), span.failed))
        .collect();
    let [no, ok] = [503, 200].map(Attribute::I64);
    let count = |count| Some(Attribute::I64(count));
    let expected = [(None, no.clone(), true), (count(1), no, true), (count(2), ok, false)];
    assert_eq!(writes, expected);
    // Nothing else was sent twice, and what went well in the end went well.
    let mut others = spans.iter().filter(|span| span.name != WRITE);
    assert!(others.all(|span| resent(span).is_none() && !span.failed), "{spans:#?}");
}

#[tokio::test]
async fn an_attempt_says_whether_its_volume_is_an_in_tree_one() {
    for (driver, migrated) in [(GCE, Some(Attribute::Bool(true))), (DRIVER, None)] {
        let told = Told::always().await;
        let stage = AttemptFixture::in_term(None, Arc::default(), driver, told.tracer.clone(), |_| {}).await;
        stage.store.apply(CsiNode::new("n1", &[(driver, "id1")]));
        stage.attach().await;
        let spans = told.ended(ATTACH).await;
        let attempt = only(&spans, ATTEMPT);
        let told = attempt.attributes.get("attacher.migrated");
        assert_eq!(told, migrated.as_ref(), "{driver}");
        assert_eq!(attempt.text("container.csi.plugin.name"), driver);
    }
}
