//! The watches of a replica: each kind behind by a delay of its own, now and then broken and listed anew.

use fastrand::Rng;
use futures::Stream;
use futures::stream::unfold;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

use super::cluster::{Change, Kind};
use super::mutants::{Flaw, has_flaw};
use super::world::{State, World};
use crate::apiserver::WATCHES_DEAD_AFTER;
use crate::reflect::WatchedKind;

/// Breaks one watch of a replica when it changes.
pub type Breaker = watch::Receiver<[usize; 3]>;

/// After so long an impatient operator takes its connection for dead.
const IMPATIENCE: Duration = Duration::from_millis(1_500);
/// For how long a watch is down at most.
const LONGEST_BREAK: Duration = Duration::from_secs(3);
/// For how long an API server that was restored answers no list at most.
const LONGEST_START: Duration = Duration::from_millis(500);

struct WatchFeed<K> {
    world: World,
    kind: Kind,
    /// Its own: feeds that are woken at once are woken in any order.
    rng: Rng,
    breaker: Breaker,
    /// What was listed and is still to be told.
    told: VecDeque<watcher::Result<Event<K>>>,
    /// Whether a list was announced and is to be asked for. What it shows is later than everything that was known when it
    /// was announced.
    announced: bool,
    /// How many changes are behind us.
    at: usize,
    /// The greatest version that was told. A watch that is resumed tells of nothing below it.
    version: u64,
    /// How many restores of the API server are behind us.
    restores: usize,
    /// How often the watch was broken on purpose.
    breaks: usize,
}

/// The events of a kind, from a list on.
pub fn watch<K: WatchedKind>(
    world: &World,
    kind: Kind,
    breaker: Breaker,
    seed: u64,
) -> impl Stream<Item = watcher::Result<Event<K>>> + use<K> {
    let breaks = breaker.borrow()[kind as usize];
    let mut feed = WatchFeed {
        world: world.clone(),
        kind,
        rng: Rng::with_seed(seed),
        breaks,
        breaker,
        told: VecDeque::new(),
        announced: false,
        at: 0,
        version: 0,
        restores: world.with(|state| state.cluster.restores.len()),
    };
    feed.announce();
    unfold(feed, |mut feed| async move {
        let event = feed.next().await;
        Some((event, feed))
    })
}

impl<K: WatchedKind> WatchFeed<K> {
    fn announce(&mut self) {
        self.told.push_back(Ok(Event::Init));
        self.announced = true;
    }

    fn list(&mut self) {
        self.announced = false;
        let objects = self.world.with(|state| {
            state.lists += 1;
            self.at = state.cluster.changes.len();
            self.version = state.cluster.version();
            self.restores = state.cluster.restores.len();
            state.cluster.all(self.kind).cloned().collect::<Vec<Arc<Value>>>()
        });
        let objects = objects.iter().filter_map(|object| decode(object));
        self.told.extend(objects.map(|object| Ok(Event::InitApply(object))));
        self.told.push_back(Ok(Event::InitDone));
    }

    fn millis(&mut self, longest: Duration) -> Duration {
        let longest = u64::try_from(longest.as_millis()).unwrap_or(0);
        Duration::from_millis(self.rng.u64(0..=longest))
    }

