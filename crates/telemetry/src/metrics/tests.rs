use std::collections::BTreeSet;

use super::super::names::{QUEUE_PERSISTENT_VOLUME, QUEUE_VOLUME_ATTACHMENT};
use super::*;
use http::StatusCode;

mod families;
mod openmetrics;
mod provisioning;

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";

/// Lines of the classic exposition that begin with `prefix`.
fn lines(metrics: &Metrics, prefix: &str) -> Vec<String> {
    metrics
        .encode_prometheus()
        .lines()
        .filter(|line| line.starts_with(prefix))
        .map(str::to_owned)
        .collect()
}

/// Exactly the expected lines, in any order.
fn assert_lines(metrics: &Metrics, prefix: &str, expected: &[&str]) {
    let found: BTreeSet<String> = lines(metrics, prefix).into_iter().collect();
    assert_eq!(found, expected.iter().map(|line| (*line).to_owned()).collect());
}

/// The bucket bounds of one series of a histogram, in order.
fn bounds(metrics: &Metrics, name: &str) -> Vec<String> {
    let prefix = format!("{name}_bucket{{le=\"");
    let bound = |line: &String| line[prefix.len()..].split('"').next().unwrap().to_owned();
    let all: Vec<String> = lines(metrics, &prefix).iter().map(bound).collect();
    let end = all.iter().position(|bound| bound == "+Inf").unwrap();
    all[..=end].to_vec()
}

/// Families that show all of their many series from the start.
const BOUNDED: [&str; 3] = [
    "csi_attacher_attempt_failures_total{",
    "csi_attacher_events_total{",
    "csi_attacher_reconcile_sync_errors_total{",
];

fn record_everything(metrics: &Metrics, driver: &str) {
    let second = Duration::from_secs(1);
    metrics.csi_call(driver, PUBLISH, Code::Ok, second, false, None);
    metrics.init_driver(driver);
    let queue = metrics.queue(driver, QUEUE_VOLUME_ATTACHMENT);
    queue.added();
    queue.retried();
    queue.waited(second);
    queue.worked(second);
    metrics.queue(driver, QUEUE_PERSISTENT_VOLUME).depth(4);
    metrics.queue_unfinished(driver, QUEUE_VOLUME_ATTACHMENT, second * 3);
    metrics.queue_longest(driver, QUEUE_VOLUME_ATTACHMENT, second * 2);
    metrics.operation_ended(driver, "attach", "succeeded", second, 2, None);
    metrics.attempt_failed(driver, "attach", "Unavailable");
    metrics.config_observed(driver, 7);
    metrics.oldest_pending(driver, "detach", second);
    metrics.volume_attachments(driver, "attached", 12);
    metrics.lane_waiting(driver, "attach", 7);
    metrics.lane_oldest_waiting(driver, "attach", second);
    metrics.lane_in_flight(driver, "attach", 5);
    metrics.lane_limit(driver, "attach", 5);
    metrics.saturated(driver, "LaneFull", true);
    metrics.request_throttled(driver, "PATCH", "h", second);
    metrics.init_reconcile_sync(driver);
    metrics.reconcile_sync_interval(driver, Duration::from_mins(1));
    let listed = ReconcileSyncCounts {
        pages: 4,
        volumes: 12,
        to_attach: 2,
        to_detach: 1,
        without_attachment: Some(3),
    };
    metrics.reconcile_sync_succeeded(driver, Duration::from_secs(2), listed);
    metrics.reconcile_sync_failed(driver, Duration::from_secs(1), "Aborted");
    metrics.reconcile_sync_forced(driver, "attach");
    metrics.findings(driver, "node_gone", 2);
    metrics.driver_up(driver, true);
    metrics.driver_info(driver, "v1.0", "attacher");
    metrics.driver_reconnected(driver);
}

#[test]
fn a_csi_call_has_the_name_labels_and_buckets_of_the_incumbent() {
    let metrics = Metrics::default();
    metrics.csi_call("d", PUBLISH, Code::Ok, Duration::from_millis(100), false, None);
    metrics.csi_call(
        "d",
        PUBLISH,
        Code::DeadlineExceeded,
        Duration::from_secs(15),
        false,
        None,
    );
    let base = "driver_name=\"d\",grpc_status_code=\"OK\",method_name=\"/csi.v1.Controller/ControllerPublishVolume\"";
    let found = lines(&metrics, "csi_sidecar_operations_seconds");
    let late = base.replace("OK", "DeadlineExceeded");
    for series in [
        format!("sum{{{base}}} 0.1"),
        format!("count{{{base}}} 1"),
        format!("bucket{{le=\"0.1\",{base}}} 1"),
        format!("bucket{{le=\"10\",{late}}} 0"),
        format!("bucket{{le=\"15\",{late}}} 1"),
    ] {
        let line = format!("csi_sidecar_operations_seconds_{series}");
        assert!(found.contains(&line), "no {line}: {found:#?}");
    }
    metrics.forget_driver("d");
    metrics.csi_call("d", PUBLISH, Code::Ok, Duration::ZERO, false, None);
    let expected = [
        "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "15", "25", "50", "120", "300", "600", "+Inf",
    ];
    assert_eq!(bounds(&metrics, "csi_sidecar_operations_seconds"), expected);
}

