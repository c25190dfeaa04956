//! A bearer token in a file, as the kubelet writes it into a pod and as `tokenFile` of a kubeconfig names it.

use http::HeaderValue;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;

/// After so long the file is read again. client-go and kube wait as long: a token is renewed well before it ends.
const READ_AGAIN: Duration = Duration::from_secs(50);
/// A token that was refused, and a file that could not be read, are looked at again with the next request, but not sooner than this.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The token of a file. What stands around it, such as the end of its line, is no part of it: client-go takes it off, and kube does not.
#[derive(Clone, Debug)]
pub(super) struct TokenFile {
    path: Arc<Path>,
    last: Arc<Mutex<LastRead>>,
}

#[derive(Debug, Default)]
struct LastRead {
    header: Option<HeaderValue>,
    at: Option<Instant>,
    /// Whether the API server refused it.
    is_refused: bool,
    /// Whether the file could not be read, which the log has.
    is_broken: bool,
}

impl LastRead {
    fn is_due(&self) -> bool {
        let is_doubtful = self.is_refused || self.is_broken;
        let pause = if is_doubtful { LEAST_PAUSE } else { READ_AGAIN };
        self.at.is_none_or(|at| at.elapsed() >= pause)
    }
}

impl TokenFile {
    /// The token of this file, which is read with the first request.
    pub fn new(path: &str) -> Self {
        Self {
            path: PathBuf::from(path).into(),
            last: Arc::default(),
        }
    }

    /// The value of `Authorization`. What was read last stays while the file cannot be read.
    pub fn header(&self) -> Option<HeaderValue> {
        let mut last = self.last.lock();
        if last.is_due() {
            (last.at, last.is_refused) = (Some(Instant::now()), false);
            match header_of(&self.path) {
                Ok(header) => (last.header, last.is_broken) = (Some(header), false),
                Err(error) if !std::mem::replace(&mut last.is_broken, true) => {
                    warn!(path = %self.path.display(), %error, "cannot read the token for the API server; retrying");
                }
                Err(_) => {}
            }
        }
        last.header.clone()
    }

    /// The API server refused the token: the file may hold another one already.
    pub fn refused(&self) {
        self.last.lock().is_refused = true;
    }
}

/// The token that a file holds; an error when there is none.
pub(super) fn read(path: &Path) -> std::io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    match text.trim() {
        "" => Err(std::io::Error::other("the file is empty")),
        token => Ok(token.to_owned()),
    }
}

fn header_of(path: &Path) -> std::io::Result<HeaderValue> {
    let header = HeaderValue::try_from(format!("Bearer {}", read(path)?));
    let mut header = header.map_err(|_| std::io::Error::other("it holds no token"))?;
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
        tokio::time::advance(LEAST_PAUSE).await;
        assert_eq!(sent(), "Bearer one", "nobody has refused it");
        token.clone().refused();
        assert_eq!(sent(), "Bearer two");
        write("three");
        token.refused();
        assert_eq!(sent(), "Bearer two", "the file was read within this second");
        tokio::time::advance(LEAST_PAUSE).await;
        assert_eq!(sent(), "Bearer three");
        // Whoever replaces the file is not done yet.
        write("");
        token.refused();
        tokio::time::advance(LEAST_PAUSE).await;
        assert_eq!(sent(), "Bearer three");
        write("four");
        assert_eq!(sent(), "Bearer three", "the file was looked at within this second");
        tokio::time::advance(LEAST_PAUSE).await;
        assert_eq!(sent(), "Bearer four");
    }
}
