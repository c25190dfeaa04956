//! One watch for each kind, into what keeps it.

use futures::{Stream, StreamExt, stream};
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::lists::Lists;
use super::table::Origin;
use super::watch_backoff::{LISTS, WINDOW, breaks, patient};
use super::watch_error::explain;
use crate::health::CheckHandle;
use crate::kinds::WatchedKind;
use crate::objects::ResourceVersion;

/// Objects asked for at a time while listing; bounds the memory of a start.
const PAGE_SIZE: u32 = 500;

/// A watch that is resumed says nothing until an object changes, which may take days. But one that fails again says so
/// within its longest backoff, of 30 s, and the time of a request.
pub const RECOVERED: Duration = Duration::from_mins(1);

/// How often the version that the API server is at is compared with what is known.
pub const COMPARED_EVERY: Duration = Duration::from_secs(20);

/// The names that a list has shown.
pub type Seen = HashSet<Arc<str>>;

/// What the watch of a kind feeds.
pub trait Sink<K: WatchedKind>: Clone + Send + Sync + 'static {
    /// Which lists are complete, of this kind and of the others that the sink keeps.
    fn lists(&self) -> &Lists;

    /// A list begins.
    fn begins(&self);

    /// A copy of an object comes in, of the list that began or from the watch that follows it. Answers the name of the object.
    fn takes(&self, object: K, origin: Origin) -> Arc<str>;

    /// The list is complete: what is not `seen` is gone.
    fn completes(&self, seen: &Seen);

    /// The watch tells the end of an object. Its version counts as seen.
    fn loses(&self, name: &str, uid: &str, version: ResourceVersion);

    /// The greatest version that was seen since the last list began.
    fn newest(&self) -> ResourceVersion;

    /// Asked between two events: goes on with what earlier ones left to do, so that one event holds up nobody.
    fn goes_on(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// What does not work while the kind is not listed, for the log: "until then ...".
    fn meanwhile(&self) -> &'static str;
}

/// What does not work while a kind is listed and not watched.
const LATE: &str = "until then its changes are seen late or not at all";

