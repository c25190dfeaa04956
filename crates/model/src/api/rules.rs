//! The limits of AttacherConfig's fields, the messages that explain them, and their form for the API server (CEL).
//!
//! Each message is written once and used by the API server and by the checks in `validated/`; both put the path of the field
//! in front of it. The CEL rules are cheap by construction: every string has a maximum length.

use std::time::Duration;

use kube_core::Rule;
use serde_json::{Value, json};

/// CSI spec: a plugin name has at most 63 characters.
pub(super) const MAX_DRIVER_NAME: usize = 63;
/// Longest endpoint text; the parts have tighter limits of their own.
pub(super) const MAX_ENDPOINT: usize = 272;
/// `sockaddr_un.sun_path` holds 108 bytes with the terminating zero.
pub(super) const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Longest file system type.
pub(super) const MAX_FS_TYPE: usize = 63;
/// Most calls in flight or per second that can be asked for.
pub(super) const MAX_CALLS: i64 = 10_000;
/// Most entries of a page that can be asked for.
pub(super) const MAX_ENTRIES: i64 = 1_000_000;
/// One million, the whole of `samplingRatePerMillion`.
pub(super) const MILLION: i64 = 1_000_000;
/// Most namespaces in which another attacher's Lease is looked for.
pub(super) const MAX_SIDECAR_NAMESPACES: usize = 8;
/// Most annotations that are looked at for a trace context.
pub(super) const MAX_ANNOTATIONS: usize = 8;
/// Longest key of an annotation: a DNS name, a slash and 63 characters.
pub(super) const MAX_ANNOTATION_KEY: usize = 317;
/// Where a trace context is looked for: the key of KEP-5915, then that of Argo Workflows.
pub(super) const TRACE_ANNOTATIONS: [&str; 2] = ["tracing.k8s.io/traceparent", "opentelemetry.io/traceparent"];
/// Most attempts in one trace that can be asked for.
pub(super) const MAX_ATTEMPTS: i64 = 1_000;
/// Shortest time that one trace may cover: below it, most traces would be pieces.
pub(super) const MIN_TRACE_AGE: Duration = Duration::from_mins(1);
/// Most entries of `publishSecrets`, and names in each.
pub(super) const MAX_PUBLISH_SECRETS: usize = 64;
/// Longest DNS label, hence namespace.
pub(super) const MAX_NAMESPACE: usize = 63;
/// Longest DNS name, hence host and name of most objects.
pub(super) const MAX_HOST: usize = 253;
/// Shortest and longest duration of any setting: below a millisecond is a unit mistake, above a day a typing mistake.
pub(super) const MIN_DURATION: Duration = Duration::from_millis(1);
/// See [`MIN_DURATION`].
pub(super) const MAX_DURATION: Duration = Duration::from_hours(24);
/// Range of the backoff's growth.
pub(super) const FACTOR_RANGE: std::ops::RangeInclusive<i64> = 100..=1000;
/// Range of the backoff's jitter.
pub(super) const JITTER_RANGE: std::ops::RangeInclusive<i64> = 0..=100;

pub(super) const DRIVER_NAME_MESSAGE: &str = "must be the name that the driver answers to GetPluginInfo: at most 63 \
    letters, digits, '-' or '.', beginning and ending with a letter or digit; leave the field out to accept any driver";
pub(super) const ENDPOINT_SCHEME_MESSAGE: &str = "must be unix:///absolute/path/to/csi.sock, https://HOST:PORT with tls, \
    or http://HOST:PORT where HOST is 127.0.0.1, [::1] or localhost; no other scheme is accepted";
pub(super) const UNIX_PATH_MESSAGE: &str = "the socket path must be absolute and name a socket: write three slashes and \
    no slash at the end, as in unix:///csi/csi.sock";
pub(super) const UNIX_LENGTH_MESSAGE: &str = "the socket path must be at most 107 bytes long, the limit of the operating \
    system: mount the socket directory at a shorter path";
pub(super) const HTTP_MESSAGE: &str = "a plain http endpoint must be on the loopback interface: write http://HOST:PORT, \
    HOST being 127.0.0.1, [::1] or localhost and PORT 1 to 65535, with nothing after the port";
