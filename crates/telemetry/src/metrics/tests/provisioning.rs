//! What provisioning shows, and what goes with which role.

use super::*;
use crate::names::{QUEUE_CLAIMS, QUEUE_UNSAVED_VOLUMES, QUEUE_VOLUMES};

const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const PROBE: &str = "/csi.v1.Identity/Probe";

fn provision_everything(metrics: &Metrics, driver: &str) {
    let second = Duration::from_secs(1);
    metrics.init_provisioning(driver);
    for queue in [QUEUE_CLAIMS, QUEUE_VOLUMES] {
        metrics.queue(driver, queue).added();
        metrics.queue_unfinished(driver, queue, second);
    }
    metrics.queue_counts(driver, QUEUE_UNSAVED_VOLUMES).added();
    metrics.csi_call(driver, CREATE, Code::Ok, second, false, None);
    metrics.provisioned(driver, "fast", Some("VolumeSnapshot"), second);
    metrics.provision_failed(driver, "fast", None);
    metrics.deleted(driver, "fast", second);
    metrics.delete_failed(driver, "fast");
    metrics.rescheduled(driver);
    metrics.volume_undone(driver);
    metrics.possible_leak(driver);
    metrics.event(driver, "ProvisioningFailed", "written");
    metrics.claims(driver, "uncertain", 1);
    metrics.volumes(driver, "held", 1);
    for operation in ["provision", "delete"] {
        metrics.operation_ended(driver, operation, "succeeded", second, 2, None);
        metrics.attempt_failed(driver, operation, "Internal");
        metrics.oldest_pending(driver, operation, second);
        metrics.lane_waiting(driver, operation, 7);
    }
}

/// The series of a driver.
fn series(metrics: &Metrics, driver: &str) -> BTreeSet<String> {
    let label = format!("driver_name=\"{driver}\"");
    let text = metrics.encode_openmetrics();
    text.lines()
        .filter(|line| line.contains(&label))
        .map(str::to_owned)
        .collect()
}

/// The time of the last comparison is another one each time.
fn same(series: BTreeSet<String>) -> BTreeSet<String> {
    series.into_iter().filter(|line| !line.contains("timestamp")).collect()
}

#[test]
fn each_role_takes_its_own_series_along() {
    let (attaching, provisioning, both) = (Metrics::default(), Metrics::default(), Metrics::default());
    record_everything(&attaching, "d");
    provision_everything(&provisioning, "d");
    for driver in ["d", "other"] {
        record_everything(&both, driver);
        provision_everything(&both, driver);
    }
    let other = series(&both, "other");
    let all = series(&both, "d");
    both.forget_attaching("d");
    assert_eq!(same(series(&both, "d")), same(series(&provisioning, "d")));
    record_everything(&both, "d");
    assert_eq!(same(series(&both, "d")), same(all));
    both.forget_provisioning("d");
    assert_eq!(same(series(&both, "d")), same(series(&attaching, "d")));
    provision_everything(&both, "d");
    both.forget_driver("d");
    assert_eq!(series(&both, "d"), BTreeSet::new());
    assert_eq!(series(&both, "other"), other);
}

/// Counts of Events are written up to half a minute later, and much later behind a slow webhook.
#[test]
fn an_event_that_is_written_late_brings_no_series_back() {
    let metrics = Metrics::default();
    let written = |driver: &str, reason: &'static str| {
        metrics.event(driver, reason, "written");
        let series =
            format!("csi_attacher_events_total{{driver_name=\"{driver}\",reason=\"{reason}\",outcome=\"written\"}} ");
        let found = lines(&metrics, &series);
        found.first().map(|line| line[series.len()..].to_owned())
    };
    let count = |value: &str| Some(value.to_owned());
    metrics.init_driver("d");
    metrics.init_provisioning("d");
    assert_eq!(written("d", "ProvisioningFailed"), count("1"));
    metrics.forget_provisioning("d");
    assert_eq!(written("d", "ProvisioningFailed"), None);
    assert_eq!(written("d", "AttachFailed"), count("1"));
    metrics.forget_attaching("d");
    assert_eq!(written("d", "AttachFailed"), None);
    // An AttacherConfig has Events while no role works, and some before its driver has a name.
    for driver in ["d", ""] {
        assert_eq!(written(driver, "DriverUnreachable"), None);
        metrics.event_recorded(driver, "DriverUnreachable");
        assert_eq!(written(driver, "DriverUnreachable"), count("1"));
        metrics.event_recorded(driver, "DriverUnreachable");
        assert_eq!(written(driver, "DriverUnreachable"), count("2"));
    }
    metrics.forget_driver("d");
    assert_eq!(written("d", "DriverUnreachable"), None);
}

