use std::time::Duration;

use http::HeaderMap;

use super::*;

fn settings(pairs: &[(&str, &str)]) -> ParsedEnvironment {
    let environment = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    parse(&environment, "9.9.9")
}

fn otlp(parsed: &ParsedEnvironment) -> &OtlpSettings {
    match parsed.settings.exporters.as_slice() {
        [ExporterSettings::Otlp(otlp)] => otlp,
        other => panic!("expected one OTLP exporter, not {other:?}"),
    }
}

fn following(root: Sampler) -> Sampler {
    Sampler::ParentBased(Box::new(root))
}

/// The types of the SDK can be compared by this alone.
fn shown(settings: &impl std::fmt::Debug) -> String {
    format!("{settings:?}")
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

#[test]
fn an_empty_environment_means_the_documented_defaults_and_no_tracing() {
    let parsed = settings(&[]);
    assert_eq!(parsed.warnings, Vec::<String>::new());
    let expected = TraceSettings {
        exporters: Vec::new(),
        transport: TransportSettings {
            compression: None,
            timeout: Duration::from_secs(10),
            certificate: None,
            client_certificate: None,
            client_key: None,
            headers: HeaderMap::new(),
        },
        sampler: following(Sampler::AlwaysOn),
        propagates: true,
        limits: SpanLimits {
            max_attributes_per_span: 128,
            max_events_per_span: 128,
            max_links_per_span: 128,
            max_attributes_per_event: 128,
            max_attributes_per_link: 128,
        },
        value_length: 4096,
        batch: BatchSettings {
            schedule_delay: Duration::from_secs(5),
            export_timeout: Duration::from_secs(30),
            max_queue_size: 2048,
            max_batch_size: 512,
        },
        resource: BTreeMap::from([
            ("service.name".to_owned(), "csi-attacher-operator".to_owned()),
            ("service.version".to_owned(), "9.9.9".to_owned()),
        ]),
        exemplars: ExemplarFilter::TraceBased,
        sdk_log_level: None,
    };
    assert_eq!(shown(&parsed.settings), shown(&expected));
}

/// The variables of a short form: `G` for the general endpoint, `S` for the signal's, `P` and `I` for the protocol and
/// insecure.
fn endpoint_variables(short: &str) -> Vec<(&'static str, &str)> {
    let variable = |(letter, value)| match letter {
        "G" => ("OTEL_EXPORTER_OTLP_ENDPOINT", value),
        "S" => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value),
        "P" => ("OTEL_EXPORTER_OTLP_PROTOCOL", value),
        "SP" => ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", value),
        "I" => ("OTEL_EXPORTER_OTLP_INSECURE", value),
        other => panic!("no variable {other}"),
    };
    short
        .split(';')
        .map(|pair| variable(pair.split_once('=').unwrap()))
        .collect()
}

