//! The checked settings.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use proptest::prelude::*;

use crate::api::validated::{
    BackoffSettings, Concurrency, Endpoint, LeaderElection, LoopbackHost, PublishSecrets, ReconcileSync, SpecProblem,
    Timeouts, Tracing,
};
use crate::api::{AttacherConfigSpec, Brakes, DeletionPolicy, DriverConfig, GoDuration};

fn valid() -> AttacherConfigSpec {
    AttacherConfigSpec::new("unix:///csi/csi.sock")
}

/// The problems of the valid spec after a change, as (field, problem).
fn problems(change: impl FnOnce(&mut AttacherConfigSpec)) -> Vec<(String, SpecProblem)> {
    let mut spec = valid();
    change(&mut spec);
    super::groups::problems(&spec)
}

fn endpoint(text: &str) -> Result<Endpoint, SpecProblem> {
    DriverConfig::try_from(&AttacherConfigSpec::new(text))
        .map(|config| config.endpoint)
        .map_err(|errors| errors.0[0].problem.clone())
}

/// Two writers that each undo what the other wrote would else end every backoff.
#[test]
fn limits_traces_and_comparisons_cure_nothing() {
    type Edit = fn(&mut DriverConfig);
    let rows: [(Edit, bool); 13] = [
        (|_| {}, false),
        (|config| config.tracing.sampling_rate_per_million = Some(7), false),
        (|config| config.reconcile_sync.max_entries = 7, false),
        (|config| config.concurrency.attach = NonZeroUsize::new(7), false),
        (|config| config.kubernetes_api = None, false),
        (|config| config.deletion_policy = DeletionPolicy::WaitForDetach, false),
        (|config| config.provisioning.as_mut().unwrap().create = None, false),
        (|config| config.provisioning.as_mut().unwrap().enabled = false, true),
        (|config| config.provisioning = None, true),
        (|config| config.backoff.max = Duration::from_secs(7), true),
        (|config| config.timeouts.publish = Duration::from_secs(7), true),
        (|config| config.default_fs_type = "btrfs".to_owned(), true),
        (|config| config.leaving = true, true),
    ];
    let mut spec = valid();
    spec.driver_name = Some("a.test".to_owned());
    spec.provisioning = serde_json::from_value(serde_json::json!({})).expect("a section");
    let former = DriverConfig::try_from(&spec).expect("valid");
    for (row, (edit, cures)) in rows.into_iter().enumerate() {
        let mut config = former.clone();
        edit(&mut config);
        assert_eq!(config.may_cure(&former), cures, "row {row}");
    }
}

/// What a person holds back is held back, also by a spec that is refused. It says nothing else, and lets go of nothing.
#[test]
fn last_valid_settings_obey_the_brakes_of_a_later_spec() {
    use serde_json::{Value, json};
    let spec = |endpoint: &str, (suspend, provisioning): &(bool, Value)| -> AttacherConfigSpec {
        let spec = json!({
            "endpoint": endpoint, "driverName": "a.test", "suspend": suspend, "provisioning": provisioning,
        });
        serde_json::from_value(spec).expect("readable")
    };
    let both = json!({"mode": "Disabled", "deletion": "Hold"});
    // The last valid settings and the later ones; whether nothing is done, nothing is begun and no volume is deleted.
    let rows = [
        ((false, json!({})), (false, json!({})), (false, Some((false, false)))),
        ((false, json!({})), (true, json!({})), (true, Some((false, false)))),
        (
            (false, json!({})),
            (false, json!({"mode": "Disabled"})),
            (false, Some((true, false))),
        ),
        (
            (false, json!({})),
            (false, json!({"deletion": "Hold"})),
            (false, Some((false, true))),
        ),
        ((true, both.clone()), (false, json!({})), (true, Some((true, true)))),
        // What is not there says nothing.
        ((false, json!({})), (false, json!(null)), (false, Some((false, false)))),
        ((false, both.clone()), (false, json!(null)), (false, Some((true, true)))),
        ((false, json!(null)), (true, both), (true, None)),
    ];
    for (valid, later, (suspend, provisioning)) in rows {
        let known = DriverConfig::try_from(&spec("unix:///a", &valid)).expect("valid");
        let refused = spec("https://[1:2]:9000", &later);
        assert!(DriverConfig::try_from(&refused).is_err());
        let mut wanted = known.clone();
        wanted.suspend = suspend;
        if let (Some(section), Some((disabled, held))) = (&mut wanted.provisioning, provisioning) {
            section.enabled = !disabled;
            section.policy.hold_deletions = held;
        }
        assert_eq!(wanted.provisioning.is_some(), provisioning.is_some());
        assert_eq!(known.braked(Brakes::from(&refused)), wanted, "{valid:?}, {later:?}");
    }
}

