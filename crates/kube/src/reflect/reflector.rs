//! One watch for each kind, into what keeps it.

use futures::{Stream, StreamExt, stream};
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::sink::{CachedKind, Sink, Tables as _};
use super::table::Origin;
use super::watch_backoff::{FailedWatch, Restarts, breaks, with_backoff};
use super::watch_error::explain;
use crate::health::CheckHandle;
use crate::kinds::{CacheRecord as _, WatchedKind};
use crate::objects::ResourceVersion;

/// Objects asked for at a time while listing; bounds the memory of a start.
const PAGE_SIZE: u32 = 500;

/// How often the version that the API server is at is compared with what is known.
pub const COMPARE_INTERVAL: Duration = Duration::from_secs(20);

/// The names that a list has shown.
pub type ListedNames = HashSet<Arc<str>>;

/// What does not work while a kind is listed and not watched.
const LATE: &str = "until then its changes are seen late or not at all";

/// The events of a kind, from a list on, and from another list whenever the watch fails.
///
/// A watch that broke is not resumed from where it was: the API server may have been restored from a backup meanwhile, and
/// never reports what is older than the watch. Nothing that is cheaper than a list proves the contrary. A watch counts as
/// broken too when its stream breaks off or ends before its time (`apiserver::list_watch`). One that ends in time is resumed, and so is one
/// that the API server asks to begin later (429).
pub fn from_lists<K, S>(watch: impl FnMut() -> S) -> impl Stream<Item = watcher::Result<watcher::Event<K>>>
where
    S: Stream<Item = watcher::Result<watcher::Event<K>>>,
{
    let lists = FromLists {
        watch,
        running: None,
        is_listed: false,
        restarts: Restarts::default(),
    };
    stream::unfold(lists, |mut lists| async move {
        let event = lists.next().await?;
        Some((event, lists))
    })
}

/// A watch, and the list that follows when it breaks.
struct FromLists<F, S> {
    watch: F,
    running: Option<Pin<Box<S>>>,
    /// Whether the list of the running watch is complete.
    is_listed: bool,
    restarts: Restarts,
}

impl<K, S, F> FromLists<F, S>
where
    S: Stream<Item = watcher::Result<watcher::Event<K>>>,
    F: FnMut() -> S,
{
    async fn next(&mut self) -> Option<watcher::Result<watcher::Event<K>>> {
        if self.running.is_none() && std::mem::take(&mut self.is_listed) {
            // Whoever breaks every watch must not cause lists without end.
            while let Err(later) = self.restarts.try_count(Instant::now()) {
                sleep_until(later).await;
            }
        }
        let running = self.running.get_or_insert_with(|| Box::pin((self.watch)()));
        let event = running.next().await?;
        match &event {
            Ok(watcher::Event::InitDone) => self.is_listed = true,
            Err(error) if breaks(error) => self.running = None,
            Err(_) | Ok(_) => {}
        }
        Some(event)
    }
}

/// Keeps the cache in step with the API server until the future is dropped. Errors are retried with backoff and shown on `check`.
pub async fn reflect<K, S: Sink>(client: Client, sink: S, check: CheckHandle)
where
    K: WatchedKind<Record: CachedKind<S::Tables>>,
{
    let api = Api::<K>::all(client);
    let watch = || watcher(api.clone(), watcher::Config::default().page_size(PAGE_SIZE));
    let events = || with_backoff(from_lists(watch));
    tokio::select! {
        () = follow_from_list(events, sink.clone(), check) => {}
        never = compare_versions(&api, &sink) => match never {},
    }
}

/// Asks now and then for the version that the API server is at. The API server is behind what it reported before only when it went back to
/// an older state: then a watch that did not break reports nothing until the versions reach what they were. An error says nothing: a list in
/// place of a watch that works would fail as well. Where one API server of several refuses, the connection to it is left soon (`apiserver::connection`).
async fn compare_versions<K, S: Sink>(api: &Api<K>, sink: &S) -> Infallible
where
    K: WatchedKind<Record: CachedKind<S::Tables>>,
{
    loop {
        sleep(COMPARE_INTERVAL.mul_f64(1.0 + fastrand::f64() / 4.0)).await;
        let known = sink.newest::<K::Record>();
        let one = ListParams::default().limit(1);
        if let Ok(list) = api.list(&one).await {
            compare::<K, S>(sink, known, list.metadata.resource_version.as_deref());
        }
    }
}

/// Compares the version of a list with `known`, the greatest version when that list was asked for. From then on it is known as well: of a kind
/// that does not change only bookmarks tell the watch where the API server is, and kube does not pass them on.
pub fn compare<K, S: Sink>(sink: &S, known: ResourceVersion, version: Option<&str>)
where
    K: WatchedKind<Record: CachedKind<S::Tables>>,
{
    let version = version.and_then(|version| version.parse().ok()).map(ResourceVersion);
    // A list that has begun since settles the doubt.
    let Some(version) = version.filter(|_| sink.newest::<K::Record>() >= known) else {
        return;
    };
    if version < known {
        let why = "the API server is at an older version than it had reported before";
        sink.lists().doubt(why);
    } else {
        let mut tables = sink.tables().write();
        K::Record::table_mut(&mut tables).count_version(version, Origin::Answer);
    }
}

