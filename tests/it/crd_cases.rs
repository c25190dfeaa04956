//! AttacherConfig objects and what the API server must say to them: a table only, without code that runs.
//!
//! It is used twice: against a real API server with the generated CustomResourceDefinition, and in the unit tests of
//! `api`, which hold the operator's own checks to the same answers.

/// One object and the answer to it.
pub struct CrdCase {
    /// What the case is about; unique, usable as an object name.
    pub name: &'static str,
    /// The `spec` as JSON. The object around it is the same for all cases.
    pub spec: &'static str,
    /// The answer.
    pub expect: Expect,
}

/// The answer of the API server to the creation of an object, with strict field validation.
pub enum Expect {
    /// The object is created.
    Accepted,
    /// The object is refused by the API server, and by the operator if it is stored all the same.
    Refused {
        /// The path of the field in both messages.
        field: &'static str,
        /// A part of the API server's message.
        message: &'static str,
    },
    /// The object is refused by the API server only: the operator ignores unknown fields, and reads a value that was removed.
    RefusedByServer {
        /// A part of the API server's message.
        message: &'static str,
    },
}

const fn accepted(name: &'static str, spec: &'static str) -> CrdCase {
    CrdCase {
        name,
        spec,
        expect: Expect::Accepted,
    }
}

const fn refused(name: &'static str, spec: &'static str, field: &'static str, message: &'static str) -> CrdCase {
    CrdCase {
        name,
        spec,
        expect: Expect::Refused { field, message },
    }
}

const fn unknown(name: &'static str, spec: &'static str, message: &'static str) -> CrdCase {
    CrdCase {
        name,
        spec,
        expect: Expect::RefusedByServer { message },
    }
}

const DURATION: &str = "must be a duration from 1ms to 24h, such as 30s or 1m30s";
const SCHEME: &str = "must be unix:///absolute/path/to/csi.sock, https://HOST:PORT with tls, or http://HOST:PORT";
const UNIX_PATH: &str = "the socket path must be absolute and name a socket";
const HTTP: &str = "a plain http endpoint must be on the loopback interface";
const HTTPS: &str = "an https endpoint must be https://HOST:PORT";
const TRACE_ANNOTATION: &str = "must be the key of an annotation that ends in traceparent";
const DRIVER: &str = "must be the name that the driver answers to GetPluginInfo";