#[test]
fn the_defaults_become_these_settings() {
    let config = DriverConfig::try_from(&valid()).expect("valid");
    assert_eq!(
        config,
        DriverConfig {
            driver_name: None,
            endpoint: Endpoint::Unix("/csi/csi.sock".into()),
            suspend: false,
            timeouts: Timeouts {
                publish: Duration::from_mins(1),
                unpublish: Duration::from_mins(1),
                list_volumes: Duration::from_mins(1),
                probe: Duration::from_secs(15),
                identity: Duration::from_secs(10),
            },
            backoff: BackoffSettings {
                initial: Duration::from_secs(1),
                max: Duration::from_mins(1),
                factor: 2.0,
                jitter: 0.1
            },
            concurrency: Concurrency {
                attach: NonZeroUsize::new(100),
                detach: NonZeroUsize::new(100),
                total: None,
                per_node: None,
                calls_per_second: None,
            },
            reconcile_sync: ReconcileSync {
                enabled: true,
                interval: Duration::from_mins(1),
                max_entries: 0,
            },
            default_fs_type: String::new(),
            orphan_policy: crate::api::OrphanPolicy::Retry,
            publish_secrets: PublishSecrets::default(),
            tls: None,
            kubernetes_api: None,
            leader_election: LeaderElection {
                sidecar_namespaces: Vec::new(),
                lease_duration: Duration::from_secs(15),
                renew_deadline: Duration::from_secs(10),
                retry_period: Duration::from_secs(2),
            },
            former_lease: None,
            deletion_policy: crate::api::DeletionPolicy::Orphan,
            tracing: Tracing::default(),
            provisioning: None,
            capability_lost: crate::api::validated::CapabilityLost::default(),
            leaving: false,
        }
    );
}

#[test]
fn endpoints_that_are_accepted() {
    let longest = format!("unix:///{}", "x".repeat(106));
    for text in [
        "unix:///csi/csi.sock",
        "unix:///a",
        "unix:///with space/ünï.sock",
        longest.as_str(),
    ] {
        let path = text.strip_prefix("unix://").expect("unix");
        assert_eq!(endpoint(text), Ok(Endpoint::Unix(path.into())), "{text}");
        assert_eq!(endpoint(text).map(|endpoint| endpoint.to_string()), Ok(text.to_owned()));
    }
    for (text, host, port) in [
        ("http://127.0.0.1:1", LoopbackHost::Ipv4, 1),
        ("http://[::1]:65535", LoopbackHost::Ipv6, 65535),
        ("http://localhost:9000", LoopbackHost::Localhost, 9000),
    ] {
        assert_eq!(endpoint(text), Ok(Endpoint::Http { host, port }));
        assert_eq!(endpoint(text).map(|endpoint| endpoint.to_string()), Ok(text.to_owned()));
    }
    assert_eq!(
        endpoint("unix:///csi//./csi.sock"),
        endpoint("unix:///csi/csi.sock"),
        "two spellings of one path"
    );
}

