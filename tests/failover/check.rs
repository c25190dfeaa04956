//! What the driver's record of calls says about the replicas. Pure.

use std::collections::{HashMap, HashSet};

use csi_mock_driver::{CallRecord, Method};
use jiff::Timestamp;

pub struct Found {
    pub calls: usize,
    pub replicas: usize,
    /// Pairs of calls by different replicas for the same volume and node, of which the second began before the first had
    /// ended, in words.
    pub overlaps: Vec<String>,
    /// Calls without a process behind them, which would make all of this worthless.
    pub unknown: usize,
}

/// Whether it attaches or detaches.
pub fn moves(call: &CallRecord) -> bool {
    [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume].contains(&call.method)
}

/// The calls that attach or detach a volume, in the order of their arrival.
pub fn calls_at<'a>(calls: &'a [CallRecord], (volume, node): &(String, String)) -> Vec<&'a CallRecord> {
    let of_place = |call: &&CallRecord| call.volume.as_ref() == Some(volume) && call.node.as_ref() == Some(node);
    calls.iter().filter(|call| moves(call)).filter(of_place).collect()
}

/// Looks at all calls, in the order of their arrival. `killed` are the processes of replicas that were killed, and when:
/// they are in no call after that, whenever the driver hears of it.
pub fn look(calls: &[CallRecord], killed: &HashMap<u32, Timestamp>) -> Found {
    let end = |call: &CallRecord| {
        let finished = call.finished.unwrap_or(Timestamp::MAX);
        let caller = call.caller_pid.and_then(|pid| killed.get(&pid));
        caller.map_or(finished, |killed| finished.min(*killed))
    };
    let calls: Vec<&CallRecord> = calls.iter().filter(|call| moves(call)).collect();
    let mut overlaps = Vec::new();
    let mut places: HashMap<_, Vec<&CallRecord>> = HashMap::new();
    for call in &calls {
        let earlier = places.entry((&call.volume, &call.node)).or_default();
        for other in earlier.iter().filter(|other| other.caller_pid != call.caller_pid) {
            if end(other) > call.started && end(call) > other.started {
                overlaps.push(format!("{other:?} and {call:?}"));
            }
        }
        earlier.push(call);
    }
    let callers: Vec<u32> = calls.iter().filter_map(|call| call.caller_pid).collect();
    Found {
        calls: calls.len(),
        replicas: callers.iter().collect::<HashSet<_>>().len(),
        overlaps,
        unknown: calls.len() - callers.len(),
    }
}