pub(super) const HTTPS_MESSAGE: &str = "an https endpoint must be https://HOST:PORT, HOST being a DNS name, an IPv4 \
    address or an IPv6 address in brackets and PORT 1 to 65535, with nothing after the port";
pub(super) const TLS_WITHOUT_HTTPS_MESSAGE: &str =
    "only an https endpoint uses certificates: change endpoint to https://HOST:PORT or remove tls";
pub(super) const TLS_MISSING_MESSAGE: &str = "an https endpoint needs tls.secretRef: name the Secret with ca.crt, and tls.crt and tls.key if the driver asks for them";
pub(super) const NAMESPACE_MESSAGE: &str = "must be the name of a namespace: at most 63 lower-case letters, digits or '-', beginning and ending with a letter or digit";
pub(super) const SIDECAR_NAMESPACES_MESSAGE: &str = "must name at most 8 namespaces, each once";
pub(super) const OBJECT_NAME_MESSAGE: &str = "must be the name of a Secret: at most 253 lower-case letters, digits, '-' or '.', beginning and ending with a letter or digit";
pub(super) const PUBLISH_SECRETS_MESSAGE: &str =
    "must have at most 64 entries; leave out names to allow all Secrets of a namespace";
pub(super) const SECRET_NAMES_MESSAGE: &str =
    "must have 1 to 64 names; leave the field out to allow all Secrets of the namespace";
pub(super) const SERVER_NAME_MESSAGE: &str = "must be the DNS name or IP address in the driver's certificate, without a port; leave it out to use the host of endpoint";
pub(super) const WHOLE_SECONDS_MESSAGE: &str =
    "must be whole seconds, at least 1s, because a Lease counts whole seconds";
pub(super) const RENEW_DEADLINE_MESSAGE: &str =
    "must be shorter than leaderElection.leaseDuration: lower renewDeadline or raise leaseDuration";
pub(super) const RETRY_PERIOD_MESSAGE: &str =
    "1.2 times this must be shorter than leaderElection.renewDeadline: lower retryPeriod or raise renewDeadline";
pub(super) const SAMPLES_MESSAGE: &str = "must be a whole number from 0 (none) to 1000000 (all)";
pub(super) const TRACE_ANNOTATION_MESSAGE: &str =
    "must be the key of an annotation that ends in traceparent, such as tracing.k8s.io/traceparent";
pub(super) const ANNOTATIONS_MESSAGE: &str = "must name at most 8 annotations";
pub(super) const ATTEMPTS_MESSAGE: &str = "must be a whole number from 1 to 1000";
pub(super) const TRACE_AGE_MESSAGE: &str = "must be a duration from 1m to 24h, such as 1h";
pub(super) const DURATION_MESSAGE: &str = "must be a duration from 1ms to 24h, such as 30s or 1m30s";
pub(super) const BACKOFF_ORDER_MESSAGE: &str = "must not be longer than backoff.max: lower initial or raise max";
pub(super) const FACTOR_MESSAGE: &str =
    "must be a whole number from 100 (each wait is as long as the one before) to 1000";
pub(super) const JITTER_MESSAGE: &str = "must be a whole number from 0 to 100";
pub(super) const CALLS_MESSAGE: &str = "must be a whole number from 0 (no limit) to 10000";
pub(super) const ENTRIES_MESSAGE: &str = "must be a whole number from 0 (the driver chooses) to 1000000";
pub(super) const FS_TYPE_MESSAGE: &str = "must be the name of a file system such as ext4: at most 63 letters, digits, \
    '.', '_' or '-'; leave it empty to let the driver choose";

/// Durations that cannot overflow in the API server, where an overflow would hide our message: Go's syntax without a
/// minus sign, with as many digits for each unit as 24 hours need. A text of 32 characters stays below 292 years.
fn bounded_duration_pattern() -> String {
    let units = [("[hms]", 5), ("ms", 8), ("(us|µs|μs|ns)", 14)]
        .map(|(unit, digits)| format!("([0-9]{{1,{digits}}}([.][0-9]*)?|[.][0-9]+){unit}"))
        .join("|");
    format!("^[+]?({units})+$")
}

