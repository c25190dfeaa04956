//! Exemplars, beginnings and ends of series, controllers.

use opentelemetry::trace::{SpanId, TraceId};

use super::*;

fn ids(sampled: bool) -> SpanIds {
    SpanIds::new(TraceId::from(0xab_u128), SpanId::from(0xcd_u64), sampled)
}

#[test]
fn a_bucket_names_the_span_of_its_last_value() {
    let metrics = Metrics::default();
    let second = Duration::from_secs(1);
    metrics.csi_call("d", PUBLISH, Code::Ok, second, false, Some(ids(true)));
    metrics.operation_ended("d", "attach", "succeeded", second, 1, Some(ids(true)));
    metrics.rest_request("GET", "h", Some(StatusCode::OK), second, Some(ids(true)));
    let text = metrics.encode_openmetrics();
    let exemplar = format!(" # {{trace_id=\"{:032x}\",span_id=\"{:016x}\"}} 1.0 ", 0xab, 0xcd);
    for name in [
        "csi_sidecar_operations_seconds",
        "csi_attacher_operation_e2e_seconds",
        "rest_client_request_duration_seconds",
    ] {
        let of = |line: &&str| line.starts_with(&format!("{name}_bucket{{le=\"1.0\"")) && line.contains(&exemplar);
        assert_eq!(text.lines().filter(of).count(), 1, "{name} in {text}");
        let all = text
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(" # {"));
        assert_eq!(all.count(), 1, "{name} in {text}");
    }
    assert!(!metrics.encode_prometheus().contains(" # {"));
}

#[test]
fn a_span_that_is_not_sampled_is_named_only_when_asked_for() {
    for (filter, sampled, shown) in [
        (ExemplarFilter::TraceBased, false, false),
        (ExemplarFilter::TraceBased, true, true),
        (ExemplarFilter::AlwaysOn, false, true),
        (ExemplarFilter::AlwaysOff, true, false),
    ] {
        let metrics = Metrics::new(Arc::default(), filter);
        metrics.csi_call("d", PUBLISH, Code::Ok, Duration::ZERO, false, Some(ids(sampled)));
        assert_eq!(metrics.encode_openmetrics().contains("trace_id="), shown, "{filter:?}");
    }
}

#[test]
fn what_a_driver_counts_begins_at_zero() {
    let metrics = Metrics::default();
    metrics.init_driver("d");
    metrics.driver_up("d", false);
    metrics.init_reconcile_sync("d");
    drop(metrics.queue("d", QUEUE_VOLUME_ATTACHMENT));
    metrics.leading("l", false);
    for line in [
        "csi_attacher_attempt_failures_total{driver_name=\"d\",operation=\"detach\",reason=\"DeadlineExceeded\"} 0",
        "csi_attacher_attempt_failures_total{driver_name=\"d\",operation=\"attach\",reason=\"VolumeMissing\"} 0",
        "csi_attacher_events_total{driver_name=\"d\",reason=\"AttachStuck\",outcome=\"written\"} 0",
        "csi_attacher_operation_e2e_seconds_count{driver_name=\"d\",operation=\"attach\",outcome=\"succeeded\"} 0",
        "csi_attacher_driver_reconnects_total{driver_name=\"d\"} 0",
        "csi_attacher_reconcile_sync_mismatches_total{driver_name=\"d\",direction=\"attach\"} 0",
        "csi_attacher_reconcile_sync_errors_total{driver_name=\"d\",grpc_status_code=\"Aborted\"} 0",
        "workqueue_retries_total{driver_name=\"d\",name=\"csi-attacher-va\"} 0",
        "leader_election_slowpath_total{name=\"l\"} 0",
        "csi_attacher_reconcile_panics_total{driver_name=\"d\",name=\"csi-attacher-va\"} 0",
        "csi_attacher_lease_identity_conflicts_total{name=\"l\"} 0",
    ] {
        assert_lines(&metrics, line, &[line]);
    }
}

/// It may be away for long, and is given up meanwhile.
#[test]
fn a_driver_that_is_away_is_shown_when_the_work_for_it_has_ended() {
    let metrics = Metrics::default();
    record_everything(&metrics, "d");
    metrics.driver_up("d", false);
    metrics.forget_work("d");
    let shown = [
        "csi_attacher_driver_up{driver_name=\"d\"} 0",
        "csi_attacher_driver_reconnects_total{driver_name=\"d\"} 1",
    ];
    assert_lines(&metrics, "csi_attacher_driver_", &shown);
    metrics.forget_attaching("d");
    assert_lines(&metrics, "csi_attacher_driver_", &[]);
}

#[test]
fn faults_of_ours_are_counted_by_driver_and_queue() {
    let metrics = Metrics::default();
    let queue = metrics.queue("d", QUEUE_VOLUME_ATTACHMENT);
    queue.panicked();
    queue.panicked();
    let line = "csi_attacher_reconcile_panics_total{driver_name=\"d\",name=\"csi-attacher-va\"} 2";
    assert_lines(&metrics, line, &[line]);
    metrics.forget_driver("d");
    assert_lines(&metrics, "csi_attacher_reconcile_panics_total{", &[]);
}

#[test]
fn what_a_comparison_found_is_not_shown_for_ever() {
    let metrics = Metrics::default();
    record_everything(&metrics, "d");
    metrics.reset_reconcile_sync("d");
    let old = [
        "pages{",
        "volumes{",
        "mismatches{",
        "last_success_timestamp_seconds{",
        "interval_seconds{",
    ];
    for name in old.map(|name| format!("csi_attacher_reconcile_sync_{name}")) {
        assert_lines(&metrics, &name, &[]);
    }
    assert_eq!(
        lines(&metrics, "csi_attacher_reconcile_sync_mismatches_total{").len(),
        2
    );
}

#[test]
fn what_became_of_trace_contexts_begins_at_zero_and_counts() {
    let metrics = Metrics::default();
    let line = |counter: &str, kind: &str, result: &str, count: u32| {
        let labels = format!("resource_kind=\"{kind}\",result=\"{result}\"");
        let line = format!("trace_context_annotations_{counter}_total{{{labels}}} {count}");
        assert_lines(&metrics, &line, &[&line]);
    };
    for kind in ["VolumeAttachment", "PersistentVolume", "PersistentVolumeClaim"] {
        for result in ["success", "invalid"] {
            line("extracted", kind, result, 0);
            metrics.trace_context_extracted(kind, result);
            line("extracted", kind, result, 1);
        }
    }
    for result in ["success", "failure"] {
        line("injected", "VolumeAttachment", result, 0);
        metrics.trace_context_injected("VolumeAttachment", result);
        line("injected", "VolumeAttachment", result, 1);
    }
}
