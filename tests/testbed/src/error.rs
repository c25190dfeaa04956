//! The one error type of the test support.

use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// A result of the test support.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the test support could not do what a test asked for.
#[derive(thiserror::Error)]
pub enum Error {
    /// Something around the operator under test, in words.
    #[error("{0}")]
    Other(String),
    /// A file, a folder or a process could not be handled.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the operating system answered.
        source: std::io::Error,
    },
    /// The build script did not deliver the programs; its own words went to stderr.
    #[error("tests/controlplane/build could not provide {programs} ({status}); its output above says why")]
    Programs {
        /// The programs that were asked for.
        programs: String,
        /// How the script ended.
        status: ExitStatus,
    },
    /// A component ended while it was started.
    #[error("{component} ended while it was started ({status}); the end of its log:\n{log}")]
    Ended {
        /// Name of the component.
        component: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// A component did not answer its readiness probe in time.
    #[error("{component} was not ready after {limit:?}, last answer: {last}; the end of its log:\n{log}")]
    NotReady {
        /// Name of the component.
        component: &'static str,
        /// How long was waited.
        limit: Duration,
        /// What the last probe saw.
        last: String,
        /// The last lines of its log.
        log: String,
    },
    /// A state that a test waits for did not come.
    #[error("{what} did not happen within {limit:?}; last seen: {last}")]
    TimedOut {
        /// The state waited for.
        what: String,
        /// How long was waited.
        limit: Duration,
        /// What was seen last.
        last: String,
    },
    /// The control plane shared by the tests of this process could not be started.
    #[error("the shared control plane could not be started: {0}")]
    SharedControlPlane(String),
    /// The control plane was started without the audit log which a test asks for.
    #[error("this control plane runs without an audit log; start it with Options.audit")]
    NoAuditLog,
    /// The API server refused a request, or no answer came.
    #[error("{action}: {source}")]
    Api {
        /// What was requested.
        action: String,
        /// What the client says.
        source: Box<kube::Error>,
    },
    /// A kubeconfig could not be turned into a client.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[from] Box<kube::config::KubeconfigError>),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A YAML document could not be read.
    #[error("cannot read YAML: {0}")]
    Yaml(#[from] serde_yaml::Error),
    /// A JSON document could not be read or written.
    #[error("cannot handle JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A document of a manifest is no Kubernetes object.
    #[error("not a Kubernetes object: {0}")]
    NotAnObject(String),
}

/// A test that returns an error is reported by its `Debug` text, and a log is unreadable with its line ends escaped.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// What says enough by itself.
macro_rules! in_its_own_words {
    ($($source:ty),*) => {$(
        impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::Other(error.to_string())
            }
        }
    )*};
}

in_its_own_words!(
    kube::Error,
    std::io::Error,
    tokio::task::JoinError,
    csi_mock_driver::MockStartError
);

/// Adds to an error what was tried.
pub trait Context<T> {
    /// Turns the error into an [`Error`] which says that `action` failed.
    fn while_trying(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn while_trying(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io {
            action: action(),
            source,
        })
    }
}

impl<T> Context<T> for kube::Result<T> {
    fn while_trying(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Api {
            action: action(),
            source: Box::new(source),
        })
    }
}
