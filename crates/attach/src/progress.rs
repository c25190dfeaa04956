//! How far attaches and detaches have come that were not done when the engine of their driver ended: the numbers of their attempts, and
//! their traces. The next engine in this process goes on with them, whichever term of the Lease it works in. It must not decide anything
//! about attachments.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::cache::{AttacherKey, Store};
use crate::memory::LifecycleAttempts;
use crate::queue::Queue;
use crate::traces::SharedLifecycle;

/// How many are kept for one driver. Those beyond begin again.
const MAX_UNFINISHED: usize = 4_096;

/// With the name of the attachment.
type Progresses = Vec<(Arc<str>, LifecycleAttempts, Option<SharedLifecycle>)>;

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
                && memory.attempts.operation.is_some()
            {
                kept.push((name.clone(), memory.attempts.clone(), memory.lifecycle.clone()));
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
        for (name, attempts, lifecycle) in kept {
            let Some(snapshot) = store.attachment(&name) else {
                continue;
            };
            let lifecycle = lifecycle.filter(|lifecycle| lifecycle.lock().resume(&snapshot));
            queue.remember(&AttacherKey::Attachment(name), |memory| {
                (memory.attempts, memory.lifecycle) = (attempts, lifecycle);
            });
        }
    }
}
