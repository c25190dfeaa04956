//! The state of one mock driver, and the way of every call through script, delay, work and log.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use super::backend::Backend;
use super::calls::{CallGuard, CallLog, CallResult, Headers};
use super::facts::{Describe, MockFacts, deadline_ms};
use super::script::{Rule, Script, ScriptAction, ScriptedAnswer};
use super::settings::MockSettings;

/// What the mock driver is and has now.
pub(super) struct MockState {
    pub settings: MockSettings,
    pub backend: Backend,
    pub script: Script,
    /// What CreateVolume, which holds the lock, answers instead of what it made.
    pub answer: Option<ScriptedAnswer>,
    /// The calls that were released.
    pub released: BTreeSet<u64>,
}

/// The state that all connections and the handle share; it outlives a restart of the server.
pub(super) struct MockShared {
    state: Mutex<MockState>,
    pub calls: Arc<CallLog>,
    /// Counts changes of the state, so that nobody has to poll for one.
    changes: watch::Sender<u64>,
}

/// Closes the connection that a request came by; the server puts it into the request's extensions.
#[derive(Clone)]
pub(super) struct ConnectionCloser(pub CancellationToken);

/// The process that a request came from; the server puts it into the request's extensions.
#[derive(Clone, Copy)]
pub(super) struct CallerPid(pub u32);

impl MockShared {
    pub fn new(settings: MockSettings, calls: CallLog) -> Arc<Self> {
        let state = MockState {
            settings,
            backend: Backend::default(),
            script: Script::default(),
            answer: None,
            released: BTreeSet::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            calls: Arc::new(calls),
            changes: watch::Sender::new(0),
        })
    }

    /// Looks at the state.
    pub fn read<T>(&self, look: impl FnOnce(&MockState) -> T) -> T {
        look(&self.state.lock())
    }

    /// Changes the state and tells those who wait for a change.
    pub fn change<T>(&self, edit: impl FnOnce(&mut MockState) -> T) -> T {
        let result = edit(&mut self.state.lock());
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        result
    }

    /// Sees every change of the state from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Lets a call go on that waits to be released, now or later.
    pub fn release(&self, call: u64) {
        self.change(|state| state.released.insert(call));
    }

    /// Whoever gave the call up ends the wait.
    async fn until_released(&self, call: u64) {
        let mut changes = self.changes();
        // The sender lives as long as this.
        while !self.read(|state| state.released.contains(&call)) && changes.changed().await.is_ok() {}
    }

    /// The rule for a call, and how long it takes.
    fn plan(&self, call: &CallGuard, method: super::Method, facts: &MockFacts) -> (ScriptAction, Duration) {
        let mut state = self.state.lock();
        let rule = state.script.take(method, facts).unwrap_or_else(Rule::any);
        let usual = state.settings.delays.get(&method).copied().unwrap_or_default();
        let delay = rule.delay_ms.map_or(usual, Duration::from_millis);
        let refuse = call.overlap && state.settings.abort_overlapping;
        let action = match rule.action {
            ScriptAction::Pass if refuse => ScriptAction::Fail(super::ScriptedFailure {
                code: Code::Aborted,
                message: "an operation for this volume and node is running".to_owned(),
                echo_secrets: false,
                pad_bytes: 0,
            }),
            action => action,
        };
        (action, delay)
    }

    /// Whether this failure would say that a volume is not there that is, by a driver that does not do so.
    fn is_untrue(&self, method: super::Method, facts: &MockFacts, code: Code) -> bool {
        let says_nothing = matches!(
            code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted
        );
        let is_there = |name: &String| {
            let state = self.state.lock();
            state.settings.refuse_truly && state.backend.has_made(name)
        };
        method == super::Method::CreateVolume && !says_nothing && facts.volume.as_ref().is_some_and(is_there)
    }
}

fn headers<T>(request: &Request<T>) -> Headers {
    let text = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
    Headers {
        deadline_ms: deadline_ms(request.metadata()),
        traceparent: text("traceparent").map(str::to_owned),
        caller_pid: request.extensions().get::<CallerPid>().map(|caller| caller.0),
    }
}

/// Takes one call all its way. The work is done in one go after the delay, with the state locked.
///
/// Dropping the future (the caller gave up, the connection is gone) ends the call; only the work of a scripted late success goes on.
pub(super) async fn dispatch<Req, Resp>(
    shared: &Arc<MockShared>,
    request: Request<Req>,
    work: impl FnOnce(&mut MockState, Req) -> Result<Resp, Status> + Send + 'static,
) -> Result<Response<Resp>, Status>
where
    Req: Describe + Send + 'static,
    Resp: Send,
{
    let facts = request.get_ref().facts();
    let call = shared.calls.begin(Req::METHOD, &facts, headers(&request));
    let number = call.id;
    let (action, delay) = shared.plan(&call, Req::METHOD, &facts);
    if call.overlap {
        // A call that was given up and the one after it may arrive together, and the runtime may begin with the later one.
        tokio::task::yield_now().await;
    }
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if action == ScriptAction::UntilReleased {
        shared.until_released(number).await;
    }
    let closer = request.extensions().get::<ConnectionCloser>().cloned();
    let message = request.into_inner();
    let result = match action {
        ScriptAction::Fail(failure) if shared.is_untrue(Req::METHOD, &facts, failure.code) => {
            shared.change(|state| work(state, message))
        }
        ScriptAction::Pass | ScriptAction::UntilReleased => shared.change(|state| work(state, message)),
        ScriptAction::Answer(answer) => shared.change(|state| {
            state.answer = Some(answer);
            let answered = work(state, message);
            state.answer = None;
            answered
        }),
        ScriptAction::Fail(failure) => Err(failure.status(number, &facts.secrets)),
        ScriptAction::FailAfterWork(failure) => shared
            .change(|state| work(state, message))
            .and_then(|_| Err(failure.status(number, &facts.secrets))),
        ScriptAction::Hang => pending().await,
        ScriptAction::LateSuccess => return late(Arc::clone(shared), call, move |state| work(state, message)).await,
        ScriptAction::DropConnection => return close(call, closer).await,
        ScriptAction::DropConnectionAfterWork => {
            shared.change(|state| work(state, message))?;
            return close(call, closer).await;
        }
    };
    call.finish(
        CallResult::Answered,
        Some(result.as_ref().map_or_else(Status::code, |_| Code::Ok)),
    );
    result.map(Response::new)
}

/// Does the work when the caller is gone, which is when this future is dropped: before anything that comes after it.
async fn late<Resp>(
    shared: Arc<MockShared>,
    call: CallGuard,
    work: impl FnOnce(&mut MockState) -> Result<Resp, Status> + Send + 'static,
) -> Result<Response<Resp>, Status> {
    let _owed = Owed(Some(move || {
        let code = shared.change(work).err().map_or(Code::Ok, |status| status.code());
        call.finish(CallResult::Late, Some(code));
    }));
    pending().await
}

/// Work that is done when this is dropped.
struct Owed<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Owed<F> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// Closes the connection; the caller gets no answer.
async fn close<Resp>(call: CallGuard, closer: Option<ConnectionCloser>) -> Result<Response<Resp>, Status> {
    call.finish(CallResult::ConnectionDropped, None);
    match closer {
        Some(ConnectionCloser(token)) => {
            token.cancel();
            pending().await
        }
        // Only a call that came by no connection, as in a unit test of a service, gets here.
        None => Err(Status::unavailable("there is no connection to close")),
    }
}
