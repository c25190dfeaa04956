use std::ffi::OsString;
use std::time::Duration;

use super::arguments;
use crate::sidecar_flags::flags::{FlagError, parse};
use crate::sidecar_flags::table::Flags;
use crate::sidecar_flags::{is_drop_in, usage};
use crate::telemetry::logs::LogFormat;

fn flags(text: &str) -> Flags {
    let flags = parse(&arguments(text)).unwrap();
    flags.unwrap_or_else(|| panic!("{text}: help"))
}

/// What a row looks at, as text.
type Look = fn(&Flags) -> String;

/// Each flag in each form, and what comes of it.
const VALUES: &[(&str, Look, &str)] = &[
    (
        "--csi-address=/csi/csi.sock",
        |flags| flags.csi_address.clone(),
        "/csi/csi.sock",
    ),
    (
        "-csi-address /csi/csi.sock",
        |flags| flags.csi_address.clone(),
        "/csi/csi.sock",
    ),
    ("-csi-address=", |flags| flags.csi_address.clone(), ""),
    ("--csi-address a=b", |flags| flags.csi_address.clone(), "a=b"),
    // As in Go, whatever follows is the value.
    (
        "--csi-address --timeout",
        |flags| flags.csi_address.clone(),
        "--timeout",
    ),
    ("--v=1 --v=5 -v 3", |flags| flags.verbosity.to_string(), "3"),
    ("-v=5", |flags| flags.verbosity.to_string(), "5"),
    ("--timeout=1m50s", |flags| format!("{:?}", flags.timeout), "110s"),
    ("--timeout 1.5h", |flags| format!("{:?}", flags.timeout), "5400s"),
    ("--timeout 0", |flags| format!("{:?}", flags.timeout), "0ns"),
    (
        "--retry-interval-start=500ms",
        |flags| format!("{:?}", flags.retry_interval_start),
        "500ms",
    ),
    (
        "--retry-interval-max=1m",
        |flags| format!("{:?}", flags.retry_interval_max),
        "60s",
    ),
    ("--resync=10s", |flags| format!("{:?}", flags.resync), "10s"),
    (
        "--reconcile-sync=5m",
        |flags| format!("{:?}", flags.reconcile_sync),
        "300s",
    ),
    ("--max-entries=100", |flags| flags.max_entries.to_string(), "100"),
    (
        "--worker-threads=1200",
        |flags| flags.worker_threads.to_string(),
        "1200",
    ),
    ("--default-fstype=xfs", |flags| flags.default_fs_type.clone(), "xfs"),
    ("--kube-api-qps=0.5", |flags| flags.kube_api_qps.to_string(), "0.5"),
    (
        "--kube-api-burst=2000",
        |flags| flags.kube_api_burst.to_string(),
        "2000",
    ),
    ("-leader-election", |flags| flags.leader_election.to_string(), "true"),
    (
        "--leader-election=true",
        |flags| flags.leader_election.to_string(),
        "true",
    ),
    ("--leader-election=T", |flags| flags.leader_election.to_string(), "true"),
    (
        "--leader-election --leader-election=0",
        |flags| flags.leader_election.to_string(),
        "false",
    ),
    (
        "--leader-election-namespace=kube-system",
        |flags| flags.leader_election_namespace.clone(),
        "kube-system",
    ),
    (
        "--leader-election-lease-duration=2m",
        |flags| format!("{:?}", flags.lease_duration),
        "120s",
    ),
    (
        "--leader-election-renew-deadline=60s",
        |flags| format!("{:?}", flags.renew_deadline),
        "60s",
    ),
    (
        "--leader-election-retry-period=30s",
        |flags| format!("{:?}", flags.retry_period),
        "30s",
    ),
    (
        "--leader-election-labels=a:b,c:d --leader-election-labels=e:f",
        |flags| format!("{:?}", flags.leader_election_labels),
        r#"{"a": "b", "c": "d", "e": "f"}"#,
    ),
    ("--http-endpoint=:8080", |flags| flags.http_endpoint.clone(), ":8080"),
    (
        "--metrics-address=:9090",
        |flags| flags.metrics_address.clone(),
        ":9090",
    ),
    ("--metrics-path=/m", |flags| flags.metrics_path.clone(), "/m"),
    (
        "--kubeconfig=/k",
        |flags| format!("{:?}", flags.kubeconfig),
        r#"Some("/k")"#,
    ),
    ("--kubeconfig=", |flags| format!("{:?}", flags.kubeconfig), "None"),
    ("-version", |flags| flags.version.to_string(), "true"),
    (
        "--logging-format=json",
        |flags| format!("{:?}", flags.log_format),
        "Json",
    ),
    // What has no meaning here is accepted, in its right form.
    (
        "--max-grpc-log-length=-1 --feature-gates=MutableCSINodeAllocatableCount=true,ReleaseLeaderElectionOnExit=false --vmodule=a=2,b=3 \
         --log-flush-frequency=5s --automaxprocs --automaxprocs=false",
        |flags| format!("{:?}", flags.given),
        r#"{"automaxprocs", "feature-gates", "log-flush-frequency", "max-grpc-log-length", "vmodule"}"#,
    ),
    // A value of a boolean behind a space is no value, and ends the flags.
    (
        "--leader-election true --v=5",
        |flags| format!("{} {:?}", flags.verbosity, flags.rest),
        r#"0 ["true", "--v=5"]"#,
    ),
    (
        "--v=2 -- --v=5",
        |flags| format!("{} {:?}", flags.verbosity, flags.rest),
        r#"2 ["--v=5"]"#,
    ),
    (
        "--v=2 - --v=5",
        |flags| format!("{} {:?}", flags.verbosity, flags.rest),
        r#"2 ["-", "--v=5"]"#,
    ),
    // The operator's own flags that concern the process are there as well.
    (
        "--csi-address=/s --log-format=json",
        |flags| format!("{:?}", flags.log_format),
        "Json",
    ),
    (
        "--csi-address=/s --log-level=debug",
        |flags| format!("{:?}", flags.log_level),
        r#"Some("debug")"#,
    ),
    (
        "--kube-api-timeout=3s",
        |flags| format!("{:?}", flags.kube_api_timeout),
        "RequestDeadlines { read: 3s, write: 3s }",
    ),
    (
        "--shutdown-grace-period=3s",
        |flags| format!("{:?}", flags.shutdown_grace_period),
        "3s",
    ),
    (
        "--identity=me",
        |flags| format!("{:?}", flags.identity),
        r#"Some("me")"#,
    ),
];

