//! The checked settings of TLS, election, API limit and tracing.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::api::attacher_config::{LeaderElectionSpec, TlsSecretReference, TlsSpec, TracingSpec};
use crate::api::validated::{Endpoint, KubernetesApi, SpecProblem};
use crate::api::{AttacherConfigSpec, DriverConfig, GoDuration};

fn tls() -> TlsSpec {
    TlsSpec {
        secret: TlsSecretReference {
            namespace: "csi".into(),
            name: "driver-tls".into(),
        },
        server_name: None,
    }
}

fn spec(endpoint: &str, tls: Option<TlsSpec>) -> AttacherConfigSpec {
    AttacherConfigSpec {
        tls,
        ..AttacherConfigSpec::new(endpoint)
    }
}

pub fn problems(spec: &AttacherConfigSpec) -> Vec<(String, SpecProblem)> {
    let errors = DriverConfig::try_from(spec).err();
    let errors = errors.iter().flat_map(|errors| &errors.0);
    errors
        .map(|error| (error.field.clone(), error.problem.clone()))
        .collect()
}

fn problem(field: &str, problem: SpecProblem) -> Vec<(String, SpecProblem)> {
    vec![(format!("spec.{field}"), problem)]
}

#[test]
fn https_endpoints() {
    let longest = format!("https://{}:65535", "x".repeat(253));
    for (text, host, port) in [
        ("https://csi.example.com:443", "csi.example.com", 443),
        ("https://10.0.0.7:1", "10.0.0.7", 1),
        ("https://255.255.255.255:1", "255.255.255.255", 1),
        ("https://10.0.0.7a:1", "10.0.0.7a", 1),
        ("https://csi.n1:1", "csi.n1", 1),
        ("https://7.csi-7:1", "7.csi-7", 1),
        ("https://[::1]:9000", "[::1]", 9000),
        (longest.as_str(), &"x".repeat(253), 65535),
    ] {
        let config = DriverConfig::try_from(&spec(text, Some(tls()))).expect("valid");
        let (host, secret) = (host.to_owned(), tls().secret);
        assert_eq!(config.endpoint, Endpoint::Https { host, port });
        assert_eq!(config.endpoint.to_string(), text);
        let server_name = None;
        assert_eq!(config.tls, Some(TlsSpec { secret, server_name }));
    }
    let too_long = format!("https://{}:1", "x".repeat(254));
    for text in [
        "https://",
        "https://csi",
        "https://csi:0",
        "https://csi:65536",
        "https://csi:1/",
        "https://:1",
        "https://-csi:1",
        "https://user@csi:1",
        "https://::1:1",
        "https://[csi]:1",
        "https://[::1:1",
        "https://c si:1",
        "https://c\u{fc}:1",
        too_long.as_str(),
    ] {
        assert_eq!(
            problems(&spec(text, Some(tls()))),
            problem("endpoint", SpecProblem::HttpsEndpoint),
            "{text}"
        );
    }
}

/// An address with a typing mistake would be looked up as a name for ever.
#[test]
fn hosts_that_end_in_a_number_are_addresses() {
    for host in [
        "10.0.0.256",
        "999.1.1.1",
        "1.2.3",
        "1.2.3.4.5",
        "10.0.0.07",
        "10..0.1",
        "7",
        "csi.example.7",
        "csi-1.7",
    ] {
        let text = format!("https://{host}:9000");
        let found = problems(&spec(&text, Some(tls())));
        assert_eq!(found, problem("endpoint", SpecProblem::NumericHost), "{text}");
        let tls = TlsSpec {
            server_name: Some(host.into()),
            ..tls()
        };
        let found = problems(&spec("https://csi:1", Some(tls)));
        assert_eq!(found, problem("tls.serverName", SpecProblem::ServerName), "{host}");
    }
}

#[test]
fn certificates_go_with_https_and_with_nothing_else() {
    assert_eq!(
        problems(&spec("https://csi:1", None)),
        problem("tls", SpecProblem::TlsMissing)
    );
    for endpoint in ["unix:///csi/csi.sock", "http://localhost:1"] {
        assert_eq!(
            problems(&spec(endpoint, Some(tls()))),
            problem("tls", SpecProblem::TlsWithoutHttps)
        );
    }
}