/// The events of a kind, from a list on, and from another list whenever the watch fails.
///
/// A watch that broke is not resumed from where it was: the API server may have been restored from a backup meanwhile, and
/// what is older than the watch is never told by it. Nothing that is cheaper than a list proves the contrary. It counts as
/// broken too when its stream ends before its time (`kubernetes::connect`); one that ends in time is resumed, and so is one
/// that the API server asks to begin later (429).
pub fn from_lists<K, S>(watch: impl FnMut() -> S) -> impl Stream<Item = watcher::Result<watcher::Event<K>>>
where
    S: Stream<Item = watcher::Result<watcher::Event<K>>>,
{
    let lists = FromLists {
        watch,
        running: None,
        is_listed: false,
        begun: VecDeque::new(),
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
    /// Whether the list of what runs is complete.
    is_listed: bool,
    /// When watches broke lately.
    begun: VecDeque<Instant>,
}

impl<K, S, F> FromLists<F, S>
where
    S: Stream<Item = watcher::Result<watcher::Event<K>>>,
    F: FnMut() -> S,
{
    async fn next(&mut self) -> Option<watcher::Result<watcher::Event<K>>> {
        if self.running.is_none() && std::mem::take(&mut self.is_listed) {
            self.turn().await;
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

    /// Waits for the turn of a list: whoever cuts every watch off does not cause lists without end.
    async fn turn(&mut self) {
        if self.begun.len() >= LISTS
            && let Some(first) = self.begun.pop_front()
        {
            sleep_until(first + WINDOW).await;
        }
        self.begun.push_back(Instant::now());
    }
}

/// Keeps the cache in step with the API server until the future is dropped.
///
/// A watch that ends is resumed, one that breaks or expires is listed anew; errors are retried with backoff and shown on
/// `check`.
pub async fn reflect<K: WatchedKind, S: Sink<K>>(client: Client, sink: S, check: CheckHandle) {
    let api = Api::<K>::all(client);
    let watch = || watcher(api.clone(), watcher::Config::default().page_size(PAGE_SIZE));
    let events = || patient(from_lists(watch));
    tokio::select! {
        () = follow_from_list(events, sink.clone(), check) => {}
        never = compare_versions(&api, &sink) => match never {},
    }
}

/// Asks now and then for the version that the API server is at. It has never been behind what it told, unless it went back:
/// then a watch that did not break would tell nothing until the versions come to where they were.
async fn compare_versions<K: WatchedKind, S: Sink<K>>(api: &Api<K>, sink: &S) -> Infallible {
    loop {
        sleep(COMPARED_EVERY.mul_f64(1.0 + fastrand::f64() / 4.0)).await;
        let known = sink.newest();
        let one = ListParams::default().limit(1);
        if let Ok(list) = api.list(&one).await {
            compare(sink, known, list.metadata.resource_version.as_deref());
        }
    }
}

/// Takes in the version that a list had which was asked for when `known` was the greatest one.
pub fn compare<K: WatchedKind>(sink: &impl Sink<K>, known: ResourceVersion, version: Option<&str>) {
    let version = version.and_then(|version| version.parse().ok()).map(ResourceVersion);
    // When a list has begun since, the doubt is answered already.
    if version.is_some_and(|version| version < known) && sink.newest() >= known {
        let why = "the API server is at an older version than it had reported before";
        sink.lists().doubt(why);
    }
}

/// Follows what `watch` starts, and starts it again a moment after a fresh list is asked for ([`Lists::relist`]). A list that
/// is coming in is let end before: many drivers that are taken over at the same time would start it again and again. Only the list
/// of the start, for which nobody asked, is cut off: whoever takes a Lease meanwhile would wait for two lists.
pub async fn follow_from_list<K: WatchedKind, S: Stream<Item = watcher::Result<watcher::Event<K>>>>(
    mut watch: impl FnMut() -> S,
    sink: impl Sink<K>,
    check: CheckHandle,
) {
    let mut rounds = sink.lists().rounds();
    loop {
        let round = *rounds.borrow_and_update();
        let listing = watch::Sender::new(false);
        let mut listed = listing.subscribe();
        let wanted_anew = async {
            // The senders live in the sink, and here.
            let _more = rounds.changed().await;
            sink.lists().round_is_due(&mut rounds).await;
            if round > 0 {
                let _done = listed.wait_for(|listing| !listing).await;
            }
        };
        tokio::select! {
            biased;
            () = wanted_anew => {}
            () = follow(watch(), sink.clone(), check.clone(), round, &listing) => return,
        }
    }
}

/// Takes in the events of one watch and its list, which are made in a round, until they end. `coming_in` is told whether a list is.
pub async fn follow<K: WatchedKind>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    sink: impl Sink<K>,
    check: CheckHandle,
    round: u64,
    coming_in: &watch::Sender<bool>,
) {
    let mut events = pin!(events);
    let lists = sink.lists();
    let mut seen = Seen::new();
    let mut broken = false;
    let mut listing = false;
    let mut answered = false;
    loop {
        sink.goes_on().await;
        let patience = if broken { RECOVERED } else { Duration::MAX };
        let event = match timeout(patience, events.next()).await {
            Ok(None) => return,
            Ok(Some(Err(error))) => {
                coming_in.send_replace(false);
                lists.watches(K::PLURAL, false);
                if breaks(&error) {
                    lists.broke(K::PLURAL);
                }
                let meanwhile = if lists.is_listed(K::PLURAL) {
                    LATE
                } else {
                    sink.meanwhile()
                };
                let error = explain::<K>(&error, meanwhile);
                if !std::mem::replace(&mut broken, true) {
                    warn!(resource = K::PLURAL, error, "cannot watch; retrying with backoff");
                }
                let failure = format!("cannot watch {}: {error}", K::PLURAL);
                check.set_failing(failure.clone());
                lists.fails(K::PLURAL, Some(failure));
                continue;
            }
            Ok(Some(Ok(event))) => Some(event),
            // No word is a good sign only from a watch that is resumed, not from a list that does not come.
            Err(_) if listing || !lists.is_listed(K::PLURAL) => continue,
            Err(_) => None,
        };
        match event {
            Some(watcher::Event::Init) => listing = true,
            Some(watcher::Event::InitDone) => listing = false,
            _ => {}
        }
        let is_of_a_list = matches!(event, Some(watcher::Event::InitApply(_) | watcher::Event::InitDone));
        if is_of_a_list && !std::mem::replace(&mut answered, true) {
            lists.answered(K::PLURAL);
        }
        // That a list begins is told before it is asked for: nothing is mended before it is complete.
        if !listing && std::mem::take(&mut broken) {
            info!(resource = K::PLURAL, "watching again");
            lists.watches(K::PLURAL, true);
            lists.fails(K::PLURAL, None);
            check.set_ready(lists.is_listed(K::PLURAL));
        }
        if let Some(event) = event {
            take_in(event, &sink, &mut seen, &check, round);
        }
        coming_in.send_replace(listing && !broken);
    }
}

/// Takes in one event of a watch or a list, which is made in a round; `seen` are the names that the list has shown.
pub fn take_in<K: WatchedKind>(
    event: watcher::Event<K>,
    sink: &impl Sink<K>,
    seen: &mut Seen,
    check: &CheckHandle,
    round: u64,
) {
    match event {
        watcher::Event::Init => {
            seen.clear();
            sink.lists().begins(K::PLURAL, round);
            sink.begins();
        }
        watcher::Event::InitApply(object) => {
            seen.insert(sink.takes(object, Origin::List));
        }
        watcher::Event::InitDone => {
            sink.completes(seen);
            *seen = Seen::new();
            sink.lists().finished(K::PLURAL, round);
            check.set_ready(true);
        }
        watcher::Event::Apply(object) => {
            sink.takes(object, Origin::News);
        }
        watcher::Event::Delete(object) => {
            let meta = object.meta();
            let name = meta.name.as_deref().unwrap_or_default();
            let uid = meta.uid.as_deref().unwrap_or_default();
            sink.loses(name, uid, ResourceVersion::of(meta));
        }
    }
}
