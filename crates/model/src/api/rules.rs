//! The rules of AttacherConfig's fields: each with its limits, its form for the API server (CEL), the same as a check, and the message of
//! both ([`SpecProblem`]). The path of the field stands in front of the message.
//!
//! The CEL rules are cheap by construction: every string has a maximum length.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use kube_core::Rule;
use serde_json::{Value, json};

use super::duration::GoDuration;

/// Longest endpoint text; the parts have tighter limits of their own.
pub(super) const MAX_ENDPOINT: usize = 272;
/// `sockaddr_un.sun_path` holds 108 bytes with the terminating zero.
pub(super) const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Most calls in flight or per second that can be asked for.
pub(super) const MAX_CALLS: i64 = 10_000;
/// Most entries of a page that can be asked for.
pub(super) const MAX_ENTRIES: i64 = 1_000_000;
/// One million, the whole of `samplingRatePerMillion`.
pub(super) const MILLION: i64 = 1_000_000;
/// Most namespaces in which another attacher's Lease is looked for.
pub(super) const MAX_SIDECAR_NAMESPACES: usize = 8;
/// Most annotations that are searched for a trace context.
pub(super) const MAX_ANNOTATIONS: usize = 8;
/// Where a trace context is looked for: the key of KEP-5915, then that of Argo Workflows.
pub(super) const TRACE_ANNOTATIONS: [&str; 2] = ["tracing.k8s.io/traceparent", "opentelemetry.io/traceparent"];
/// Most attempts in one trace that can be asked for.
pub(super) const MAX_ATTEMPTS: i64 = 1_000;
/// Most entries of `publishSecrets`, and names in each.
pub(super) const MAX_PUBLISH_SECRETS: usize = 64;
/// Longest DNS name, hence host and name of most objects.
const MAX_HOST: usize = 253;

