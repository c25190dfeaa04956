//! When everything was listed, and asking for fresh lists.

use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

use super::Store;

/// At most one doubt within this time leads to fresh lists.
const DOUBTS: Duration = Duration::from_secs(10);

/// When each kind was listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(super) attachments: Listed,
    pub(super) volumes: Listed,
    pub(super) nodes: Listed,
    /// How many lists have begun.
    begun: u64,
}

/// When one kind was listed. Lists of all kinds are numbered in the order in which they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    /// In which round it was last listed completely; none before the first time.
    pub(super) round: Option<u64>,
    /// The list that comes in or came in last.
    coming_in: u64,
    /// The last complete list.
    complete: u64,
    /// The last list that had begun when one was complete that nobody had asked for: its watch had broken. While that one comes
    /// in, it is greater than all numbers.
    broken_until: Option<u64>,
}

/// Picks one kind.
pub(super) type Slot = fn(&mut Synced) -> &mut Listed;

impl Synced {
    /// Whether all kinds were listed in this round or a later one.
    pub(super) fn since(self, round: u64) -> bool {
        [self.attachments, self.volumes, self.nodes]
            .iter()
            .all(|listed| listed.round >= Some(round))
    }

    /// A list begins that is made in a round.
    pub(super) fn begin(&mut self, kind: Slot, round: u64) {
        self.begun += 1;
        let begun = self.begun;
        let listed = kind(self);
        listed.coming_in = begun;
        if listed.round >= Some(round) {
            listed.broken_until = Some(u64::MAX);
        }
    }

    /// It is complete.
    pub(super) fn finish(&mut self, kind: Slot, round: u64) {
        let begun = self.begun;
        let listed = kind(self);
        (listed.round, listed.complete) = (Some(round), listed.coming_in);
        listed.broken_until = listed.broken_until.map(|until| until.min(begun));
    }

    /// Whether VolumeAttachments were listed since the watch of PersistentVolumes broke last.
    fn attachments_are_as_new(self) -> bool {
        self.volumes.broken_until < Some(self.attachments.complete)
    }
}

impl Store {
    /// Resolves when all three kinds were listed. Before that a missing object means nothing.
    pub async fn wait_synced(&self) {
        self.listed_since(0).await;
    }

    /// Lists everything anew; resolves when that is done.
    ///
    /// For a replica that takes over from another one. Its own watches may be behind, each by as much as it likes: it may
    /// see that a PersistentVolume is being deleted, and not the VolumeAttachment for which the other replica has attached
    /// it. What a list shows that begins now is at least as new as everything the other one did.
    pub async fn listed_anew(&self) {
        #[cfg(test)]
        if self.inner.trusting.load(std::sync::atomic::Ordering::Relaxed) {
            return self.wait_synced().await;
        }
        let mut round = 0;
        self.inner.rounds.send_modify(|rounds| {
            *rounds += 1;
            round = *rounds;
        });
        self.listed_since(round).await;
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
        self.inner.rounds.send_modify(|rounds| *rounds += 1);
    }

    /// A list shows that the API server went back to an older state. The other kinds may still be as they were before, such as
    /// a PersistentVolume with a finalizer that it has lost: everything is listed again before anything is attached.
    pub(super) fn distrust(&self) {
        self.inner.rounds.send_modify(|rounds| {
            *rounds += 1;
            self.inner.trusted_from.store(*rounds, Ordering::SeqCst);
        });
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

    async fn listed_since(&self, round: u64) {
        loop {
            let mut news = std::pin::pin!(self.inner.listed.notified());
            news.as_mut().enable();
            if self.inner.synced.read().since(round) {
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