#[test]
fn endpoint_and_protocol_table() {
    use Protocol::{Grpc, HttpBinary as HttpProtobuf, HttpJson};
    for (short, protocol, endpoint, warnings) in [
        ("G=http://c:4318", HttpProtobuf, "http://c:4318/v1/traces", 0),
        (
            "G= http://c:4318/base/ ",
            HttpProtobuf,
            "http://c:4318/base/v1/traces",
            0,
        ),
        ("S=http://c/x;G=http://d", HttpProtobuf, "http://c/x", 0),
        ("S=http://c/v1/traces", HttpProtobuf, "http://c/v1/traces", 0),
        ("G=http://c/v1/traces", HttpProtobuf, "http://c/v1/traces/v1/traces", 1),
        (
            "G=http://c/v1/traces/?a",
            HttpProtobuf,
            "http://c/v1/traces/v1/traces?a",
            1,
        ),
        ("G=http://c/v1/traces;P=grpc", Grpc, "http://c/v1/traces", 1),
        ("G=http://c/?a=b#x", HttpProtobuf, "http://c/v1/traces?a=b", 0),
        ("S=;G=http://d", HttpProtobuf, "http://d/v1/traces", 0),
        ("S=not a url;G=http://d", HttpProtobuf, "http://d/v1/traces", 1),
        ("G=http://c:4317;P=GRPC", Grpc, "http://c:4317", 0),
        ("G=c:4317;P=grpc", Grpc, "https://c:4317", 0),
        ("G=c:4317;P=grpc;I=TRUE", Grpc, "http://c:4317", 0),
        ("G=c:4317;P=grpc;I=yes", Grpc, "https://c:4317", 1),
        ("G=http://c;P=http/json", HttpJson, "http://c/v1/traces", 0),
        ("S=http://c/x;P=HTTP/JSON", HttpJson, "http://c/x", 0),
        ("G=http://c;P=thrift", HttpProtobuf, "http://c/v1/traces", 1),
        ("G=http://c;SP=thrift;P=grpc", Grpc, "http://c", 1),
        (
            "G=http://c;P=grpc;SP=http/protobuf",
            HttpProtobuf,
            "http://c/v1/traces",
            0,
        ),
    ] {
        let parsed = settings(&endpoint_variables(short));
        assert_eq!(
            (otlp(&parsed).protocol, otlp(&parsed).endpoint.as_str()),
            (protocol, endpoint),
            "{short}"
        );
        assert_eq!(parsed.warnings.len(), warnings, "{short}: {:?}", parsed.warnings);
    }
    for unusable in ["G=c:4318", "G=unix:///run/c.sock", "G=http://", "G=unix:///x;P=grpc"] {
        let parsed = settings(&endpoint_variables(unusable));
        assert_eq!(
            (parsed.settings.exporters.len(), parsed.warnings.len()),
            (0, 1),
            "{unusable}"
        );
    }
}

/// What logs and errors say of a collector: where it is, and nothing that may be a credential.
#[test]
fn a_collector_is_shown_without_what_may_be_secret() {
    let hint = "; gRPC is usually at port 4317, HTTP at 4318";
    for (protocol, endpoint, shown, is_encrypted, wanted) in [
        ("grpc", "http://c:4317", "http://c:4317 over grpc", false, ""),
        ("grpc", "http://c:4318", "http://c:4318 over grpc", false, hint),
        ("grpc", "HTTPS://c", "https://c over grpc", true, ""),
        ("grpc", "https://c:443", "https://c:443 over grpc", true, ""),
        (
            "http/protobuf",
            "http://me:s3cret@c/v1/traces/v1/traces?key=s3cret",
            "http://c/v1/traces/v1/traces over http/protobuf",
            false,
            hint,
        ),
        (
            "http/json",
            "https://c:4317/receiver/s3cret/v1/traces",
            "https://c:4317/…/…/v1/traces over http/json",
            true,
            hint,
        ),
        (
            "http/json",
            "http://[::1]:4318/v1/traces",
            "http://[::1]:4318/v1/traces over http/json",
            false,
            "",
        ),
    ] {
        let parsed = settings(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ]);
        let otlp = otlp(&parsed);
        assert_eq!(otlp.to_string(), shown);
        assert_eq!(
            (otlp.is_encrypted(), otlp.port_hint()),
            (is_encrypted, wanted),
            "{endpoint}"
        );
    }
}

#[test]
fn exporter_table() {
    // Exporters by letter: o = OTLP, c = console.
    for (disabled, exporter, endpoint, expected, warnings) in [
        ("", "", true, "o", 0),
        ("", "", false, "", 0),
        ("true", "console", true, "", 0),
        ("True", "", true, "", 0),
        ("1", "", true, "o", 1),
        ("false", "OTLP", true, "o", 0),
        ("", "otlp", false, "", 1),
        ("", "console", false, "c", 0),
        ("", "otlp, console ,otlp", true, "oc", 0),
        ("", "console,none", true, "", 0),
        ("", "otlp/stdout", true, "c", 0),
        ("", "OTLP/stdout,console", true, "c", 0),
        ("", "none", true, "", 0),
        ("", "zipkin", true, "o", 1),
        ("", ",", true, "o", 0),
        ("", "zipkin,console", true, "c", 1),
    ] {
        let mut pairs = vec![("OTEL_SDK_DISABLED", disabled), ("OTEL_TRACES_EXPORTER", exporter)];
        pairs.extend(endpoint.then_some(ENDPOINT));
        let parsed = settings(&pairs);
        let letters: String = parsed
            .settings
            .exporters
            .iter()
            .map(|exporter| {
                if matches!(exporter, ExporterSettings::Console) {
                    'c'
                } else {
                    'o'
                }
            })
            .collect();
        assert_eq!(
            (letters.as_str(), parsed.warnings.len()),
            (expected, warnings),
            "{pairs:?}: {:?}",
            parsed.warnings
        );
    }
}

