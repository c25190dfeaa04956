//! The one error type of the test support.

use std::fmt::{self, Display};
use std::process::ExitStatus;
use std::time::Duration;

/// A result of the test support.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the test support could not do what a test asked for.
#[derive(thiserror::Error)]
pub enum Error {
    /// In words.
    #[error("{0}")]
    Other(String),
    #[error("{component} ended while it was started ({status}); the end of its log:\n{log}")]
    Ended {
        component: &'static str,
        status: ExitStatus,
        log: String,
    },
    /// A state that a test waits for did not come.
    #[error("{what} did not happen within {limit:?}; last seen: {last}")]
    TimedOut {
        what: String,
        limit: Duration,
        /// What was seen last.
        last: String,
    },
    #[error("the shared control plane could not be started: {0}")]
    SharedControlPlane(String),
}

/// A test that returns an error is reported by its `Debug` text, and a log is unreadable with its line ends escaped.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, formatter)
    }
}

/// What says enough by itself, perhaps after what it is about.
macro_rules! in_its_own_words {
    ($($source:ty => $about:literal),*) => {$(
        impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::Other([$about, &error.to_string()].concat())
            }
        }
    )*};
}

in_its_own_words!(
    kube::Error => "",
    kube::config::KubeconfigError => "kubeconfig: ",
    std::io::Error => "",
    tokio::task::JoinError => "",
    csi_mock_driver::MockStartError => "",
    rcgen::Error => "certificate: ",
    serde_json::Error => "JSON: ",
    serde_yaml::Error => "YAML: "
);

/// Adds to an error what was tried.
pub trait Context<T> {
    /// Turns the error into an [`Error`] which says that `action` failed.
    fn while_trying(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn while_trying(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Other(format!("cannot {}: {error}", action())))
    }
}
