//! The ready keys: who is next under the limits.
//!
//! Each lane keeps its groups in the order of their turns. A group that is at its limit is taken out of that order and comes
//! back with the turn it had, so finding the next key never walks over blocked ones. Of the lanes that may start something the one is next
//! that was served least recently: a lane that lacks a token, or a place of a group, keeps its turn while others start.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use tokio::time::Instant;

use super::item::{Group, Key, Lane};
use super::limits::{QueueLimits, TokenBucket};

/// The ready keys of all lanes and the counts of what runs.
#[derive(Debug)]
pub(super) struct Lanes<K> {
    all: Vec<ReadyLane<K>>,
    limits: QueueLimits,
    bucket: TokenBucket,
    starts: u64,
    next_place: u64,
    running: usize,
}

#[derive(Debug)]
struct ReadyLane<K> {
    groups: HashMap<Option<Group>, WaitingGroup<K>>,
    /// The groups that may run, by their turn.
    turns: BTreeMap<u64, Option<Group>>,
    next_turn: u64,
    depth: usize,
    running: usize,
    /// Runs of each group in this lane; groups without runs are not in it.
    busy: HashMap<Group, usize>,
    /// The number of the last key that was handed out of this lane; 0 before the first.
    served: u64,
    /// Work beside the keys that waits to be counted as a run.
    reserved: usize,
    /// When keys of this lane were last found ready while the limits let none of them run.
    refused: Option<Instant>,
}

/// The ready keys of one group in one lane, by their place. Never empty.
#[derive(Debug)]
struct WaitingGroup<K> {
    turn: u64,
    keys: BTreeMap<u64, K>,
}

impl<K: Key> Lanes<K> {
    pub(super) fn new(limits: QueueLimits, now: Instant) -> Self {
        let mut lanes = Self {
            all: Vec::new(),
            bucket: TokenBucket::new(limits.starts_per_second, now),
            limits: QueueLimits::default(),
            starts: 0,
            next_place: 0,
            running: 0,
        };
        lanes.set_limits(limits, now);
        lanes
    }

    pub(super) fn set_limits(&mut self, limits: QueueLimits, now: Instant) {
        self.bucket.set_rate(limits.starts_per_second, now);
        self.limits = limits;
        self.grow(self.limits.lanes.len().min(usize::from(u8::MAX) + 1));
        let turns_of = |(index, lane): (usize, &ReadyLane<K>)| {
            let groups = lane.groups.iter();
            let free = groups.filter(|(group, _)| !self.is_blocked(index, group.as_ref()));
            free.map(|(group, waiting)| (waiting.turn, group.clone())).collect()
        };
        let turns: Vec<BTreeMap<u64, Option<Group>>> = self.all.iter().enumerate().map(turns_of).collect();
        for (lane, turns) in self.all.iter_mut().zip(turns) {
            lane.turns = turns;
        }
    }

    /// Puts a key at the end of its group and returns its place there.
    pub(super) fn push(&mut self, key: K, lane: Lane, group: Option<&Group>) -> u64 {
        self.grow(lane.index() + 1);
        let place = self.next_place;
        self.next_place += 1;
        let blocked = self.is_blocked(lane.index(), group);
        let lane = &mut self.all[lane.index()];
        let group = group.cloned();
        let waiting = lane.groups.entry(group.clone()).or_insert_with(|| {
            let turn = lane.next_turn;
            lane.next_turn += 1;
            if !blocked {
                lane.turns.insert(turn, group);
            }
            WaitingGroup {
                turn,
                keys: BTreeMap::new(),
            }
        });
        waiting.keys.insert(place, key);
        lane.depth += 1;
        place
    }

    /// Takes a ready key out by the place that [`Self::push`] returned.
    pub(super) fn remove(&mut self, lane: Lane, group: Option<&Group>, place: u64) -> Option<K> {
        let lane = self.all.get_mut(lane.index())?;
        let group = group.cloned();
        let waiting = lane.groups.get_mut(&group)?;
        let key = waiting.keys.remove(&place)?;
        lane.depth -= 1;
        if waiting.keys.is_empty() {
            lane.turns.remove(&waiting.turn);
            lane.groups.remove(&group);
            shrink(&mut lane.groups);
        }
        Some(key)
    }