#[test]
fn sampler_table() {
    use Sampler::{AlwaysOff, AlwaysOn, TraceIdRatioBased as Ratio};
    for (name, argument, root, parent_based, warnings) in [
        ("always_on", "", AlwaysOn, false, 0),
        ("ALWAYS_OFF", "", AlwaysOff, false, 0),
        ("traceidratio", "0.25", Ratio(0.25), false, 0),
        ("parentbased_always_on", "", AlwaysOn, true, 0),
        ("parentbased_always_off", "", AlwaysOff, true, 0),
        ("ParentBased_TraceIdRatio", "0", Ratio(0.0), true, 0),
        ("traceidratio", "", Ratio(1.0), false, 0),
        ("traceidratio", "1.5", Ratio(1.0), false, 1),
        ("traceidratio", "NaN", Ratio(1.0), false, 1),
        ("parentbased_traceidratio", "half", Ratio(1.0), true, 1),
    ] {
        let parsed = settings(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)]);
        let wanted = if parent_based { following(root) } else { root };
        assert_eq!(shown(&parsed.settings.sampler), shown(&wanted), "{name} {argument}");
        assert_eq!(parsed.warnings.len(), warnings, "{name} {argument}");
    }
    for (name, warnings) in [("", 0), ("xray", 1), ("parentbased_jaeger_remote", 1), ("on", 1)] {
        let parsed = settings(&[("OTEL_TRACES_SAMPLER", name)]);
        assert_eq!(
            (shown(&parsed.settings.sampler), parsed.warnings.len()),
            (shown(&following(AlwaysOn)), warnings),
            "{name}"
        );
    }
}

#[test]
fn propagator_table() {
    for (value, trace_context, warnings) in [
        ("", true, 0),
        ("tracecontext", true, 0),
        ("Baggage, TraceContext", true, 0),
        ("baggage", false, 0),
        ("none", false, 0),
        ("tracecontext,none", false, 0),
        ("b3", true, 1),
        ("b3,none", false, 1),
        ("b3,baggage", false, 1),
        ("b3,jaeger,tracecontext", true, 2),
    ] {
        let parsed = settings(&[("OTEL_PROPAGATORS", value)]);
        assert_eq!(parsed.settings.propagates, trace_context, "{value}");
        assert_eq!(parsed.warnings.len(), warnings, "{value}");
    }
}

#[test]
fn limit_table() {
    type Case = (&'static [(&'static str, &'static str)], usize, u32, usize);
    let cases: &[Case] = &[
        (&[("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "10")], 10, 128, 0),
        (
            &[
                ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "20"),
                ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "10"),
            ],
            20,
            128,
            0,
        ),
        (
            &[
                ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "-1"),
                ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "10"),
            ],
            10,
            128,
            1,
        ),
        (&[("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "0")], 0, 128, 0),
        (&[("OTEL_ATTRIBUTE_COUNT_LIMIT", "7")], 4096, 7, 0),
        (
            &[
                ("OTEL_ATTRIBUTE_COUNT_LIMIT", "7"),
                ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "8"),
            ],
            4096,
            8,
            0,
        ),
        (&[("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")], 4096, 128, 1),
    ];
    for (pairs, length, attributes, warnings) in cases {
        let parsed = settings(pairs);
        let attribute_limit = parsed.settings.limits.max_attributes_per_span;
        assert_eq!(
            (parsed.settings.value_length, attribute_limit, parsed.warnings.len()),
            (*length, *attributes, *warnings),
            "{pairs:?}"
        );
    }
    let parsed = settings(&[
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "1"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "2"),
        ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "3"),
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "4"),
    ]);
    let limits = parsed.settings.limits;
    assert_eq!(
        (
            limits.max_events_per_span,
            limits.max_links_per_span,
            limits.max_attributes_per_event,
            limits.max_attributes_per_link
        ),
        (1, 2, 3, 4)
    );
}

