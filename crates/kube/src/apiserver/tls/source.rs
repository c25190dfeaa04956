//! Where certificates and keys are that a kubeconfig names.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;

use crate::apiserver::connect_error::ConnectError;

/// Where what a field names is.
pub(in crate::apiserver) enum Source {
    File(PathBuf),
    Data(Vec<u8>),
}

impl Source {
    /// As in client-go, what stands in the kubeconfig itself goes before a file.
    pub fn new(field: &'static str, data: Option<&str>, file: Option<&str>) -> Result<Option<Self>, ConnectError> {
        match (data.unwrap_or_default(), file.unwrap_or_default()) {
            ("", "") => Ok(None),
            ("", file) => Ok(Some(Self::File(PathBuf::from(file)))),
            (data, _) => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(data);
                let decoded = decoded.map_err(|_| ConnectError::Base64(field))?;
                Ok(Some(Self::Data(decoded)))
            }
        }
    }

    pub fn read(&self, field: &'static str) -> Result<Vec<u8>, ConnectError> {
        match self {
            Self::Data(text) => Ok(text.clone()),
            Self::File(path) => {
                let text = fs::read(path);
                text.map_err(|error| ConnectError::File(field, path.display().to_string(), error))
            }
        }
    }
}
