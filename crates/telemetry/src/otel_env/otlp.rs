//! The variables of the OTLP exporter: where the collector is, and how it is talked to.

use std::path::PathBuf;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::reader::{EnvironmentReader, key_values};
use super::{Compression, OtlpProtocol, OtlpSettings, TransportSettings};

impl EnvironmentReader<'_> {
    /// The collector that the environment names.
    pub(super) fn otlp(&mut self) -> Option<OtlpSettings> {
        let protocol = self.protocol();
        let endpoint = self.endpoint(protocol)?;
        Some(OtlpSettings { protocol, endpoint })
    }

    fn protocol(&mut self) -> OtlpProtocol {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let read = |value: &str| match value.to_ascii_lowercase().as_str() {
            "grpc" => Some(OtlpProtocol::Grpc),
            "http/protobuf" => Some(OtlpProtocol::HttpProtobuf),
            "http/json" => Some(OtlpProtocol::HttpJson),
            _ => None,
        };
        self.first(&names, "grpc, http/protobuf or http/json", read)
            .unwrap_or(OtlpProtocol::HttpProtobuf)
    }

    /// The endpoint of the signal verbatim, or the general one with the signal path added for HTTP.
    fn endpoint(&mut self, protocol: OtlpProtocol) -> Option<String> {
        const SIGNAL: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const GENERAL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const EXPECTED: &str = "a URL such as http://collector:4318";
        match protocol {
            OtlpProtocol::Grpc => {
                let insecure = ["OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE"];
                let scheme = if self.boolean(&insecure) { "http" } else { "https" };
                let read = |value: &str| {
                    if value.contains("://") {
                        collector_url(value)
                    } else {
                        collector_url(&format!("{scheme}://{value}"))
                    }
                };
                self.first(&[SIGNAL, GENERAL], EXPECTED, read)
            }
            OtlpProtocol::HttpProtobuf | OtlpProtocol::HttpJson => {
                self.first(&[SIGNAL], EXPECTED, collector_url).or_else(|| {
                    let with_path = |value: &str| collector_url(&format!("{}/v1/traces", value.trim_end_matches('/')));
                    self.first(&[GENERAL], EXPECTED, with_path)
                })
            }
        }
    }

    /// What holds for every collector, whoever names it.
    pub(super) fn transport(&mut self) -> TransportSettings {
        TransportSettings {
            compression: self.compression(),
            timeout: self.milliseconds(
                &["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
                10_000,
            ),
            certificate: self.file("CERTIFICATE"),
            client_certificate: self.file("CLIENT_CERTIFICATE"),
            client_key: self.file("CLIENT_KEY"),
        }
    }

    fn compression(&mut self) -> Compression {
        let names = [
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            "OTEL_EXPORTER_OTLP_COMPRESSION",
        ];
        let read = |value: &str| match value.to_ascii_lowercase().as_str() {
            "gzip" => Some(Compression::Gzip),
            "none" => Some(Compression::None),
            _ => None,
        };
        self.first(&names, "gzip or none", read).unwrap_or_default()
    }

    fn file(&self, suffix: &str) -> Option<PathBuf> {
        let signal = format!("OTEL_EXPORTER_OTLP_TRACES_{suffix}");
        let general = format!("OTEL_EXPORTER_OTLP_{suffix}");
        self.text(&signal).or_else(|| self.text(&general)).map(PathBuf::from)
    }

    /// Headers for the collector that whoever runs this process names.
    pub(super) fn headers(&mut self) -> HeaderMap {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            for (key, value) in key_values(value)? {
                let mut value = HeaderValue::from_str(&value).ok()?;
                value.set_sensitive(true);
                headers.insert(HeaderName::from_bytes(key.as_bytes()).ok()?, value);
            }
            Some(headers)
        };
        self.first(&names, "key=value pairs separated by commas", read)
            .unwrap_or_default()
    }
}

/// The URL when it names an HTTP host.
fn collector_url(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let http = matches!(uri.scheme_str(), Some("http" | "https"));
    (http && uri.host().is_some_and(|host| !host.is_empty())).then(|| text.to_owned())
}
