//! How long attaches are held back for what is done about their volume at another node.
//!
//! The clock is ours and not the API server's, so that a clock that is wrong holds up nobody.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use super::attachment_map::AttachmentMap;
use crate::api::validated::Timeouts;
use crate::decide::DetachWait;

/// From this many on, entries of attachments that are gone are removed.
const MANY: usize = 64;

/// The longest that an attach is held back, whatever the deadlines are.
const LONGEST_HOLD: Duration = Duration::from_mins(2);

/// How long an attach is held back for another node. A detach has its answer within its deadline, or a failure, after which
/// nobody waits for it; what is taken back after a Publish is given the same time.
pub(in crate::driver) fn longest_hold(timeouts: &Timeouts) -> Duration {
    timeouts.unpublish.min(LONGEST_HOLD)
}

/// Since when each attach is held back.
pub(in crate::driver) struct DetachWaits(Mutex<AttachmentMap<Instant>>);

impl Default for DetachWaits {
    fn default() -> Self {
        Self(Mutex::new(AttachmentMap::new(MANY)))
    }
}

impl DetachWaits {
    /// Whether an attach may be held back still.
    pub fn state(&self, name: &str, limit: Duration) -> DetachWait {
        match self.0.lock().get(name) {
            Some(since) if since.elapsed() >= limit => DetachWait::Expired,
            _ => DetachWait::Allowed,
        }
    }

    /// Holds an attach back; how long that may last from now on. `exists` says whether an attachment is known.
    pub fn start(&self, name: &Arc<str>, limit: Duration, exists: impl Fn(&str) -> bool) -> Duration {
        let mut held = self.0.lock();
        let since = *held.get_or_insert(name, Instant::now, exists);
        limit.saturating_sub(since.elapsed())
    }

    /// The attachment is settled, or gone.
    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn patience_ends_however_often_it_is_asked_for() {
        let holds = DetachWaits::default();
        let name: Arc<str> = "va".into();
        assert_eq!(holds.state("va", LIMIT), DetachWait::Allowed);
        assert_eq!(holds.start(&name, LIMIT, |_| true), LIMIT);
        tokio::time::advance(LIMIT / 2).await;
        assert_eq!(holds.start(&name, LIMIT, |_| true), LIMIT / 2);
        tokio::time::advance(LIMIT / 2).await;
        assert_eq!(holds.state("va", LIMIT), DetachWait::Expired);
        holds.remove("va");
        assert_eq!(holds.state("va", LIMIT), DetachWait::Allowed);
    }
}