/// All cases.
#[rustfmt::skip]
pub const CASES: &[CrdCase] = &[
    // Accepted.
    accepted("minimal", r#"{"endpoint": "unix:///csi/csi.sock"}"#),
    accepted("everything", r#"{"driverName": "ebs.csi.aws.com", "endpoint": "unix:///csi/ebs/csi.sock", "suspend": true,
        "timeouts": {"publish": "2m", "unpublish": "1h30m", "probe": "1.5s", "identity": "500ms"},
        "backoff": {"initial": "10ms", "max": "5m", "factorPercent": 150, "jitterPercent": 0},
        "concurrency": {"attach": 0, "detach": 10000, "perNode": 1, "callsPerSecond": 50}, "defaultFsType": "ext4",
        "orphanPolicy": "TreatNotFoundAsDetached", "publishSecrets": [{"namespace": "storage", "names": ["a", "b.c"]}, {"namespace": "vault"}],
        "kubernetesAPI": {"qps": 50, "burst": 100}, "deletionPolicy": "WaitForDetach",
        "leaderElection": {"enabled": true, "namespace": "kube-system", "leaseDuration": "2m17s", "renewDeadline": "107s", "retryPeriod": "26s"},
        "tracing": {"samplingRatePerMillion": 1000, 
            "annotationMode": "Ignore", "annotations": ["traceparent", "example.com/our.traceparent"], "outgoingAnnotation": false,
            "maxAttemptsPerTrace": 10, "maxTraceAge": "2h", "redact": {"volumeID": "Hash", "names": "Hash"}, "errorSuffix": true}}"#),
    accepted("trace-annotations-none", r#"{"endpoint": "unix:///a", "tracing": {"annotations": []}}"#),
    accepted("publish-secrets-of-one-namespace-twice", r#"{"endpoint": "unix:///a", "publishSecrets": [{"namespace": "a"}, {"namespace": "a", "names": ["x", "y"]}]}"#),
    unknown("publish-secrets-name-twice", r#"{"endpoint": "unix:///a", "publishSecrets": [{"namespace": "a", "names": ["x", "x"]}]}"#, "Duplicate value"),
    refused("sidecar-namespace-twice", r#"{"endpoint": "unix:///a", "leaderElection": {"sidecarNamespaces": ["x", "x"]}}"#, "spec.leaderElection.sidecarNamespaces[1]", "Duplicate value"),
    refused("sidecar-namespace-bad", r#"{"endpoint": "unix:///a", "leaderElection": {"sidecarNamespaces": ["Kube"]}}"#, "spec.leaderElection.sidecarNamespaces[0]", "must be the name of a namespace"),
    accepted("publish-secrets-none", r#"{"endpoint": "unix:///a", "publishSecrets": []}"#),
    accepted("https", r#"{"endpoint": "https://csi.example.com:9000", "tls": {"secretRef": {"namespace": "csi", "name": "driver.tls"}}}"#),
    accepted("https-address", r#"{"endpoint": "https://[fe80::1]:9000", "tls": {"secretRef": {"namespace": "csi", "name": "a"}, "serverName": "csi.example.com"}}"#),
    accepted("tls-null", r#"{"endpoint": "unix:///a", "tls": null}"#),
    accepted("empty-groups", r#"{"endpoint": "unix:///csi.sock", "timeouts": {}, "backoff": {}, "concurrency": {}}"#),
    accepted("http-ipv4", r#"{"endpoint": "http://127.0.0.1:9000"}"#),
    accepted("http-ipv6", r#"{"endpoint": "http://[::1]:1"}"#),
    accepted("http-localhost", r#"{"endpoint": "http://localhost:65535"}"#),
    accepted("socket-path-of-107-bytes", concat!(r#"{"endpoint": "unix:///"#,
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345", r#""}"#)),
    accepted("duration-shortest", r#"{"endpoint": "unix:///a", "timeouts": {"probe": "1000us"}}"#),
    accepted("duration-longest", r#"{"endpoint": "unix:///a", "timeouts": {"probe": "+23h59m60s"}}"#),
    accepted("duration-longest-in-nanoseconds", r#"{"endpoint": "unix:///a", "timeouts": {"probe": "86400000000000ns"}}"#),
    accepted("duration-of-32-characters", r#"{"endpoint": "unix:///a", "timeouts": {"probe": "1h1m1s1ms1µs1.0000000000000000ns"}}"#),
    accepted("initial-equal-to-max", r#"{"endpoint": "unix:///a", "backoff": {"initial": "60s", "max": "1m"}}"#),
    accepted("factor-one", r#"{"endpoint": "unix:///a", "backoff": {"factorPercent": 100}}"#),
    accepted("driver-name-of-one-letter", r#"{"endpoint": "unix:///a", "driverName": "x"}"#),
    accepted("driver-name-null", r#"{"endpoint": "unix:///a", "driverName": null}"#),
    // Shape.
    refused("no-endpoint", "{}", "spec", "endpoint: Required value"),
    refused("endpoint-number", r#"{"endpoint": 7}"#, "spec.endpoint", "must be of type string"),
    refused("suspend-text", r#"{"endpoint": "unix:///a", "suspend": "true"}"#, "spec.suspend", "must be of type boolean"),
    refused("timeouts-text", r#"{"endpoint": "unix:///a", "timeouts": "60s"}"#, "spec.timeouts", "must be of type object"),
    refused("timeout-number", r#"{"endpoint": "unix:///a", "timeouts": {"publish": 60}}"#, "spec.timeouts.publish", "must be of type string"),
    unknown("unknown-field", r#"{"endpoint": "unix:///a", "invented": 1}"#, r#"unknown field "spec.invented""#),
    unknown("unknown-nested-field", r#"{"endpoint": "unix:///a", "timeouts": {"attach": "1s"}}"#, r#"unknown field "spec.timeouts.attach""#),
    unknown("removed-collector", r#"{"endpoint": "unix:///a", "tracing": {"endpoint": "http://c:4317"}}"#, r#"unknown field "spec.tracing.endpoint""#),
    unknown("removed-collector-protocol", r#"{"endpoint": "unix:///a", "tracing": {"protocol": "grpc"}}"#, r#"unknown field "spec.tracing.protocol""#),
    // Publish secrets.
    refused("publish-secrets-text", r#"{"endpoint": "unix:///a", "publishSecrets": "storage"}"#, "spec.publishSecrets", "must be of type array"),
    refused("publish-secrets-without-namespace", r#"{"endpoint": "unix:///a", "publishSecrets": [{"names": ["a"]}]}"#, "spec.publishSecrets[0]", "namespace: Required value"),
    refused("publish-secrets-empty-namespace", r#"{"endpoint": "unix:///a", "publishSecrets": [{"namespace": ""}]}"#, "spec.publishSecrets[0].namespace", "namespace"),
    refused("publish-secrets-wrong-namespace", r#"{"endpoint": "unix:///a", "publishSecrets": [{"namespace": "a"}, {"namespace": "*"}]}"#, "spec.publishSecrets[1].namespace", "must be the name of a namespace"),
    refused("publish-secrets-no-names", r#"{"endpoint": "unix:///a", "publishSecrets": [{"namespace": "a", "names": []}]}"#, "spec.publishSecrets[0].names", "should have at least 1 items"),
    refused("publish-secrets-wrong-name", r#"{"endpoint": "unix:///a", "publishSecrets": [{"namespace": "a", "names": ["ok", "../b"]}]}"#, "spec.publishSecrets[0].names[1]", "must be the name of a Secret"),
    // Secrets of provisioning.
    accepted("provisioner-secrets", r#"{"endpoint": "unix:///a", "driverName": "x", "provisioning": {"secrets": [{"namespace": "a"}, {"namespace": "*", "names": ["b"]}]}}"#),
    refused("provisioner-secrets-of-all-namespaces", r#"{"endpoint": "unix:///a", "driverName": "x", "provisioning": {"secrets": [{"namespace": "a"}, {"namespace": "*"}]}}"#, "spec.provisioning.secrets[1].names", "must name the Secrets where the namespace is *"),
    refused("provisioning-without-driver-name", r#"{"endpoint": "unix:///a", "provisioning": {}}"#, "spec.driverName", "must be set where provisioning is"),
    // Endpoint.
    refused("endpoint-empty", r#"{"endpoint": ""}"#, "spec.endpoint", SCHEME),
    refused("endpoint-tcp", r#"{"endpoint": "tcp://localhost:9000"}"#, "spec.endpoint", SCHEME),
    refused("endpoint-bare-path", r#"{"endpoint": "/csi/csi.sock"}"#, "spec.endpoint", SCHEME),
    refused("endpoint-upper-case-scheme", r#"{"endpoint": "UNIX:///csi.sock"}"#, "spec.endpoint", SCHEME),
    refused("unix-relative", r#"{"endpoint": "unix://csi/csi.sock"}"#, "spec.endpoint", UNIX_PATH),
    refused("unix-one-slash", r#"{"endpoint": "unix:/csi/csi.sock"}"#, "spec.endpoint", UNIX_PATH),
    refused("unix-directory", r#"{"endpoint": "unix:///csi/"}"#, "spec.endpoint", UNIX_PATH),
    refused("unix-root", r#"{"endpoint": "unix:///"}"#, "spec.endpoint", UNIX_PATH),
    refused("unix-newline", r#"{"endpoint": "unix:///csi\n.sock"}"#, "spec.endpoint", UNIX_PATH),
    refused("socket-path-of-108-bytes", concat!(r#"{"endpoint": "unix:///"#,
        "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456", r#""}"#),
        "spec.endpoint", "at most 107 bytes"),
    refused("socket-path-of-108-bytes-in-61-characters", concat!(r#"{"endpoint": "unix:///aaaaaaaaaaaaa"#,
        "üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü", r#""}"#),
        "spec.endpoint", "at most 107 bytes"),
    refused("http-other-host", r#"{"endpoint": "http://example.com:9000"}"#, "spec.endpoint", HTTP),
    refused("http-other-address", r#"{"endpoint": "http://127.0.0.2:9000"}"#, "spec.endpoint", HTTP),
    refused("http-host-that-begins-like-loopback", r#"{"endpoint": "http://localhost.example.com:9000"}"#, "spec.endpoint", HTTP),
    refused("http-dot-is-not-any-character", r#"{"endpoint": "http://127a0b0c1:9000"}"#, "spec.endpoint", HTTP),
    refused("http-no-port", r#"{"endpoint": "http://localhost"}"#, "spec.endpoint", HTTP),
    refused("http-port-zero", r#"{"endpoint": "http://localhost:0"}"#, "spec.endpoint", HTTP),
    refused("http-port-too-high", r#"{"endpoint": "http://localhost:65536"}"#, "spec.endpoint", HTTP),
    refused("http-path", r#"{"endpoint": "http://localhost:80/"}"#, "spec.endpoint", HTTP),
    // Driver name and file system type.
    refused("driver-name-empty", r#"{"endpoint": "unix:///a", "driverName": ""}"#, "spec.driverName", DRIVER),
    refused("driver-name-leading-dash", r#"{"endpoint": "unix:///a", "driverName": "-a"}"#, "spec.driverName", DRIVER),
    refused("driver-name-trailing-dot", r#"{"endpoint": "unix:///a", "driverName": "a."}"#, "spec.driverName", DRIVER),
    refused("driver-name-underscore", r#"{"endpoint": "unix:///a", "driverName": "a_b"}"#, "spec.driverName", DRIVER),
    refused("driver-name-of-64-characters", r#"{"endpoint": "unix:///a",
        "driverName": "a123456789012345678901234567890123456789012345678901234567890123"}"#, "spec.driverName", "Too long"),
    refused("fs-type-with-space", r#"{"endpoint": "unix:///a", "defaultFsType": "ext4 "}"#, "spec.defaultFsType", "must be the name of a file system"),
    refused("orphan-policy-unknown", r#"{"endpoint": "unix:///a", "orphanPolicy": "Ignore"}"#, "spec.orphanPolicy", "Unsupported value"),
    // Durations.
    refused("duration-days", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "1d"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-without-unit", r#"{"endpoint": "unix:///a", "timeouts": {"unpublish": "60"}}"#, "spec.timeouts.unpublish", DURATION),
    refused("duration-empty", r#"{"endpoint": "unix:///a", "timeouts": {"probe": ""}}"#, "spec.timeouts.probe", DURATION),
    refused("duration-words", r#"{"endpoint": "unix:///a", "timeouts": {"identity": "ten seconds"}}"#, "spec.timeouts.identity", DURATION),
    refused("duration-point-only", r#"{"endpoint": "unix:///a", "timeouts": {"identity": ".s"}}"#, "spec.timeouts.identity", DURATION),
    refused("duration-zero", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "0s"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-bare-zero", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "0"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-negative", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "-5s"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-too-short", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "999us"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-too-long", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "24h1ns"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-overflow", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "99999999999999999999h"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-overflow-by-sum", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "9999999h9999999h"}}"#, "spec.timeouts.publish", DURATION),
    refused("duration-text-too-long", r#"{"endpoint": "unix:///a", "timeouts": {"publish": "1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1d"}}"#, "spec.timeouts.publish", "Too long"),
    // Backoff.
    refused("initial-above-max", r#"{"endpoint": "unix:///a", "backoff": {"initial": "2m", "max": "90s"}}"#, "spec.backoff.initial", "must not be longer than backoff.max"),
    refused("initial-above-default-max", r#"{"endpoint": "unix:///a", "backoff": {"initial": "61s"}}"#, "spec.backoff.initial", "must not be longer than backoff.max"),
    refused("initial-unparsable", r#"{"endpoint": "unix:///a", "backoff": {"initial": "x"}}"#, "spec.backoff.initial", DURATION),
    refused("max-zero", r#"{"endpoint": "unix:///a", "backoff": {"initial": "1ms", "max": "0s"}}"#, "spec.backoff.max", DURATION),
    refused("factor-below-one", r#"{"endpoint": "unix:///a", "backoff": {"factorPercent": 99}}"#, "spec.backoff.factorPercent", "greater than or equal to 100"),
    refused("factor-above-ten", r#"{"endpoint": "unix:///a", "backoff": {"factorPercent": 1001}}"#, "spec.backoff.factorPercent", "less than or equal to 1000"),
    refused("jitter-negative", r#"{"endpoint": "unix:///a", "backoff": {"jitterPercent": -1}}"#, "spec.backoff.jitterPercent", "greater than or equal to 0"),
    refused("jitter-above-hundred", r#"{"endpoint": "unix:///a", "backoff": {"jitterPercent": 101}}"#, "spec.backoff.jitterPercent", "less than or equal to 100"),
    refused("jitter-fraction", r#"{"endpoint": "unix:///a", "backoff": {"jitterPercent": 1.5}}"#, "spec.backoff.jitterPercent", "must be of type integer"),
    // Concurrency.
    refused("attach-negative", r#"{"endpoint": "unix:///a", "concurrency": {"attach": -1}}"#, "spec.concurrency.attach", "greater than or equal to 0"),
    refused("detach-too-many", r#"{"endpoint": "unix:///a", "concurrency": {"detach": 10001}}"#, "spec.concurrency.detach", "less than or equal to 10000"),
    refused("per-node-text", r#"{"endpoint": "unix:///a", "concurrency": {"perNode": "4"}}"#, "spec.concurrency.perNode", "must be of type integer"),
    refused("rate-negative", r#"{"endpoint": "unix:///a", "concurrency": {"callsPerSecond": -1}}"#, "spec.concurrency.callsPerSecond", "greater than or equal to 0"),
    // TLS.
    refused("https-without-tls", r#"{"endpoint": "https://localhost:443"}"#, "spec.tls", "an https endpoint needs tls.secretRef"),
    refused("tls-with-a-socket", r#"{"endpoint": "unix:///a", "tls": {"secretRef": {"namespace": "csi", "name": "a"}}}"#, "spec.tls", "only an https endpoint"),
    refused("https-numeric", r#"{"endpoint": "https://10.0.0.256:1", "tls": {"secretRef": {"namespace": "csi", "name": "a"}}}"#, "spec.endpoint", "must be an IPv4 address"),
    refused("https-without-port", r#"{"endpoint": "https://csi", "tls": {"secretRef": {"namespace": "csi", "name": "a"}}}"#, "spec.endpoint", HTTPS),
    refused("https-with-path", r#"{"endpoint": "https://csi:1/x", "tls": {"secretRef": {"namespace": "csi", "name": "a"}}}"#, "spec.endpoint", HTTPS),
    refused("https-with-user", r#"{"endpoint": "https://me@csi:1", "tls": {"secretRef": {"namespace": "csi", "name": "a"}}}"#, "spec.endpoint", HTTPS),
    refused("tls-without-secret", r#"{"endpoint": "https://csi:1", "tls": {}}"#, "spec.tls", "secretRef: Required value"),
    refused("tls-namespace-empty", r#"{"endpoint": "https://csi:1", "tls": {"secretRef": {"namespace": "", "name": "a"}}}"#, "spec.tls.secretRef.namespace", "must be the name of a namespace"),
    refused("tls-name-upper-case", r#"{"endpoint": "https://csi:1", "tls": {"secretRef": {"namespace": "csi", "name": "A"}}}"#, "spec.tls.secretRef.name", "must be the name of a Secret"),
    refused("tls-server-name-with-port", r#"{"endpoint": "https://csi:1", "tls": {"secretRef": {"namespace": "csi", "name": "a"}, "serverName": "csi:443"}}"#, "spec.tls.serverName", "without a port"),
    refused("tls-server-name-in-brackets", r#"{"endpoint": "https://[fd00::7]:1", "tls": {"secretRef": {"namespace": "csi", "name": "a"}, "serverName": "[fd00::7]"}}"#, "spec.tls.serverName", "without a port or brackets"),
    // Election.
    refused("lease-below-a-second", r#"{"endpoint": "unix:///a", "leaderElection": {"leaseDuration": "900ms", "renewDeadline": "500ms", "retryPeriod": "1ms"}}"#, "spec.leaderElection.leaseDuration", "must be whole seconds"),
    refused("lease-with-a-fraction", r#"{"endpoint": "unix:///a", "leaderElection": {"leaseDuration": "15500ms"}}"#, "spec.leaderElection.leaseDuration", "must be whole seconds"),
    refused("renew-as-long-as-lease", r#"{"endpoint": "unix:///a", "leaderElection": {"leaseDuration": "10s"}}"#, "spec.leaderElection.renewDeadline", "must be shorter than leaderElection.leaseDuration"),
    refused("retry-too-long", r#"{"endpoint": "unix:///a", "leaderElection": {"renewDeadline": "12s", "retryPeriod": "10s"}}"#, "spec.leaderElection.retryPeriod", "1.2 times this"),
    accepted("retry-just-short-enough", r#"{"endpoint": "unix:///a", "leaderElection": {"renewDeadline": "12001ms", "retryPeriod": "10s"}}"#),
    refused("retry-no-duration", r#"{"endpoint": "unix:///a", "leaderElection": {"retryPeriod": "soon"}}"#, "spec.leaderElection.retryPeriod", DURATION),
    refused("lease-namespace", r#"{"endpoint": "unix:///a", "leaderElection": {"namespace": "Kube"}}"#, "spec.leaderElection.namespace", "must be the name of a namespace"),
    // The rest.
    refused("qps-negative", r#"{"endpoint": "unix:///a", "kubernetesAPI": {"qps": -1}}"#, "spec.kubernetesAPI.qps", "greater than or equal to 0"),
    refused("burst-too-many", r#"{"endpoint": "unix:///a", "kubernetesAPI": {"burst": 10001}}"#, "spec.kubernetesAPI.burst", "less than or equal to 10000"),
    refused("deletion-policy-unknown", r#"{"endpoint": "unix:///a", "deletionPolicy": "Delete"}"#, "spec.deletionPolicy", "Unsupported value"),
    unknown("removed-log-level", r#"{"endpoint": "unix:///a", "logLevel": "debug"}"#, r#"unknown field "spec.logLevel""#),
    unknown("removed-trace-model", r#"{"endpoint": "unix:///a", "tracing": {"model": "Attempt"}}"#, r#"unknown field "spec.tracing.model""#),
    unknown("removed-annotation-mode", r#"{"endpoint": "unix:///a", "tracing": {"annotationMode": "Parent"}}"#, "spec.tracing.annotationMode: Unsupported value"),
    refused("annotation-mode-unknown", r#"{"endpoint": "unix:///a", "tracing": {"annotationMode": "Trust"}}"#, "spec.tracing.annotationMode", "Unsupported value"),
    refused("trace-annotation-of-another-kind", r#"{"endpoint": "unix:///a", "tracing": {"annotations": ["a/traceparent", "a/b"]}}"#, "spec.tracing.annotations[1]", TRACE_ANNOTATION),
    refused("trace-annotation-glued", r#"{"endpoint": "unix:///a", "tracing": {"annotations": ["mytraceparent"]}}"#, "spec.tracing.annotations[0]", TRACE_ANNOTATION),
    refused("trace-annotations-too-many", r#"{"endpoint": "unix:///a", "tracing": {"annotations": ["traceparent", "a/traceparent", "b/traceparent",
        "c/traceparent", "d/traceparent", "e/traceparent", "f/traceparent", "g/traceparent", "h/traceparent"]}}"#, "spec.tracing.annotations", "must have at most 8 items"),
    refused("trace-attempts-none", r#"{"endpoint": "unix:///a", "tracing": {"maxAttemptsPerTrace": 0}}"#, "spec.tracing.maxAttemptsPerTrace", "greater than or equal to 1"),
    refused("trace-attempts-too-many", r#"{"endpoint": "unix:///a", "tracing": {"maxAttemptsPerTrace": 1001}}"#, "spec.tracing.maxAttemptsPerTrace", "less than or equal to 1000"),
    refused("trace-age-short", r#"{"endpoint": "unix:///a", "tracing": {"maxTraceAge": "59s"}}"#, "spec.tracing.maxTraceAge", "must be a duration from 1m to 24h"),
    refused("redaction-unknown", r#"{"endpoint": "unix:///a", "tracing": {"redact": {"names": "Drop"}}}"#, "spec.tracing.redact.names", "Unsupported value"),
    refused("samples-above-a-million", r#"{"endpoint": "unix:///a", "tracing": {"samplingRatePerMillion": 1000001}}"#, "spec.tracing.samplingRatePerMillion", "less than or equal to 1000000"),
];