    async fn next(&mut self) -> watcher::Result<Event<K>> {
        loop {
            let (longest, faults) = self.world.with(|state| (state.scenario.lag, state.watch_faults()));
            let lag = self.millis(longest);
            let broken = self.rng.u8(0..100) < faults;
            if !self.told.is_empty() {
                // A list comes in pages.
                if !pause(&self.world, self.restores, Instant::now() + lag / 4).await {
                    return Err(self.cut_off());
                }
                if let Some(event) = self.told.pop_front() {
                    return event;
                }
            }
            if self.announced {
                let restored = self.world.with(|state| state.cluster.restores.last().copied());
                if restored.is_some_and(|restored| restored.since.elapsed() < LONGEST_START) {
                    let start = self.millis(LONGEST_START);
                    tokio::time::sleep(start).await;
                }
                sleep_while_stalled(&self.world).await;
                self.list();
                continue;
            }
            let (number, before) = (self.kind as usize, self.breaks);
            let breaker = &mut self.breaker;
            let breaks = async {
                let found = breaker
                    .wait_for(|breaks| breaks[number] != before)
                    .await
                    .map(|breaks| breaks[number]);
                match found {
                    Ok(breaks) => breaks,
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                breaks = breaks => {
                    self.breaks = breaks;
                    return self.broken().await;
                }
                () = unanswered(&self.world) => return self.broken().await,
                change = change(&self.world, self.kind, self.at, self.version, self.restores) => {
                    let Some((at, change)) = change else {
                        return Err(self.cut_off());
                    };
                    if broken {
                        (self.at, self.version) = (at, change.version);
                        return self.broken().await;
                    }
                    if !pause(&self.world, self.restores, change.at + lag).await {
                        return Err(self.cut_off());
                    }
                    (self.at, self.version) = (at, change.version);
                    if let Some(object) = decode(&change.object) {
                        return Ok(if change.deleted { Event::Delete(object) } else { Event::Apply(object) });
                    }
                }
            }
        }
    }

    /// The API server has gone back. It was stopped for that, which has broken the watch before anything else is asked for. Who
    /// goes on with it nevertheless is where it was: in a future that has not come yet; unless revisions are greater now, when
    /// it has to list.
    fn cut_off(&mut self) -> watcher::Error {
        let restored = self.world.with(|state| {
            self.restores = state.cluster.restores.len();
            state.cluster.restores.last().copied()
        });
        self.world.note("watch", || format!("{:?} breaks", self.kind));
        let is_listing = self.announced || !self.told.is_empty();
        self.told.clear();
        match restored {
            Some(restored) if !restored.bumped && !is_listing => self.at = self.at.max(restored.at),
            _ => self.announce(),
        }
        watcher::Error::NoResourceVersion
    }

    /// The watch is down for a while; what happens meanwhile is seen in a list only.
    async fn broken(&mut self) -> watcher::Result<Event<K>> {
        let down = self.millis(LONGEST_BREAK);
        self.world.note("watch", || format!("{:?} breaks", self.kind));
        tokio::time::sleep(down).await;
        self.announce();
        Err(watcher::Error::NoResourceVersion)
    }
}

/// Waits, unless the API server goes back meanwhile. While it stands still it tells nothing.
async fn pause(world: &World, restores: usize, until: Instant) -> bool {
    let goes_back = |state: &mut State| (state.cluster.restores.len() != restores).then_some(());
    let told = async {
        tokio::time::sleep_until(until).await;
        sleep_while_stalled(world).await;
    };
    tokio::select! {
        biased;
        () = world.wait_for(goes_back) => false,
        () = told => true,
    }
}

async fn sleep_while_stalled(world: &World) {
    loop {
        let left = world.with(|state| state.stalled_for());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// Resolves when the API server has stood still for so long that a connection counts as dead.
async fn unanswered(world: &World) {
    let longest = if has_flaw(Flaw::Impatient) {
        IMPATIENCE
    } else {
        WATCHES_DEAD_AFTER
    };
    loop {
        world
            .wait_for(|state| (!state.stalled_for().is_zero()).then_some(()))
            .await;
        tokio::select! {
            biased;
            () = sleep_while_stalled(world) => {}
            () = tokio::time::sleep(longest) => return,
        }
    }
}

/// Waits for the next change of a kind above a version; none when the API server has gone back meanwhile.
async fn change(world: &World, kind: Kind, at: usize, version: u64, restores: usize) -> Option<(usize, Change)> {
    world
        .wait_for(|state| {
            if state.cluster.restores.len() != restores {
                return Some(None);
            }
            let mut unread = state.cluster.changes.iter().enumerate().skip(at);
            let found = unread.find(|(_, change)| change.kind == kind && change.version > version);
            found.map(|(index, change)| Some((index + 1, change.clone())))
        })
        .await
}

fn decode<K: WatchedKind>(object: &Value) -> Option<K> {
    K::deserialize(object).ok()
}
