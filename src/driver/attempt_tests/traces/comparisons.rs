//! Which comparisons with ListVolumes are told, and what they tell.

use tonic::Code;

use super::*;
use crate::csi::CallError;
use crate::decide::reconcile::{Compared, Expectation, Wanted};
use crate::driver::engine::Work;
use crate::driver::listing::ListError;
use crate::driver::sync_span::SyncSpan;
use crate::telemetry::names::span::RECONCILE_SYNC;
use crate::telemetry::{Identity, SpanKind};

/// A comparison that one in sixty does not tell anyway.
const ANY: u64 = 7;
const PAGE: &str = "csi.v1.Controller/ListVolumes";

fn expected(name: &str, wanted: Wanted) -> Expectation {
    Expectation {
        name: name.into(),
        uid: format!("{name}-uid").into(),
        handle: "h".into(),
        node_id: "id1".into(),
        former_node_id: None,
        wanted,
    }
}

fn wrong(contradicted: Vec<Expectation>) -> Compared {
    Compared {
        contradicted,
        agreed: vec![expected("fine", Wanted::Here)],
        ..Compared::default()
    }
}

/// The comparison that so many went before, after its only page.
fn begun(work: &Work, before: u64) -> SyncSpan<'_> {
    let mut comparison = SyncSpan::begin(work, before);
    comparison.about(5, 2);
    comparison.span.child(PAGE, SpanKind::Client).end();
    comparison
}

#[tokio::test]
async fn one_in_sixty_comparisons_that_find_nothing_is_told() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    for before in 0..180 {
        let mut comparison = begun(stage.engine.work(), before);
        comparison.span.set("before", i64::try_from(before).unwrap());
        comparison.compared(&wrong(Vec::new()));
    }
    let spans = told.spans().await;
    let numbers: Vec<_> = named(&spans, RECONCILE_SYNC)
        .iter()
        .map(|span| span.attributes["before"].clone())
        .collect();
    assert_eq!(numbers, [0, 60, 120].map(Attribute::I64));
    let pages = named(&spans, PAGE);
    assert_eq!((pages.len(), spans.len()), (3, 6), "with its calls, or not at all");
    let comparison = named(&spans, RECONCILE_SYNC)[0];
    let text = comparison.text("container.csi.plugin.name");
    assert_eq!(
        (text, comparison.failed, &comparison.parent_span_id),
        (DRIVER, false, &None)
    );
    for (key, value) in [("attachments", 5), ("skipped", 2), ("mismatches", 0)] {
        assert_eq!(
            comparison.attributes[&format!("attacher.sync.{key}")],
            Attribute::I64(value),
            "{key}"
        );
    }
}

/// Longer than a call may take is slow.
#[tokio::test]
async fn a_comparison_that_was_slow_is_told() {
    let told = Told::always().await;
    let stage = stage(&told, |spec| spec.timeouts.list_volumes = "30s".parse().unwrap()).await;
    tokio::time::pause();
    for millis in [0_i64, 30_000, 30_001, 90_000] {
        let mut comparison = begun(stage.engine.work(), ANY);
        comparison.span.set("millis", millis);
        tokio::time::advance(Duration::from_millis(millis.try_into().unwrap())).await;
        comparison.compared(&wrong(Vec::new()));
    }
    tokio::time::resume();
    let spans = told.spans().await;
    let slow: Vec<_> = named(&spans, RECONCILE_SYNC)
        .iter()
        .map(|span| span.attributes["millis"].clone())
        .collect();
    assert_eq!(slow, [30_001, 90_000].map(Attribute::I64));
}

#[tokio::test]
async fn a_comparison_that_failed_is_told() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    let call = CallError {
        code: Code::Aborted,
        message: "token expired".to_owned(),
        transport: false,
    };
    for error in [ListError::Call(call), ListError::Circle] {
        begun(stage.engine.work(), ANY).failed(&error);
    }
    let spans = told.spans().await;
    let failed: Vec<_> = named(&spans, RECONCILE_SYNC)
        .iter()
        .map(|span| (span.failed, span.text("error.type"), &*span.status_message))
        .collect();
    assert_eq!(
        failed,
        [
            (true, "ABORTED", "token expired"),
            (true, "_OTHER", &*ListError::Circle.to_string()),
        ]
    );
    assert_eq!(named(&spans, PAGE).len(), 2);
}

#[tokio::test]
async fn a_comparison_that_found_a_difference_tells_which() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    stage.volume(&json!({}));
    stage.attachment("va", "n1", &json!({}));
    stage.attached("va").await;
    stage.watch();
    let contradicted = vec![expected("va", Wanted::Here), expected("unknown", Wanted::Gone)];
    begun(stage.engine.work(), ANY).compared(&wrong(contradicted));
    let spans = told.spans().await;
    let comparison = only(&spans, RECONCILE_SYNC);
    let event = |va: &str, expected: &str, actual: &str| {
        let pairs = [("va", va), ("expected", expected), ("actual", actual)];
        let attributes = pairs.map(|(key, value)| (key.to_owned(), Attribute::from(value)));
        ("mismatch".to_owned(), BTreeMap::from(attributes))
    };
    assert_eq!(
        comparison.events,
        [
            event("va", "attached", "detached"),
            event("unknown", "detached", "attached")
        ]
    );
    let life = Identity::derive("attach", "va-uid", 0);
    let life = (format!("{:032x}", life.trace_id), format!("{:016x}", life.root_id));
    assert_eq!(comparison.links, [life]);
    assert!(!comparison.failed, "that is what it is for");
    assert_eq!(comparison.attributes["attacher.sync.mismatches"], Attribute::I64(2));
}

/// A backend that lists nothing any more is one piece of news.
#[tokio::test]
async fn no_more_differences_are_told_than_somebody_reads() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    let many = (0..1_000).map(|number| expected(&format!("va{number}"), Wanted::Here));
    begun(stage.engine.work(), ANY).compared(&wrong(many.collect()));
    let spans = told.spans().await;
    let comparison = only(&spans, RECONCILE_SYNC);
    assert_eq!((comparison.events.len(), comparison.links.len()), (32, 0));
    assert_eq!(comparison.attributes["attacher.sync.mismatches"], Attribute::I64(1_000));
}

/// As when it is switched off meanwhile, or the driver goes.
#[tokio::test]
async fn a_comparison_that_is_given_up_is_not_told() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    drop(begun(stage.engine.work(), 0));
    assert_eq!(told.spans().await, []);
}