#[test]
fn only_migration_drivers_have_the_migrated_label() {
    let metrics = Metrics::default();
    let drivers = InTreePlugin::ALL
        .iter()
        .map(|plugin| plugin.as_str())
        .collect::<Vec<_>>();
    for driver in drivers.iter().copied().chain(["other"]) {
        metrics.csi_call(driver, PUBLISH, Code::Ok, Duration::ZERO, false, None);
        metrics.csi_call(driver, PUBLISH, Code::Ok, Duration::ZERO, true, None);
    }
    let method = "method_name=\"/csi.v1.Controller/ControllerPublishVolume\"";
    let mut expected = vec![format!(
        "csi_sidecar_operations_seconds_count{{driver_name=\"other\",grpc_status_code=\"OK\",{method}}} 2"
    )];
    for driver in drivers {
        for migrated in ["true", "false"] {
            expected.push(format!(
                "csi_sidecar_operations_seconds_count{{driver_name=\"{driver}\",grpc_status_code=\"OK\",{method},migrated=\"{migrated}\"}} 1"
            ));
        }
    }
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    assert_lines(&metrics, "csi_sidecar_operations_seconds_count", &expected);
}

#[test]
fn work_queues_have_the_names_of_client_go() {
    let metrics = Metrics::default();
    record_everything(&metrics, "d");
    let labels = "{driver_name=\"d\",name=\"csi-attacher-va\"}";
    for (name, value) in [
        ("workqueue_adds_total", "1"),
        ("workqueue_retries_total", "1"),
        ("workqueue_queue_duration_seconds_sum", "1.0"),
        ("workqueue_work_duration_seconds_count", "1"),
        ("workqueue_unfinished_work_seconds", "3.0"),
        ("workqueue_longest_running_processor_seconds", "2.0"),
    ] {
        assert_lines(
            &metrics,
            &format!("{name}{labels}"),
            &[&format!("{name}{labels} {value}")],
        );
    }
    assert_lines(
        &metrics,
        "workqueue_depth{",
        &[
            "workqueue_depth{driver_name=\"d\",name=\"csi-attacher-pv\"} 4",
            "workqueue_depth{driver_name=\"d\",name=\"csi-attacher-va\"} 0",
        ],
    );
    let expected = [
        "1e-08",
        "1e-07",
        "1e-06",
        "9.999999999999999e-06",
        "9.999999999999999e-05",
        "0.001",
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
        "1000",
        "+Inf",
    ];
    assert_eq!(bounds(&metrics, "workqueue_queue_duration_seconds"), expected);
    assert_eq!(bounds(&metrics, "workqueue_work_duration_seconds"), expected);
    let types = lines(&metrics, "# TYPE workqueue_adds_total");
    assert_eq!(types, ["# TYPE workqueue_adds_total counter"]);
    assert_eq!(
        metrics
            .encode_openmetrics()
            .matches("# TYPE workqueue_adds counter\n")
            .count(),
        1
    );
}

#[test]
fn api_requests_have_the_names_of_client_go() {
    let metrics = Metrics::default();
    metrics.rest_request(
        "PATCH",
        "10.0.0.1:443",
        Some(StatusCode::CONFLICT),
        Duration::from_millis(50),
        None,
    );
    metrics.rest_request("PATCH", "10.0.0.1:443", None, Duration::from_secs(30), None);
    let expected = [
        "rest_client_requests_total{code=\"409\",method=\"PATCH\",host=\"10.0.0.1:443\"} 1",
        "rest_client_requests_total{code=\"<error>\",method=\"PATCH\",host=\"10.0.0.1:443\"} 1",
    ];
    assert_lines(&metrics, "rest_client_requests_total", &expected);
    let count = "rest_client_request_duration_seconds_count{verb=\"PATCH\",host=\"10.0.0.1:443\"} 2";
    assert_lines(&metrics, "rest_client_request_duration_seconds_count", &[count]);
    let expected = [
        "0.005", "0.025", "0.1", "0.25", "0.5", "1", "2", "4", "8", "15", "30", "60", "+Inf",
    ];
    assert_eq!(bounds(&metrics, "rest_client_request_duration_seconds"), expected);
}