/// Follows what `watch` starts, and starts it again a moment after a fresh list is asked for ([`Lists::relist`](super::Lists::relist)). A list that
/// is coming in ends before that: many drivers that are taken over at the same time would start it again and again. Only the list
/// of the start, for which nobody asked, is cut off: whoever takes a Lease meanwhile would wait for two lists.
pub async fn follow_from_list<K, W, S: Sink>(mut watch: impl FnMut() -> W, sink: S, check: CheckHandle)
where
    K: WatchedKind<Record: CachedKind<S::Tables>>,
    W: Stream<Item = watcher::Result<watcher::Event<K>>>,
{
    let mut rounds = sink.lists().subscribe_rounds();
    loop {
        let round = *rounds.borrow_and_update();
        let listing = watch::Sender::new(false);
        let mut listed = listing.subscribe();
        let next_round = async {
            // The senders live in the sink, and here.
            let _more = rounds.changed().await;
            sink.lists().wait_round_due(&mut rounds).await;
            if round > 0 {
                let _done = listed.wait_for(|listing| !listing).await;
            }
        };
        tokio::select! {
            biased;
            () = next_round => {}
            () = follow(watch(), sink.clone(), check.clone(), round, &listing) => return,
        }
    }
}

/// Applies the events of one watch and its list, which are made in a round, until they end. `coming_in` says whether a list comes in.
pub async fn follow<K, S: Sink>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    sink: S,
    check: CheckHandle,
    round: u64,
    coming_in: &watch::Sender<bool>,
) where
    K: WatchedKind<Record: CachedKind<S::Tables>>,
{
    let mut events = pin!(events);
    let (lists, answers) = (sink.lists(), sink.lists().answers());
    let mut seen = ListedNames::new();
    let (mut failed, mut listing, mut answered) = (None::<FailedWatch>, false, false);
    loop {
        sink.work_off_backlog().await;
        let recovered = async {
            match &failed {
                // Silence is a good sign only from a watch that is resumed, not from a list that does not come.
                Some(failed) if !listing && lists.is_listed(K::PLURAL) => failed.recovered::<K>(&answers).await,
                _ => pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            // Its requests are sent only while it is waited for.
            event = events.next() => match event {
                None => return,
                Some(Err(error)) => {
                    coming_in.send_replace(false);
                    let was_broken = failed.replace(FailedWatch::new(&error)).is_some();
                    record_error::<K, S>(&sink, &check, &error, was_broken);
                    continue;
                }
                Some(Ok(event)) => Some(event),
            },
            () = recovered => None,
        };
        match event {
            Some(watcher::Event::Init) => listing = true,
            Some(watcher::Event::InitDone) => listing = false,
            _ => {}
        }
        let is_of_a_list = matches!(event, Some(watcher::Event::InitApply(_) | watcher::Event::InitDone));
        if is_of_a_list && !std::mem::replace(&mut answered, true) {
            lists.record_answer(K::PLURAL);
        }
        // The watcher announces a list before it asks for it: nothing works again before the list is complete.
        if !listing && failed.take().is_some() {
            info!(resource = K::PLURAL, "watching again");
            lists.set_failure(K::PLURAL, None);
            check.set_ready(lists.is_listed(K::PLURAL));
        }
        if let Some(event) = event {
            apply(event, &sink, &mut seen, &check, round);
        }
        coming_in.send_replace(listing && failed.is_none());
    }
}

/// Records an error of a watch in the lists, on the check, and once in the log.
fn record_error<K: WatchedKind, S: Sink>(sink: &S, check: &CheckHandle, error: &watcher::Error, was_broken: bool) {
    let lists = sink.lists();
    if breaks(error) {
        lists.record_break(K::PLURAL);
    }
    let consequence = if lists.is_listed(K::PLURAL) && lists.is_of_one_state() {
        LATE
    } else {
        S::CONSEQUENCE
    };
    let error = explain::<K>(error, consequence);
    if !was_broken {
        warn!(resource = K::PLURAL, error, "cannot watch; retrying with backoff");
    }
    let failure = format!("cannot watch {}: {error}", K::PLURAL);
    check.set_failing(failure.clone());
    lists.set_failure(K::PLURAL, Some(failure));
}

/// Applies one event of a watch or a list, which is made in a round; `seen` are the names that the list has shown.
pub fn apply<K, S: Sink>(event: watcher::Event<K>, sink: &S, seen: &mut ListedNames, check: &CheckHandle, round: u64)
where
    K: WatchedKind<Record: CachedKind<S::Tables>>,
{
    match event {
        watcher::Event::Init => {
            seen.clear();
            sink.lists().start_list(K::PLURAL, round);
            sink.tables().write().start_list::<K::Record>();
        }
        watcher::Event::InitApply(object) => {
            let record = K::Record::from(object);
            seen.insert(record.name().clone());
            sink.take_copy(record, Origin::List);
        }
        watcher::Event::InitDone => {
            let version = sink.lists().answers().list_version(&K::url_path(&(), None));
            sink.finish_list::<K::Record>(seen, version);
            *seen = ListedNames::new();
            sink.lists().finish_list(K::PLURAL, round);
            check.set_ready(true);
        }
        watcher::Event::Apply(object) => sink.take_copy(K::Record::from(object), Origin::Watch),
        watcher::Event::Delete(object) => sink.take_deletion(&K::Record::from(object)),
    }
}