#[test]
fn endpoints_that_are_refused() {
    for text in [
        "",
        "csi.sock",
        "/csi/csi.sock",
        "HTTPS://localhost:1",
        "tcp://localhost:1",
        "dns:///x",
        "HTTP://localhost:1",
        "UNIX:///a",
        " unix:///a",
        "http:/localhost:1",
    ] {
        assert_eq!(endpoint(text), Err(SpecProblem::EndpointScheme), "{text:?}");
    }
    for text in [
        "unix:",
        "unix:csi.sock",
        "unix:/csi.sock",
        "unix://csi.sock",
        "unix://",
        "unix:///",
        "unix:///csi/",
        "unix:///a\nb",
        "unix:///a\0",
    ] {
        assert_eq!(endpoint(text), Err(SpecProblem::UnixPath), "{text:?}");
    }
    for path in ["x".repeat(107), "ü".repeat(54)] {
        assert_eq!(
            endpoint(&format!("unix:///{path}")),
            Err(SpecProblem::UnixPathTooLong),
            "{path:?}"
        );
    }
    for text in [
        "http://",
        "http://localhost",
        "http://localhost:",
        "http://localhost:0",
        "http://localhost:01",
        "http://localhost:+1",
        "http://localhost:65536",
        "http://localhost:99999999999",
        "http://localhost:80/",
        "http://localhost:80/path",
        "http://::1:80",
        "http://[::2]:80",
        "http://127.0.0.2:80",
        "http://10.0.0.1:80",
        "http://example.com:80",
        "http://localhost.example.com:80",
        "http://user@localhost:80",
        "http://LOCALHOST:80",
        "http://localhost:80\n",
        "http://localhost:٣",
    ] {
        assert_eq!(endpoint(text), Err(SpecProblem::HttpEndpoint), "{text:?}");
    }
}

#[test]
fn driver_names() {
    let longest = "x".repeat(63);
    for name in ["a", "7", "ebs.csi.aws.com", "A-b.C", longest.as_str()] {
        assert_eq!(problems(|spec| spec.driver_name = Some(name.into())), [], "{name}");
    }
    let too_long = "x".repeat(64);
    for name in [
        "",
        ".",
        "-a",
        "a-",
        "a.",
        "a_b",
        "a b",
        "a/b",
        "ä",
        "a\n",
        too_long.as_str(),
    ] {
        let wanted = [("spec.driverName".to_owned(), SpecProblem::DriverName)];
        assert_eq!(
            problems(|spec| spec.driver_name = Some(name.into())),
            wanted,
            "{name:?}"
        );
    }
}

#[test]
fn file_system_types() {
    let longest = "x".repeat(63);
    for name in ["", "ext4", "fuse.s3-fs_2", longest.as_str()] {
        assert_eq!(problems(|spec| spec.default_fs_type = name.into()), [], "{name}");
    }
    for name in ["ext4 ", "ext4,rw", "a/b", "ä", &"x".repeat(64)] {
        let wanted = [("spec.defaultFsType".to_owned(), SpecProblem::FsType)];
        assert_eq!(problems(|spec| spec.default_fs_type = name.into()), wanted, "{name:?}");
    }
}

#[test]
fn durations_have_limits() {
    type Set = fn(&mut AttacherConfigSpec, GoDuration);
    let read = |text: &str| text.parse::<GoDuration>().expect("a duration");
    let times: [(&str, Set); 4] = [
        ("publish", |spec, time| spec.timeouts.publish = time),
        ("unpublish", |spec, time| spec.timeouts.unpublish = time),
        ("probe", |spec, time| spec.timeouts.probe = time),
        ("identity", |spec, time| spec.timeouts.identity = time),
    ];
    for text in ["1ms", "24h", "1m30s"] {
        assert_eq!(problems(|spec| spec.timeouts.probe = read(text)), [], "{text}");
    }
    for text in [
        "0",
        "-1s",
        "999us",
        "24h1ns",
        "2562047h47m16.854775807s",
        "-2562047h47m16.854775808s",
    ] {
        for (field, set) in times {
            let wanted = [(format!("spec.timeouts.{field}"), SpecProblem::DurationRange)];
            assert_eq!(problems(|spec| set(spec, read(text))), wanted, "{text}");
        }
    }
}

