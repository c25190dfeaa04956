//! Polls how a Secret is without reading it, with no other permission than to get it.
//!
//! Who may list or watch Secrets by name has no more than who may get them; these permissions are left out all the same, so that
//! what the operator is granted on Secrets is one word. So the metadata of one Secret is asked for now and then.

use std::time::Duration;

use futures::{Stream, stream};

use super::requests::Requests;
use super::secret_data::SecretWire;
use crate::objects::{ResourceVersion, SecretReference};
use csi_attacher_model::answer::ApiErrorKind;

/// The pause after a change; then it doubles with each poll that shows none.
const INITIAL_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause, hence how late a change may be seen.
pub const MAX_PAUSE: Duration = Duration::from_secs(5);

/// What became of a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretEvent {
    /// It is there, in this version.
    State(ResourceVersion),
    /// It is not there, or not any more.
    Gone,
    /// It may not be read.
    Forbidden,
    /// The API server does not say, for another reason. Reported only while nothing else was.
    Unknown,
}

impl SecretEvent {
    /// Asks how a Secret is now.
    pub async fn poll(requests: &Requests, reference: &SecretReference) -> Self {
        match requests.get_version::<SecretWire>(reference).await {
            Ok(version) => Self::State(version),
            Err(error) if error.kind == ApiErrorKind::NotFound => Self::Gone,
            Err(error) if error.is_forbidden() => Self::Forbidden,
            Err(_) => Self::Unknown,
        }
    }

    /// Follows a Secret: reports how it is, and what changes, 5 s late at most.
    pub fn follow(requests: Requests, reference: SecretReference) -> impl Stream<Item = Self> + Send {
        let start = (requests, reference, None, None);
        stream::unfold(start, |(requests, reference, last, mut pause)| async move {
            loop {
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
                let event = Self::poll(&requests, &reference).await;
                let is_news = event.is_news_after(last);
                pause = Some(pause_after(is_news, pause));
                if is_news {
                    return Some((event, (requests, reference, Some(event), pause)));
                }
            }
        })
    }

    /// Whether it says more than the last one that did.
    pub fn is_news_after(self, last: Option<Self>) -> bool {
        match self {
            Self::Unknown => last.is_none(),
            _ => last != Some(self),
        }
    }
}

/// The pause before the next poll: short after a change, then twice as long each time.
pub fn pause_after(is_news: bool, last: Option<Duration>) -> Duration {
    match last {
        Some(last) if !is_news => (last * 2).min(MAX_PAUSE),
        _ => INITIAL_PAUSE,
    }
}
