//! The driver as a replica calls it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csi_attacher_proto::v1;
use csi_attacher_proto::v1::controller_server::Controller;
use csi_mock_driver::deadline_ms;
use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status};

use super::backend::{Call, OpenCall, Pair};
use super::check;
use super::mutants::{Flaw, has_flaw};
use super::process::Process;
use super::scenario::Busy;
use super::world::{Owner, State, World};
use crate::cache::Store;

/// Volumes of a page of ListVolumes.
const PAGE: usize = 1;

/// A driver in the eyes of one process.
#[derive(Clone)]
pub struct ModelDriver {
    pub world: World,
    pub process: Process,
    pub store: Store,
    /// Its index.
    pub driver: usize,
    /// The place of the Lease under which it is called.
    pub place: usize,
    /// Calls that a wrong operator leaves out.
    pub omits: Option<fn(&State, Call, &Pair) -> bool>,
    /// What a wrong operator sends instead of a place.
    pub resends: Option<fn(&State, Call, &mut Pair)>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
enum CallFate {
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

fn fate(state: &mut State) -> CallFate {
    let percent = state.scenario.call_faults;
    let quick = state.millis(1..=400);
    if !state.fault(percent) {
        let slow = state.rng.u8(0..6) == 0 && state.scenario.slow.is_none();
        return CallFate::Fine(if slow { quick * 10 } else { quick });
    }
    let late = [None, Some(quick), Some(state.millis(1..=15_000))];
    let late = late[state.rng.usize(0..3)];
    match state.rng.u8(0..10) {
        0..=3 => CallFate::Fails(Code::from_i32(state.rng.i32(1..=16))),
        4..=5 => CallFate::DoneButFails(state.rng.choice(UNCERTAIN).unwrap_or(Code::Aborted)),
        6..=7 => CallFate::Lost(late),
        _ => CallFate::Silent(late),
    }
}

impl ModelDriver {
    async fn call<Q>(&self, call: Call, mut pair: Pair, request: &Request<Q>) -> Result<(), Status> {
        if self.process.is_over() || self.world.is_over() {
            return std::future::pending().await;
        }
        let omitted = |omits: fn(&State, Call, &Pair) -> bool| self.world.with(|state| omits(state, call, &pair));
        if self.omits.is_some_and(omitted) {
            return Ok(());
        }
        if let Some(resends) = self.resends {
            self.world.with(|state| resends(state, call, &mut pair));
        }
        let (fate, owners, able) = self.world.with(|state| {
            state.calls += 1;
            state.step();
            let fate = fate(state);
            let fine = matches!(fate, CallFate::Fine(_));
            state.journal.note(self.process.name(), || {
                let end = if fine { String::new() } else { format!(" [{fate:?}]") };
                format!("calls {call:?} of {pair}{end}")
            });
            let owners = check::called(state, self, call, &pair);
            (fate, owners, state.capable[pair.driver])
        });
        let open = Open {
            world: &self.world,
            process: self.process.number(),
            pair: &pair,
        };
        if !able {
            tokio::time::sleep(Duration::from_millis(5)).await;
            drop(open);
            return Err(error(Code::Unimplemented));
        }
        let deadline = Duration::from_millis(deadline_ms(request.metadata()).unwrap_or(u64::MAX));
        let answer = tokio::time::timeout(deadline, self.exchange(call, &pair, fate, owners)).await;
        drop(open);
        let answer = answer.unwrap_or(Err(Code::DeadlineExceeded));
        self.world.note(self.process.name(), || {
            format!("hears of {call:?} of {pair}: {answer:?}")
        });
        answer.map_err(error)
    }

    /// What is wrong with the contents of a request.
    fn examine(
        &self,
        call: Call,
        pair: &Pair,
        secrets: &BTreeMap<String, String>,
        request: Option<&v1::ControllerPublishVolumeRequest>,
    ) {
        if !(self.process.is_over() || self.world.is_over()) {
            let sent = Some(secrets).filter(|secrets| !secrets.is_empty() && !has_flaw(Flaw::Secretless));
            self.world
                .with(|state| check::contents(state, call, pair, sent, request));
        }
    }