/// A broken rule. The message says what is accepted instead; the API server says the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant has its message")]
pub enum SpecProblem {
    #[error(
        "must be the name that the driver answers to GetPluginInfo: at most 63 letters, digits, '-' or '.', \
         beginning and ending with a letter or digit; leave the field out to accept any driver"
    )]
    DriverName,
    #[error(
        "must be unix:///absolute/path/to/csi.sock, https://HOST:PORT with tls, or http://HOST:PORT where HOST is \
         127.0.0.1, [::1] or localhost; no other scheme is accepted"
    )]
    EndpointScheme,
    #[error(
        "the socket path must be absolute and name a socket: write three slashes and no slash at the end, as in \
         unix:///csi/csi.sock"
    )]
    UnixPath,
    #[error(
        "the socket path must be at most 107 bytes long, the limit of the operating system: mount the socket \
         directory at a shorter path"
    )]
    UnixPathTooLong,
    #[error(
        "a plain http endpoint must be on the loopback interface: write http://HOST:PORT, HOST being 127.0.0.1, \
         [::1] or localhost and PORT 1 to 65535, with nothing after the port"
    )]
    HttpEndpoint,
    #[error(
        "an https endpoint must be https://HOST:PORT, HOST being a DNS name, an IPv4 address or an IPv6 address in \
         brackets and PORT 1 to 65535, with nothing after the port"
    )]
    HttpsEndpoint,
    #[error(
        "a host whose last part is a number must be an IPv4 address, four numbers from 0 to 255 without leading zeros, as in \
         https://10.0.0.7:9000: correct the address, or write a DNS name"
    )]
    NumericHost,
    #[error("only an https endpoint uses certificates: change endpoint to https://HOST:PORT or remove tls")]
    TlsWithoutHttps,
    #[error(
        "an https endpoint needs tls.secretRef: name the Secret with ca.crt, and tls.crt and tls.key if the driver \
         asks for them"
    )]
    TlsMissing,
    #[error(
        "must be the name of a namespace: at most 63 lower-case letters, digits or '-', beginning and ending with a \
         letter or digit"
    )]
    Namespace,
    #[error("must name at most 8 namespaces, each once")]
    SidecarNamespaces,
    #[error(
        "must be the name of a Secret: at most 253 lower-case letters, digits, '-' or '.', beginning and ending \
         with a letter or digit"
    )]
    SecretName,
    #[error("must have at most 64 entries; leave out names to allow all Secrets of a namespace")]
    PublishSecrets,
    #[error("must have 1 to 64 names; leave the field out to allow all Secrets of the namespace")]
    SecretNames,
    #[error(
        "must be the DNS name or IP address in the driver's certificate, without a port or brackets; leave it out to \
         use the host of endpoint"
    )]
    ServerName,
    #[error("must be a duration from 1ms to 24h, such as 30s or 1m30s")]
    DurationRange,
    #[error("must not be longer than backoff.max: lower initial or raise max")]
    BackoffOrder,
    #[error("must be a whole number from 100 (each wait is as long as the one before) to 1000")]
    Factor,
    #[error("must be a whole number from 0 to 100")]
    Jitter,
    #[error("must be a whole number from 0 (no limit) to 10000")]
    Calls,
    #[error("must be a whole number from 0 (the driver chooses) to 1000000")]
    Entries,
    #[error("must be whole seconds, at least 1s, because a Lease counts whole seconds")]
    WholeSeconds,
    #[error("must be shorter than leaderElection.leaseDuration: lower renewDeadline or raise leaseDuration")]
    RenewDeadline,
    #[error(
        "1.2 times this must be shorter than leaderElection.renewDeadline: lower retryPeriod or raise \
         renewDeadline"
    )]
    RetryPeriod,
    #[error("must be a whole number from 0 (none) to 1000000 (all)")]
    Samples,
    #[error("must be the key of an annotation that ends in traceparent, such as tracing.k8s.io/traceparent")]
    TraceAnnotation,
    #[error("must name at most 8 annotations")]
    Annotations,
    #[error("must be a whole number from 1 to 1000")]
    Attempts,
    #[error("must be a duration from 1m to 24h, such as 1h")]
    TraceAge,
    #[error(
        "must be the name of a file system such as ext4: at most 63 letters, digits, '.', '_' or '-'; leave it \
         empty to let the driver choose"
    )]
    FsType,
    #[error("must be set where provisioning is: a claim is provisioned by the driver that it names")]
    DriverNameMissing,
    #[error(
        "must be 1 to 63 lower-case letters, digits, '.' or '-', such as pvc; each part between two points begins and \
         ends with a letter or digit, but the last one may end with '-'"
    )]
    VolumeNamePrefix,
    #[error("must be a whole number from 16 to 32; leave it out to use the whole UID")]
    VolumeNameUuidLength,
    #[error(
        "volumeNamePrefix and volumeNameUUIDLength cannot be changed: remove provisioning and add it again when no \
         PersistentVolumeClaim waits for a volume"
    )]
    VolumeNamesChanged,
    #[error("must be the name of a namespace, or * for that of each PersistentVolumeClaim itself")]
    NamespaceOrOwn,
    #[error("must name the Secrets where the namespace is *: list the names that every namespace may use")]
    NamesOfOwn,
    /// The value does not have the type of the field; what serde says of it.
    #[error("{0}")]
    Malformed(String),
}

/// A rule of the API server, with the message of its problem.
fn cel(expression: impl Into<String>, problem: &SpecProblem) -> Rule {
    Rule::new(expression.into()).message(problem.to_string().as_str())
}

/// The form of a text.
pub(super) struct TextRule {
    /// Fewest characters that the schema accepts.
    pub(super) min: usize,
    /// Most characters, which are bytes as well: every form is ASCII.
    pub(super) max: usize,
    /// The whole text, as a regular expression of RE2.
    form: &'static str,
    /// The same as a function.
    has_form: fn(&str) -> bool,
    problem: SpecProblem,
}

impl TextRule {
    /// The rule of the API server.
    pub(super) fn rule(&self) -> Rule {
        cel(format!("self.matches('^{}$')", self.form), &self.problem)
    }

    /// As [`Self::rule`], of a text that may be empty.
    pub(super) fn rule_or_empty(&self) -> Rule {
        cel(format!("self.matches('^({})?$')", self.form), &self.problem)
    }

    /// The schema of one such text in a list.
    pub(super) fn item(&self) -> Value {
        let mut item = json!({"type": "string", "maxLength": self.max, "x-kubernetes-validations": [self.rule()]});
        if self.min > 0 {
            item["minLength"] = self.min.into();
        }
        item
    }

