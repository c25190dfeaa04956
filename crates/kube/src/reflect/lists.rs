//! Waiting until everything was listed, and asking for fresh lists.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::listed::Synced;
use crate::kinds::WatchedKind;
use crate::watch_answers::WatchAnswers;

/// At most one doubt within this time leads to fresh lists.
const DOUBTS: Duration = Duration::from_secs(10);

/// So many signs of an older state within [`DOUBTS`] lead to fresh lists at once: after a restore the first one is met in the list of
/// one kind, and the next one in the round of all kinds that follows.
const SIGNS: usize = 2;

/// Drivers whose Leases are taken within this time share a fresh list.
const TOGETHER: Duration = Duration::from_millis(100);

/// Which lists of the kinds of a sink are complete, and the rounds of fresh lists that are asked for. Clones are the same.
#[derive(Clone)]
pub struct Lists(Arc<Inner>);

struct Inner {
    synced: RwLock<Synced>,
    /// Told of the first part and the end of each list. It wakes in the order in which others came, so that a simulation can be repeated.
    listed: Notify,
    /// How often everything was asked to be listed anew.
    rounds: watch::Sender<u64>,
    /// The round of lists before which what the cache shows is not of one state.
    trusted_from: AtomicU64,
    /// When the round begins that was asked for last.
    round_due: Mutex<Option<Instant>>,
    /// When lists lately showed that the API server went back, or when what follows from that begins.
    signs: Mutex<VecDeque<Instant>>,
    /// When a fresh list was last asked for because of a doubt.
    doubted: Mutex<Option<Instant>>,
    /// Which watches the API server has answered.
    answers: WatchAnswers,
    /// Why kinds cannot be watched, by their plural names.
    failures: Mutex<BTreeMap<&'static str, String>>,
    /// Whether everything is listed anew when that is asked for.
    lists_anew: bool,
}

