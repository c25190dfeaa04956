//! Where the spans of a driver go: the one place where the environment, `--tracing-config-file` and an AttacherConfig meet.
//!
//! Pure functions only.

use super::otel_env::{
    ExporterSettings, OtlpProtocol, OtlpSettings, RootSampler, SamplerSettings, Switch, TraceSettings, collector_url,
};
use super::tracing_file::TracingFile;
use crate::api::attacher_config::TracingProtocol;
use crate::api::validated::Collector;

/// Path that OTLP over HTTP gives to traces.
const SIGNAL_PATH: &str = "/v1/traces";

/// Where spans go.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Destination {
    /// Nowhere.
    Off,
    /// Nowhere, but a context that came in is passed on.
    PassOn,
    /// To what whoever runs the process names, for all drivers alike.
    Process(Vec<ExporterSettings>),
    /// To the collector that the AttacherConfig names.
    Own(OtlpSettings),
}

/// The most specific of those that say something, in the order environment, file, AttacherConfig; what the environment
/// switches off is off.
pub(super) fn destination(
    environment: &TraceSettings,
    file: Option<&TracingFile>,
    config: Option<&Collector>,
) -> Destination {
    match environment.switch {
        Switch::Disabled => return Destination::PassOn,
        Switch::Off => return Destination::Off,
        Switch::On => {}
    }
    if !environment.exporters.is_empty() {
        return Destination::Process(environment.exporters.clone());
    }
    if let Some(file) = file {
        let otlp = OtlpSettings {
            protocol: OtlpProtocol::Grpc,
            endpoint: file.endpoint.clone(),
        };
        return Destination::Process(vec![ExporterSettings::Otlp(Box::new(otlp))]);
    }
    config.and_then(own).map_or(Destination::Off, Destination::Own)
}

/// Which traces are kept when the AttacherConfig does not say: as the environment has it, else the file, else all.
pub(super) fn sampler(environment: &TraceSettings, file: Option<&TracingFile>) -> SamplerSettings {
    let from_file = || {
        let per_million = file?.samples_per_million;
        Some(SamplerSettings {
            root: match per_million {
                0 => RootSampler::AlwaysOff,
                per_million => RootSampler::Ratio(f64::from(per_million) / 1e6),
            },
            parent_based: true,
        })
    };
    environment.sampler.or_else(from_file).unwrap_or(SamplerSettings {
        root: RootSampler::AlwaysOn,
        parent_based: true,
    })
}

/// The path of the signal is added where the endpoint has none, as users write it as they would in the environment.
fn own(collector: &Collector) -> Option<OtlpSettings> {
    let protocol = match collector.protocol {
        TracingProtocol::Grpc => OtlpProtocol::Grpc,
        TracingProtocol::HttpProtobuf => OtlpProtocol::HttpProtobuf,
        TracingProtocol::HttpJson => OtlpProtocol::HttpJson,
    };
    let endpoint = collector.endpoint.as_str();
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let bare = rest.trim_end_matches('/').find('/').is_none();
    let endpoint = if bare && protocol != OtlpProtocol::Grpc {
        format!("{}{SIGNAL_PATH}", endpoint.trim_end_matches('/'))
    } else {
        endpoint.to_owned()
    };
    // Was checked when the AttacherConfig was read; what passes there and not here goes nowhere.
    let endpoint = collector_url(&endpoint)?;
    Some(OtlpSettings { protocol, endpoint })
}

#[cfg(test)]
mod tests {
    use super::super::otel_env;
    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:4318");

    fn environment(pairs: &[(&str, &str)]) -> TraceSettings {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        otel_env::parse(&pairs.collect(), "0").settings
    }

    /// In one word: where spans go.
    fn word(destination: &Destination) -> &str {
        match destination {
            Destination::Off => "off",
            Destination::PassOn => "pass on",
            Destination::Own(otlp) => &otlp.endpoint,
            Destination::Process(exporters) => match exporters.as_slice() {
                [ExporterSettings::Console] => "console",
                [ExporterSettings::Otlp(otlp)] => &otlp.endpoint,
                other => panic!("{other:?}"),
            },
        }
    }

