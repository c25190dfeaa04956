//! The driver as a replica calls it.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::Code;

use super::backend::{Call, Pair};
use super::check;
use super::replica::Life;
use super::scenario::Busy;
use super::world::{Owner, State, World};
use crate::csi::CallError;
use crate::decide::{Place, PublishRequest};
use crate::driver::calls::Calls;
use crate::kubernetes::SecretData;
use crate::objects::StringMap;
use crate::store::Store;
use crate::telemetry::Span;

/// The driver in the eyes of one replica.
pub struct ModelDriver {
    pub world: World,
    pub life: Life,
    pub store: Store,
    /// Calls that a wrong operator leaves out.
    pub omits: Option<fn(&State, Call, &Pair) -> bool>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Fine(Duration),
    /// Nothing is done, and this is answered.
    Fails(Code),
    /// It is done, and yet this is answered.
    DoneButFails(Code),
    /// The connection breaks; the call may still be carried out.
    Lost(Option<Duration>),
    /// No answer comes in time; the call may still be carried out.
    Silent(Option<Duration>),
}

/// Codes that say nothing of whether the call was or will be carried out. All others mean that it was not.
const UNCERTAIN: [Code; 5] = [
    Code::Cancelled,
    Code::DeadlineExceeded,
    Code::Unavailable,
    Code::ResourceExhausted,
    Code::Aborted,
];

fn fate(state: &mut State) -> Fate {
    let percent = state.scenario.call_faults;
    let quick = state.millis(1..=400);
    if !state.fault(percent) {
        let slow = state.rng.u8(0..6) == 0;
        return Fate::Fine(if slow { quick * 10 } else { quick });
    }
    let late = [None, Some(quick), Some(state.millis(1..=15_000))];
    let late = late[state.rng.usize(0..3)];
    match state.rng.u8(0..10) {
        0..=3 => Fate::Fails(Code::from_i32(state.rng.i32(1..=16))),
        4..=5 => Fate::DoneButFails(state.rng.choice(UNCERTAIN).unwrap_or(Code::Aborted)),
        6..=7 => Fate::Lost(late),
        _ => Fate::Silent(late),
    }
}

impl ModelDriver {
    async fn call(&self, call: Call, pair: Pair, deadline: Duration) -> Result<(), CallError> {
        if self.life.is_over() || self.world.is_over() {
            return std::future::pending().await;
        }
        if self
            .omits
            .is_some_and(|omits| self.world.with(|state| omits(state, call, &pair)))
        {
            return Ok(());
        }
        let (fate, owners) = self.world.with(|state| {
            state.calls += 1;
            state.step();
            let fate = fate(state);
            let fine = matches!(fate, Fate::Fine(_));
            state.journal.note(self.life.name(), || {
                let end = if fine { String::new() } else { format!(" [{fate:?}]") };
                format!("calls {call:?} of {pair}{end}")
            });
            (fate, check::called(state, &self.store, self.life.number, call, &pair))
        });
        let open = Open {
            world: &self.world,
            entry: (self.life.number, pair.clone()),
        };
        let answer = tokio::time::timeout(deadline, self.exchange(call, &pair, fate, owners)).await;
        drop(open);
        let answer = answer.unwrap_or(Err((Code::DeadlineExceeded, false)));
        self.world
            .note(self.life.name(), || format!("hears of {call:?} of {pair}: {answer:?}"));
        answer.map_err(|(code, transport)| CallError {
            code,
            message: "as the simulation wants it".to_owned(),
            transport,
        })
    }

    async fn exchange(&self, call: Call, pair: &Pair, fate: Fate, owners: BTreeSet<Owner>) -> Result<(), (Code, bool)> {
        let at = match fate {
            Fate::Fine(at) => Some(at),
            Fate::DoneButFails(_) => Some(Duration::from_millis(20)),
            Fate::Lost(at) | Fate::Silent(at) => at,
            Fate::Fails(code) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Err((code, false));
            }
        };
        let Some(at) = at else {
            return match fate {
                Fate::Lost(_) => lost().await,
                _ => std::future::pending().await,
            };
        };
        let result = self.accept(call, pair, at, owners).await?;
        match fate {
            Fate::Lost(_) => lost().await,
            Fate::Silent(_) => std::future::pending().await,
            Fate::DoneButFails(code) => {
                let result = result.await;
                // A driver that found that it cannot do it says so.
                Err(result
                    .ok()
                    .and_then(Result::err)
                    .map_or((code, false), |code| (code, false)))
            }
            _ => match result.await {
                Ok(result) => result.map_err(|code| (code, false)),
                Err(_) => Err((Code::Aborted, false)),
            },
        }
    }

    /// Hands an operation to the backend, which carries it out after a time, whoever still listens.
    async fn accept(
        &self,
        call: Call,
        pair: &Pair,
        at: Duration,
        owners: BTreeSet<Owner>,
    ) -> Result<oneshot::Receiver<Result<(), Code>>, (Code, bool)> {
        let accepted = self.world.wait_for(|state| match state.backend.busy {
            _ if !state.backend.under_way.contains_key(pair) => Some(true),
            Busy::Supersedes => {
                state.backend.supersede(pair);
                Some(true)
            }
            Busy::Aborts => Some(false),
            Busy::Waits => None,
        });
        if !accepted.await {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Err((Code::Aborted, false));
        }
        let id = self.world.with(|state| state.backend.accept(pair, call, owners));
        let (sender, receiver) = oneshot::channel();
        let (world, pair) = (self.world.clone(), pair.clone());
        tokio::spawn(async move {
            tokio::time::sleep(at).await;
            let result = world.with(|state| {
                let result = state.backend.carry_out(&pair, id);
                if (call, &result) == (Call::Unpublish, &Some(Ok(()))) {
                    // Taken back it is; what is published there from now on is another story.
                    state.must_undo.remove(&pair);
                }
                state
                    .journal
                    .note("backend", || format!("{call:?} of {pair}: {result:?}"));
                result
            });
            if let Some(result) = result {
                // Nobody may be left to hear it.
                sender.send(result).ok();
            }
        });
        Ok(receiver)
    }
}

async fn lost() -> Result<(), (Code, bool)> {
    tokio::time::sleep(Duration::from_millis(10)).await;
    Err((Code::Unavailable, true))
}

/// A call that a replica waits for.
struct Open<'a> {
    world: &'a World,
    entry: (usize, Pair),
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.world.with(|state| {
            let open = &mut state.backend.open;
            if let Some(at) = open.iter().position(|entry| *entry == self.entry) {
                open.swap_remove(at);
            }
        });
    }
}

impl Calls for ModelDriver {
    fn publish<'a>(
        &'a self,
        plan: &'a PublishRequest<'_>,
        _secrets: Option<&'a SecretData>,
        deadline: Duration,
        _parent: &'a Span,
    ) -> BoxFuture<'a, Result<StringMap, CallError>> {
        let pair = pair(plan.volume_id, plan.node_id);
        let context = BTreeMap::from([("device".to_owned(), pair.volume.clone())]);
        Box::pin(async move {
            self.call(Call::Publish, pair, deadline).await?;
            Ok(StringMap::from(context))
        })
    }

    fn unpublish<'a>(
        &'a self,
        place: Place<'a>,
        _secrets: Option<&'a SecretData>,
        deadline: Duration,
        _parent: &'a Span,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        let pair = pair(place.volume_id, place.node_id);
        Box::pin(self.call(Call::Unpublish, pair, deadline))
    }
}

fn pair(volume: &str, node: &str) -> Pair {
    Pair {
        volume: volume.to_owned(),
        node: node.to_owned(),
    }
}