#[test]
fn batch_table() {
    type Case = (&'static [(&'static str, &'static str)], (u64, u64, usize, usize), usize);
    let cases: &[Case] = &[
        (
            &[("OTEL_BSP_SCHEDULE_DELAY", "100"), ("OTEL_BSP_EXPORT_TIMEOUT", "200")],
            (100, 200, 2048, 512),
            0,
        ),
        (
            &[("OTEL_BSP_SCHEDULE_DELAY", "-0.5"), ("OTEL_BSP_EXPORT_TIMEOUT", "-5")],
            (5000, 30000, 2048, 512),
            2,
        ),
        (
            &[("OTEL_BSP_SCHEDULE_DELAY", "0"), ("OTEL_BSP_EXPORT_TIMEOUT", "0")],
            (0, 86_400_000, 2048, 512),
            0,
        ),
        (
            &[("OTEL_BSP_SCHEDULE_DELAY", "18446744073709551615")],
            (5000, 30000, 2048, 512),
            1,
        ),
        (&[("OTEL_BSP_MAX_QUEUE_SIZE", "100")], (5000, 30000, 100, 100), 0),
        (
            &[
                ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
                ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0"),
            ],
            (5000, 30000, 2048, 512),
            2,
        ),
        (
            &[
                ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
                ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "11"),
            ],
            (5000, 30000, 10, 10),
            1,
        ),
    ];
    for (pairs, (delay, timeout, queue, batch), warnings) in cases {
        let parsed = settings(pairs);
        let expected = BatchSettings {
            schedule_delay: Duration::from_millis(*delay),
            export_timeout: Duration::from_millis(*timeout),
            max_queue_size: *queue,
            max_batch_size: *batch,
        };
        assert_eq!(
            (parsed.settings.batch, parsed.warnings.len()),
            (expected, *warnings),
            "{pairs:?}"
        );
    }
}

#[test]
fn resource_merges_environment_over_pod_over_defaults() {
    let parsed = settings(&[
        ("POD_NAME", "p"),
        ("POD_NAMESPACE", "ns"),
        ("POD_UID", "u"),
        ("NODE_NAME", "n"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=x, k8s.node.name=m%2C1 ,team=a",
        ),
    ]);
    let get = |key: &str| parsed.settings.resource.get(key).map(String::as_str);
    let expected = [
        ("service.name", "x"),
        ("service.namespace", "ns"),
        ("service.instance.id", "u"),
        ("k8s.namespace.name", "ns"),
        ("k8s.pod.name", "p"),
        ("k8s.pod.uid", "u"),
        ("k8s.node.name", "m,1"),
        ("team", "a"),
    ];
    for (key, value) in expected {
        assert_eq!(get(key), Some(value), "{key}");
    }
    let both = [
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=x"),
        ("OTEL_SERVICE_NAME", "y"),
    ];
    assert_eq!(settings(&both).settings.resource["service.name"], "y");
    // An empty value counts as not set, here as well.
    let empty = [
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=,k8s.pod.name=,team="),
        ("POD_NAME", "p"),
    ];
    let empty = settings(&empty).settings.resource;
    let left: Vec<_> = empty.keys().map(String::as_str).collect();
    assert_eq!(left, ["k8s.pod.name", "service.name", "service.version"]);
    assert_eq!(empty["k8s.pod.name"], "p");
    for unusable in ["novalue", "a=%zz", "a=%f", "=b", "a=%ff", "good=1,bad"] {
        let parsed = settings(&[("OTEL_RESOURCE_ATTRIBUTES", unusable)]);
        assert_eq!(
            (parsed.settings.resource.len(), parsed.warnings.len()),
            (2, 1),
            "{unusable}"
        );
    }
}

