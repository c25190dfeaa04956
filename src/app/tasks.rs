//! The tasks that every driver needs: watches, events, findings, servers. They run as long as the process, and the end of one,
//! by a fault or not, must not go unseen: with a watch that is gone, new VolumeAttachments are never seen.

use std::collections::HashMap;

use thiserror::Error;
use tokio::task::{Id, JoinError, JoinSet};

/// Running tasks by name. Dropped, they are ended.
#[derive(Debug, Default)]
pub(super) struct SharedTasks {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// The end of a task that must not end.
#[derive(Debug, Error)]
pub(super) enum SharedTaskError {
    #[error("the task {0:?} ended")]
    Ended(&'static str),
    #[error("the task {task:?} failed: {source}")]
    Failed { task: &'static str, source: JoinError },
}

impl SharedTasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.running.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Resolves when a task ends; never without one.
    pub async fn failed(&mut self) -> SharedTaskError {
        let (id, source) = match self.running.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, None),
            Some(Err(error)) => (error.id(), Some(error)),
            None => return std::future::pending().await,
        };
        let task = self.names.remove(&id).unwrap_or_default();
        match source {
            None => SharedTaskError::Ended(task),
            Some(source) => SharedTaskError::Failed { task, source },
        }
    }

    /// Waits until all have ended, after they were asked to.
    pub async fn ended(mut self) {
        while !self.running.is_empty() {
            if let failed @ SharedTaskError::Failed { .. } = self.failed().await {
                tracing::warn!("{failed}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_task_and_a_panic_are_told_by_its_name() {
        let mut tasks = SharedTasks::default();
        assert!(tasks.failed().now_or_never().is_none(), "there is none");
        tasks.spawn("watch/csinodes", std::future::pending());
        tokio::task::yield_now().await;
        assert!(tasks.failed().now_or_never().is_none(), "it runs");
        tasks.spawn("events", async {});
        assert_eq!(tasks.failed().await.to_string(), r#"the task "events" ended"#);
        tasks.spawn("findings", async { panic!("no such thing") });
        let failed = tasks.failed().await.to_string();
        assert!(failed.starts_with(r#"the task "findings" failed: "#), "{failed}");
        assert!(failed.contains("no such thing"), "{failed}");
    }
}