/// Every series of ours after [`record_everything`], but buckets and times.
const OWN: &[&str] = &[
    "csi_attacher_operation_e2e_seconds_count{driver_name=\"d\",operation=\"attach\",outcome=\"succeeded\"} 1",
    "csi_attacher_operation_e2e_seconds_sum{driver_name=\"d\",operation=\"attach\",outcome=\"succeeded\"} 1.0",
    "csi_attacher_operation_attempts_count{driver_name=\"d\",operation=\"attach\",outcome=\"succeeded\"} 1",
    "csi_attacher_operation_attempts_sum{driver_name=\"d\",operation=\"attach\",outcome=\"succeeded\"} 2.0",
    "csi_attacher_operation_e2e_seconds_count{driver_name=\"d\",operation=\"detach\",outcome=\"succeeded\"} 0",
    "csi_attacher_operation_e2e_seconds_sum{driver_name=\"d\",operation=\"detach\",outcome=\"succeeded\"} 0.0",
    "csi_attacher_operation_attempts_count{driver_name=\"d\",operation=\"detach\",outcome=\"succeeded\"} 0",
    "csi_attacher_operation_attempts_sum{driver_name=\"d\",operation=\"detach\",outcome=\"succeeded\"} 0.0",
    "csi_attacher_attempt_failures_total{driver_name=\"d\",operation=\"attach\",reason=\"Unavailable\"} 1",
    "csi_attacher_config_observed_generation{driver_name=\"d\"} 7",
    "csi_attacher_config_errors_total{reason=\"InvalidSpec\"} 0",
    "csi_attacher_attacherconfigs{reason=\"Running\"} 0",
    "csi_attacher_attacherconfigs{reason=\"DriverUnreachable\"} 0",
    "csi_attacher_config_errors_total{reason=\"EndpointConflict\"} 0",
    "csi_attacher_config_errors_total{reason=\"DriverNameMismatch\"} 0",
    "csi_attacher_config_errors_total{reason=\"FinalizerCollision\"} 0",
    "csi_attacher_config_errors_total{reason=\"DriverInvalid\"} 0",
    "csi_attacher_config_errors_total{reason=\"TlsInvalid\"} 0",
    "csi_attacher_config_errors_total{reason=\"SecretMissing\"} 0",
    "csi_attacher_config_errors_total{reason=\"SecretForbidden\"} 0",
    "csi_attacher_config_errors_total{reason=\"LeaseForbidden\"} 0",
    "csi_attacher_config_errors_total{reason=\"IdentityConflict\"} 0",
    "csi_attacher_config_errors_total{reason=\"CapabilityLost\"} 0",
    "csi_attacher_config_errors_total{reason=\"NotSupported\"} 0",
    "csi_attacher_config_errors_total{reason=\"DistributedProvisioner\"} 0",
    "csi_attacher_config_errors_total{reason=\"Forbidden\"} 0",
    "csi_attacher_config_errors_total{reason=\"FinalizerNotWritten\"} 0",
    "csi_attacher_reconcile_sync_interval_seconds{driver_name=\"d\"} 60.0",
    "csi_attacher_reconcile_sync_pages{driver_name=\"d\"} 4",
    "csi_attacher_reconcile_sync_mismatches_total{driver_name=\"d\",direction=\"attach\"} 2",
    "csi_attacher_reconcile_sync_mismatches_total{driver_name=\"d\",direction=\"detach\"} 1",
    "csi_attacher_oldest_pending_seconds{driver_name=\"d\",operation=\"detach\"} 1.0",
    "csi_attacher_volumeattachments{driver_name=\"d\",state=\"attached\"} 12",
    "csi_attacher_lane_waiting{driver_name=\"d\",operation=\"attach\"} 7",
    "csi_attacher_lane_oldest_waiting_seconds{driver_name=\"d\",operation=\"attach\"} 1.0",
    "csi_attacher_lane_in_flight{driver_name=\"d\",operation=\"attach\"} 5",
    "csi_attacher_lane_limit{driver_name=\"d\",operation=\"attach\"} 5",
    "csi_attacher_saturated{driver_name=\"d\",reason=\"LaneFull\"} 1",
    "csi_attacher_reconcile_sync_passes_total{driver_name=\"d\",outcome=\"succeeded\"} 1",
    "csi_attacher_reconcile_sync_passes_total{driver_name=\"d\",outcome=\"failed\"} 1",
    "csi_attacher_reconcile_sync_seconds_count{driver_name=\"d\",outcome=\"succeeded\"} 1",
    "csi_attacher_reconcile_sync_seconds_sum{driver_name=\"d\",outcome=\"succeeded\"} 2.0",
    "csi_attacher_reconcile_sync_seconds_count{driver_name=\"d\",outcome=\"failed\"} 1",
    "csi_attacher_reconcile_sync_seconds_sum{driver_name=\"d\",outcome=\"failed\"} 1.0",
    "csi_attacher_reconcile_sync_volumes{driver_name=\"d\"} 12",
    "csi_attacher_reconcile_sync_mismatches{driver_name=\"d\"} 3",
    "csi_attacher_reconcile_sync_without_attachment{driver_name=\"d\"} 3",
    "csi_attacher_reconcile_panics_total{driver_name=\"d\",name=\"csi-attacher-pv\"} 0",
    "csi_attacher_reconcile_panics_total{driver_name=\"d\",name=\"csi-attacher-va\"} 0",
    "csi_attacher_reconcile_sync_errors_total{driver_name=\"d\",grpc_status_code=\"Aborted\"} 1",
    "csi_attacher_reconcile_sync_forced_total{driver_name=\"d\",direction=\"attach\"} 1",
    "csi_attacher_reconcile_sync_forced_total{driver_name=\"d\",direction=\"detach\"} 0",
    "csi_attacher_findings{driver_name=\"d\",kind=\"node_gone\"} 2",
    "csi_attacher_driver_up{driver_name=\"d\"} 1",
    "csi_attacher_driver_info{driver_name=\"d\",vendor_version=\"v1.1\",mode=\"attacher\"} 1",
    "csi_attacher_driver_reconnects_total{driver_name=\"d\"} 1",
    "csi_attacher_trace_spans_total{result=\"exported\"} 0",
    "csi_attacher_trace_spans_total{result=\"export_failed\"} 0",
    "csi_attacher_trace_spans_total{result=\"queue_full\"} 0",
    "csi_attacher_trace_spans_total{result=\"shutdown\"} 0",
    "csi_attacher_trace_queue_length 0",
    "csi_attacher_trace_queue_capacity 0",
];