impl Lists {
    /// Of these kinds, by their plural names. With `lists_anew` false, what the watches have told is taken for everything.
    pub fn new(kinds: &[&'static str], lists_anew: bool) -> Self {
        Self(Arc::new(Inner {
            synced: RwLock::new(Synced::new(kinds)),
            listed: Notify::new(),
            rounds: watch::Sender::default(),
            trusted_from: AtomicU64::new(0),
            round_due: Mutex::default(),
            signs: Mutex::default(),
            doubted: Mutex::default(),
            answers: WatchAnswers::default(),
            failures: Mutex::default(),
            lists_anew,
        }))
    }

    /// Resolves when all kinds were listed. Before that a missing object means nothing.
    pub async fn wait_synced(&self) {
        self.listed_since(0).await;
    }

    /// Resolves when the first parts of all lists came in: the API server is there, and permits them.
    pub async fn wait_answered(&self) {
        self.lists_are(Synced::all_answered).await;
    }

    /// Lists everything anew; resolves when that is done.
    ///
    /// For a replica that takes over from another one. Its own watches may be behind, each by as much as it likes: it may
    /// see that a PersistentVolume is being deleted, and not the VolumeAttachment for which the other replica has attached
    /// it. What a list shows that begins now is at least as new as everything the other one did.
    pub async fn relist(&self) {
        if !self.0.lists_anew {
            return self.wait_synced().await;
        }
        let round = self.ask(Instant::now(), |_| {});
        self.listed_since(round).await;
    }

    /// Asks for a round of lists of all kinds that begins [`TOGETHER`] after `from`, or with one that was asked for before; `before` is
    /// told its number before anybody begins.
    fn ask(&self, from: Instant, before: impl FnOnce(u64)) -> u64 {
        let mut round = 0;
        self.0.rounds.send_modify(|rounds| {
            {
                let mut due = self.0.round_due.lock();
                let is_pending = due.is_some_and(|due| due > Instant::now());
                let wanted = from + TOGETHER;
                *due = Some(due.filter(|_| is_pending).map_or(wanted, |due| due.min(wanted)));
            }
            self.0.synced.write().ask();
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
        let mut doubted = self.0.doubted.lock();
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
        let due = || self.0.round_due.lock().unwrap_or_else(Instant::now);
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
    pub fn distrust(&self) {
        let mut signs = self.0.signs.lock();
        let asked = self.0.trusted_from.load(Ordering::SeqCst);
        if asked > self.0.synced.read().begun {
            return;
        }
        let now = Instant::now();
        signs.retain(|sign| now < *sign + DOUBTS);
        let from = match signs.front() {
            Some(first) if signs.len() >= SIGNS => *first + DOUBTS,
            _ => now,
        };
        signs.push_back(from);
        self.ask(from, |round| self.0.trusted_from.store(round, Ordering::SeqCst));
        drop(signs);
        tracing::warn!(
            begins_in_seconds = (from - now).as_secs_f64(),
            "the API server went back to an older state; listing everything again before anything is attached"
        );
    }

    /// Resolves when a list has shown that the API server went back.
    pub async fn distrusted(&self) {
        let mut rounds = self.0.rounds.subscribe();
        while self.0.trusted_from.load(Ordering::SeqCst) == 0 {
            // The sender lives in the store.
            let _more = rounds.changed().await;
        }
    }

    /// Whether what the cache shows of the kinds is of one state of the API server, as far as can be seen.
    pub fn is_of_one_state(&self) -> bool {
        let round = self.0.trusted_from.load(Ordering::SeqCst);
        round == 0 || self.0.synced.read().since(round)
    }

    /// Whether the last complete list of `others` shows all that belongs to what is known of `kind`. A watch that breaks may have done
    /// so because the API server went back to an older state: then an object may be there again whose companions are there again
    /// too, and are not known before these are listed as well.
    pub fn is_as_new(&self, others: &str, kind: &str) -> bool {
        let synced = self.0.synced.read();
        synced.of(kind).known_from <= synced.of(others).complete
    }

    /// Whether the watch of a kind is at work: what is known of it is only as old as that is slow.
    pub fn is_watched<K: WatchedKind>(&self) -> bool {
        !self.0.synced.read().of(K::PLURAL).unwatched && self.0.answers.stands(&K::url_path(&(), None))
    }

    /// The number of this moment, for [`Lists::listed_after`].
    pub fn now(&self) -> u64 {
        self.0.synced.write().next()
    }

    /// Resolves when a complete list of a kind began after this moment, and its watch has not broken since. False when that takes
    /// longer than `limit`.
    pub async fn listed_after(&self, kind: &str, moment: u64, limit: Duration) -> bool {
        let listed = self.lists_are(|synced| {
            let listed = synced.of(kind);
            listed.complete > moment.max(listed.broke)
        });
        tokio::time::timeout(limit, listed).await.is_ok()
    }

    /// Where the connection of the watches tells which of them stand.
    pub fn answers(&self) -> WatchAnswers {
        self.0.answers.clone()
    }

    /// The rounds that were asked for so far.
    pub fn round(&self) -> u64 {
        *self.0.rounds.borrow()
    }

    /// The rounds, for who follows one of the kinds.
    pub(super) fn rounds(&self) -> watch::Receiver<u64> {
        self.0.rounds.subscribe()
    }

    /// Whether a kind was listed.
    pub(super) fn is_listed(&self, kind: &str) -> bool {
        self.0.synced.read().of(kind).round.is_some()
    }

    /// Takes in whether the watch of a kind is at work.
    pub fn watches(&self, kind: &str, at_work: bool) {
        self.0.synced.write().watches(kind, at_work);
    }

    /// The watch of a kind broke: it is not resumed.
    pub fn broke(&self, kind: &str) {
        self.0.synced.write().broke(kind);
    }

    /// A list begins that is made in a round.
    pub(super) fn begins(&self, kind: &str, round: u64) {
        self.0.synced.write().begin(kind, round);
    }

    /// The first part of a list came in.
    pub(super) fn answered(&self, kind: &str) {
        self.0.synced.write().answered(kind);
        self.0.listed.notify_waiters();
    }

    /// A list is complete.
    pub(super) fn finished(&self, kind: &str, round: u64) {
        let mut synced = self.0.synced.write();
        synced.finish(kind, round);
        synced.watches(kind, true);
        drop(synced);
        self.0.listed.notify_waiters();
    }

    /// Why a kind cannot be watched; `None` when it can again.
    pub(super) fn fails(&self, kind: &'static str, failure: Option<String>) {
        let mut failures = self.0.failures.lock();
        match failure {
            Some(failure) => failures.insert(kind, failure),
            None => failures.remove(kind),
        };
    }

    /// Why objects cannot be listed or watched, if so.
    pub fn failure(&self) -> Option<String> {
        let failures = self.0.failures.lock();
        let told: Vec<String> = failures.values().cloned().collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    async fn listed_since(&self, round: u64) {
        self.lists_are(|synced| synced.since(round)).await;
    }

    async fn lists_are(&self, as_wanted: impl Fn(&Synced) -> bool) {
        loop {
            let mut news = std::pin::pin!(self.0.listed.notified());
            news.as_mut().enable();
            if as_wanted(&self.0.synced.read()) {
                return;
            }
            news.await;
        }
    }

    /// Whether all kinds were listed.
    pub fn is_synced(&self) -> bool {
        self.0.synced.read().since(0)
    }
}