    pub(super) fn check(&self, text: &str) -> Result<(), SpecProblem> {
        if text.len() <= self.max && (self.has_form)(text) {
            Ok(())
        } else {
            Err(self.problem.clone())
        }
    }
}

/// The letters, digits and points of a DNS name or an IPv4 address.
macro_rules! host {
    () => {
        "[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?"
    };
}

/// A DNS label of lower-case letters.
macro_rules! label {
    () => {
        "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    };
}

/// The name of a driver (CSI spec, "GetPluginInfo").
pub(super) static DRIVER_NAME: TextRule = TextRule {
    min: 0,
    max: 63,
    form: "[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?",
    has_form: is_dotted,
    problem: SpecProblem::DriverName,
};
/// A file system type, or nothing.
pub(super) static FS_TYPE: TextRule = TextRule {
    min: 0,
    max: 63,
    form: "[a-zA-Z0-9._-]*",
    has_form: |text| text.bytes().all(is_name_byte),
    problem: SpecProblem::FsType,
};
/// The name of a namespace: a DNS label.
pub(super) static NAMESPACE: TextRule = TextRule {
    min: 1,
    max: 63,
    form: label!(),
    has_form: is_label,
    problem: SpecProblem::Namespace,
};
/// The name of a namespace, or `*`.
pub(super) static NAMESPACE_OR_OWN: TextRule = TextRule {
    min: 1,
    max: 63,
    form: concat!("([*]|", label!(), ")"),
    has_form: |text| text == "*" || is_label(text),
    problem: SpecProblem::NamespaceOrOwn,
};
/// What the names of volumes begin with: DNS labels with points between them, as what follows makes the name of a PersistentVolume of it.
/// A dash and the UID follow, so that it may end with dashes.
pub(super) static VOLUME_NAME_PREFIX: TextRule = TextRule {
    min: 1,
    max: 63,
    form: concat!(label!(), "([.]", label!(), ")*-*"),
    has_form: is_volume_name_prefix,
    problem: SpecProblem::VolumeNamePrefix,
};
/// The name of a Secret: DNS labels with points between them.
pub(super) static SECRET_NAME: TextRule = TextRule {
    min: 1,
    max: MAX_HOST,
    form: concat!(label!(), "([.]", label!(), ")*"),
    has_form: is_subdomain,
    problem: SpecProblem::SecretName,
};
/// What a certificate can be for: a DNS name or an address.
pub(super) static SERVER_NAME: TextRule = TextRule {
    min: 1,
    max: MAX_HOST,
    form: concat!("(", host!(), "|[0-9a-fA-F:.]{2,45})"),
    has_form: |text| is_dotted(text) && !is_numeric_name(text) || text.parse::<IpAddr>().is_ok(),
    problem: SpecProblem::ServerName,
};
/// The key of an annotation with a trace context: a DNS name and a slash or neither, then `traceparent`, or a name that ends in it after a
/// point, a dash or an underscore. With the 63 characters of the name it has at most 317.
pub(super) static TRACE_ANNOTATION: TextRule = TextRule {
    min: 0,
    max: 317,
    form: "([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?([a-zA-Z0-9][a-zA-Z0-9._-]*[._-])?traceparent",
    has_form: is_trace_annotation,
    problem: SpecProblem::TraceAnnotation,
};

/// Whether a text begins and ends with bytes of one sort, and has only these and `others` between.
fn is_enclosed(text: &str, ends: impl Fn(u8) -> bool, others: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| ends(*byte))
        && bytes.last().is_some_and(|byte| ends(*byte))
        && bytes.iter().all(|byte| ends(*byte) || others.contains(byte))
}

const fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Whether a text has the form of a DNS label (RFC 1123), whatever its length.
pub(crate) fn is_label(text: &str) -> bool {
    is_enclosed(text, is_lower, b"-")
}

/// Whether a text has the form of a DNS subdomain (RFC 1123), whatever its length: labels with points between them.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// Whether a text can be the value of a label that is not empty.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.len() <= 63 && is_enclosed(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// Whether a dash and letters or digits after the text make a DNS subdomain of it, whatever its length.
pub(crate) fn is_volume_name_prefix(text: &str) -> bool {
    is_subdomain(text.trim_end_matches('-'))
}