#[test]
fn names_in_tls() {
    let with = |change: fn(&mut TlsSpec, &str), value: &str| {
        let mut tls = tls();
        change(&mut tls, value);
        problems(&spec("https://csi:1", Some(tls)))
    };
    for bad in ["", "Csi", "-a", "a-", "a.b", "a/b", &"x".repeat(64)] {
        let found = with(|tls, value| tls.secret.namespace = value.into(), bad);
        assert_eq!(
            found,
            problem("tls.secretRef.namespace", SpecProblem::Namespace),
            "{bad}"
        );
    }
    for bad in ["", "A", "a..b", ".a", "a.", "a_b", &"x".repeat(254)] {
        let found = with(|tls, value| tls.secret.name = value.into(), bad);
        assert_eq!(found, problem("tls.secretRef.name", SpecProblem::SecretName), "{bad}");
    }
    assert_eq!(with(|tls, value| tls.secret.name = value.into(), "a.b-c.d"), []);
    for good in ["csi.example.com", "10.0.0.1", "::1", "fe80::1"] {
        let found = with(|tls, value| tls.server_name = Some(value.into()), good);
        assert_eq!(found, [], "{good}");
    }
    for bad in ["", "csi:443", "[::1]", "c si"] {
        let found = with(|tls, value| tls.server_name = Some(value.into()), bad);
        assert_eq!(found, problem("tls.serverName", SpecProblem::ServerName), "{bad}");
    }
}

#[test]
fn an_election_has_times_that_fit() {
    let with = |lease: u64, renew: u64, retry: u64| {
        let millis = |count: u64| GoDuration::from_nanos(i64::try_from(count).expect("small") * 1_000_000);
        let mut spec = spec("unix:///a", None);
        spec.leader_election = LeaderElectionSpec {
            lease_duration: millis(lease),
            renew_deadline: millis(renew),
            retry_period: millis(retry),
            ..LeaderElectionSpec::default()
        };
        problems(&spec)
    };
    assert_eq!(with(15_000, 10_000, 2_000), []);
    assert_eq!(with(1_000, 999, 1), []);
    assert_eq!(with(137_000, 107_000, 26_000), [], "as OpenShift has it");
    let lease = problem("leaderElection.leaseDuration", SpecProblem::WholeSeconds);
    assert_eq!(with(1_500, 1_000, 100), lease);
    assert_eq!(with(500, 400, 100), lease);
    let renew = problem("leaderElection.renewDeadline", SpecProblem::RenewDeadline);
    assert_eq!(with(10_000, 10_000, 2_000), renew);
    let retry = problem("leaderElection.retryPeriod", SpecProblem::RetryPeriod);
    assert_eq!(with(15_000, 12_000, 10_000), retry);
    assert_eq!(with(15_000, 12_001, 10_000), []);
    let zero = problem("leaderElection.retryPeriod", SpecProblem::DurationRange);
    assert_eq!(with(15_000, 10_000, 0), zero, "what is no time has one problem");
}

#[test]
fn the_namespace_of_a_lease_is_one_or_nothing() {
    let with = |namespace: &str| {
        let mut spec = spec("unix:///a", None);
        spec.leader_election.namespace = namespace.into();
        problems(&spec)
    };
    assert_eq!((with(""), with("kube-system")), (vec![], vec![]));
    let bad = problem("leaderElection.namespace", SpecProblem::Namespace);
    assert_eq!((with("Kube"), with("a/b")), (bad.clone(), bad));
}

#[test]
fn the_namespaces_of_other_attachers_are_few_and_different() {
    let with = |namespaces: &[&str]| {
        let mut spec = spec("unix:///a", None);
        spec.leader_election.sidecar_namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        problems(&spec)
    };
    let all = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    assert_eq!((with(&[]), with(&all[..8])), (vec![], vec![]));
    let many = problem("leaderElection.sidecarNamespaces", SpecProblem::SidecarNamespaces);
    assert_eq!(with(&all), many);
    let twice = problem("leaderElection.sidecarNamespaces[1]", SpecProblem::SidecarNamespaces);
    assert_eq!(with(&["a", "a"]), twice);
    let bad = problem("leaderElection.sidecarNamespaces[1]", SpecProblem::Namespace);
    assert_eq!((with(&["a", "Kube"]), with(&["a", ""])), (bad.clone(), bad));
}