#[test]
fn headers_are_decoded_and_never_shown() {
    let secret = "Bearer%20s3cr3t-canary";
    let parsed = settings(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization={secret},x=1")),
    ]);
    assert_eq!(
        parsed.settings.transport.headers["authorization"],
        "Bearer s3cr3t-canary"
    );
    assert_eq!(parsed.settings.transport.headers["x"], "1");
    assert!(!format!("{parsed:?}").contains("s3cr3t-canary"));
    let broken = settings(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_HEADERS", "s3cr3t-canary"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "user:s3cr3t-canary@host"),
    ]);
    assert_eq!(broken.warnings.len(), 2);
    assert!(!format!("{broken:?}").contains("s3cr3t-canary"), "{broken:?}");
}

#[test]
fn transport_details_are_read() {
    let parsed = settings(&[
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2000"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/traces-ca"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
    ]);
    assert_eq!(parsed.warnings, Vec::<String>::new());
    let otlp = &parsed.settings.transport;
    assert_eq!(otlp.timeout, Duration::from_secs(2));
    assert_eq!(otlp.certificate.as_deref(), Some("/traces-ca".as_ref()));
    assert_eq!(otlp.client_certificate.as_deref(), Some("/cert".as_ref()));
    assert_eq!(otlp.client_key.as_deref(), Some("/key".as_ref()));
}

#[test]
fn certificates_beside_a_url_without_tls_cost_a_warning_each() {
    let files = [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key"),
    ];
    for (endpoint, warnings) in [("http://c:4318", 2), ("https://c:4318", 0), ("", 0)] {
        let parsed = settings(&[files[0], files[1], ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]);
        assert_eq!(parsed.warnings.len(), warnings, "{endpoint}: {:?}", parsed.warnings);
        let mut named = parsed.warnings.iter().zip(files);
        assert!(named.all(|(warning, (name, _))| warning.starts_with(name)));
    }
}

#[test]
fn compression_table() {
    const GZIP: Option<Compression> = Some(Compression::Gzip);
    let (signal, general) = (
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
        "OTEL_EXPORTER_OTLP_COMPRESSION",
    );
    for (of_signal, of_all, compression, warnings) in [
        ("", "", None, 0),
        ("", "GZip", GZIP, 0),
        ("none", "gzip", None, 0),
        ("gzip", "none", GZIP, 0),
        ("zstd", "gzip", GZIP, 1),
        ("", "zstd", None, 1),
    ] {
        let parsed = settings(&[(signal, of_signal), (general, of_all)]);
        assert_eq!(
            (parsed.settings.transport.compression, parsed.warnings.len()),
            (compression, warnings),
            "{of_signal} {of_all}"
        );
    }
}

#[test]
fn exemplar_filter_table() {
    use ExemplarFilter::{AlwaysOff, AlwaysOn, TraceBased};
    for (value, filter, warnings) in [
        ("", TraceBased, 0),
        ("trace_based", TraceBased, 0),
        ("ALWAYS_ON", AlwaysOn, 0),
        ("always_off", AlwaysOff, 0),
        ("sometimes", TraceBased, 1),
    ] {
        let parsed = settings(&[("OTEL_METRICS_EXEMPLAR_FILTER", value)]);
        assert_eq!(
            (parsed.settings.exemplars, parsed.warnings.len()),
            (filter, warnings),
            "{value}"
        );
    }
}

