//! How far attaches and detaches have come that were not done when the engine of their driver ended: the numbers of their attempts, and
//! their traces. The next engine in this process goes on with them, whichever term of the Lease it works in. It must not decide anything
//! about attachments.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::cache::{AttacherKey, Store};
use crate::memory::AttemptProgress;
use crate::queue::Queue;

/// How many are kept for one driver. Those beyond begin again.
const MAX_UNFINISHED: usize = 4_096;

/// By the name of the attachment.
type Progresses = Vec<(Arc<str>, AttemptProgress)>;

/// What one engine of a driver leaves to the next about attempts.
#[derive(Clone, Default)]
pub struct UnfinishedAttempts {
    /// By driver.
    kept: Arc<Mutex<HashMap<Arc<str>, Progresses>>>,
}

impl UnfinishedAttempts {
    /// Keeps what the queue of an engine that ends remembers.
    pub(crate) fn keep(&self, driver: &Arc<str>, queue: &Queue<AttacherKey>) {
        let mut kept = Progresses::new();
        queue.remember_all(|key, memory| {
            if let AttacherKey::Attachment(name) = key
                && kept.len() < MAX_UNFINISHED
                && let Some(progress) = memory.progress()
            {
                kept.push((name.clone(), progress));
            }
        });
        if !kept.is_empty() {
            self.kept.lock().insert(driver.clone(), kept);
        }
    }

    /// Forgets what is kept for a driver that nothing is done for any more.
    pub(crate) fn forget(&self, driver: &str) {
        self.kept.lock().remove(driver);
    }

    /// Hands what is kept for a driver to the queue of its next engine, which has no runs yet. What is not in that queue is done.
    pub(crate) fn hand_over(&self, driver: &str, queue: &Queue<AttacherKey>, store: &Store) {
        let kept = self.kept.lock().remove(driver).unwrap_or_default();
        for (name, progress) in kept {
            let Some(snapshot) = store.attachment(&name) else {
                continue;
            };
            let progress = progress.resumed(&snapshot);
            queue.remember(&AttacherKey::Attachment(name), |memory| memory.go_on_from(progress));
        }
    }
}
