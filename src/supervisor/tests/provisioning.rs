//! What is shown of provisioning.

use std::collections::BTreeSet;
use tokio::time::advance;

use super::status::{able, driver};
use crate::runtime::DriverPhase;
use crate::supervisor::metrics::SupervisorMetrics;
use crate::supervisor::provisioning_conditions::ready;
use crate::supervisor::provisioning_state::{Begins, ProvisioningState};
use crate::telemetry::Metrics;
use std::time::Duration;

const MISSING: &str =
    "forbidden; the operator's ServiceAccount needs, by a ClusterRole, resources [persistentvolumeclaims]";

fn state(phase: DriverPhase) -> ProvisioningState {
    ProvisioningState {
        task: able(phase),
        is_elsewhere: false,
        begins: Begins::Everything,
        reads_nodes: false,
        watch_failure: None,
        health: None,
    }
}

fn standby() -> DriverPhase {
    DriverPhase::Standby {
        holder: Some("pod-2".to_owned()),
        namespace: None,
    }
}

type Change = fn(&mut ProvisioningState);

/// What is so, the condition while this replica provisions and while another one does, and words of its message.
const ROWS: [(&str, Change, &str, &str, &str); 7] = [
    ("all is well", |_| {}, "True", "True", ""),
    (
        "disabled",
        |state| state.begins = Begins::NothingAsDisabled,
        "False Disabled",
        "False Disabled",
        "mode is Disabled",
    ),
    (
        "deleted",
        |state| state.begins = Begins::NothingAsLeaving,
        "False Draining",
        "False Draining",
        "being deleted",
    ),
    (
        "a driver that cannot",
        |state| state.task.plugin = driver(DriverPhase::Running).plugin,
        "False NotSupported",
        "False NotSupported",
        "driver a.test does not announce CREATE_DELETE_VOLUME",
    ),
    ("no answer yet", |state| state.task.plugin = None, "True", "True", ""),
    (
        "a rule is missing",
        |state| state.watch_failure = Some(MISSING.to_owned()),
        "False Forbidden",
        "True",
        "",
    ),
    (
        "a watch is broken",
        |state| state.watch_failure = Some("timed out".to_owned()),
        "True",
        "True",
        "",
    ),
];

#[test]
fn provisioning_is_ready_only_where_volumes_are_provisioned() {
    for (name, change, running, waiting, words) in ROWS {
        for (phase, expected, reason) in [
            (DriverPhase::Running, running, "Running"),
            (standby(), waiting, "Standby"),
        ] {
            let mut state = state(phase);
            change(&mut state);
            let update = ready(&state);
            let found = format!("{} {}", update.status.as_str(), update.reason.as_str());
            let expected = if expected == "True" {
                format!("True {reason}")
            } else {
                expected.to_owned()
            };
            assert_eq!(found, expected, "{name}");
            assert!(update.message.contains(words), "{name}: {}", update.message);
        }
    }
    let mut broken = state(DriverPhase::Running);
    for failure in [MISSING, "timed out"] {
        broken.watch_failure = Some(failure.to_owned());
        assert!(ready(&broken).message.contains(failure));
    }
}

#[test]
fn what_the_task_is_at_comes_first() {
    for phase in [DriverPhase::Suspended, DriverPhase::Connecting, DriverPhase::Syncing] {
        let mut state = state(phase);
        let reason = ready(&state).reason;
        state.begins = Begins::NothingAsDisabled;
        assert_eq!(ready(&state).reason, reason);
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_gone_leaves_no_series_however_late_they_come() {
    let metrics = Metrics::default();
    let mut shown = SupervisorMetrics::new(metrics.clone());
    let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let count = |driver: &str| {
        let label = format!("driver_name=\"{driver}\"");
        metrics
            .encode_openmetrics()
            .lines()
            .filter(|line| line.contains(&label))
            .count()
    };
    shown.known(known(&["d", "other"]));
    metrics.driver_up("d", true);
    metrics.driver_up("other", true);
    shown.known(known(&["other"]));
    assert_eq!((count("d"), count("other")), (0, 1));
    advance(Duration::from_secs(30)).await;
    metrics.event("d", "ProvisioningSucceeded", "written");
    shown.known(known(&["other"]));
    assert_eq!((count("d"), count("other")), (0, 1));
    shown.known(known(&["d", "other"]));
    metrics.driver_up("d", true);
    shown.known(known(&["d", "other"]));
    assert_eq!(count("d"), 1, "it is back");
}