    /// A page of where the volumes of the driver are.
    async fn page(&self, token: &str) -> Result<v1::ListVolumesResponse, Status> {
        let (fails, page) = self.world.with(|state| {
            let fails = state.fault(state.scenario.call_faults / 2);
            let disks = state.scenario.disks.iter().chain(&state.former_disks);
            let disks = disks.filter(|disk| disk.driver == self.driver);
            let handles: BTreeSet<&str> = disks.map(|disk| &*disk.handle).collect();
            let first: usize = token.parse().unwrap_or(0);
            let volumes = handles.iter().skip(first).take(PAGE).map(|handle| {
                let places = state.backend.published.keys();
                let here = places.filter(|pair| pair.driver == self.driver && pair.volume == *handle);
                listed_entry(handle, Some(here.map(|pair| pair.node.clone()).collect()))
            });
            let entries = volumes.collect();
            let next = first + PAGE;
            let more = (next < handles.len()).then(|| next.to_string());
            let next_token = more.unwrap_or_default();
            state.journal.note(self.process.name(), || {
                let end = if fails { " [fails]" } else { "" };
                format!("lists volumes from {first}{end}")
            });
            (fails, v1::ListVolumesResponse { entries, next_token })
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        if fails && has_flaw(Flaw::HalfListed) {
            return Ok(v1::ListVolumesResponse::default());
        }
        if fails {
            return Err(error(Code::Unavailable));
        }
        Ok(page)
    }

    async fn exchange(&self, call: Call, pair: &Pair, fate: CallFate, owners: BTreeSet<Owner>) -> Result<(), Code> {
        let at = match fate {
            CallFate::Fine(at) => Some(at),
            CallFate::DoneButFails(_) => Some(Duration::from_millis(20)),
            CallFate::Lost(at) | CallFate::Silent(at) => at,
            CallFate::Fails(code) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Err(code);
            }
        };
        let Some(at) = at else {
            return match fate {
                CallFate::Lost(_) => lost().await,
                _ => std::future::pending().await,
            };
        };
        let result = self.accept(call, pair, at, owners).await?;
        match fate {
            CallFate::Lost(_) => lost().await,
            CallFate::Silent(_) => std::future::pending().await,
            CallFate::DoneButFails(code) => {
                let result = result.await;
                // A driver that found that it cannot do it says so.
                Err(result.ok().and_then(Result::err).unwrap_or(code))
            }
            _ => match result.await {
                Ok(result) => result,
                Err(_) => Err(Code::Aborted),
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
    ) -> Result<oneshot::Receiver<Result<(), Code>>, Code> {
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
            return Err(Code::Aborted);
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
                let note = || format!("{call:?} of {pair}: {result:?}");
                state.journal.note("backend", note);
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

async fn lost() -> Result<(), Code> {
    tokio::time::sleep(Duration::from_millis(10)).await;
    Err(Code::Unavailable)
}

/// An entry of ListVolumes.
pub fn listed_entry(handle: &str, nodes: Option<Vec<String>>) -> v1::list_volumes_response::Entry {
    v1::list_volumes_response::Entry {
        volume: Some(v1::Volume {
            volume_id: handle.to_owned(),
            ..v1::Volume::default()
        }),
        status: nodes.map(|published_node_ids| v1::list_volumes_response::VolumeStatus {
            published_node_ids,
            ..Default::default()
        }),
    }
}

fn error(code: Code) -> Status {
    Status::new(code, "as the simulation wants it")
}

/// A call that a process waits for.
struct Open<'a> {
    world: &'a World,
    process: usize,
    pair: &'a Pair,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.world.with(|state| {
            let open = &mut state.backend.open;
            let ours = |call: &OpenCall| (call.process, &call.pair) == (self.process, self.pair);
            if let Some(at) = open.iter().position(ours) {
                open.swap_remove(at);
            }
        });
    }
}

#[tonic::async_trait]
impl Controller for ModelDriver {
    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        let message = request.get_ref();
        let pair = self.pair(&message.volume_id, &message.node_id);
        self.examine(Call::Publish, &pair, &message.secrets, Some(message));
        self.call(Call::Publish, pair.clone(), &request).await?;
        let publish_context = self.world.with(|state| {
            // Now and then with another key: what was answered before is not to stay.
            let mut context = BTreeMap::from([("device".to_owned(), pair.to_string())]);
            let number = state.calls;
            context.insert(format!("key{}", number % 2), number.to_string());
            state.backend.contexts.entry(pair).or_default().push(context.clone());
            context
        });
        Ok(Response::new(v1::ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        let message = request.get_ref();
        let pair = self.pair(&message.volume_id, &message.node_id);
        self.examine(Call::Unpublish, &pair, &message.secrets, None);
        self.call(Call::Unpublish, pair, &request).await?;
        Ok(Response::new(v1::ControllerUnpublishVolumeResponse::default()))
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        self.page(&request.get_ref().starting_token).await.map(Response::new)
    }
}

impl ModelDriver {
    fn pair(&self, volume: &str, node: &str) -> Pair {
        Pair {
            driver: self.driver,
            volume: volume.to_owned(),
            node: node.to_owned(),
        }
    }
}