fn is_dotted(text: &str) -> bool {
    is_enclosed(text, |byte| byte.is_ascii_alphanumeric(), b"-.")
}

/// A DNS name or an IPv4 address, by its characters.
pub(super) fn is_host(text: &str) -> bool {
    text.len() <= MAX_HOST && is_dotted(text)
}

/// Whether the last part of a host is a number, and the host is no IPv4 address. No name ends in a number (URL Standard, "ends in a
/// number checker"): such a host is an address with a typing mistake, and no certificate can be for it.
pub(super) fn is_numeric_name(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.bytes().all(|byte| byte.is_ascii_digit()) && host.parse::<Ipv4Addr>().is_err()
}

fn is_trace_annotation(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_stem = |stem: &str| {
        stem.is_empty()
            || stem.starts_with(|first: char| first.is_ascii_alphanumeric())
                && stem.ends_with(['.', '_', '-'])
                && stem.bytes().all(is_name_byte)
    };
    prefix.is_none_or(|prefix| is_enclosed(prefix, is_lower, b".-"))
        && name.strip_suffix("traceparent").is_some_and(is_stem)
}

/// A range of durations that ends at 24 h: a longer one is a typing mistake.
pub(super) struct DurationRule {
    shortest: Duration,
    /// `shortest` for CEL.
    shortest_text: &'static str,
    problem: SpecProblem,
}

/// The longest duration of any setting.
pub const MAX_DURATION: Duration = Duration::from_hours(24);
/// Any setting: below a millisecond is a unit mistake.
pub(super) static DURATION: DurationRule = DurationRule {
    shortest: Duration::from_millis(1),
    shortest_text: "1ms",
    problem: SpecProblem::DurationRange,
};
/// The time that one trace may cover: below a minute, most traces would be pieces.
pub(super) static TRACE_AGE: DurationRule = DurationRule {
    shortest: Duration::from_mins(1),
    shortest_text: "1m",
    problem: SpecProblem::TraceAge,
};

impl DurationRule {
    /// The rule of the API server. A text that does not parse fails it too, with the same message.
    pub(super) fn rule(&self) -> Rule {
        let (pattern, shortest) = (bounded_duration_pattern(), self.shortest_text);
        cel(
            format!(
                "self.matches('{pattern}') && duration(self) >= duration('{shortest}') && duration(self) <= duration('24h')"
            ),
            &self.problem,
        )
    }

    pub(super) fn check(&self, value: GoDuration) -> Result<Duration, SpecProblem> {
        let range = self.shortest..=MAX_DURATION;
        let in_range = value.to_std().filter(|span| range.contains(span));
        in_range.ok_or_else(|| self.problem.clone())
    }
}

/// Durations that cannot overflow in the API server, where an overflow would hide our message: Go's syntax without a
/// minus sign, with as many digits for each unit as 24 hours need. A text of 32 characters stays below 292 years.
fn bounded_duration_pattern() -> String {
    let units = [("[hms]", 5), ("ms", 8), ("(us|µs|μs|ns)", 14)]
        .map(|(unit, digits)| format!("([0-9]{{1,{digits}}}([.][0-9]*)?|[.][0-9]+){unit}"))
        .join("|");
    format!("^[+]?({units})+$")
}

/// `initial <= max`; passes when either does not parse, because that has its own message. The API server also holds the
/// default `{}` of the group to this rule, before it fills in the defaults of the fields.
pub(super) fn backoff_order() -> Rule {
    let pattern = bounded_duration_pattern();
    let expression = format!(
        "!has(self.initial) || !has(self.max) || !self.initial.matches('{pattern}') || \
         !self.max.matches('{pattern}') || duration(self.initial) <= duration(self.max)"
    );
    cel(expression, &SpecProblem::BackoffOrder).field_path(".initial")
}

/// A duration without fractions of a second, and not zero. What does not parse has its own message; fractions of a
/// millisecond, which CEL cannot show cheaply, are left to the operator.
pub(super) fn whole_seconds() -> Rule {
    let pattern = bounded_duration_pattern();
    let expression = format!(
        "!self.matches('{pattern}') || (duration(self) >= duration('1s') && \
         duration(self).getMilliseconds() % 1000 == 0)"
    );
    cel(expression, &SpecProblem::WholeSeconds)
}