#[test]
fn our_own_metrics_are_exactly_these() {
    let metrics = Metrics::default();
    record_everything(&metrics, "d");
    metrics.driver_info("d", "v1.1", "attacher");
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("csi_attacher_build_info{{version=\"{version}\"}} 1");
    let expected = OWN.iter().copied().chain([&*build]);
    let found: BTreeSet<String> = lines(&metrics, "csi_attacher_")
        .into_iter()
        .filter(|line| !line.contains("_bucket{") && !line.contains("_last_success_timestamp_seconds{"))
        .filter(|line| !(line.ends_with(" 0") && BOUNDED.iter().any(|name| line.starts_with(name))))
        .collect();
    assert_eq!(found, expected.map(str::to_owned).collect());
    let last = lines(
        &metrics,
        "csi_attacher_reconcile_sync_last_success_timestamp_seconds{driver_name=\"d\"} 1",
    );
    assert_eq!(last.len(), 1, "seconds since 1970, of this century");
    let expected = ["1", "2", "3", "5", "8", "13", "21", "50", "+Inf"];
    assert_eq!(bounds(&metrics, "csi_attacher_operation_attempts"), expected);
    metrics.driver_up("d", false);
    assert_lines(
        &metrics,
        "csi_attacher_driver_up{",
        &["csi_attacher_driver_up{driver_name=\"d\"} 0"],
    );
}

#[test]
fn the_process_is_described() {
    let metrics = Metrics::default();
    let value = |name: &str| -> f64 {
        let found = lines(&metrics, &format!("{name} "));
        assert_eq!(found.len(), 1, "{name}");
        found[0].split(' ').nth(1).unwrap().parse().unwrap()
    };
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let start = value("process_start_time_seconds");
    // Boot time is in whole seconds and may be corrected; a test does not run for a day.
    assert!(start <= now + 5.0 && start > now - 86_400.0, "{start} {now}");
    assert!(value("process_resident_memory_bytes") > 100_000.0);
    assert!(value("process_open_fds") >= 3.0);
    assert!(value("process_cpu_seconds_total") >= 0.0);
    assert_eq!(
        lines(&metrics, "# TYPE process_cpu"),
        ["# TYPE process_cpu_seconds_total counter"]
    );
}

#[test]
fn a_forgotten_driver_leaves_no_series_and_takes_no_other_along() {
    let metrics = Metrics::default();
    record_everything(&metrics, "d");
    let only_other = {
        let fresh = Metrics::default();
        record_everything(&fresh, "other");
        fresh
            .encode_openmetrics()
            .lines()
            .filter(|line| line.contains("\"other\""))
            .count()
    };
    record_everything(&metrics, "other");
    metrics.forget_driver("d");
    let text = metrics.encode_openmetrics();
    assert!(!text.contains("driver_name=\"d\""), "{text}");
    assert_eq!(
        text.lines()
            .filter(|line| line.contains("driver_name=\"other\""))
            .count(),
        only_other
    );
    record_everything(&metrics, "d");
    assert!(
        metrics
            .encode_openmetrics()
            .contains("workqueue_adds_total{driver_name=\"d\",name=\"csi-attacher-va\"} 1\n")
    );
}
