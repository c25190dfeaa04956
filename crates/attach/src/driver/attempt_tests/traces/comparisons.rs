//! Which comparisons with ListVolumes have a span, and what it tells.

use tonic::Code;

use super::*;
use crate::csi::CallError;
use crate::decide::reconcile::{Comparison, DesiredState, Expectation};
use crate::driver::context::DriverContext;
use crate::driver::reconcile_sync::list::{ListError, ListProgress};
use crate::driver::reconcile_sync::span::ReconcileSyncSpan;
use crate::telemetry::names::span::RECONCILE_SYNC;

/// A comparison that is not one of the sixtieth.
const ANY: u64 = 7;

fn expected(name: &str, wanted: DesiredState) -> Expectation {
    Expectation {
        name: name.into(),
        uid: format!("{name}-uid").into(),
        handle: "h".into(),
        node_id: "id1".into(),
        former_node_id: None,
        wanted,
    }
}

fn wrong(contradicted: Vec<Expectation>) -> Comparison {
    Comparison {
        contradicted,
        agreed: vec![expected("fine", DesiredState::Published)],
        ..Comparison::default()
    }
}

/// The comparison that so many went before, after its only page.
fn begun(work: &DriverContext, before: u64) -> ReconcileSyncSpan<'_> {
    let mut comparison = ReconcileSyncSpan::begin(work, before, 5, 2);
    comparison.progress = ListProgress { pages: 1, volumes: 6 };
    comparison
}

#[tokio::test]
async fn one_in_sixty_comparisons_that_find_nothing_has_a_span() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    for before in 0..180 {
        begun(stage.engine.work(), before).compared(&wrong(Vec::new()));
        let expected = usize::try_from(before / 60 + 1).unwrap();
        let spans = told.spans().await;
        assert_eq!((named(&spans, RECONCILE_SYNC).len(), spans.len()), (expected, expected));
    }
    let spans = told.spans().await;
    let comparison = named(&spans, RECONCILE_SYNC)[0];
    assert_eq!(comparison.text("container.csi.plugin.name"), DRIVER);
    assert_eq!((comparison.failed, &comparison.parent_span_id), (false, &None));
    let counts = ["pages", "volumes", "attachments", "skipped", "mismatches"];
    let counts = counts.map(|key| comparison.attributes[&format!("attacher.sync.{key}")].clone());
    assert_eq!(counts, [1, 6, 5, 2, 0].map(Attribute::I64));
}

/// The share of the driver's attachments that is traced counts for comparisons too.
#[tokio::test]
async fn a_comparison_is_sampled_like_everything_else() {
    let told = Told::always().await;
    let stage = stage(&told, |spec| spec.tracing.sampling_rate_per_million = Some(0)).await;
    begun(stage.engine.work(), 0).compared(&wrong(vec![expected("va", DesiredState::Published)]));
    begun(stage.engine.work(), 0).failed(&ListError::RepeatedToken);
    assert_eq!(told.spans().await, []);
}

#[tokio::test]
async fn a_comparison_that_failed_is_told() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    let call = CallError {
        code: Code::Aborted,
        message: "token expired".to_owned(),
        transport: false,
        unsent: false,
    };
    for error in [ListError::Call(call.into()), ListError::RepeatedToken] {
        begun(stage.engine.work(), ANY).failed(&error);
    }
    let spans = told.spans().await;
    let failed: Vec<_> = named(&spans, RECONCILE_SYNC)
        .iter()
        .map(|span| (span.failed, span.text("error.type"), &*span.status_message))
        .collect();
    let repeated = ListError::RepeatedToken.to_string();
    let expected = [(true, "ABORTED", "token expired"), (true, "_OTHER", &*repeated)];
    assert_eq!(failed, expected);
}

#[tokio::test]
async fn a_comparison_that_found_a_difference_tells_which() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    stage.attach().await;
    stage.watch();
    let known = expected("va", DesiredState::Published);
    let unknown = expected("unknown", DesiredState::Unpublished);
    begun(stage.engine.work(), ANY).compared(&wrong(vec![known, unknown]));
    let spans = told.spans().await;
    let comparison = only(&spans, RECONCILE_SYNC);
    let event = |va: &str, expected: &str, actual: &str| {
        let pairs = [("va", va), ("expected", expected), ("actual", actual)];
        let attributes = pairs.map(|(key, value)| (key.to_owned(), Attribute::from(value)));
        ("mismatch".to_owned(), BTreeMap::from(attributes))
    };
    let known = event("va", "attached", "detached");
    let unknown = event("unknown", "detached", "attached");
    assert_eq!(comparison.events, [known, unknown]);
    assert_eq!(comparison.links, [derived_root("attach", "va", 0)]);
    assert!(!comparison.failed, "that is what it is for");
    assert_eq!(comparison.attributes["attacher.sync.mismatches"], Attribute::I64(2));
}

/// A backend that lists nothing any more is one piece of news.
#[tokio::test]
async fn no_more_differences_are_told_than_somebody_reads() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    let many = (0..1_000).map(|number| expected(&format!("va{number}"), DesiredState::Published));
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
    let _given_up = begun(stage.engine.work(), 0);
    assert_eq!(told.spans().await, []);
}