#[test]
fn each_flag_is_read_in_each_form() {
    for (text, look, expected) in VALUES {
        assert_eq!(look(&flags(text)), *expected, "{text}");
    }
}

#[test]
fn integers_are_read_as_go_reads_them() {
    let read = [
        ("10", 10),
        ("+10", 10),
        ("0x10", 16),
        ("0X_1f", 31),
        ("010", 8),
        ("0o17", 15),
        ("0b101", 5),
        ("1_000", 1000),
        ("0", 0),
        ("00", 0),
    ];
    for (text, expected) in read {
        assert_eq!(
            flags(&format!("--worker-threads={text}")).worker_threads,
            expected,
            "{text}"
        );
    }
    assert_eq!(flags("--max-entries=-0x10").max_entries, -16);
    for text in [
        "1__0",
        "_1",
        "1_",
        "0x",
        "09",
        "--1",
        "0x-1",
        "4294967296",
        "1e3",
        "",
        " 1",
    ] {
        let arguments = [OsString::from(format!("--worker-threads={text}"))];
        assert!(parse(&arguments).is_err(), "{text:?} is refused by Go");
    }
}

#[test]
fn a_duration_without_effect_may_be_negative() {
    flags("--log-flush-frequency=-5s");
}

#[test]
fn the_defaults_are_those_of_the_sidecar() {
    let flags = flags("");
    assert_eq!(flags, Flags::default());
    assert_eq!(flags.csi_address, "/run/csi/socket");
    assert_eq!(flags.timeout, Duration::from_secs(15));
    assert_eq!(flags.worker_threads, 10);
    assert_eq!(flags.retry_interval_start, Duration::from_secs(1));
    assert_eq!(flags.retry_interval_max, Duration::from_mins(5));
    assert_eq!(flags.reconcile_sync, Duration::from_mins(1));
    assert_eq!((flags.max_entries, flags.default_fs_type.as_str()), (0, ""));
    let election = (flags.lease_duration, flags.renew_deadline, flags.retry_period);
    assert_eq!(
        election,
        (Duration::from_secs(15), Duration::from_secs(10), Duration::from_secs(5))
    );
    assert!(!flags.leader_election);
    assert_eq!(
        (flags.http_endpoint.as_str(), flags.metrics_path.as_str()),
        ("", "/metrics")
    );
    assert_eq!((flags.verbosity, flags.log_format), (0, LogFormat::Text));
}

