//! A bearer token that can be refreshed, and one that stands in a file, as the kubelet writes it into a pod and as `tokenFile`
//! of a kubeconfig names it. The file is read again in time, and after the API server has refused the token, but not with each
//! request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::Instant;
use tracing::warn;

use crate::load_error::LoadError;

/// After so long the file is read again. client-go and kube wait as long: a token is renewed well before it ends.
const READ_AGAIN: Duration = Duration::from_secs(50);
/// A token that was refused, and a file that could not be read, are looked at again with the next request, but not sooner than
/// this.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// Why there is no token. Never quotes one.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum TokenError {
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("it has characters that no token has")]
    Malformed,
    #[error("the credential plugin has none any more")]
    Missing,
    #[error(transparent)]
    Plugin(Box<dyn std::error::Error + Send + Sync>),
}

/// The token that was had last, wherever it comes from.
#[derive(Default)]
pub struct LastToken {
    header: Option<HeaderValue>,
    /// Whether the API server refused it.
    is_refused: bool,
    /// Whether none was to be had the last time, which the log has.
    is_broken: bool,
}

impl LastToken {
    /// The value of `Authorization`. The one that there was stays while no other is to be had.
    pub fn header(&self) -> Option<HeaderValue> {
        self.header.clone()
    }

    /// Whether another one is to be asked for soon.
    pub fn is_doubtful(&self) -> bool {
        self.is_refused || self.is_broken
    }

    /// The API server refused the token: there may be another one already.
    pub fn refuse(&mut self) {
        self.is_refused = true;
    }

    /// Takes over a token; whether there is one.
    pub fn take(&mut self, token: Result<String, TokenError>) -> bool {
        // What was refused was the former one.
        self.is_refused = false;
        match token.and_then(|token| header_of(&token)) {
            Ok(header) => {
                (self.header, self.is_broken) = (Some(header), false);
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_broken, true) {
                    warn!(%error, "cannot get the token for the API server; retrying");
                }
                false
            }
        }
    }
}

/// The token of a file. Clones share it. It cannot be printed.
#[derive(Clone)]
pub struct TokenFile {
    path: Arc<Path>,
    last: Arc<Mutex<LastRead>>,
}

#[derive(Default)]
struct LastRead {
    token: LastToken,
    /// When the file was read.
    at: Option<Instant>,
}

impl TokenFile {
    /// The token of this file, which is read with the first request. What stands around it, such as the end of its line, is no
    /// part of it: client-go takes it off, and kube does not.
    pub fn new(path: &str) -> Self {
        Self {
            path: Arc::from(Path::new(path)),
            last: Arc::default(),
        }
    }

    /// The same; an error if there is no token now.
    pub fn open(path: &str) -> Result<Self, LoadError> {
        let file = Self::new(path);
        read(&file.path).map_err(|source| LoadError::TokenFile(PathBuf::from(path), source))?;
        Ok(file)
    }

    /// The value of `Authorization`.
    pub fn header(&self) -> Option<HeaderValue> {
        let mut last = self.last.lock();
        let pause = if last.token.is_doubtful() {
            MIN_PAUSE
        } else {
            READ_AGAIN
        };
        if last.at.is_none_or(|at| at.elapsed() >= pause) {
            last.at = Some(Instant::now());
            let token = read(&self.path);
            last.token.take(token.map_err(|source| TokenError::File {
                path: self.path.display().to_string(),
                source,
            }));
        }
        last.token.header()
    }

    /// The API server refused the token.
    pub fn refused(&self) {
        self.last.lock().token.refuse();
    }
}

/// The token that a file holds; an error when there is none.
pub(crate) fn read(path: &Path) -> std::io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    match text.trim() {
        "" => Err(std::io::Error::other("the file is empty")),
        token => check_token(token)
            .map(|()| token.to_owned())
            .map_err(std::io::Error::other),
    }
}

/// Whether a token can be sent.
///
/// # Errors
///
/// It has characters that no header takes.
pub fn check_token(token: &str) -> Result<(), TokenError> {
    header_of(token).map(drop)
}

fn header_of(token: &str) -> Result<HeaderValue, TokenError> {
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|_| TokenError::Malformed)?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_renewed_is_taken_and_one_that_cannot_be_read_stays() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        let token = TokenFile::new(&file.path().display().to_string());
        let sent = || token.header().map(|header| header.to_str().unwrap().to_owned());
        assert_eq!(sent(), None, "it is empty");
        for (text, wanted) in [
            ("one\n", "Bearer one"),
            ("\ttwo\r\n", "Bearer two"),
            (" \n", "Bearer two"),
            ("three\nfour", "Bearer two"),
        ] {
            write(text);
            tokio::time::advance(READ_AGAIN).await;
            assert_eq!(sent().as_deref(), Some(wanted), "{text:?}");
        }
        write("three");
        assert_eq!(sent().as_deref(), Some("Bearer two"), "it is not read for each request");
        assert!(token.header().unwrap().is_sensitive());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_refused_is_read_again_with_the_next_request_at_most_once_a_second() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        let token = TokenFile::new(&file.path().display().to_string());
        let sent = || token.header().unwrap().to_str().unwrap().to_owned();
        write("one");
        assert_eq!(sent(), "Bearer one");
        write("two");
        tokio::time::advance(MIN_PAUSE).await;
        assert_eq!(sent(), "Bearer one", "nobody has refused it");
        token.clone().refused();
        assert_eq!(sent(), "Bearer two");
        write("three");
        token.refused();
        assert_eq!(sent(), "Bearer two", "the file was read within this second");
        tokio::time::advance(MIN_PAUSE).await;
        assert_eq!(sent(), "Bearer three");
        // Whoever replaces the file is not done yet.
        write("");
        token.refused();
        tokio::time::advance(MIN_PAUSE).await;
        assert_eq!(sent(), "Bearer three");
        write("four");
        assert_eq!(sent(), "Bearer three", "the file was looked at within this second");
        tokio::time::advance(MIN_PAUSE).await;
        assert_eq!(sent(), "Bearer four");
    }
}
