//! Where certificates and keys are that a kubeconfig names.

use std::path::PathBuf;
use std::{fs, io};

use base64::Engine as _;
use thiserror::Error;

/// Why they cannot be read. Never quotes them.
#[derive(Debug, Error)]
pub enum SourceError {
    #[error("{field} {path}: {source}")]
    File {
        field: &'static str,
        path: String,
        source: io::Error,
    },
    #[error("{field}-data of the kubeconfig is not base64")]
    Base64 { field: &'static str },
}

/// Where what a field names is.
pub(in crate::apiserver) enum Source {
    File(PathBuf),
    Data(Vec<u8>),
}

impl Source {
    /// As in client-go, what stands in the kubeconfig itself goes before a file.
    pub fn new(field: &'static str, data: Option<&str>, file: Option<&str>) -> Result<Option<Self>, SourceError> {
        match (data.unwrap_or_default(), file.unwrap_or_default()) {
            ("", "") => Ok(None),
            ("", file) => Ok(Some(Self::File(PathBuf::from(file)))),
            (data, _) => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(data);
                decoded
                    .map(|text| Some(Self::Data(text)))
                    .map_err(|_| SourceError::Base64 { field })
            }
        }
    }

    pub fn read(&self, field: &'static str) -> Result<Vec<u8>, SourceError> {
        match self {
            Self::Data(text) => Ok(text.clone()),
            Self::File(path) => fs::read(path).map_err(|source| SourceError::File {
                field,
                path: path.display().to_string(),
                source,
            }),
        }
    }
}
