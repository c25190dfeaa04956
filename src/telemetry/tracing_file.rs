//! `--tracing-config-file`: the TracingConfiguration that kube-apiserver and etcd's users know, read the way kube-apiserver
//! reads it.
//!
//! Strictly, so that a field with a typing error is told and not ignored. A file that cannot be used is no reason not to
//! attach volumes: what is wrong with it is told, and the rest of the precedence goes on without it.

use std::path::Path;

use serde::Deserialize;
use thiserror::Error;

use super::otel_env::collector_url;

/// Where kube-apiserver sends spans when the file names no endpoint.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const GROUP: &str = "apiserver.config.k8s.io/";
const KIND: &str = "TracingConfiguration";
const MILLION: i64 = 1_000_000;

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingFile {
    /// URL of the collector, which speaks OTLP over gRPC.
    pub endpoint: String,
    /// How many of a million new traces are kept; those that continue another one follow that.
    pub samples_per_million: u32,
}

/// What is wrong with the file.
#[derive(Debug, Error)]
pub enum TracingFileError {
    /// It cannot be read.
    #[error("--tracing-config-file {path}: cannot be read: {source}; mount the file or take the flag away")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no YAML of this form.
    #[error("--tracing-config-file {path}: {field}: {reason}; write {mend}")]
    Field {
        /// The file.
        path: String,
        /// The field, or the whole document.
        field: String,
        /// What is wrong with it.
        reason: String,
        /// What to write.
        mend: &'static str,
    },
}

/// The document.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i64>,
}

/// What is wrong with a field, and what to write there.
type Fault = (String, String, &'static str);

const MEND_DOCUMENT: &str = "apiVersion, kind, and if wanted endpoint and samplingRatePerMillion, as in \
                             {apiVersion: apiserver.config.k8s.io/v1, kind: TracingConfiguration, endpoint: \"collector:4317\"}";
const MEND_VERSION: &str = "apiVersion: apiserver.config.k8s.io/v1";
const MEND_KIND: &str = "kind: TracingConfiguration";
const MEND_ENDPOINT: &str = "host:port of a collector that speaks OTLP over gRPC, or an http:// or https:// URL";
const MEND_RATE: &str = "a whole number from 0 to 1000000";

impl TracingFile {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, TracingFileError> {
        let named = path.display().to_string();
        match std::fs::read_to_string(path) {
            Err(source) => Err(TracingFileError::Read { path: named, source }),
            Ok(text) => Self::parse(&text).map_err(|(field, reason, mend)| TracingFileError::Field {
                path: named,
                field,
                reason,
                mend,
            }),
        }
    }

    fn parse(text: &str) -> Result<Self, Fault> {
        let document: Document =
            serde_path_to_error::deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|error| {
                let path = error.path().to_string();
                let field = if matches!(path.as_str(), "." | "?") {
                    "the document".to_owned()
                } else {
                    path
                };
                (field, error.into_inner().to_string(), MEND_DOCUMENT)
            })?;
        let fault = |field: &str, reason: String, mend| Err((field.to_owned(), reason, mend));
        let version = document.api_version.strip_prefix(GROUP);
        if !matches!(version, Some("v1" | "v1beta1" | "v1alpha1")) {
            return fault(
                "apiVersion",
                format!("{:?} is not known", document.api_version),
                MEND_VERSION,
            );
        }
        if document.kind != KIND {
            return fault("kind", format!("{:?} is not {KIND}", document.kind), MEND_KIND);
        }
        // As in kube-apiserver: without a rate only what continues a sampled trace is kept.
        let rate = document.sampling_rate_per_million.unwrap_or(0);
        let Some(samples_per_million) = u32::try_from(rate).ok().filter(|_| rate <= MILLION) else {
            return fault("samplingRatePerMillion", format!("{rate} is out of range"), MEND_RATE);
        };
        let endpoint = document.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT);
        match collector(endpoint) {
            Some(endpoint) => Ok(Self {
                endpoint,
                samples_per_million,
            }),
            None => fault("endpoint", format!("{endpoint:?} cannot be used"), MEND_ENDPOINT),
        }
    }
}