    /// Takes the next key that may run now and counts its run in its lane and group. An error is that nobody may under the limits, with
    /// the time of the next token when that is all that is missing.
    pub(super) fn pop(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        let token_at = self.bucket.wait_until(now);
        let is_full = self.is_full(|lane| lane.running + lane.reserved);
        let limit = |index: usize| self.limits.lanes.get(index).copied().unwrap_or_default();
        let has_place = |index: &usize| {
            let (lane, limit) = (&self.all[*index], limit(*index));
            let is_full = lane.is_full(limit.max_running, lane.reserved) || (limit.rate_limited && is_full);
            !lane.turns.is_empty() && !is_full
        };
        let with_place = || (0..self.all.len()).filter(has_place);
        let next = with_place()
            .filter(|index| token_at.is_none() || !limit(*index).rate_limited)
            .min_by_key(|index| self.all[*index].served);
        // All of those that have a place lack a token then.
        let lacks_token = next.is_none() && with_place().next().is_some();
        let takes_token = next.is_some_and(|index| limit(index).rate_limited);
        if let Some(index) = next
            && let Some((key, group)) = self.all[index].pop()
        {
            if takes_token {
                self.bucket.take(now);
            }
            self.starts += 1;
            self.all[index].served = self.starts;
            self.running += 1;
            self.start(index, group.as_ref());
            return Ok(key);
        }
        for lane in self.all.iter_mut().filter(|lane| lane.depth > 0) {
            lane.refused = Some(now);
        }
        Err(token_at.filter(|_| lacks_token))
    }

    fn counted(&self) -> impl Iterator<Item = &ReadyLane<K>> {
        let lanes = self.all.iter().zip(&self.limits.lanes);
        lanes.filter(|(_, limit)| limit.rate_limited).map(|(lane, _)| lane)
    }

    /// Whether the lanes that count together have all the runs that they may have, when these are counted.
    fn is_full(&self, counted_of: impl Fn(&ReadyLane<K>) -> usize) -> bool {
        let max_running = self.limits.max_running;
        max_running > 0 && self.counted().map(counted_of).sum::<usize>() >= max_running
    }

    /// Whether a group has all the runs that it may have in the lanes that count together.
    fn at_limit(&self, group: Option<&Group>) -> bool {
        let runs_of = |group: &Group| self.counted().filter_map(|lane| lane.busy.get(group)).sum::<usize>();
        self.limits.per_group > 0 && group.is_some_and(|group| runs_of(group) >= self.limits.per_group)
    }

    /// Whether the keys of a group in the lane of this index wait because the group has all the runs it may have.
    pub(super) fn is_blocked(&self, index: usize, group: Option<&Group>) -> bool {
        let limit = self.limits.lanes.get(index);
        limit.is_some_and(|limit| limit.rate_limited) && self.at_limit(group)
    }

    /// Keeps the next slot of a lane for work beside the keys.
    pub(super) fn reserve(&mut self, lane: Lane) {
        self.grow(lane.index() + 1);
        self.all[lane.index()].reserved += 1;
    }

    pub(super) fn unreserve(&mut self, lane: Lane) {
        if let Some(lane) = self.all.get_mut(lane.index()) {
            lane.reserved = lane.reserved.saturating_sub(1);
        }
    }

    /// Takes a slot that was reserved, if the limits allow one more run in the lane. No key is counted for it.
    pub(super) fn occupy(&mut self, lane: Lane) -> bool {
        let limit = self.limits.lane(lane);
        let is_full = limit.rate_limited && self.is_full(|lane| lane.running);
        let Some(lane) = self.all.get_mut(lane.index()) else {
            return true;
        };
        if is_full || lane.is_full(limit.max_running, 0) {
            return false;
        }
        lane.reserved = lane.reserved.saturating_sub(1);
        lane.running += 1;
        true
    }

    /// Gives a slot back that [`Self::occupy`] took.
    pub(super) fn vacate(&mut self, lane: Lane) {
        if let Some(lane) = self.all.get_mut(lane.index()) {
            lane.running = lane.running.saturating_sub(1);
        }
    }

    /// Whether a key of this lane that is ready since then was held back by a limit.
    pub(super) fn refused_since(&self, lane: Lane, since: Instant) -> bool {
        let refused = self.all.get(lane.index()).and_then(|lane| lane.refused);
        refused.is_some_and(|refused| refused >= since)
    }