/// Every variable that has a form is given one that it cannot have: one warning each, and the defaults.
#[test]
fn a_value_that_cannot_be_used_costs_one_warning_and_is_ignored() {
    let free = |name: &str| {
        let ends = ["_CERTIFICATE", "_CLIENT_KEY", "_NAME", "_NAMESPACE", "_UID"];
        ends.iter().any(|end| name.ends_with(end))
    };
    for name in VARIABLES.iter().filter(|name| !free(name)) {
        let pairs = [(*name, "\u{1f612} no%such,value=%"), ENDPOINT];
        let first = if *name == ENDPOINT.0 { &pairs[..1] } else { &pairs[..] };
        let (with, without) = (settings(first), settings(&first[1..]));
        // These are asked for only where something else makes them count.
        let unread = [
            "OTEL_TRACES_SAMPLER_ARG",
            "OTEL_EXPORTER_OTLP_INSECURE",
            "OTEL_EXPORTER_OTLP_TRACES_INSECURE",
        ];
        let least = usize::from(!unread.contains(name));
        // A list has a warning for each of its two entries.
        let is_list = ["_EXPORTER", "_OPT_IN", "_PROPAGATORS"]
            .iter()
            .any(|end| name.ends_with(end));
        let most = if is_list { 2 } else { least };
        assert!(
            (least..=most).contains(&with.warnings.len()),
            "{name}: {:?}",
            with.warnings
        );
        assert!(with.warnings.iter().all(|warning| warning.starts_with(name)), "{name}");
        let settings = [with.settings, without.settings].map(|settings| format!("{settings:?}"));
        assert_eq!(settings[0], settings[1], "{name}");
    }
}

#[test]
fn what_cannot_be_honoured_is_said() {
    for (name, value, warnings) in [
        ("OTEL_METRICS_EXPORTER", "prometheus", 0),
        ("OTEL_METRICS_EXPORTER", "none", 0),
        ("OTEL_METRICS_EXPORTER", "otlp", 1),
        ("OTEL_LOGS_EXPORTER", "none", 0),
        ("OTEL_LOGS_EXPORTER", "otlp", 1),
        ("OTEL_CONFIG_FILE", "", 0),
        ("OTEL_CONFIG_FILE", "/etc/otel.yaml", 1),
        ("OTEL_LOG_LEVEL", "DEBUG", 0),
        ("OTEL_LOG_LEVEL", "loud", 1),
    ] {
        let parsed = settings(&[(name, value)]);
        assert_eq!(parsed.warnings.len(), warnings, "{name}={value}");
        assert!(parsed.warnings.iter().all(|warning| warning.starts_with(name)));
    }
    assert_eq!(
        settings(&[("OTEL_LOG_LEVEL", "DEBUG")])
            .settings
            .sdk_log_level
            .as_deref(),
        Some("debug")
    );
}

/// The document has a row for each variable, and for no other.
#[test]
fn the_document_tells_of_every_variable_in_order() {
    let document = include_str!("../../../../docs/reference/TELEMETRY-ENVIRONMENT.md");
    let rows = document.lines().filter_map(|line| {
        let name = line.strip_prefix("| `")?.split_once('`')?.0;
        name.chars().all(|c| c.is_ascii_uppercase() || c == '_').then_some(name)
    });
    assert_eq!(rows.collect::<Vec<_>>(), VARIABLES);
    let defaults = settings(&[]).settings;
    for (name, default) in [
        (
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            defaults.transport.timeout.as_millis().to_string(),
        ),
        (
            "OTEL_BSP_SCHEDULE_DELAY",
            defaults.batch.schedule_delay.as_millis().to_string(),
        ),
        (
            "OTEL_BSP_EXPORT_TIMEOUT",
            defaults.batch.export_timeout.as_millis().to_string(),
        ),
        ("OTEL_BSP_MAX_QUEUE_SIZE", defaults.batch.max_queue_size.to_string()),
        (
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            defaults.batch.max_batch_size.to_string(),
        ),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", defaults.value_length.to_string()),
        (
            "OTEL_ATTRIBUTE_COUNT_LIMIT",
            defaults.limits.max_attributes_per_span.to_string(),
        ),
        (
            "OTEL_SPAN_EVENT_COUNT_LIMIT",
            defaults.limits.max_events_per_span.to_string(),
        ),
        (
            "OTEL_SPAN_LINK_COUNT_LIMIT",
            defaults.limits.max_links_per_span.to_string(),
        ),
        (
            "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
            defaults.limits.max_attributes_per_event.to_string(),
        ),
        (
            "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
            defaults.limits.max_attributes_per_link.to_string(),
        ),
        ("OTEL_SERVICE_NAME", defaults.resource["service.name"].clone()),
    ] {
        assert!(
            document.contains(&format!("| `{name}` | {default} |")),
            "{name} {default}"
        );
    }
}
