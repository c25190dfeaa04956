use std::path::PathBuf;
use std::time::Duration;

use super::arguments;
use crate::api::validated::Endpoint;
use crate::apiserver::RateLimit;
use crate::app::Cluster;
use crate::lease::LeaseTimings;
use crate::sidecar_flags::{DropIn, DropInCommand, ReadError, read};
use crate::telemetry::logs::LogFormat;

fn settings(text: &str) -> DropIn {
    match read(&arguments(text)) {
        Ok(DropInCommand::Serve(settings)) => *settings,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn the_flags_of_a_sidecar_make_the_settings_of_a_driver() {
    let settings = settings(
        "--csi-address=/csi/csi.sock --timeout=6m --worker-threads=100 --retry-interval-start=500ms \
         --retry-interval-max=5m --default-fstype=ext4 --http-endpoint=0.0.0.0:3303 --v=5 --logging-format=json",
    );
    let driver = &settings.driver;
    assert_eq!(driver.endpoint, Endpoint::Unix(PathBuf::from("/csi/csi.sock")));
    assert_eq!((&driver.driver_name, driver.suspend), (&None, false));
    let timeouts = &driver.timeouts;
    for deadline in [timeouts.publish, timeouts.unpublish, timeouts.probe] {
        assert_eq!(deadline, Duration::from_mins(6));
    }
    let backoff = &driver.backoff;
    assert_eq!(
        (backoff.initial, backoff.max),
        (Duration::from_millis(500), Duration::from_mins(5))
    );
    assert_eq!(format!("{} {}", backoff.factor, backoff.jitter), "2 0");
    let limits = &driver.concurrency;
    let limits = [limits.attach, limits.detach, limits.total];
    assert_eq!(
        limits.map(|limit| limit.map_or(0, std::num::NonZero::get)),
        [100, 100, 100]
    );
    assert_eq!(
        (driver.concurrency.per_node, driver.concurrency.calls_per_second),
        (None, None)
    );
    assert_eq!(driver.default_fs_type, "ext4");
    let process = &settings.process;
    assert_eq!(
        process.http_endpoint.as_ref().map(ToString::to_string).as_deref(),
        Some(":3303")
    );
    assert_eq!(
        (process.log.format, process.log.level.as_str()),
        (LogFormat::Json, "debug")
    );
    assert_eq!((&process.cluster, process.kube_api_limit), (&Cluster::Pod, None));
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn nothing_is_served_without_an_address_and_only_one_may_be_given() {
    assert_eq!(settings("--csi-address=/s").process.http_endpoint, None);
    let old = settings("--csi-address=/s --metrics-address=localhost:9090")
        .process
        .http_endpoint;
    assert_eq!(
        old.map(|address| address.to_string()).as_deref(),
        Some("localhost:9090")
    );
}

#[test]
fn addresses_of_the_socket() {
    for (address, path) in [
        ("/csi/csi.sock", "/csi/csi.sock"),
        ("unix:///csi/csi.sock", "/csi/csi.sock"),
    ] {
        let endpoint = settings(&format!("--csi-address={address}")).driver.endpoint;
        assert_eq!(endpoint, Endpoint::Unix(PathBuf::from(path)));
    }
    let settings = settings("--v=0");
    assert_eq!(
        settings.driver.endpoint,
        Endpoint::Unix(PathBuf::from("/run/csi/socket"))
    );
}

#[test]
fn what_does_not_go_together_is_named() {
    // No other form of an endpoint is offered.
    let no_path = "expected an absolute path or unix:///path: the socket path must be absolute";
    let long = format!("--csi-address=/{}", "x".repeat(107));
    let rows = [
        ("--csi-address=csi.sock", no_path),
        ("--csi-address=", no_path),
        ("--csi-address=tcp://127.0.0.1:5", no_path),
        ("--csi-address=http://127.0.0.1:5", no_path),
        ("--csi-address=http://10.0.0.7:5", no_path),
        ("--csi-address=https://csi", no_path),
        ("--csi-address=unix://csi.sock", no_path),
        (&*long, "--csi-address"),
        (&*long, "at most 107 bytes long"),
        ("--csi-address=/s --worker-threads=0", "--worker-threads"),
        ("--csi-address=/s --timeout=0s", "--timeout"),
        ("--csi-address=/s --retry-interval-start=0s", "--retry-interval-start"),
        ("--csi-address=/s --retry-interval-max=0s", "--retry-interval-max"),
        ("--csi-address=/s --reconcile-sync=0s", "--reconcile-sync"),
        ("--csi-address=/s --max-entries=-1", "--max-entries"),
        (
            "--csi-address=/s --leader-election --leader-election-renew-deadline=15s",
            "--leader-election",
        ),
        (
            "--csi-address=/s --leader-election --leader-election-retry-period=9s",
            "--leader-election",
        ),
        ("--csi-address=/s --kube-api-qps=NaN", "--kube-api-qps"),
        (
            "--csi-address=/s --http-endpoint=:1 --metrics-address=:2",
            "--metrics-address",
        ),
        ("--csi-address=/s --http-endpoint=nowhere", "--http-endpoint"),
        ("--csi-address=/s --metrics-address=nowhere", "--metrics-address"),
    ];
    for (text, named) in rows {
        match read(&arguments(text)) {
            Err(ReadError::Settings(error)) => assert!(error.to_string().contains(named), "{text}: {error}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn an_election_is_held_when_asked_for() {
    assert_eq!(
        settings("--csi-address=/s --leader-election-namespace=n").election,
        None
    );
    let election = settings("--csi-address=/s --leader-election --http-endpoint=:8080")
        .election
        .unwrap();
    let seconds = Duration::from_secs;
    let timing = LeaseTimings::new(seconds(15), seconds(10), seconds(5)).unwrap();
    assert_eq!(
        (election.timing, election.namespace.as_str(), election.health),
        (timing, "", true)
    );
    let election = settings(
        "--csi-address=/s --leader-election=true --leader-election-namespace=n --leader-election-labels=a:b \
         --leader-election-lease-duration=2m --leader-election-renew-deadline=1m --leader-election-retry-period=30s \
         --metrics-address=:8080",
    );
    let election = election.election.unwrap();
    let timing = LeaseTimings::new(seconds(120), seconds(60), seconds(30)).unwrap();
    assert_eq!(
        (election.timing, election.namespace.as_str(), election.health),
        (timing, "n", false)
    );
    assert_eq!(election.labels["a"], "b");
}

#[test]
fn a_first_wait_above_the_longest_is_the_longest_as_in_the_sidecar() {
    let backoff = settings("--csi-address=/s --retry-interval-start=10m").driver.backoff;
    assert_eq!(
        (backoff.initial, backoff.max),
        (Duration::from_mins(5), Duration::from_mins(5))
    );
}

/// The informers of the sidecar add everything to its queue at each resync; client-go makes less than a second a second, and 0 is none.
#[test]
fn a_failure_waits_no_longer_than_until_the_resync() {
    let rows = [
        ("", 1, 300),
        ("--resync=10m", 1, 300),
        ("--resync=10s", 1, 10),
        ("--resync=10s --retry-interval-max=5s", 1, 5),
        ("--resync=2s --retry-interval-start=5s", 2, 2),
        ("--resync=10ms", 1, 1),
        ("--resync=0", 1, 300),
    ];
    for (text, initial, max) in rows {
        let settings = settings(&format!("--csi-address=/s {text}"));
        let backoff = &settings.driver.backoff;
        let found = (backoff.initial.as_secs(), backoff.max.as_secs());
        assert_eq!(found, (initial, max), "{text}");
        assert!(settings.warnings.is_empty(), "{text}: {:?}", settings.warnings);
    }
}

#[test]
fn requests_are_limited_only_when_asked_for() {
    let limit = |per_second, burst| Some(RateLimit { per_second, burst });
    let rows = [
        ("", None),
        ("--kube-api-burst=100", None),
        ("--kube-api-qps=20 --kube-api-burst=100", limit(20.0, 100)),
        ("--kube-api-qps=20", limit(20.0, 10)),
        // The sidecar's client takes 0 for its own defaults, and less for no limit.
        ("--kube-api-qps=0 --kube-api-burst=0", limit(5.0, 10)),
        ("--kube-api-qps=-1", None),
    ];
    for (text, expected) in rows {
        let settings = settings(&format!("--csi-address=/s {text}"));
        assert_eq!(settings.process.kube_api_limit, expected, "{text}");
    }
}

#[test]
fn the_verbosity_of_klog_becomes_a_level() {
    for (text, level) in [
        ("--v=0", "info"),
        ("--v=1", "info"),
        ("--v=2", "debug"),
        ("--v=5", "debug"),
        ("--v=6", "trace"),
        ("--v=10", "trace"),
        ("--v=-1", "info"),
        ("--v=5 --log-level=warn", "warn"),
    ] {
        assert_eq!(settings(text).process.log.level, level, "{text}");
    }
}

#[test]
fn one_line_tells_what_has_no_effect() {
    let settings = settings(
        "--csi-address=/s --vmodule=a=1 --feature-gates=AllBeta=true --max-grpc-log-length=5 \
         --log-flush-frequency=1s --automaxprocs --kube-api-burst=5 stray --v=5",
    );
    assert_eq!(
        settings.warnings,
        [
            "accepted, but without effect here: --automaxprocs, --feature-gates, --log-flush-frequency, \
             --max-grpc-log-length, --vmodule",
            "--kube-api-burst is without effect here unless --kube-api-qps is given",
            "arguments that are no flags are ignored: stray --v=5",
        ]
    );
}

#[test]
fn version_and_help_need_no_settings_that_go_together() {
    assert!(matches!(
        read(&arguments("-version --worker-threads=0")),
        Ok(DropInCommand::Version)
    ));
    assert!(matches!(
        read(&arguments("--csi-address=x -help")),
        Ok(DropInCommand::Help(_))
    ));
}
