//! The bearer token of requests: of a file, or of a credential plugin (`exec`). Where it comes from is asked again in time,
//! and after the API server has refused it, but not with each request. A plugin may take long, and runs beside the requests.

use std::sync::Arc;

use csi_attacher_kubeconfig::{LastToken, TokenError, TokenFile};
use http::HeaderValue;
use parking_lot::Mutex;

use super::connect_error::ConnectError;
use super::tls::{Plugin, PluginAnswer};

/// A token that can be refreshed. It cannot be printed. Clones share it.
#[derive(Clone)]
pub(super) enum Token {
    File(TokenFile),
    /// The plugin, and what it gave last.
    Plugin(Plugin, Arc<Mutex<LastToken>>),
}

impl Token {
    /// The token of this file, which is read with the first request.
    pub fn of_file(path: &str) -> Self {
        Self::File(TokenFile::new(path))
    }

    /// The token that this plugin has given.
    pub fn of_plugin(plugin: Plugin, token: String) -> Self {
        let mut last = LastToken::default();
        last.take(Ok(token));
        Self::Plugin(plugin, Arc::new(Mutex::new(last)))
    }

    /// The value of `Authorization`. The one that there was stays while no other is to be had.
    pub fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::File(file) => file.header(),
            Self::Plugin(plugin, last) => {
                let known = last.lock();
                if known.is_doubtful() || plugin.ends_soon() {
                    let last = last.clone();
                    plugin.run_again(move |answer| last.lock().take(token_of(answer)));
                }
                known.header()
            }
        }
    }

    /// The API server refused the token: there may be another one already.
    pub fn refused(&self) {
        match self {
            Self::File(file) => file.refused(),
            Self::Plugin(_, last) => last.lock().refuse(),
        }
    }
}

/// The token that a plugin gave.
fn token_of(answer: Result<PluginAnswer, ConnectError>) -> Result<String, TokenError> {
    let answer = answer.map_err(|error| TokenError::Plugin(error.into()))?;
    answer.token.ok_or(TokenError::Missing)
}
