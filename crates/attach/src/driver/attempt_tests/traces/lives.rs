//! One trace for one lifecycle, across attempts, processes and epochs.

use tonic::Code;

use super::*;
use crate::telemetry::w3c;

const RELEASE: &str = "PersistentVolume.release";

fn fail(stage: &AttemptFixture, times: u32) {
    let fails = Rule::on(PUBLISH).times(times);
    stage.driver.script(fails.fail(Code::Unavailable, "not yet"));
}

/// Attempts are children of the root, and siblings: none is inside another, and each is linked to the one before.
fn assert_siblings(attempts: &[&ReceivedSpan], root: &ReceivedSpan) {
    let mut before = None;
    for attempt in attempts {
        assert_eq!(attempt.trace_id, root.trace_id);
        assert_eq!(attempt.parent_span_id.as_ref(), Some(&root.span_id));
        assert_eq!(attempt.links, before.into_iter().collect::<Vec<_>>());
        assert!(root.start_unix_nano <= attempt.start_unix_nano && attempt.end_unix_nano <= root.end_unix_nano);
        before = Some(ids(attempt));
    }
}

#[tokio::test]
async fn attempts_are_siblings_under_one_root() {
    let told = Told::always().await;
    let stage = stage(&told, |spec| spec.tracing.error_suffix = true).await;
    fail(&stage, 2);
    stage.volume(&json!({}));
    // Not the whole second, from which on it may be more than one until it is seen.
    let now = crate::clock::now().to_string();
    stage.attachment("va", "n1", &json!({"creationTimestamp": now}));
    stage.attached("va").await;
    let spans = told.ended(ATTACH).await;
    let root = only(&spans, ATTACH);
    let attempts = named(&spans, ATTEMPT);
    assert_eq!(attempts.len(), 3);
    assert_siblings(&attempts, root);
    let failed: Vec<bool> = attempts.iter().map(|span| span.failed).collect();
    assert_eq!(failed, [true, true, false]);
    assert_eq!(ids(root), derived_root("attach", "va", 0));
    assert_eq!(root.parent_span_id, None);
    // Network calls are all that is inside an attempt, and nothing is inside them.
    for span in spans.iter().filter(|span| span.name != ATTACH && span.name != ATTEMPT) {
        let mut parents = attempts.iter().map(|attempt| Some(&attempt.span_id));
        assert!(parents.any(|id| id == span.parent_span_id.as_ref()), "{span:#?}");
    }
    // However many attempts failed, it ended well.
    assert!(!root.failed && root.links.is_empty() && !root.attributes.contains_key("error.type"));
    assert_eq!(root.text("attacher.outcome"), "succeeded");
    assert_eq!(root.attributes["attacher.attempts"], Attribute::I64(3));
    assert_eq!(root.attributes["attacher.epoch"], Attribute::I64(0));
    assert_eq!(root.text("attacher.start.source"), "observed");
    assert_eq!(root.text("attacher.csi.node_id"), "id1");
    assert_eq!(root.text("attacher.access_mode"), "MULTI_NODE_MULTI_WRITER");
    assert_eq!(root.attributes["attacher.read_only"], Attribute::Bool(false));
    // The attachment tells where to look: by its annotation and, as long as it showed an error, by that.
    assert_eq!(stage.annotation("va", OWN), Some(traceparent(root)));
    let errors = stage.told();
    let suffix = format!("not yet [trace {}]", root.trace_id);
    let is_told = |text: &String| text.ends_with(&suffix);
    assert!(!errors.is_empty() && errors.iter().all(is_told), "{errors:#?}");
    assert_eq!(stage.engine.work().lifecycles.len(), 0);
}