/// A duration from 1ms to 24h. A text that does not parse fails this rule too, with the same message.
pub(super) fn duration_range() -> Rule {
    let pattern = bounded_duration_pattern();
    Rule::new(format!(
        "self.matches('{pattern}') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')"
    ))
    .message(DURATION_MESSAGE)
}

/// A duration from 1m to 24h.
pub(super) fn trace_age() -> Rule {
    let pattern = bounded_duration_pattern();
    Rule::new(format!(
        "self.matches('{pattern}') && duration(self) >= duration('1m') && duration(self) <= duration('24h')"
    ))
    .message(TRACE_AGE_MESSAGE)
}

/// `initial <= max`; passes when either does not parse, because that has its own message. The API server also holds the
/// default `{}` of the group to this rule, before it fills in the defaults of the fields.
pub(super) fn backoff_order() -> Rule {
    let pattern = bounded_duration_pattern();
    Rule::new(format!(
        "!has(self.initial) || !has(self.max) || !self.initial.matches('{pattern}') || \
         !self.max.matches('{pattern}') || duration(self.initial) <= duration(self.max)"
    ))
    .message(BACKOFF_ORDER_MESSAGE)
    .field_path(".initial")
}

/// The schema of one condition, with the bounds that metav1.Condition has as markers of controller-gen.
pub(super) fn condition() -> Value {
    let text = |description: &str, most: u32| json!({"type": "string", "description": description, "maxLength": most});
    let mut reason = text("Why the condition has its status: one CamelCase word.", 1024);
    reason["minLength"] = json!(1);
    reason["pattern"] = json!("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$");
    let mut kind = text("Type of the condition, such as Ready.", 316);
    kind["pattern"] = json!("^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$");
    json!({
        "type": "object",
        "description": "One aspect of the driver and its attachments.",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When the status last changed.",
            },
            "message": text("What a person should know and do.", 32768),
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "metadata.generation that the condition describes.",
            },
            "reason": reason,
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether the aspect holds.",
            },
            "type": kind,
        },
    })
}

/// The name format of the CSI spec.
pub(super) fn driver_name() -> Rule {
    Rule::new("self.matches('^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$')").message(DRIVER_NAME_MESSAGE)
}

/// All rules of an endpoint, the scheme first.
pub(super) fn endpoint() -> [Rule; 5] {
    [
        endpoint_scheme(),
        endpoint_unix_path(),
        endpoint_unix_length(),
        endpoint_http(),
        endpoint_https(),
    ]
}

/// The scheme of an endpoint.
fn endpoint_scheme() -> Rule {
    Rule::new("self.startsWith('unix:') || self.startsWith('http://') || self.startsWith('https://')")
        .message(ENDPOINT_SCHEME_MESSAGE)
}

/// An absolute path without control characters that does not end in a slash.
fn endpoint_unix_path() -> Rule {
    Rule::new("!self.startsWith('unix:') || self.matches('^unix:///([^[:cntrl:]]*[^/[:cntrl:]])$')")
        .message(UNIX_PATH_MESSAGE)
}

/// The length of the path in bytes, not characters.
fn endpoint_unix_length() -> Rule {
    Rule::new(format!(
        "!self.startsWith('unix://') || size(bytes(self)) - size('unix://') <= {MAX_SOCKET_PATH_BYTES}"
    ))
    .message(UNIX_LENGTH_MESSAGE)
}

/// A port from 1 to 65535.
const PORT: &str = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
/// A DNS name or an IPv4 address.
const HOST: &str = "[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?";

/// A loopback host and a port from 1 to 65535.
fn endpoint_http() -> Rule {
    Rule::new(format!(
        "!self.startsWith('http://') || self.matches('^http://(127[.]0[.]0[.]1|[[]::1[]]|localhost):{PORT}$')"
    ))
    .message(HTTP_MESSAGE)
}

/// A host and a port from 1 to 65535. Whether what stands in brackets is an address, the operator alone finds out.
fn endpoint_https() -> Rule {
    Rule::new(format!(
        "!self.startsWith('https://') || self.matches('^https://({HOST}|[[][0-9a-fA-F:.]{{2,45}}[]]):{PORT}$')"
    ))
    .message(HTTPS_MESSAGE)
}