/// `renewDeadline < leaseDuration` and `1.2 * retryPeriod < renewDeadline`, as in client-go; each passes when a duration
/// does not parse or is too long, because that has its own message.
pub(super) fn election_order() -> [Rule; 2] {
    let pattern = bounded_duration_pattern();
    let bad = |field: &str| {
        format!("!has(self.{field}) || !self.{field}.matches('{pattern}') || duration(self.{field}) > duration('24h')")
    };
    let (no_renewal, no_lease, no_retry) = (bad("renewDeadline"), bad("leaseDuration"), bad("retryPeriod"));
    let times = |field: &str, count: usize| vec![format!("duration(self.{field})"); count].join(" + ");
    let (six, five) = (times("retryPeriod", 6), times("renewDeadline", 5));
    let renewal = format!("{no_renewal} || {no_lease} || duration(self.renewDeadline) < duration(self.leaseDuration)");
    let retry = format!("{no_renewal} || {no_retry} || {six} < {five}");
    [
        cel(renewal, &SpecProblem::RenewDeadline).field_path(".renewDeadline"),
        cel(retry, &SpecProblem::RetryPeriod).field_path(".retryPeriod"),
    ]
}

/// All rules of an endpoint, the scheme first.
pub(super) fn endpoint() -> [Rule; 6] {
    const PORT: &str = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
    const HOST: &str = host!();
    const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    let scheme = "self.startsWith('unix:') || self.startsWith('http://') || self.startsWith('https://')";
    let path = "!self.startsWith('unix:') || self.matches('^unix:///([^[:cntrl:]]*[^/[:cntrl:]])$')";
    // In bytes, not characters.
    let length =
        format!("!self.startsWith('unix://') || size(bytes(self)) - size('unix://') <= {MAX_SOCKET_PATH_BYTES}");
    let http =
        format!("!self.startsWith('http://') || self.matches('^http://(127[.]0[.]0[.]1|[[]::1[]]|localhost):{PORT}$')");
    // Only the operator finds out whether an address is in the brackets.
    let https = format!(
        "!self.startsWith('https://') || self.matches('^https://({HOST}|[[][0-9a-fA-F:.]{{2,45}}[]]):{PORT}$')"
    );
    let numeric = format!(
        "!self.matches('^https://([^:]*[.])?[0-9]+:[0-9]+$') || \
         self.matches('^https://({OCTET}[.]){{3}}{OCTET}:[0-9]+$')"
    );
    [
        cel(scheme, &SpecProblem::EndpointScheme),
        cel(path, &SpecProblem::UnixPath),
        cel(length, &SpecProblem::UnixPathTooLong),
        cel(http, &SpecProblem::HttpEndpoint),
        cel(https, &SpecProblem::HttpsEndpoint),
        cel(numeric, &SpecProblem::NumericHost),
    ]
}

/// All rules that are about more than one field of the spec: certificates are exactly where they are used, and who provisions is named.
pub(super) fn of_spec() -> [Rule; 3] {
    let unused = "!has(self.tls) || !has(self.endpoint) || self.endpoint.startsWith('https://')";
    let missing = "has(self.tls) || !has(self.endpoint) || !self.endpoint.startsWith('https://')";
    let named = "!has(self.provisioning) || has(self.driverName)";
    [
        cel(unused, &SpecProblem::TlsWithoutHttps).field_path(".tls"),
        cel(missing, &SpecProblem::TlsMissing).field_path(".tls"),
        cel(named, &SpecProblem::DriverNameMissing).field_path(".driverName"),
    ]
}

/// Secrets in the namespaces of claims are listed by their names.
pub(super) fn names_of_own() -> Rule {
    cel("self.namespace != '*' || has(self.names)", &SpecProblem::NamesOfOwn).field_path(".names")
}

/// The names of volumes stay what they are.
pub(super) fn volume_names_stay() -> [Rule; 1] {
    let prefix = "self.volumeNamePrefix == oldSelf.volumeNamePrefix";
    let length = "(has(self.volumeNameUUIDLength) ? self.volumeNameUUIDLength : 0) == \
                  (has(oldSelf.volumeNameUUIDLength) ? oldSelf.volumeNameUUIDLength : 0)";
    [cel(format!("{prefix} && {length}"), &SpecProblem::VolumeNamesChanged)]
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