#[test]
fn backoff_rules() {
    let secs = GoDuration::from_secs;
    assert_eq!(
        problems(|spec| (spec.backoff.initial, spec.backoff.max) = (secs(5), secs(5))),
        []
    );
    let order = [("spec.backoff.initial".to_owned(), SpecProblem::BackoffOrder)];
    assert_eq!(
        problems(|spec| (spec.backoff.initial, spec.backoff.max) = (secs(6), secs(5))),
        order
    );
    for factor in [0, 99, 1001, -200, i64::MIN, i64::MAX] {
        let wanted = [("spec.backoff.factorPercent".to_owned(), SpecProblem::Factor)];
        assert_eq!(
            problems(|spec| spec.backoff.factor_percent = factor),
            wanted,
            "{factor}"
        );
    }
    for jitter in [-1, 101, i64::MIN, i64::MAX] {
        let wanted = [("spec.backoff.jitterPercent".to_owned(), SpecProblem::Jitter)];
        assert_eq!(
            problems(|spec| spec.backoff.jitter_percent = jitter),
            wanted,
            "{jitter}"
        );
    }
}

#[test]
fn concurrency_rules() {
    let mut spec = valid();
    spec.concurrency.attach = 0;
    spec.concurrency.per_node = 1;
    spec.concurrency.calls_per_second = 10_000;
    let limits = DriverConfig::try_from(&spec).expect("valid").concurrency;
    assert_eq!((limits.attach, limits.per_node), (None, NonZeroUsize::new(1)));
    assert_eq!(limits.calls_per_second, NonZeroU32::new(10_000));
    for calls in [-1, 10_001, i64::MIN, i64::MAX] {
        let wanted = |field: &str| [(format!("spec.concurrency.{field}"), SpecProblem::Calls)];
        assert_eq!(problems(|spec| spec.concurrency.attach = calls), wanted("attach"));
        assert_eq!(problems(|spec| spec.concurrency.detach = calls), wanted("detach"));
        assert_eq!(problems(|spec| spec.concurrency.per_node = calls), wanted("perNode"));
        assert_eq!(
            problems(|spec| spec.concurrency.calls_per_second = calls),
            wanted("callsPerSecond")
        );
    }
}

#[test]
fn all_problems_are_reported_at_once_in_one_line() {
    let mut spec = AttacherConfigSpec::new("csi.sock");
    spec.driver_name = Some("-".into());
    spec.timeouts.probe = GoDuration::from_nanos(0);
    spec.backoff.factor_percent = 50;
    spec.concurrency.detach = -5;
    spec.default_fs_type = "?".into();
    let errors = DriverConfig::try_from(&spec).expect_err("invalid");
    let fields: Vec<&str> = errors.0.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.driverName",
            "spec.endpoint",
            "spec.timeouts.probe",
            "spec.backoff.factorPercent",
            "spec.concurrency.detach",
            "spec.defaultFsType",
        ]
    );
    let text = errors.to_string();
    assert_eq!(text.matches("; spec.").count(), 5, "{text}");
    assert!(
        text.contains("spec.backoff.factorPercent: must be a whole number from 100 (each wait is as long as the one before) to 1000; spec.concurrency.detach: "),
        "{text}"
    );
}