#[test]
fn the_limit_of_requests() {
    let with = |qps: i64, burst: i64| {
        let mut spec = spec("unix:///a", None);
        (spec.kubernetes_api.qps, spec.kubernetes_api.burst) = (qps, burst);
        DriverConfig::try_from(&spec).map(|config| config.kubernetes_api)
    };
    let limit = |qps: u32, burst: u32| {
        let (qps, burst) = (NonZeroU32::new(qps)?, NonZeroU32::new(burst)?);
        Some(KubernetesApi { qps, burst })
    };
    assert_eq!(with(0, 0), Ok(None));
    assert_eq!(with(0, 7), Ok(None), "a burst alone limits nothing");
    assert_eq!(with(5, 10), Ok(limit(5, 10)));
    assert_eq!(with(5, 0), Ok(limit(5, 5)));
    assert!(with(-1, 0).is_err() && with(0, 10_001).is_err() && with(i64::MAX, 0).is_err());
}

#[test]
fn the_share_of_traces() {
    let with = |share: Option<i64>| {
        let mut spec = spec("unix:///a", None);
        spec.tracing.sampling_rate_per_million = share;
        DriverConfig::try_from(&spec).map(|config| config.tracing.sampling_rate_per_million)
    };
    assert_eq!(with(None), Ok(None));
    assert_eq!(
        (with(Some(0)), with(Some(1_000_000))),
        (Ok(Some(0)), Ok(Some(1_000_000)))
    );
    for bad in [-1, 1_000_001, i64::MIN] {
        assert!(with(Some(bad)).is_err(), "{bad}");
    }
}

/// An object that was stored before the definition was upgraded still has them, and so may a manifest.
#[test]
fn the_fields_that_were_removed_are_ignored_and_the_others_count() {
    let of = |tracing: serde_json::Value| {
        let spec = serde_json::json!({"endpoint": "unix:///a", "timeouts": {"publish": "7s"}, "tracing": tracing});
        let spec: AttacherConfigSpec = serde_json::from_value(spec).unwrap();
        DriverConfig::try_from(&spec)
    };
    let with = of(serde_json::json!({
        "endpoint": "http://collector:4317", "protocol": "http/json", "samplingRatePerMillion": 7, "redact": {"names": "Hash"},
    }));
    let without = of(serde_json::json!({"samplingRatePerMillion": 7, "redact": {"names": "Hash"}}));
    assert_eq!(with, without);
    assert_eq!(with.unwrap().tracing.sampling_rate_per_million, Some(7));
    for model in ["Lifecycle", "Attempt"] {
        let with = serde_json::json!({"model": model, "samplingRatePerMillion": 7, "redact": {"names": "Hash"}});
        assert_eq!(of(with), without, "{model}");
    }
    // A value that was removed is read as the default.
    let with =
        serde_json::json!({"annotationMode": "Parent", "samplingRatePerMillion": 7, "redact": {"names": "Hash"}});
    assert_eq!(of(with), without);
    // Not even values that were refused get into the way.
    assert!(of(serde_json::json!({"endpoint": 7, "protocol": "thrift"})).is_ok());
}

#[test]
fn the_limits_of_a_trace() {
    let with = |change: fn(&mut TracingSpec)| {
        let mut spec = spec("unix:///a", None);
        change(&mut spec.tracing);
        problems(&spec)
    };
    assert_eq!(with(|tracing| tracing.annotations.clear()), []);
    let found = with(|tracing| tracing.annotations = vec!["traceparent".into(), "a/b".into()]);
    assert_eq!(found, problem("tracing.annotations[1]", SpecProblem::TraceAnnotation));
    let found = with(|tracing| tracing.annotations = vec!["traceparent".into(); 9]);
    assert_eq!(found, problem("tracing.annotations", SpecProblem::Annotations));
    for attempts in [0, -1, 1001] {
        let mut spec = spec("unix:///a", None);
        spec.tracing.max_attempts_per_trace = attempts;
        assert_eq!(
            problems(&spec),
            problem("tracing.maxAttemptsPerTrace", SpecProblem::Attempts)
        );
    }
    let found = with(|tracing| tracing.max_trace_age = GoDuration::from_secs(59));
    assert_eq!(found, problem("tracing.maxTraceAge", SpecProblem::TraceAge));
    assert_eq!(with(|tracing| tracing.max_trace_age = GoDuration::from_secs(60)), []);
}

#[test]
fn times_of_a_day_do_not_overflow() {
    let mut spec = spec("unix:///a", None);
    spec.leader_election.lease_duration = GoDuration::from_secs(24 * 60 * 60);
    spec.leader_election.renew_deadline = GoDuration::from_secs(24 * 60 * 60 - 1);
    let config = DriverConfig::try_from(&spec).expect("valid");
    assert_eq!(config.leader_election.lease_duration, Duration::from_hours(24));
}
