//! Pauses of a watch after errors, and when one that failed works again.

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

use crate::watch_answers::WatchAnswers;
use crate::window::Window;

/// When watches of a kind that broke began again at once: at most 4 times within 20 s.
pub(super) type Restarts = Window<4, 20>;

/// Longest pause of a watch that begins again at once: it spreads the kinds and the replicas.
const SPREAD: Duration = Duration::from_millis(50);

/// The events of a watch, with pauses after errors that grow. The watcher announces each new list before it asks for it;
/// that alone is no success and must not make the pauses short again, or an API server that refuses would be asked every
/// second.
///
/// A watch that worked begins again almost at once, as [`Restarts`] allows: an API server that has much to do ends
/// the watches of those to whom it cannot send fast enough, and then each attach would wait for the pause.
pub fn with_backoff<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    let last = Arc::new(Mutex::new(LastEvent::Other));
    let backoff = WatchBackoff {
        usual: watcher::DefaultBackoff::default(),
        last: last.clone(),
        worked: false,
        restarts: Restarts::default(),
    };
    events
        .inspect(move |event| {
            *last.lock() = match event {
                Ok(watcher::Event::Init) => LastEvent::Announcement,
                Err(error) if breaks(error) => LastEvent::Break,
                Ok(_) | Err(_) => LastEvent::Other,
            }
        })
        .backoff(backoff)
}

/// What a watch reported last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastEvent {
    /// That it is going to ask for a list.
    Announcement,
    Break,
    /// An object, or that it is to begin later.
    Other,
}

/// The usual pauses, which the announcement of a list does not reset.
struct WatchBackoff {
    usual: watcher::DefaultBackoff,
    last: Arc<Mutex<LastEvent>>,
    /// Whether an object came since the last error.
    worked: bool,
    restarts: Restarts,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let worked = std::mem::take(&mut self.worked);
        if worked && *self.last.lock() == LastEvent::Break && self.restarts.try_count(Instant::now()).is_ok() {
            return Some(SPREAD.mul_f64(fastrand::f64()));
        }
        self.usual.next()
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        if *self.last.lock() != LastEvent::Announcement {
            self.worked = true;
            self.usual.reset();
        }
    }
}

/// Whether an error ends a watch. That the API server asks to begin it later (429) does not.
pub(super) fn breaks(error: &watcher::Error) -> bool {
    !matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 429)
}

/// A watch that is resumed reports nothing until an object changes, which may take days. So one that has not failed again for so long
/// works again, unless it still waits for an answer: after a pause of up to 30 s it waits for as long as `Retry-After` says, which may be
/// 5 minutes, and then for the API server.
pub const RECOVERED: Duration = Duration::from_mins(1);

/// A watch that failed, and has reported nothing since.
#[derive(Clone, Copy, Debug)]
pub struct FailedWatch {
    at: Instant,
    /// Whether it goes on from where it was: then no list follows.
    is_resumed: bool,
}

impl FailedWatch {
    /// It failed now, by this error.
    pub fn new(error: &watcher::Error) -> Self {
        Self {
            at: Instant::now(),
            is_resumed: !breaks(error),
        }
    }

    /// Whether the watch of this kind works again, though it reports nothing. That it was accepted counts at once where it was refused
    /// before: then an older answer is forgotten since it was asked for.
    pub fn has_recovered<K: Resource<DynamicType = ()>>(&self, answers: &WatchAnswers) -> bool {
        let path = K::url_path(&(), None);
        if self.at.elapsed() >= RECOVERED {
            answers.stands(&path)
        } else {
            self.is_resumed && answers.is_accepted(&path)
        }
    }

    /// Resolves when it has.
    pub(super) async fn recovered<K: Resource<DynamicType = ()>>(&self, answers: &WatchAnswers) {
        let has_recovered = || self.has_recovered::<K>(answers);
        tokio::select! {
            biased;
            () = answers.wait_until(has_recovered) => return,
            () = sleep_until(self.at + RECOVERED) => {}
        }
        answers.wait_until(has_recovered).await;
    }
}