#[test]
fn what_is_wrong_is_said_in_the_words_of_go() {
    let rows = [
        ("--no-such-flag", "flag provided but not defined: -no-such-flag"),
        (
            "-connection-timeout=5s",
            "flag provided but not defined: -connection-timeout",
        ),
        ("--alsologtostderr", "flag provided but not defined: -alsologtostderr"),
        ("--timeout", "flag needs an argument: -timeout"),
        ("--=5", "bad flag syntax: --=5"),
        ("---timeout=5s", "bad flag syntax: ---timeout=5s"),
        ("--timeout=5", "invalid value \"5\" for flag -timeout: "),
        (
            "--timeout=-5s",
            "invalid value \"-5s\" for flag -timeout: must not be negative",
        ),
        ("--worker-threads=-1", "invalid value \"-1\" for flag -worker-threads: "),
        ("--max-entries=many", "invalid value \"many\" for flag -max-entries: "),
        ("--kube-api-qps=fast", "invalid value \"fast\" for flag -kube-api-qps: "),
        (
            "--leader-election=yes",
            "invalid value \"yes\" for flag -leader-election: must be true or false",
        ),
        (
            "--leader-election-labels=a=b",
            "invalid value \"a=b\" for flag -leader-election-labels: ",
        ),
        (
            "--leader-election-labels=a:b:c",
            "invalid value \"a:b:c\" for flag -leader-election-labels: ",
        ),
        (
            "--logging-format=xml",
            "invalid value \"xml\" for flag -logging-format: must be text or json",
        ),
        (
            "--feature-gates=A",
            "invalid value \"A\" for flag -feature-gates: missing bool value for A",
        ),
        (
            "--feature-gates=A=maybe",
            "invalid value \"A=maybe\" for flag -feature-gates: ",
        ),
        ("--resync=soon", "invalid value \"soon\" for flag -resync: "),
        // The sidecar takes it, and resyncs without a pause.
        (
            "--resync=-1s",
            "invalid value \"-1s\" for flag -resync: must not be negative",
        ),
        (
            "--kube-api-timeout=0s",
            "invalid value \"0s\" for flag -kube-api-timeout: must be greater than zero",
        ),
    ];
    for (text, expected) in rows {
        let error = parse(&arguments(text)).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{text}: {error}");
    }
}

/// The image in the wrong container: what it is for is said with the flag.
#[test]
fn a_flag_of_the_provisioner_is_refused_as_one() {
    for flag in ["volume-name-prefix", "extra-create-metadata", "strict-topology"] {
        let error = parse(&arguments(&format!("--csi-address=/s --{flag}=true"))).unwrap_err();
        let expected = format!(
            "flag provided but not defined: -{flag}: it is a flag of csi-provisioner. This image takes the place of csi-attacher only; \
             provisioning is switched on with spec.provisioning of an AttacherConfig"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn an_argument_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let argument = std::ffi::OsString::from_vec(b"--csi-address=/\xff".to_vec());
    assert!(matches!(parse(&[argument]), Err(FlagError::NotText(_))));
}

#[test]
fn help_names_every_flag_with_its_default() {
    for text in ["-h", "--help", "--v=5 -help"] {
        assert_eq!(parse(&arguments(text)), Ok(None), "{text}");
    }
    let usage = usage();
    for line in [
        "  -csi-address string\n",
        "The driver's socket: an absolute path or unix:///path. (default /run/csi/socket)\n",
        "Maximum wait after a failure. (default 5m0s)\n",
        "  -leader-election\n",
        "  -v int\n",
    ] {
        assert!(usage.contains(line), "{line}{usage}");
    }
}

#[test]
fn a_flag_of_the_sidecar_alone_asks_for_this_mode() {
    let rows = [
        ("", false),
        ("crd", false),
        ("--version", false),
        ("--help", false),
        ("-h", false),
        ("-V", false),
        // Flags that both have, as the operator takes them.
        ("--kubeconfig=/k --http-endpoint=:8080 --metrics-path=/m", false),
        ("--log-format=json --log-level debug --identity=a", false),
        ("--no-such-flag", false),
        ("-- --csi-address=/s", false),
        ("--csi-address=/s", true),
        ("--csi-address /s", true),
        ("--kubeconfig=/k --csi-address=/s", true),
        ("--log-format=json --v=5", true),
        ("-v=5", true),
        ("-v 5", true),
        ("--leader-election", true),
        ("--timeout=1m", true),
        ("--resync=10m", true),
        // Only Go programs take one dash and several letters.
        ("-version", true),
        ("-kubeconfig=/k", true),
        ("-no-such-flag", true),
    ];
    for (text, expected) in rows {
        assert_eq!(is_drop_in(&arguments(text)), expected, "{text}");
    }
}