    /// Corrects the token that a run of this lane took when it started to what it used. Returns whether a start may be
    /// possible earlier than before.
    pub(super) fn settle_rate(&mut self, lane: Lane, used: u32, now: Instant) -> bool {
        self.limits.lane(lane).rate_limited && self.bucket.settle(used, now)
    }

    /// Whether keys that could run otherwise wait for a token.
    pub(super) fn lacks_token(&self, now: Instant) -> bool {
        self.bucket.wait_until(now).is_some()
    }

    pub(super) fn release(&mut self, lane: Lane, group: Option<&Group>) {
        let was_blocked = self.at_limit(group);
        self.running = self.running.saturating_sub(1);
        let Some(lane) = self.all.get_mut(lane.index()) else {
            return;
        };
        lane.running = lane.running.saturating_sub(1);
        let Some(group) = group else { return };
        if let Some(runs) = lane.busy.get_mut(group) {
            *runs = runs.saturating_sub(1);
            if *runs == 0 {
                lane.busy.remove(group);
                shrink(&mut lane.busy);
            }
        }
        if was_blocked && !self.at_limit(Some(group)) {
            let group = Some(group.clone());
            for lane in &mut self.all {
                if let Some(waiting) = lane.groups.get(&group) {
                    lane.turns.insert(waiting.turn, group.clone());
                }
            }
        }
    }

    /// The number of ready keys of a lane.
    pub(super) fn depth(&self, lane: Lane) -> usize {
        self.all.get(lane.index()).map_or(0, |lane| lane.depth)
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// The number of lanes that were ever used or limited.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether no key and no group is remembered.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_idle = |lane: &ReadyLane<K>| lane.busy.is_empty() && lane.depth + lane.running + lane.reserved == 0;
        let is_empty = |lane: &ReadyLane<K>| lane.groups.is_empty() && lane.turns.is_empty();
        self.running == 0 && self.all.iter().all(|lane| is_idle(lane) && is_empty(lane))
    }

    /// Counts the run of a key of this group in the lane of this index.
    fn start(&mut self, index: usize, group: Option<&Group>) {
        let Some(name) = group else { return };
        *self.all[index].busy.entry(name.clone()).or_default() += 1;
        if self.at_limit(group) {
            let group = group.cloned();
            let lanes = self.all.iter_mut().zip(&self.limits.lanes);
            for (lane, _) in lanes.filter(|(_, limit)| limit.rate_limited) {
                if let Some(waiting) = lane.groups.get(&group) {
                    lane.turns.remove(&waiting.turn);
                }
            }
        }
    }

    fn grow(&mut self, count: usize) {
        if self.all.len() < count {
            self.all.resize_with(count, ReadyLane::new);
        }
    }
}

impl<K> ReadyLane<K> {
    fn new() -> Self {
        Self {
            groups: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            depth: 0,
            running: 0,
            busy: HashMap::new(),
            served: 0,
            reserved: 0,
            refused: None,
        }
    }

    /// Whether the lane has all the runs that it may have, with `more` that count as well.
    fn is_full(&self, max_running: usize, more: usize) -> bool {
        max_running > 0 && self.running + more >= max_running
    }

    /// Takes the first key of the group whose turn it is; the group goes to the end of the order.
    fn pop(&mut self) -> Option<(K, Option<Group>)> {
        let (_, group) = self.turns.pop_first()?;
        let waiting = self.groups.get_mut(&group)?;
        let (_, key) = waiting.keys.pop_first()?;
        self.depth -= 1;
        self.running += 1;
        if waiting.keys.is_empty() {
            self.groups.remove(&group);
            shrink(&mut self.groups);
        } else {
            waiting.turn = self.next_turn;
            self.next_turn += 1;
            self.turns.insert(waiting.turn, group.clone());
        }
        Some((key, group))
    }
}

/// Gives memory back after a burst: a map keeps its capacity otherwise. Amortised over the removals before it.
pub(super) fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    const KEEP: usize = 256;
    if map.capacity() > KEEP && map.len() < map.capacity() / 8 {
        map.shrink_to((map.len() * 2).max(KEEP / 2));
    }
}
