//! Which lists of the kinds of a sink are complete, and the rounds of fresh lists that are asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::watch_error::is_missing_rule;
use crate::apiserver::ApiError;
use crate::kinds::WatchedKind;
use crate::watch_answers::{WatchAnswers, wait_until};
use crate::window::Window;

/// At most one doubt within this time, in seconds, leads to fresh lists.
const DOUBT_INTERVAL: u64 = 10;

/// So many signs of an older state within [`DOUBT_INTERVAL`] lead to fresh lists at once: after a restore the list of one kind shows the
/// first sign, and the round of all kinds that follows shows the next one.
const MAX_SIGNS: usize = 2;

/// How old a list of a kind may be whose watch has broken since. A list follows each break after some seconds.
const MAX_LIST_AGE: Duration = Duration::from_secs(30);

/// Drivers whose Leases are taken within this time share a fresh list.
const ROUND_DELAY: Duration = Duration::from_millis(100);

/// The state of the lists of all kinds of a sink. Clones share it.
#[derive(Clone)]
pub struct Lists {
    inner: Arc<ListsInner>,
    /// The kinds that this is complete without, see [`Lists::without`].
    unread: &'static [&'static str],
}

struct ListsInner {
    state: RwLock<ListsState>,
    /// Notified of the first part and the end of each list, and of what is in the way of one. Waiters wake in the order in which they
    /// came, so that a simulation can be repeated exactly.
    progress: Notify,
    /// The number of the newest round of lists that was asked for.
    rounds: watch::Sender<u64>,
    answers: WatchAnswers,
    lists_anew: bool,
}

#[derive(Default)]
struct ListsState {
    kinds: BTreeMap<&'static str, KindState>,
    /// The last of the numbers that order what happens: lists that begin and end, watches that break, rounds that are asked for.
    last: u64,
    /// The number of the moment at which the newest round was asked for.
    asked: u64,
    /// The newest round in which a list has begun.
    begun: u64,
    /// When the newest round begins.
    round_due: Option<Instant>,
    /// The round of lists before which what the cache shows is not of one state.
    trusted_from: u64,
    /// When lists showed that the API server went back, or when the round that follows from that begins.
    signs: Window<MAX_SIGNS, DOUBT_INTERVAL>,
    doubts: Window<1, DOUBT_INTERVAL>,
}

/// When a list began: the number of that moment, and the same by the clock.
type Began = (u64, Option<Instant>);

/// When one kind was listed.
#[derive(Clone, Debug, Default)]
struct KindState {
    /// The round in which it was last listed completely.
    round: Option<u64>,
    /// Whether any part of any list was ever answered.
    answered: bool,
    /// Why it cannot be watched: an error came, and since then no event.
    failure: Option<String>,
    /// When the newest list began.
    list_began: Began,
    /// When the last complete list began.
    complete: Began,
    /// When its watch broke last.
    broke: u64,
    /// A list of another kind that begins after this moment shows all that belongs to what is known of this kind. It is the end of the own
    /// list when that followed a broken watch, and the moment at which the round was asked for when all kinds were listed in it. It is
    /// greater than all numbers until a list that follows a broken watch is complete.
    known_from: u64,
}

impl KindState {
    /// Whether a list is asked for and not complete. The watch before it has ended.
    fn comes_in(&self) -> bool {
        self.list_began.0 > self.complete.0
    }

    /// Whether a complete list began after this moment, and the watch has not broken since.
    fn is_listed_after(&self, moment: u64) -> bool {
        self.complete.0 > moment.max(self.broke)
    }
}

impl ListsState {
    fn of(&self, kind: &str) -> KindState {
        self.kinds.get(kind).cloned().unwrap_or_default()
    }

