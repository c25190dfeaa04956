//! Where spans go, and which are kept: the one place where the environment and `--tracing-config-file` meet.
//!
//! Pure functions only.

use super::otel_env::{
    ExporterSettings, OtlpProtocol, OtlpSettings, RootSampler, SamplerSettings, Switch, TraceSettings,
};
use super::tracing_file::TracingFile;

/// Where spans go.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Destination {
    /// Nowhere.
    Off,
    /// Nowhere, but a context that came in is passed on.
    PassOn,
    /// To these.
    Exporters(Vec<ExporterSettings>),
}

/// What the environment says, else the file; what the environment switches off is off.
pub(super) fn destination(environment: &TraceSettings, file: Option<&TracingFile>) -> Destination {
    match environment.switch {
        Switch::Disabled => return Destination::PassOn,
        Switch::Off => return Destination::Off,
        Switch::On => {}
    }
    if !environment.exporters.is_empty() {
        return Destination::Exporters(environment.exporters.clone());
    }
    let Some(file) = file else {
        return Destination::Off;
    };
    let otlp = OtlpSettings {
        protocol: OtlpProtocol::Grpc,
        endpoint: file.endpoint.clone(),
    };
    Destination::Exporters(vec![ExporterSettings::Otlp(Box::new(otlp))])
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
            Destination::Exporters(exporters) => match exporters.as_slice() {
                [ExporterSettings::Console] => "console",
                [ExporterSettings::Otlp(otlp)] => &otlp.endpoint,
                other => panic!("{other:?}"),
            },
        }
    }

    /// Variables, whether there is a file, and where spans go.
    type Case<'a> = (&'a [(&'a str, &'a str)], bool, &'a str);

    #[test]
    fn the_first_that_says_something_counts() {
        let file = TracingFile {
            endpoint: "http://file:4317".to_owned(),
            samples_per_million: 1,
        };
        let (disabled, none) = (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"));
        let (console, otlp) = (("OTEL_TRACES_EXPORTER", "console"), ("OTEL_TRACES_EXPORTER", "otlp"));
        let cases: &[Case<'_>] = &[
            (&[], false, "off"),
            (&[], true, "http://file:4317"),
            (&[ENDPOINT], false, "http://env:4318/v1/traces"),
            (&[ENDPOINT], true, "http://env:4318/v1/traces"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], true, "http://file:4317"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")], true, "http://file:4317"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")], false, "off"),
            (&[console], true, "console"),
            (&[otlp], false, "off"),
            (&[none], true, "off"),
            (&[ENDPOINT, none], true, "off"),
            (&[disabled], true, "pass on"),
            (&[ENDPOINT, disabled], true, "pass on"),
            (&[ENDPOINT, disabled, none], true, "pass on"),
        ];
        for (variables, with_file, expected) in cases {
            let found = destination(&environment(variables), with_file.then_some(&file));
            assert_eq!(word(&found), *expected, "{variables:?} {with_file}");
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
