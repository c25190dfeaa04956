//! Waiting until everything was listed, and asking for fresh lists.

use kube::Resource;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::store::Store;
use super::synced::{Synced, Watched};
use crate::objects::{CsiNodeWire, PersistentVolumeWire, Volume};
use crate::watch_answers::WatchAnswers;

/// At most one doubt within this time leads to fresh lists.
const DOUBTS: Duration = Duration::from_secs(10);

/// So many signs of an older state within [`DOUBTS`] lead to fresh lists at once: after a restore the first one is met in the list of
/// one kind, and the next one in the round of all kinds that follows.
const SIGNS: usize = 2;

/// Drivers whose Leases are taken within this time share a fresh list.
const TOGETHER: Duration = Duration::from_millis(100);

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
        if !self.inner.rules.lists_anew {
            return self.wait_synced().await;
        }
        let round = self.ask(Instant::now(), |_| {});
        self.listed_since(round).await;
    }

    /// Asks for a round of lists of all kinds that begins [`TOGETHER`] after `from`, or with one that was asked for before; `before` is
    /// told its number before anybody begins.
    fn ask(&self, from: Instant, before: impl FnOnce(u64)) -> u64 {
        let mut round = 0;
        self.inner.relist_rounds.send_modify(|rounds| {
            {
                let mut due = self.inner.round_due.lock();
                let is_pending = due.is_some_and(|due| due > Instant::now());
                let wanted = from + TOGETHER;
                *due = Some(due.filter(|_| is_pending).map_or(wanted, |due| due.min(wanted)));
            }
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
        self.ask(now, |_| {});
    }

    /// Resolves when the round of lists begins that was asked for. One that somebody asks for later puts it off for nobody: another
    /// kind, which is listed first, may find at once that one more round is needed.
    pub(super) async fn round_is_due(&self, rounds: &mut watch::Receiver<u64>) {
        let due = || self.inner.round_due.lock().unwrap_or_else(Instant::now);
        let mut begins = due();
        loop {
            tokio::select! {
                biased;
                () = sleep_until(begins) => return,
                // Somebody else may want it earlier. The senders live in the store.
                _more = rounds.changed() => begins = begins.min(due()),
            }
        }
    }

    /// A list shows that the API server went back to an older state. The other kinds may still be as they were before, such as
    /// a PersistentVolume with a finalizer that it has lost: everything is listed again before anything is attached.
    ///
    /// A round that was asked for and has not begun is enough. Rounds that find the same again and again have pauses between them.
    pub(super) fn distrust(&self) {
        let mut signs = self.inner.signs.lock();
        let asked = self.inner.trusted_from.load(Ordering::SeqCst);
        if asked > self.inner.synced.read().begun {
            return;
        }
        let now = Instant::now();
        signs.retain(|sign| now < *sign + DOUBTS);
        let from = match signs.front() {
            Some(first) if signs.len() >= SIGNS => *first + DOUBTS,
            _ => now,
        };
        signs.push_back(from);
        self.ask(from, |round| self.inner.trusted_from.store(round, Ordering::SeqCst));
        drop(signs);
        tracing::warn!(
            begins_in_seconds = (from - now).as_secs_f64(),
            "the API server went back to an older state; listing everything again before anything is attached"
        );
    }

    /// Resolves when a list has shown that the API server went back.
    #[cfg(test)]
    pub(crate) async fn distrusted(&self) {
        let mut rounds = self.inner.relist_rounds.subscribe();
        while self.inner.trusted_from.load(Ordering::SeqCst) == 0 {
            // The sender lives in the store.
            let _more = rounds.changed().await;
        }
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
        let told = self.inner.synced.read().watched();
        let answers = &self.inner.watch_answers;
        Watched {
            volumes: told.volumes && answers.stands(&PersistentVolumeWire::url_path(&(), None)),
            nodes: told.nodes && answers.stands(&CsiNodeWire::url_path(&(), None)),
        }
    }

    /// Where the connection of the watches tells which of them stand.
    pub fn watch_answers(&self) -> WatchAnswers {
        self.inner.watch_answers.clone()
    }

    /// A read of a PersistentVolume has shown the copy that is known.
    pub fn confirm_volume(&self, volume: &Volume) {
        let now = self.inner.synced.write().next();
        let mut index = self.inner.index.write();
        index
            .volumes
            .confirm(&volume.name, &volume.uid, volume.resource_version, now);
    }

    /// When a PersistentVolume was read as it is known.
    pub fn confirmed_at(&self, volume: &str) -> Option<u64> {
        self.inner.index.read().volumes.read_at(volume)
    }

    /// Waits until the cache knows of all attachments that name a PersistentVolume that was read at a moment: until attachments were
    /// listed afterwards. What the watch of volumes does meanwhile does not matter; a write must have the version of what was
    /// read as its condition. False when that takes longer than `limit`.
    pub async fn attachments_listed_after(&self, moment: u64, limit: Duration) -> bool {
        let listed = self.lists_are(|synced| synced.attachments_listed_after(moment));
        tokio::time::timeout(limit, listed).await.is_ok()
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
