//! Pauses of a watch after errors.

use futures::{Stream, StreamExt};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// So many broken watches of a kind are followed by a list within [`WINDOW`].
pub(super) const LISTS: usize = 4;
pub(super) const WINDOW: Duration = Duration::from_secs(20);

/// The events of a watch, with pauses after errors that grow. The watcher announces each new list before it is asked for;
/// that alone is no success and must not make the pauses short again, or an API server that refuses would be asked every
/// second.
///
/// A watch that worked begins again almost at once, [`LISTS`] times within [`WINDOW`]: an API server that has much to do ends
/// the watches of those to whom it cannot send fast enough, and then each attach would wait for the pause.
pub fn patient<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    let last = Arc::new(Mutex::new(Last::News));
    let pauses = WatchBackoff {
        usual: watcher::DefaultBackoff::default(),
        last: last.clone(),
        worked: false,
        at_once: VecDeque::new(),
    };
    events
        .inspect(move |event| {
            *last.lock() = match event {
                Ok(watcher::Event::Init) => Last::Announced,
                Ok(_) => Last::News,
                Err(error) if breaks(error) => Last::Broke,
                Err(_) => Last::AskedToWait,
            }
        })
        .backoff(pauses)
}

/// What a watch said last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Only that a list is going to be asked for.
    Announced,
    News,
    Broke,
    AskedToWait,
}

/// The usual pauses, which the announcement of a list leaves as they are.
struct WatchBackoff {
    usual: watcher::DefaultBackoff,
    last: Arc<Mutex<Last>>,
    /// Whether anything came since the last error.
    worked: bool,
    /// When the watch began again at once, lately.
    at_once: VecDeque<Instant>,
}

impl WatchBackoff {
    /// Longest pause of a watch that begins again at once: spreads the kinds and the replicas.
    const SPREAD: Duration = Duration::from_millis(50);

    fn may_begin_at_once(&mut self) -> bool {
        let now = Instant::now();
        while self.at_once.front().is_some_and(|first| now >= *first + WINDOW) {
            self.at_once.pop_front();
        }
        let may = std::mem::take(&mut self.worked) && *self.last.lock() == Last::Broke && self.at_once.len() < LISTS;
        if may {
            self.at_once.push_back(now);
        }
        may
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.may_begin_at_once() {
            return Some(Self::SPREAD.mul_f64(fastrand::f64()));
        }
        self.usual.next()
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        if *self.last.lock() != Last::Announced {
            self.worked = true;
            self.usual.reset();
        }
    }
}

/// Whether a watch is over with an error. One that the API server asks to begin later (429) is not.
pub(super) fn breaks(error: &watcher::Error) -> bool {
    !matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 429)
}
