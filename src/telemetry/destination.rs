//! Where spans go, and which are kept, as the environment says it.
//!
//! Pure functions only.

use super::otel_env::{ExporterSettings, RootSampler, SamplerSettings, Switch, TraceSettings};

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

/// What the environment says; without a collector nothing is traced.
pub(super) fn destination(environment: &TraceSettings) -> Destination {
    match environment.switch {
        Switch::Disabled => Destination::PassOn,
        Switch::Off => Destination::Off,
        Switch::On if environment.exporters.is_empty() => Destination::Off,
        Switch::On => Destination::Exporters(environment.exporters.clone()),
    }
}

/// Which traces are kept when the AttacherConfig does not say: as the environment has it, else all.
pub(super) fn sampler(environment: &TraceSettings) -> SamplerSettings {
    environment.sampler.unwrap_or(SamplerSettings {
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

    #[test]
    fn the_environment_says_where_spans_go() {
        let (disabled, none) = (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"));
        let (console, otlp) = (("OTEL_TRACES_EXPORTER", "console"), ("OTEL_TRACES_EXPORTER", "otlp"));
        for (variables, expected) in [
            (&[][..], "off"),
            (&[ENDPOINT], "http://env:4318/v1/traces"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], "off"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")], "off"),
            (&[console], "console"),
            (&[otlp], "off"),
            (&[none], "off"),
            (&[ENDPOINT, none], "off"),
            (&[disabled], "pass on"),
            (&[ENDPOINT, disabled], "pass on"),
            (&[ENDPOINT, disabled, none], "pass on"),
        ] {
            assert_eq!(word(&destination(&environment(variables))), expected, "{variables:?}");
        }
    }

    #[test]
    fn the_sampler_is_that_of_the_environment_or_keeps_all() {
        use RootSampler::{AlwaysOff, AlwaysOn};
        let off: &[_] = &[("OTEL_TRACES_SAMPLER", "always_off")];
        let odd: &[_] = &[("OTEL_TRACES_SAMPLER", "sometimes")];
        for (variables, root) in [(&[][..], AlwaysOn), (off, AlwaysOff), (odd, AlwaysOn)] {
            assert_eq!(sampler(&environment(variables)).root, root, "{variables:?}");
        }
    }
}