/// The URL for a target as gRPC in Go takes it. Without a scheme it is not encrypted, as in kube-apiserver.
fn collector(target: &str) -> Option<String> {
    if target.starts_with("http://") || target.starts_with("https://") {
        return collector_url(target);
    }
    let host = match target.strip_prefix("dns:") {
        // dns:host:port, dns:///host:port, dns://server/host:port
        Some(rest) => match rest.strip_prefix("//") {
            Some(rest) => rest.split_once('/')?.1,
            None => rest,
        },
        None => target,
    };
    if host.contains(['/', '@', '?', '#']) || host.is_empty() {
        return None;
    }
    let url = collector_url(&format!("http://{host}"))?;
    // kube-apiserver would take 443 for a port that is left out, where no collector listens without encryption.
    let has_port = url.parse::<http::Uri>().is_ok_and(|uri| uri.port_u16().is_some());
    has_port.then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";

    #[test]
    fn good_files_are_read_as_kube_apiserver_reads_them() {
        for (rest, endpoint, samples_per_million) in [
            ("", "http://localhost:4317", 0),
            (
                "endpoint: collector:4317\nsamplingRatePerMillion: 100\n",
                "http://collector:4317",
                100,
            ),
            ("samplingRatePerMillion: 1000000", "http://localhost:4317", 1_000_000),
            ("endpoint: dns:collector:4317", "http://collector:4317", 0),
            ("endpoint: dns:///collector:4317", "http://collector:4317", 0),
            ("endpoint: dns://10.0.0.10/collector:4317", "http://collector:4317", 0),
            ("endpoint: https://collector:4317", "https://collector:4317", 0),
            ("endpoint: '[::1]:4317'", "http://[::1]:4317", 0),
        ] {
            let expected = TracingFile {
                endpoint: endpoint.to_owned(),
                samples_per_million,
            };
            assert_eq!(
                TracingFile::parse(&format!("{HEAD}{rest}")).unwrap(),
                expected,
                "{rest}"
            );
        }
        let beta = HEAD.replace("/v1", "/v1beta1");
        assert!(TracingFile::parse(&beta).is_ok());
    }

    fn written(folder: &Path, text: &str) -> std::path::PathBuf {
        let path = folder.join("tracing.yaml");
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_missing_file_is_told() {
        let missing = TracingFile::read(Path::new("none/tracing.yaml"))
            .unwrap_err()
            .to_string();
        for word in [
            "--tracing-config-file",
            "tracing.yaml",
            "cannot be read",
            "take the flag away",
        ] {
            assert!(missing.contains(word), "{missing}");
        }
    }

    #[test]
    fn bad_files_are_told_by_file_field_and_mend() {
        let folder = tempfile::tempdir().unwrap();
        for (text, field, mend) in [
            (String::new(), "the document", MEND_DOCUMENT),
            ("just words".to_owned(), "the document", MEND_DOCUMENT),
            ("{".to_owned(), "the document", MEND_DOCUMENT),
            (
                "kind: TracingConfiguration".to_owned(),
                "the document: missing field `apiVersion`",
                MEND_DOCUMENT,
            ),
            (HEAD.replace("/v1", "/v7"), "apiVersion: ", MEND_VERSION),
            (
                HEAD.replace("apiserver.config.k8s.io/v1", "v1"),
                "apiVersion: ",
                MEND_VERSION,
            ),
            (HEAD.replace("kind: Tracing", "kind: Audit"), "kind: ", MEND_KIND),
            (format!("{HEAD}endpoint: 4317"), "endpoint: ", MEND_ENDPOINT),
            (format!("{HEAD}endpoint: collector"), "endpoint: ", MEND_ENDPOINT),
            (format!("{HEAD}endpoint: {{}}"), "endpoint: ", MEND_DOCUMENT),
            (format!("{HEAD}endpoint: ''"), "endpoint: ", MEND_ENDPOINT),
            (
                format!("{HEAD}endpoint: unix:///run/otel.sock"),
                "endpoint: ",
                MEND_ENDPOINT,
            ),
            (format!("{HEAD}endpoint: 'two words:1'"), "endpoint: ", MEND_ENDPOINT),
            (format!("{HEAD}endpoint: user@host:1"), "endpoint: ", MEND_ENDPOINT),
            (format!("{HEAD}endpoint: collector:port"), "endpoint: ", MEND_ENDPOINT),
            (
                format!("{HEAD}samplingRatePerMillion: -1"),
                "samplingRatePerMillion: ",
                MEND_RATE,
            ),
            (
                format!("{HEAD}samplingRatePerMillion: 1000001"),
                "samplingRatePerMillion: ",
                MEND_RATE,
            ),
            (
                format!("{HEAD}samplingRatePerMillion: some"),
                "samplingRatePerMillion: ",
                MEND_DOCUMENT,
            ),
            (
                format!("{HEAD}samplingRatePerMilion: 1"),
                "samplingRatePerMilion",
                MEND_DOCUMENT,
            ),
        ] {
            let error = TracingFile::read(&written(folder.path(), &text))
                .unwrap_err()
                .to_string();
            for word in ["--tracing-config-file", "tracing.yaml", field, mend] {
                assert!(error.contains(word), "{text:?}: {error}");
            }
        }
    }
}