    /// Variables, whether there is a file and a collector of the AttacherConfig, and where spans go.
    type Case<'a> = (&'a [(&'a str, &'a str)], bool, bool, &'a str);

    #[test]
    fn the_first_that_says_something_counts() {
        let file = TracingFile {
            endpoint: "http://file:4317".to_owned(),
            samples_per_million: 1,
        };
        let config = Collector {
            endpoint: "http://config:4317".to_owned(),
            protocol: TracingProtocol::Grpc,
        };
        let (disabled, none) = (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"));
        let (console, otlp) = (("OTEL_TRACES_EXPORTER", "console"), ("OTEL_TRACES_EXPORTER", "otlp"));
        let cases: &[Case<'_>] = &[
            (&[], false, false, "off"),
            (&[], false, true, "http://config:4317"),
            (&[], true, false, "http://file:4317"),
            (&[], true, true, "http://file:4317"),
            (&[ENDPOINT], false, false, "http://env:4318/v1/traces"),
            (&[ENDPOINT], true, true, "http://env:4318/v1/traces"),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
                false,
                true,
                "http://config:4317",
            ),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")],
                true,
                true,
                "http://file:4317",
            ),
            (&[console], true, true, "console"),
            (&[otlp], false, true, "http://config:4317"),
            (&[none], true, true, "off"),
            (&[ENDPOINT, none], true, true, "off"),
            (&[disabled], true, true, "pass on"),
            (&[ENDPOINT, disabled], true, true, "pass on"),
            (&[ENDPOINT, disabled, none], true, true, "pass on"),
        ];
        for (variables, with_file, with_config, expected) in cases {
            let found = destination(
                &environment(variables),
                with_file.then_some(&file),
                with_config.then_some(&config),
            );
            assert_eq!(word(&found), *expected, "{variables:?} {with_file} {with_config}");
        }
    }

    #[test]
    fn the_path_is_added_where_there_is_none() {
        for (endpoint, protocol, expected) in [
            ("http://c:4317", TracingProtocol::Grpc, "http://c:4317"),
            ("https://c:4317/", TracingProtocol::Grpc, "https://c:4317/"),
            (
                "http://c:4318",
                TracingProtocol::HttpProtobuf,
                "http://c:4318/v1/traces",
            ),
            ("http://c:4318/", TracingProtocol::HttpJson, "http://c:4318/v1/traces"),
            ("https://c", TracingProtocol::HttpJson, "https://c/v1/traces"),
            (
                "http://[::1]:4318",
                TracingProtocol::HttpJson,
                "http://[::1]:4318/v1/traces",
            ),
            (
                "http://c/v1/traces",
                TracingProtocol::HttpProtobuf,
                "http://c/v1/traces",
            ),
            ("http://c/otlp/x", TracingProtocol::HttpProtobuf, "http://c/otlp/x"),
        ] {
            let endpoint = endpoint.to_owned();
            let collector = Collector { endpoint, protocol };
            assert_eq!(own(&collector).unwrap().endpoint, expected, "{collector:?}");
        }
    }

    #[test]
    fn the_sampler_is_that_of_the_environment_or_of_the_file() {
        use RootSampler::{AlwaysOff, AlwaysOn, Ratio};
        let file = |samples_per_million| TracingFile {
            endpoint: "http://file:4317".to_owned(),
            samples_per_million,
        };
        let off: &[_] = &[("OTEL_TRACES_SAMPLER", "always_off")];
        let odd: &[_] = &[("OTEL_TRACES_SAMPLER", "sometimes")];
        for (variables, file, root) in [
            (&[][..], None, AlwaysOn),
            (&[], Some(file(250_000)), Ratio(0.25)),
            (&[], Some(file(0)), AlwaysOff),
            (off, Some(file(1_000_000)), AlwaysOff),
            (odd, Some(file(1_000_000)), Ratio(1.0)),
            (odd, None, AlwaysOn),
        ] {
            assert_eq!(
                sampler(&environment(variables), file.as_ref()).root,
                root,
                "{variables:?} {file:?}"
            );
        }
    }
}