/// Certificates exactly where they are used.
pub(super) fn tls() -> [Rule; 2] {
    [
        Rule::new("!has(self.tls) || !has(self.endpoint) || self.endpoint.startsWith('https://')")
            .message(TLS_WITHOUT_HTTPS_MESSAGE)
            .field_path(".tls"),
        Rule::new("has(self.tls) || !has(self.endpoint) || !self.endpoint.startsWith('https://')")
            .message(TLS_MISSING_MESSAGE)
            .field_path(".tls"),
    ]
}

/// The name of a namespace (a DNS label).
pub(super) fn namespace() -> Rule {
    Rule::new("self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')").message(NAMESPACE_MESSAGE)
}

/// The schema of one namespace in a list.
pub(super) fn namespace_item() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_NAMESPACE,
        "x-kubernetes-validations": [namespace()],
    })
}

/// As [`namespace`], or nothing.
pub(super) fn namespace_or_empty() -> Rule {
    Rule::new("self.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$')").message(NAMESPACE_MESSAGE)
}

/// The name of an object (a DNS subdomain).
pub(super) fn object_name() -> Rule {
    Rule::new("self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$')")
        .message(OBJECT_NAME_MESSAGE)
}

/// The schema of one name in `publishSecrets`.
pub(super) fn secret_name() -> serde_json::Value {
    serde_json::json!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_HOST,
        "x-kubernetes-validations": [object_name()],
    })
}

/// What a certificate can be for: a DNS name or an address.
pub(super) fn server_name() -> Rule {
    Rule::new(format!("self.matches('^({HOST}|[0-9a-fA-F:.]{{2,45}})$')")).message(SERVER_NAME_MESSAGE)
}

/// A duration without fractions of a second, and not zero. What does not parse has its own message; fractions of a
/// millisecond, which CEL cannot show cheaply, are left to the operator.
pub(super) fn whole_seconds() -> Rule {
    let pattern = bounded_duration_pattern();
    Rule::new(format!(
        "!self.matches('{pattern}') || (duration(self) >= duration('1s') && \
         duration(self).getMilliseconds() % 1000 == 0)"
    ))
    .message(WHOLE_SECONDS_MESSAGE)
}

/// `renewDeadline < leaseDuration` and `1.2 * retryPeriod < renewDeadline`, as in client-go; each passes when a duration
/// does not parse or is too long, because that has its own message.
pub(super) fn election_order() -> [Rule; 2] {
    let pattern = bounded_duration_pattern();
    let bad = |field: &str| {
        format!("!has(self.{field}) || !self.{field}.matches('{pattern}') || duration(self.{field}) > duration('24h')")
    };
    let times = |field: &str, count: usize| vec![format!("duration(self.{field})"); count].join(" + ");
    [
        Rule::new(format!(
            "{} || {} || duration(self.renewDeadline) < duration(self.leaseDuration)",
            bad("renewDeadline"),
            bad("leaseDuration")
        ))
        .message(RENEW_DEADLINE_MESSAGE)
        .field_path(".renewDeadline"),
        Rule::new(format!(
            "{} || {} || {} < {}",
            bad("renewDeadline"),
            bad("retryPeriod"),
            times("retryPeriod", 6),
            times("renewDeadline", 5)
        ))
        .message(RETRY_PERIOD_MESSAGE)
        .field_path(".retryPeriod"),
    ]
}

/// The schema of one key in `tracing.annotations`.
pub(super) fn trace_annotation() -> serde_json::Value {
    let rule =
        Rule::new("self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?([a-zA-Z0-9][a-zA-Z0-9._-]*[._-])?traceparent$')")
            .message(TRACE_ANNOTATION_MESSAGE);
    serde_json::json!({
        "type": "string",
        "maxLength": MAX_ANNOTATION_KEY,
        "x-kubernetes-validations": [rule],
    })
}

/// A file system type, or nothing.
pub(super) fn fs_type() -> Rule {
    Rule::new("self.matches('^[a-zA-Z0-9._-]*$')").message(FS_TYPE_MESSAGE)
}
