//! The bearer token of requests: of a file, or of a credential plugin (`exec`). Where it comes from is asked again in time,
//! and after the API server has refused it, but not with each request. A plugin may take long, and runs beside the requests.

use std::sync::Arc;

use csi_attacher_kubeconfig::{LastToken, MalformedToken, TokenFile};
use http::HeaderValue;
use parking_lot::Mutex;
use thiserror::Error;

use super::tls::{Plugin, PluginAnswer, PluginError};

/// A token that can be refreshed. It cannot be printed.
#[derive(Clone)]
pub(super) enum Token {
    File(TokenFile),
    Plugin(PluginToken),
}

/// The token of a plugin. Clones share it.
#[derive(Clone)]
pub(super) struct PluginToken {
    plugin: Plugin,
    last: Arc<Mutex<LastToken>>,
}

/// Why no token is to be had. Never quotes one.
#[derive(Debug, Error)]
enum TokenError {
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("the credential plugin has none any more")]
    Missing,
    #[error(transparent)]
    Malformed(#[from] MalformedToken),
}

impl Token {
    /// The token of this file, which is read with the first request.
    pub fn of_file(path: &str) -> Self {
        Self::File(TokenFile::new(path))
    }

    /// The token that this plugin has given.
    pub fn of_plugin(plugin: Plugin, token: String) -> Self {
        let mut last = LastToken::default();
        last.take(Ok::<_, TokenError>(token));
        Self::Plugin(PluginToken {
            plugin,
            last: Arc::new(Mutex::new(last)),
        })
    }

    /// The value of `Authorization`. The one that there was stays while no other is to be had.
    pub fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::File(file) => file.header(),
            Self::Plugin(token) => token.header(),
        }
    }

    /// The API server refused the token: there may be another one already.
    pub fn refused(&self) {
        match self {
            Self::File(file) => file.refused(),
            Self::Plugin(token) => token.last.lock().refuse(),
        }
    }
}

impl PluginToken {
    fn header(&self) -> Option<HeaderValue> {
        let last = self.last.lock();
        if last.is_doubtful() || self.plugin.ends_soon() {
            let token = self.clone();
            self.plugin.run_again(move |answer| token.answered(answer));
        }
        last.header()
    }

    /// Takes over what the plugin gave; whether that is a token.
    fn answered(&self, answer: Result<PluginAnswer, PluginError>) -> bool {
        let token = answer.map_err(TokenError::from);
        let token = token.and_then(|answer| answer.token.ok_or(TokenError::Missing));
        self.last.lock().take(token)
    }
}
