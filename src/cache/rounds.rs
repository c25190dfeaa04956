//! Waiting until everything was listed, and asking for fresh lists.

use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

use super::store::Store;
use super::synced::{Synced, Watched};

/// At most one doubt within this time leads to fresh lists.
const DOUBTS: Duration = Duration::from_secs(10);

impl Store {
    /// Resolves when all three kinds were listed. Before that a missing object means nothing.
    pub async fn wait_synced(&self) {
        self.listed_since(0).await;
    }

    /// Resolves when the first parts of all three lists came in: the API server is there, and permits them.
    pub async fn wait_answered(&self) {
        self.lists_are(Synced::all_answered).await;
    }

    /// Lists everything anew; resolves when that is done.
    ///
    /// For a replica that takes over from another one. Its own watches may be behind, each by as much as it likes: it may
    /// see that a PersistentVolume is being deleted, and not the VolumeAttachment for which the other replica has attached
    /// it. What a list shows that begins now is at least as new as everything the other one did.
    pub async fn relist(&self) {
        #[cfg(test)]
        if self.inner.trusting.load(std::sync::atomic::Ordering::Relaxed) {
            return self.wait_synced().await;
        }
        let round = self.ask(|_| {});
        self.listed_since(round).await;
    }

    /// Asks for a round of lists of all kinds; `before` is told its number before anybody begins.
    fn ask(&self, before: impl FnOnce(u64)) -> u64 {
        let mut round = 0;
        self.inner.relist_rounds.send_modify(|rounds| {
            self.inner.synced.write().ask();
            *rounds += 1;
            round = *rounds;
            before(round);
        });
        round
    }

    /// Asks for fresh lists, because something shows that the cache may not be what the API server has. Doubts of a short
    /// time are one: whoever answers untruly is not to cause lists without end.
    pub fn doubt(&self, why: &str) {
        let now = Instant::now();
        let mut doubted = self.inner.doubted.lock();
        if doubted.is_some_and(|last| now < last + DOUBTS) {
            return;
        }
        *doubted = Some(now);
        drop(doubted);
        tracing::warn!(
            why,
            "listing everything again, as the cache may not be what the API server has"
        );
        self.ask(|_| {});
    }

    /// A list shows that the API server went back to an older state. The other kinds may still be as they were before, such as
    /// a PersistentVolume with a finalizer that it has lost: everything is listed again before anything is attached.
    pub(super) fn distrust(&self) {
        self.ask(|round| self.inner.trusted_from.store(round, Ordering::SeqCst));
        tracing::warn!(
            "the API server went back to an older state; listing everything again before anything is attached"
        );
    }

    /// Whether what the cache shows of the three kinds is of one state of the API server, as far as can be seen.
    pub fn is_of_one_state(&self) -> bool {
        let round = self.inner.trusted_from.load(Ordering::SeqCst);
        round == 0 || self.inner.synced.read().since(round)
    }

    /// Whether the cache knows of all attachments that name a PersistentVolume, as it knows that volume. A watch that breaks may
    /// have done so because the API server went back to an older state: then a volume may be there whose attachment is there
    /// again too, and is not known before attachments are listed as well.
    pub fn knows_who_names_volumes(&self) -> bool {
        self.inner.synced.read().attachments_are_as_new()
    }

    /// Of which kinds the watch is at work.
    pub fn watched(&self) -> Watched {
        self.inner.synced.read().watched()
    }

    async fn listed_since(&self, round: u64) {
        self.lists_are(|synced| synced.since(round)).await;
    }

    async fn lists_are(&self, as_wanted: impl Fn(Synced) -> bool) {
        loop {
            let mut news = std::pin::pin!(self.inner.listed.notified());
            news.as_mut().enable();
            if as_wanted(*self.inner.synced.read()) {
                return;
            }
            news.await;
        }
    }

    /// Whether all three kinds were listed.
    pub fn is_synced(&self) -> bool {
        self.inner.synced.read().since(0)
    }
}