    /// The number of this moment: a list that begins later has a greater one.
    fn now(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether this is so of all kinds but the `unread` ones.
    fn all_but(&self, unread: &[&'static str], is_so: impl Fn(&KindState) -> bool) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.all(|(kind, state)| unread.contains(kind) || is_so(state))
    }

    /// Whether all kinds but the `unread` ones were listed in this round or a later one.
    fn are_listed_since(&self, unread: &[&'static str], round: u64) -> bool {
        self.all_but(unread, |kind| kind.round >= Some(round))
    }
}

impl Lists {
    /// For these kinds, by their plural names. A test of the tests sets `lists_anew` to false: then nothing is listed again when that
    /// is asked for.
    pub fn new(kinds: &[&'static str], lists_anew: bool) -> Self {
        Self::recorded_by(kinds, lists_anew, WatchAnswers::default())
    }

    /// The same; `answers` is where the connection of the watches records what the API server has accepted.
    pub fn recorded_by(kinds: &[&'static str], lists_anew: bool, answers: WatchAnswers) -> Self {
        let inner = Arc::new(ListsInner {
            state: RwLock::new(ListsState {
                kinds: kinds.iter().map(|kind| (*kind, KindState::default())).collect(),
                ..ListsState::default()
            }),
            progress: Notify::new(),
            rounds: watch::Sender::default(),
            answers,
            lists_anew,
        });
        Self { inner, unread: &[] }
    }

    /// The same lists, for who reads nothing of the `unread` kinds: nobody waits for these, and nothing is in doubt for want of their lists.
    #[must_use]
    pub fn without(&self, unread: &'static [&'static str]) -> Self {
        let inner = self.inner.clone();
        Self { inner, unread }
    }

    /// Resolves when all kinds were listed. Before that a missing object means nothing.
    pub async fn wait_synced(&self) {
        self.wait_until(|state| state.are_listed_since(self.unread, 0)).await;
    }

    /// Whether all kinds were listed.
    pub fn is_synced(&self) -> bool {
        self.inner.state.read().are_listed_since(self.unread, 0)
    }

    /// Resolves when the first parts of all lists came in: the API server answers, and permits the lists.
    pub async fn wait_answered(&self) {
        self.wait_until(|state| state.all_but(self.unread, |kind| kind.answered))
            .await;
    }

    async fn wait_until(&self, is_so: impl Fn(&ListsState) -> bool) {
        wait_until(&self.inner.progress, move || is_so(&self.inner.state.read())).await;
    }

    /// Lists everything anew; resolves when that is done.
    ///
    /// For a replica that takes over from another one. Each of its watches may be behind by any time: it may
    /// see that a PersistentVolume is being deleted, and not the VolumeAttachment for which the other replica has attached
    /// it. A list that begins now is at least as new as everything that the other replica did.
    pub async fn relist(&self) {
        if !self.inner.lists_anew {
            return self.wait_synced().await;
        }
        let round = self.ask(&mut self.inner.state.write(), Instant::now());
        self.wait_until(|state| state.are_listed_since(self.unread, round))
            .await;
    }

    /// As [`Lists::relist`]; resolves as well when the API server forbids one of the lists.
    pub async fn relist_permitted(self) {
        let is_forbidden = self.wait_until(|state| {
            let mut failures = state.kinds.values().filter_map(|kind| kind.failure.as_deref());
            failures.any(is_missing_rule)
        });
        tokio::select! {
            biased;
            () = self.relist() => {}
            () = is_forbidden => {}
        }
    }

    /// Asks for a round of lists of all kinds, and answers its number. It begins [`ROUND_DELAY`] after `from`, or together with a
    /// round that was asked for before.
    fn ask(&self, state: &mut ListsState, from: Instant) -> u64 {
        let wanted = from + ROUND_DELAY;
        let pending = state.round_due.filter(|due| *due > Instant::now());
        state.round_due = Some(pending.map_or(wanted, |due| due.min(wanted)));
        state.asked = state.now();
        self.inner.rounds.send_modify(|rounds| *rounds += 1);
        self.round()
    }

    /// Asks for fresh lists, because something shows that the cache may differ from what the API server has. Doubts within
    /// [`DOUBT_INTERVAL`] count once: wrong answers must not cause lists without end.
    pub fn doubt(&self, why: &str) {
        let now = Instant::now();
        let mut state = self.inner.state.write();
        if state.doubts.try_count(now).is_err() {
            return;
        }
        self.ask(&mut state, now);
        drop(state);
        tracing::warn!(
            why,
            "listing everything again, as the cache may not be what the API server has"
        );
    }

    /// The API server answered with an older copy of an object than it had shown before, as it does after it was restored from a backup.
    /// Such an answer proves nothing, and neither does what is known.
    pub fn older_answer(&self) -> ApiError {
        self.doubt("the API server answered with an older copy of an object than it had shown before");
        ApiError::garbled("the API server's answer is older than the object that the request was about")
    }

    /// As [`Self::doubt`], for a kind that has to be watched and is not. A list that comes in is enough: its watch follows.
    pub fn doubt_unwatched<K: WatchedKind>(&self, why: &str) {
        if !self.is_watched::<K>() && !self.inner.state.read().of(K::PLURAL).comes_in() {
            self.doubt(why);
        }
    }

    /// A list shows that the API server went back to an older state. The other kinds may still be as they were before, such as
    /// a PersistentVolume with a finalizer that it has lost: everything is listed again before anything is attached.
    ///
    /// A round that was asked for and has not begun is enough. Rounds that find the same again and again have pauses between them.
    pub fn distrust(&self) {
        let mut state = self.inner.state.write();
        if state.trusted_from > state.begun {
            return;
        }
        let now = Instant::now();
        let from = state.signs.next_free(now);
        state.signs.count(from);
        state.trusted_from = self.ask(&mut state, from);
        drop(state);
        tracing::warn!(
            begins_in_seconds = (from - now).as_secs_f64(),
            "the API server went back to an older state; listing everything again before anything is attached"
        );
    }

    /// Resolves when a list has shown that the API server went back.
    pub async fn distrusted(&self) {
        let mut rounds = self.inner.rounds.subscribe();
        while self.inner.state.read().trusted_from == 0 {
            // The sender lives as long as `self`.
            let _more = rounds.changed().await;
        }
    }

    /// Whether what the cache shows of the kinds is of one state of the API server, as far as can be seen.
    pub fn is_of_one_state(&self) -> bool {
        let state = self.inner.state.read();
        state.trusted_from == 0 || state.are_listed_since(self.unread, state.trusted_from)
    }

    /// Whether the last complete list of `others` shows all that belongs to what is known of `kind`. A watch may break because the API
    /// server went back to an older state. Then an object may exist again, together with others that belong to it, and the others are not
    /// known before their kind is listed as well.
    pub fn is_as_new(&self, others: &str, kind: &str) -> bool {
        let state = self.inner.state.read();
        state.of(kind).known_from <= state.of(others).complete.0
    }

    /// Whether the watch of a kind works: then what is known of the kind is only as old as the watch is slow.
    pub fn is_watched<K: WatchedKind>(&self) -> bool {
        let kind = self.inner.state.read().of(K::PLURAL);
        kind.failure.is_none() && !kind.comes_in() && self.inner.answers.stands(&K::url_path(&(), None))
    }

    /// The number of this moment, for [`Lists::listed_after`].
    pub fn now(&self) -> u64 {
        self.inner.state.write().now()
    }

    /// Resolves when a complete list of a kind began after this moment, and its watch has not broken since. False when that takes
    /// longer than `limit`.
    pub async fn listed_after(&self, kind: &str, moment: u64, limit: Duration) -> bool {
        let listed = self.wait_until(|state| state.of(kind).is_listed_after(moment));
        tokio::time::timeout(limit, listed).await.is_ok()
    }

    /// Whether a complete list of a kind began after this moment, and its watch has not broken since.
    pub fn is_listed_after(&self, kind: &str, moment: u64) -> bool {
        self.inner.state.read().of(kind).is_listed_after(moment)
    }

    /// Whether what is known of a kind is what the API server had at this moment, or newer: its watch works, or a list of it began after
    /// that, whether its watch has broken since or not.
    pub fn is_known_since<K: WatchedKind>(&self, moment: Option<u64>) -> bool {
        let is_listed = |moment| self.inner.state.read().of(K::PLURAL).complete.0 > moment;
        self.is_of_one_state() && (self.is_watched::<K>() || moment.is_some_and(is_listed))
    }

    /// Whether a complete list of a kind began after this moment, and lately. Its watch may have broken since: for kinds whose watch breaks
    /// each time, while lists work. For what may be a little old.
    pub fn is_listed_lately(&self, kind: &str, moment: u64) -> bool {
        let (number, began) = self.inner.state.read().of(kind).complete;
        number > moment && began.is_some_and(|began| began.elapsed() <= MAX_LIST_AGE)
    }

    /// Where the connection of the watches records which of them the API server has answered.
    pub fn answers(&self) -> WatchAnswers {
        self.inner.answers.clone()
    }

    /// The rounds that were asked for so far.
    pub fn round(&self) -> u64 {
        *self.inner.rounds.borrow()
    }

    /// The number of the newest round, for a reflector.
    pub(super) fn subscribe_rounds(&self) -> watch::Receiver<u64> {
        self.inner.rounds.subscribe()
    }

    /// Resolves when the round of lists begins that was asked for. A round that is asked for later never delays it: another
    /// kind, which is listed first, may find at once that one more round is needed.
    pub(super) async fn wait_round_due(&self, rounds: &mut watch::Receiver<u64>) {
        let due = || self.inner.state.read().round_due.unwrap_or_else(Instant::now);
        let mut begins = due();
        loop {
            tokio::select! {
                biased;
                () = sleep_until(begins) => return,
                // A later round may be due earlier. The sender lives as long as `self`.
                _more = rounds.changed() => begins = begins.min(due()),
            }
        }
    }

    /// Whether a kind was listed.
    pub(super) fn is_listed(&self, kind: &str) -> bool {
        self.inner.state.read().of(kind).round.is_some()
    }

    fn change(&self, kind: &str, change: impl FnOnce(&mut KindState)) {
        if let Some(kind) = self.inner.state.write().kinds.get_mut(kind) {
            change(kind);
        }
    }

    /// A list of a kind begins, in a round.
    pub(super) fn start_list(&self, kind: &str, round: u64) {
        let mut state = self.inner.state.write();
        state.begun = state.begun.max(round);
        let (now, asked) = (state.now(), state.asked);
        if let Some(kind) = state.kinds.get_mut(kind) {
            let follows_a_break = kind.round >= Some(round) || kind.broke > asked;
            kind.list_began = (now, Some(Instant::now()));
            kind.known_from = if follows_a_break { u64::MAX } else { asked };
        }
    }

    /// The first part of a list came in.
    pub(super) fn record_answer(&self, kind: &str) {
        self.change(kind, |kind| kind.answered = true);
        self.inner.progress.notify_waiters();
    }

    /// A list of a kind is complete, which began in a round.
    pub(super) fn finish_list(&self, kind: &str, round: u64) {
        let now = self.now();
        self.change(kind, |kind| {
            (kind.round, kind.complete) = (Some(round), kind.list_began);
            kind.known_from = kind.known_from.min(now);
            kind.failure = None;
        });
        self.inner.progress.notify_waiters();
    }

    /// The watch of a kind broke: it is not resumed.
    pub fn record_break(&self, kind: &str) {
        let now = self.now();
        self.change(kind, |kind| (kind.broke, kind.known_from) = (now, u64::MAX));
    }

    /// Sets why a kind cannot be watched; `None` when its watch works.
    pub fn set_failure(&self, kind: &str, failure: Option<String>) {
        self.change(kind, |kind| kind.failure = failure);
        self.inner.progress.notify_waiters();
    }

    /// Why objects cannot be listed or watched, if so.
    pub fn failure(&self) -> Option<String> {
        let state = self.inner.state.read();
        let failures: Vec<&str> = state
            .kinds
            .values()
            .filter_map(|kind| kind.failure.as_deref())
            .collect();
        (!failures.is_empty()).then(|| failures.join("; "))
    }
}