/// A CSINode that comes makes the failures before void for the queue, and a call that fails ends a row of waits.
#[tokio::test]
async fn attempts_are_numbered_through_waits_and_changes() {
    let told = Told::always().await;
    let stage = stage(&told, |spec| retry(spec, "50ms", "100ms")).await;
    fail(&stage, 2);
    stage.volume(&json!({}));
    stage.attachment("va", "n2", &json!({}));
    told.until(|spans| named(spans, ATTEMPT).len() >= 2).await;
    stage.store.apply(CsiNode::new("n2", &[(DRIVER, "id2")]));
    stage.attached("va").await;
    stage.delete("va");
    stage.gone("va").await;
    let spans = told.ended(DETACH).await;
    let attempts = named(&spans, ATTEMPT);
    let numbers: Vec<_> = attempts
        .iter()
        .map(|span| span.attributes["attacher.attempt"].clone())
        .collect();
    let count = i64::try_from(numbers.len()).unwrap();
    assert!(count >= 5, "waits, failures and a success: {count}");
    assert_eq!(numbers, (1..=count).map(Attribute::I64).collect::<Vec<_>>());
    let root = only(&spans, ATTACH);
    assert_eq!(root.attributes["attacher.attempts"], Attribute::I64(count));
    // A detach is another life cycle.
    let detach = only(&spans, DETACH_ATTEMPT);
    assert_eq!(detach.attributes["attacher.attempt"], Attribute::I64(1));
    let text = stage.metrics.encode_prometheus();
    let observed = |operation: &str, count: i64| {
        let labels = format!(r#"driver_name="{DRIVER}",operation="{operation}",outcome="succeeded""#);
        text.contains(&format!("csi_attacher_operation_attempts_sum{{{labels}}} {count}.0\n"))
    };
    assert!(observed("attach", count) && observed("detach", 1), "{text}");
}

/// A driver that is away for longer than its Lease is kept has another engine then, also after calls that were cut off.
#[tokio::test]
async fn the_next_engine_of_the_process_goes_on_with_numbers_and_limits() {
    for (max_attempts, in_each_trace) in [(50, vec![3]), (2, vec![2, 1])] {
        let told = Told::always().await;
        let stage = stage(&told, |spec| {
            patient(spec);
            spec.tracing.max_attempts_per_trace = max_attempts;
        })
        .await;
        fail(&stage, 2);
        stage.volume(&json!({}));
        stage.attachment("va", "n1", &json!({}));
        told.until(|spans| named(spans, ATTEMPT).len() == 1).await;
        let stage = stage.in_another_term(None).await;
        told.until(|spans| named(spans, ATTEMPT).len() == 2).await;
        let stage = stage.after_a_cut_off(None).await;
        stage.attached("va").await;
        let spans = told
            .until(|spans| named(spans, ATTACH).len() == in_each_trace.len())
            .await;
        let integer = |span: &ReceivedSpan, name: &str| span.attributes[name].clone();
        let attempts = named(&spans, ATTEMPT);
        let numbers: Vec<_> = attempts.iter().map(|span| integer(span, "attacher.attempt")).collect();
        assert_eq!(numbers, [1, 2, 3].map(Attribute::I64), "{max_attempts}");
        for pair in attempts.windows(2) {
            assert_eq!(pair[1].links, [ids(pair[0])], "{max_attempts}");
        }
        let roots = named(&spans, ATTACH);
        let counts: Vec<_> = roots.iter().map(|root| integer(root, "attacher.attempts")).collect();
        let expected: Vec<_> = in_each_trace.into_iter().map(Attribute::I64).collect();
        assert_eq!(counts, expected, "{max_attempts}");
        let labels = format!(r#"driver_name="{DRIVER}",operation="attach",outcome="succeeded""#);
        let observed = format!("csi_attacher_operation_attempts_sum{{{labels}}} 3.0\n");
        let text = stage.metrics.encode_prometheus();
        assert!(text.contains(&observed), "{text}");
    }
}

/// That replica has exported the root of the attach.
#[tokio::test]
async fn what_another_replica_ended_between_two_engines_is_not_exported_again() {
    let told = Told::always().await;
    let stage = stage(&told, patient).await;
    fail(&stage, 1);
    stage.volume(&json!({}));
    stage.attachment("va", "n1", &json!({}));
    told.until(|spans| named(spans, ATTEMPT).len() == 1).await;
    stage.engine.drain().await;
    let path = format!("{ATTACHMENTS}va");
    let mut object = stage.api.get(&path).unwrap();
    let change = json!({"metadata": {"deletionTimestamp": whole_second()}, "status": {"attached": true}});
    json_patch::merge(&mut object, &change);
    let wire: VolumeAttachmentWire = serde_json::from_value(stage.api.put(path, object)).unwrap();
    stage.store.apply::<Attachment>(wire.into());
    let engine = engine(&stage.context, DRIVER, &stage.settings, None);
    let stage = AttemptFixture { engine, ..stage };
    stage.gone("va").await;
    let spans = told.ended(DETACH).await;
    assert!(named(&spans, ATTACH).is_empty(), "{spans:#?}");
    let detach = only(&spans, DETACH_ATTEMPT);
    assert_eq!(detach.attributes["attacher.attempt"], Attribute::I64(1));
}

#[tokio::test]
async fn t3_t4_the_next_process_goes_on_with_the_same_trace() {
    let (first, second) = (Told::always().await, Told::always().await);
    let before = stage(&first, |spec| spec.backoff.initial = "2ms".parse().unwrap()).await;
    fail(&before, u32::MAX);
    before.volume(&json!({}));
    before.attachment("va", "n1", &json!({"creationTimestamp": whole_second()}));
    first.until(|spans| named(spans, ATTEMPT).len() >= 2).await;
    let api = before.kill();
    let after = joined(api, &second, |_| {}).await;
    fail(&after, 1);
    after.watch();
    after.attached("va").await;
    let mut spans = second.until(|spans| !named(spans, ATTACH).is_empty()).await;
    spans.extend(first.spans().await);
    let root = only(&spans, ATTACH);
    let attempts = named(&spans, ATTEMPT);
    assert!(attempts.len() >= 4);
    for attempt in attempts {
        assert_eq!(attempt.trace_id, root.trace_id);
        assert_eq!(attempt.parent_span_id.as_ref(), Some(&root.span_id));
        assert!(root.start_unix_nano <= attempt.start_unix_nano && attempt.end_unix_nano <= root.end_unix_nano);
    }
    assert_eq!((root.text("attacher.outcome"), root.failed), ("succeeded", false));
    assert_eq!(root.text("attacher.start.source"), "creation");
}

#[tokio::test]
async fn a_long_life_is_told_in_epochs() {
    let told = Told::always().await;
    let edit = |spec: &mut AttacherConfigSpec| spec.tracing.max_attempts_per_trace = 2;
    let before = stage(&told, edit).await;
    fail(&before, 5);
    before.driver.script(Rule::on(PUBLISH).times(1).hang());
    before.volume(&json!({}));
    before.attachment("va", "n1", &json!({"creationTimestamp": whole_second()}));
    told.until(|spans| named(spans, ATTACH).len() >= 2).await;
    // It ends in a call: the former epoch is told before the next one is noted.
    before.script_ends().await;
    let api = before.kill();
    // The next process finds the epoch by the annotation.
    let noted = w3c::parse(&noted(&api)).unwrap();
    let epoch = (0..100).find(|epoch| derived_root("attach", "va", *epoch).0 == format!("{:032x}", noted.trace_id()));
    let epoch = epoch.expect("the annotation is ours");
    assert!(epoch >= 2);
    let after = joined(api, &told, edit).await;
    after.watch();
    after.attached("va").await;
    let has_succeeded = |span: &&ReceivedSpan| span.text("attacher.outcome") == "succeeded";
    let is_attached = |spans: &[ReceivedSpan]| named(spans, ATTACH).iter().any(has_succeeded);
    let spans = told.until(is_attached).await;
    let roots = named(&spans, ATTACH);
    for (number, root) in roots.iter().enumerate() {
        let number = u32::try_from(number).unwrap();
        assert_eq!(ids(root), derived_root("attach", "va", number), "each root once");
        assert_eq!(root.attributes["attacher.epoch"], Attribute::I64(i64::from(number)));
        let is_last = number == epoch;
        let outcome = if is_last { "succeeded" } else { "continued" };
        assert_eq!((root.text("attacher.outcome"), root.failed), (outcome, !is_last));
        // Each is linked with the one before and the one after; the process that came later does not know the one before.
        let next = (!is_last).then(|| derived_root("attach", "va", number + 1));
        let last = number
            .checked_sub(1)
            .filter(|_| !is_last)
            .map(|before| derived_root("attach", "va", before));
        assert_eq!(root.links, last.into_iter().chain(next).collect::<Vec<_>>());
    }
    assert_eq!(roots.len(), usize::try_from(epoch).unwrap() + 1);
    for attempt in named(&spans, ATTEMPT) {
        let root = roots.iter().find(|root| root.trace_id == attempt.trace_id).unwrap();
        assert_eq!(attempt.parent_span_id.as_ref(), Some(&root.span_id));
    }
}

fn noted(api: &Api) -> String {
    let object = api.get(&format!("{ATTACHMENTS}va")).unwrap();
    object["metadata"]["annotations"][OWN].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_detach_points_to_its_attach_and_a_release_to_the_detach() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    stage.volume(&json!({"finalizers": ["kubernetes.io/pv-protection"]}));
    stage.attachment("va", "n1", &json!({"creationTimestamp": whole_second()}));
    stage.attached("va").await;
    stage.delete("va");
    stage.gone("va").await;
    let path = format!("{VOLUMES}pv1");
    let mut volume = stage.api.get(&path).unwrap();
    json_patch::merge(&mut volume, &json!({"metadata": {"deletionTimestamp": whole_second()}}));
    stage.api.put(path.clone(), volume);
    stage.watch();
    let released = |api: &Api| {
        let finalizers = api.get(&path).unwrap()["metadata"]["finalizers"].clone();
        !finalizers.to_string().contains(FINALIZER)
    };
    stage.api.until(released).await;
    let spans = told.ended(RELEASE).await;
    let (attach, detach) = (only(&spans, ATTACH), only(&spans, DETACH));
    assert_eq!(ids(detach), derived_root("detach", "va", 0));
    assert_eq!(detach.links, [ids(attach)]);
    assert_eq!((detach.text("attacher.outcome"), detach.failed), ("succeeded", false));
    assert_siblings(&named(&spans, DETACH_ATTEMPT), detach);
    assert_eq!(only(&spans, RELEASE).links, [ids(detach)]);
    // The same volume goes to another node: that attach follows on the detach.
    assert_eq!(stage.engine.work().lifecycles.len(), 0);
}

#[tokio::test]
async fn an_attach_points_to_the_detach_of_its_volume_elsewhere() {
    let told = Told::always().await;
    let stage = stage(&told, |_| {}).await;
    stage.attach().await;
    stage.delete("va");
    stage.gone("va").await;
    stage.attachment("vb", "n1", &json!({}));
    stage.attached("vb").await;
    let spans = told.until(|spans| named(spans, ATTACH).len() == 2).await;
    assert_eq!(named(&spans, ATTACH)[1].links, [ids(only(&spans, DETACH))]);
}