proptest! {
    #[test]
    fn any_text_is_an_endpoint_or_refused(text in prop_oneof![
        any::<String>(), "unix:.{0,200}", "http://.{0,60}", "http://(localhost|\\[::1\\]|127.0.0.1):[0-9]{0,6}"
    ]) {
        if let Ok(endpoint) = endpoint(&text) {
            prop_assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn any_numbers_are_taken_or_refused(
        nanos in any::<[i64; 6]>(), factor in any::<i64>(), jitter in any::<i64>(), calls in any::<[i64; 4]>()
    ) {
        let mut spec = valid();
        let duration = |index: usize| GoDuration::from_nanos(nanos[index]);
        spec.timeouts.publish = duration(0);
        spec.timeouts.unpublish = duration(1);
        spec.timeouts.probe = duration(2);
        spec.timeouts.identity = duration(3);
        spec.backoff.initial = duration(4);
        spec.backoff.max = duration(5);
        spec.backoff.factor_percent = factor;
        spec.backoff.jitter_percent = jitter;
        spec.concurrency.attach = calls[0];
        spec.concurrency.detach = calls[1];
        spec.concurrency.per_node = calls[2];
        spec.concurrency.calls_per_second = calls[3];
        if let Ok(config) = DriverConfig::try_from(&spec) {
            prop_assert!(config.backoff.initial <= config.backoff.max);
            prop_assert!((1.0..=10.0).contains(&config.backoff.factor) && (0.0..=1.0).contains(&config.backoff.jitter));
        }
    }
}

/// By default as external-provisioner without flags.
#[test]
fn topology_is_asked_for_as_the_settings_say() {
    let policy = |topology: serde_json::Value| {
        let spec = serde_json::json!({
            "endpoint": "unix:///csi/csi.sock", "driverName": "csi.test", "provisioning": topology,
        });
        let spec: AttacherConfigSpec = serde_json::from_value(spec).unwrap();
        let settings = DriverConfig::try_from(&spec).unwrap().provisioning.unwrap();
        let policy = settings.policy(&"config".into(), &"1-2-csi.test".into());
        (policy.strict_topology, policy.aggregate_topology)
    };
    assert_eq!(policy(serde_json::json!({})), (false, true));
    let of = |topology| policy(serde_json::json!({ "topology": topology }));
    assert_eq!(of(serde_json::json!({})), (false, true));
    assert_eq!(of(serde_json::json!({ "delayedBinding": "Strict" })), (true, true));
    assert_eq!(of(serde_json::json!({ "immediateBinding": "None" })), (false, false));
}

/// csi-provisioner takes a prefix that ends with a dash, and puts its own dash after it.
#[test]
fn the_prefix_of_volume_names_makes_names_of_persistent_volumes() {
    for (prefix, is_one) in [
        ("pvc", true),
        ("k8s-", true),
        ("a.b--", true),
        ("", false),
        ("-", false),
        ("-a", false),
        ("a.-", false),
        ("a-.b", false),
        ("K8s", false),
        (&*"a".repeat(64), false),
    ] {
        let spec = serde_json::json!({
            "endpoint": "unix:///csi/csi.sock", "driverName": "csi.test",
            "provisioning": { "volumeNamePrefix": prefix },
        });
        let spec: AttacherConfigSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(DriverConfig::try_from(&spec).is_ok(), is_one, "{prefix}");
    }
}

/// An entry of the claims' own namespaces is told apart first.
#[test]
fn the_index_of_a_secret_is_that_in_the_spec() {
    let spec = serde_json::json!({
        "endpoint": "unix:///csi/csi.sock", "driverName": "csi.test",
        "publishSecrets": [{ "namespace": "a", "names": ["a", "C"] }],
        "provisioning": { "secrets": [{ "namespace": "*", "names": ["a", "B"] }, { "namespace": "BAD" }] },
    });
    let spec: AttacherConfigSpec = serde_json::from_value(spec).unwrap();
    let errors = DriverConfig::try_from(&spec).unwrap_err().to_string();
    for path in [
        "publishSecrets[0].names[1]",
        "provisioning.secrets[0].names[1]",
        "provisioning.secrets[1].namespace",
    ] {
        assert!(errors.contains(path), "{path}: {errors}");
    }
}