#[test]
fn a_queue_that_goes_on_is_shown_when_the_other_role_ends() {
    let metrics = Metrics::default();
    let (claims, attachments) = (
        metrics.queue("d", QUEUE_CLAIMS),
        metrics.queue("d", QUEUE_VOLUME_ATTACHMENT),
    );
    metrics.csi_call("d", PROBE, Code::Ok, Duration::ZERO, false, None);
    metrics.forget_attaching("d");
    claims.added();
    attachments.added();
    let line = "workqueue_adds_total{driver_name=\"d\",name=\"claims\"} 1";
    assert_lines(&metrics, "workqueue_adds_total{", &[line]);
    assert_lines(&metrics, "csi_sidecar_operations_seconds_count{", &[]);
}

/// There is no time that an item waits for a worker, or that one takes: nothing is shown of that.
#[test]
fn what_has_no_workers_is_shown_as_a_queue_as_far_as_it_is_one() {
    let metrics = Metrics::default();
    let unsaved = metrics.queue_counts("d", QUEUE_UNSAVED_VOLUMES);
    unsaved.added();
    unsaved.added();
    unsaved.retried();
    unsaved.depth(1);
    let text = metrics.encode_prometheus();
    let shown: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.contains("name=\"unsavedpvs\""))
        .collect();
    let expected = [
        "workqueue_adds_total{driver_name=\"d\",name=\"unsavedpvs\"} 2",
        "workqueue_depth{driver_name=\"d\",name=\"unsavedpvs\"} 1",
        "workqueue_retries_total{driver_name=\"d\",name=\"unsavedpvs\"} 1",
    ];
    assert_eq!(shown, BTreeSet::from(expected));
}

#[test]
fn what_the_sidecar_counts_has_its_names_labels_and_buckets() {
    let metrics = Metrics::default();
    provision_everything(&metrics, "d");
    let of = "driver_name=\"d\",class=\"fast\"";
    for line in [
        format!("controller_persistentvolumeclaim_provision_total{{{of},source=\"VolumeSnapshot\"}} 1"),
        format!("controller_persistentvolumeclaim_provision_failed_total{{{of},source=\"\"}} 1"),
        format!(
            "controller_persistentvolumeclaim_provision_duration_seconds_sum{{{of},source=\"VolumeSnapshot\"}} 1.0"
        ),
        format!("controller_persistentvolume_delete_total{{{of}}} 1"),
        format!("controller_persistentvolume_delete_failed_total{{{of}}} 1"),
        format!("controller_persistentvolume_delete_duration_seconds_sum{{{of}}} 1.0"),
    ] {
        assert_lines(&metrics, &line, &[&line]);
    }
    let expected = [
        "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf",
    ];
    for kind in ["persistentvolumeclaim_provision", "persistentvolume_delete"] {
        assert_eq!(
            bounds(&metrics, &format!("controller_{kind}_duration_seconds")),
            expected
        );
    }
    let types = lines(&metrics, "# TYPE controller_persistentvolume_delete_total");
    assert_eq!(types, ["# TYPE controller_persistentvolume_delete_total counter"]);
}

#[test]
fn users_cannot_make_series_without_end() {
    let metrics = Metrics::default();
    for number in 0..150 {
        metrics.provision_failed("d", &format!("class-{number}"), Some("AnyVolumeDataSource"));
        metrics.delete_failed("d", &format!("class-{number}"));
    }
    metrics.provision_failed("d", "class-1", None);
    let failures = lines(&metrics, "controller_persistentvolumeclaim_provision_failed_total{");
    assert_eq!(
        failures.len(),
        102,
        "100 classes, the rest, and one with another source"
    );
    let rest = "{driver_name=\"d\",class=\"other\",source=\"other\"} 50";
    assert!(failures.iter().any(|line| line.ends_with(rest)), "{failures:#?}");
    assert_eq!(
        lines(&metrics, "controller_persistentvolume_delete_failed_total{").len(),
        101
    );
}

#[test]
fn what_provisioning_counts_begins_at_zero() {
    let metrics = Metrics::default();
    metrics.init_provisioning("d");
    for line in [
        "csi_attacher_attempt_failures_total{driver_name=\"d\",operation=\"provision\",reason=\"DeadlineExceeded\"} 0",
        "csi_attacher_operation_e2e_seconds_count{driver_name=\"d\",operation=\"delete\",outcome=\"succeeded\"} 0",
        "csi_attacher_events_total{driver_name=\"d\",reason=\"VolumePossiblyLeaked\",outcome=\"written\"} 0",
        "csi_attacher_possible_leaks_total{driver_name=\"d\"} 0",
        "csi_attacher_reschedules_total{driver_name=\"d\"} 0",
        "csi_attacher_volumes_undone_total{driver_name=\"d\"} 0",
    ] {
        assert_lines(&metrics, line, &[line]);
    }
}
